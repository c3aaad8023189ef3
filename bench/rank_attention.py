#!/usr/bin/env python3
"""Ranks our attention backends on this machine, cell by cell. AUTO's order is
based on it (attention_backends/auto_order.cc).

usage: rank_attention.py --ours="DIR/run attention_bench --serve"
           [--backends=FLASH_CUDA,TORCH_CUDNN,...] [--head_dims=64,128,256]
           [--lengths=128,512,2048,8192] [--masks=causal,full]
           [--precisions=FP32,BF16] [--tokens=16384] [--width=2048]
           [--batch=N] [--heads=N] [--rounds=1] [--time_limit_s=540]
           [--out=table.md] [--raw=raw.jsonl]

A cell has --tokens / length sequences and --width / head_dim heads, or the
--batch and --heads given. The table has the backends from the fastest to the
slowest by forward + backward, in milliseconds; a backend that refuses a cell is
not in its row.
"""

import statistics

from compare import (Deadline, Served, header, medians, of_side, row, run_grid,
                     start_servers, stop_servers)
from compare_attention import attention_parser, make_cells, write_results

BACKENDS = ["FLASH_CUDA", "TORCH_CUDNN", "TORCH_FLASH", "TORCH_EFFICIENT",
            "COMPILED_FUSED", "NAIVE"]


def ranking(records, backends):
    """[(milliseconds, backend)], the fastest first."""
    times = []
    for backend in backends:
        mine = of_side(records, backend)
        both = [f + b for f, b in zip(medians(mine, "forward_ms"),
                                      medians(mine, "backward_ms"))]
        if both:
            times.append((statistics.median(both), backend))
    return sorted(times)


def table(results, backends):
    yield from header(["precision", "head dim", "length", "mask", "fastest",
                       "then"])
    for cell, records in results:
        words = [f"{name} {ms:.3f}" for ms, name in ranking(records, backends)]
        yield row([cell["precision"], cell["head_dim"], cell["length"],
                   cell["mask"], words[0] if words else "none",
                   ", ".join(words[1:])])


def parse_arguments():
    parser = attention_parser(__doc__, BACKENDS, rounds=1)
    parser.set_defaults(head_dims=[64, 128, 256],
                        lengths=[128, 512, 2048, 8192],
                        precisions=["FP32", "BF16"])
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    deadline = Deadline(arguments.time_limit_s)
    servers = start_servers({"ours": arguments.ours}, deadline)
    sides = [Served("backend", name, servers["ours"])
             for name in arguments.backends]
    try:
        results, left_out = run_grid(make_cells(arguments), sides,
                                     arguments.rounds, deadline)
    finally:
        stop_servers(servers)
    machine = servers["ours"].machine
    lines = [f"{machine['device']}; {machine['build']}.", "",
             *table(results, arguments.backends)]
    if left_out:
        lines += ["", f"{len(left_out)} cells did not fit into"
                  f" {arguments.time_limit_s:.0f} s."]
    write_results(lines, results, arguments)


if __name__ == "__main__":
    main()
