#!/usr/bin/env python3
"""Races our training step against PyTorch's on this machine, cell by cell.

usage: compare_lm_step.py --ours="DIR/run train_step_bench --json" [--peers=sdpa,compile]
           [--cells=small:128:4,2.7B:1024:4] [--precisions=BF16] [--rounds=3]
           [--parts] [--time_limit_s=540] [--out=table.md]

A cell is SIZE:CONTEXT:BATCH. A clock drifts and a GPU warms up, so the sides
alternate, the first one changes in every round, and the table compares ratios.
Ours runs as one process per cell:

    OURS --config=configs/small.pbtxt --set=model.context_length=128 ...

whose last line of output is a JSON object with "step_ms" ({"median", "min",
"max"}), "first_step_s", "held_gib" and "backend". The peer is
bench/peers/lm_step.py --serve, one process for all cells, which holds no GPU
memory while ours runs. --ours_options adds options to ours for every cell, such
as --set=attention.backend=NAIVE. --parts adds tables of the forward pass and of
forward and backward, "forward_ms" and "forward_backward_ms".

Cells that do not fit in the time limit are left out and listed.
"""

import pathlib
import sys

from compare import (Deadline, Served, listed, lm_step_options, race_parser,
                     run_grid, start_servers, stop_servers, write_report)
from lm_race import OurStep, cells_of, largest, median_ms, report

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "lm_step.py"


# The longest first step is the one for which nothing was in a compiler's cache.
FIGURES = [median_ms("Step, ms"), largest("First step, s", "first_step_s", 1),
           largest("Memory held, GiB", "held_gib", 2)]
PARTS = [median_ms("Forward, ms", "forward_ms"),
         median_ms("Forward and backward, ms", "forward_backward_ms")]


def heading(machine, arguments):
    return (f"{machine['device']}, torch {machine['torch']}, cuDNN"
            f" {machine['cudnn']}. Up to {arguments.rounds} alternating rounds;"
            " a ratio below 1 means that ours is faster or smaller.")


def parse_arguments():
    parser = race_parser(__doc__, [sys.executable, str(PEER), "--serve"])
    parser.add_argument("--ours_options", default="")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--peers", type=listed, default=["sdpa"])
    parser.add_argument("--cells", type=cells_of,
                        default=cells_of("small:128:4,small:1024:4"))
    parser.add_argument("--precisions", type=listed, default=["BF16"])
    return parser.parse_args()


def make_cells(arguments):
    return [dict(size=size, context=context, precision=precision, batch=batch)
            for size, context, batch in arguments.cells
            for precision in arguments.precisions]


def main():
    arguments = parse_arguments()
    deadline = Deadline(arguments.time_limit_s)
    servers = start_servers({"the peer": arguments.peer_command}, deadline)
    peer = servers["the peer"]
    sides = [OurStep(arguments.ours, arguments.ours_options, lm_step_options)]
    sides += [Served("variant", name, peer) for name in arguments.peers]
    try:
        results, left_out = run_grid(make_cells(arguments), sides,
                                     arguments.rounds, deadline)
    finally:
        stop_servers(servers)
    figures = FIGURES + PARTS if arguments.parts else FIGURES
    write_report(report(heading(peer.machine, arguments), figures, results,
                        left_out, arguments), arguments.out)


if __name__ == "__main__":
    main()
