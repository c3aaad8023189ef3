#!/usr/bin/env python3
"""Races our attention against PyTorch's on this machine, cell by cell.

usage: compare_attention.py --ours="DIR/run attention_bench --serve"
           [--backends=FLASH_CUDA]
           [--peers=cudnn,flash,efficient,sdpa_mask,flex,fa4,naive,
                    compiled,compiled_as_written]
           [--head_dims=64,80,96,128] [--lengths=1024,4096,16384]
           [--masks=causal,full,window_512,documents_512]
           [--precisions=BF16]
           [--tokens=16384] [--width=2048] [--batch=N] [--heads=N]
           [--rounds=3] [--time_limit_s=540] [--out=table.md] [--raw=raw.jsonl]

A cell has --tokens / length sequences and --width / head_dim heads, or the
--batch and --heads given. Both sides are servers (ours attention_bench, the
peer bench/peers/attention.py), which hold no tensors while the other works.
The sides alternate, and the first one changes in every round; the table has the
ratio of the two times of a round, as median and range over the rounds.

bench/peers/masks.py says what the masks are. Under a window or documents our
backends also run the cell under a causal mask in every round, and a second
table compares the time per visible tile.

Cells that do not fit in the time limit are left out and listed.
"""

import itertools
import math
import pathlib
import statistics
import sys

from compare import (Deadline, Served, header, listed, medians, of_side,
                     race_parser, raw_lines, ratios, row, run_grid,
                     start_servers, status_of, stop_servers, with_range,
                     write_report)
from peers.masks import Mask, parse_mask, visible_tiles

PHASES = ("forward_ms", "backward_ms")
PEER = pathlib.Path(__file__).resolve().parent / "peers" / "attention.py"


class DenseCausal:
    """The side that runs our backend under a causal mask instead of the
    cell's."""

    def __init__(self, backend, server):
        self.name = dense_name(backend)
        self._side = Served("backend", backend, server)

    def measure(self, cell, deadline):
        return self._side.measure({**cell, "mask": "causal"}, deadline)


def dense_name(backend):
    return f"{backend}, causal"


def is_plain(cell):
    return parse_mask(cell["mask"]).plain


def compare_times(ours, peer, phase):
    """`4.100 / 8.200 = **0.50** (0.49 to 0.52)`."""
    a, b = medians(ours, phase), medians(peer, phase)
    both = f"{status_of(ours, a, 3)} / {status_of(peer, b, 3)}"
    by_round = ratios(ours, peer, phase)
    return f"{both} = {with_range(by_round)}" if by_round else both


def compare_memory(ours, peer, key):
    a, b = ([r[key] for r in side if r["status"] == "OK"]
            for side in (ours, peer))
    if not a or not b or not max(b):
        return "n/a"
    return f"{max(a):.0f} / {max(b):.0f} = **{max(a) / max(b):.2f}**"


def pairs(results, arguments):
    """(cell, our name, our records, peer's name, peer's records)."""
    for cell, records in results:
        for backend, peer in itertools.product(arguments.backends,
                                               arguments.peers):
            yield (cell, backend, of_side(records, backend), peer,
                   of_side(records, peer))


def table(results, arguments):
    yield from header(["head dim", "length", "mask", "precision", "ours",
                       "peer", "forward, ms", "backward, ms", "saved, MiB",
                       "peak, MiB"])
    for cell, backend, ours, peer, theirs in pairs(results, arguments):
        words = [cell["head_dim"], cell["length"], cell["mask"],
                 cell["precision"], backend, peer]
        words += [compare_times(ours, theirs, phase) for phase in PHASES]
        words += [compare_memory(ours, theirs, key)
                  for key in ("saved_mib", "peak_mib")]
        yield row(words)


def summary(results, arguments):
    """The geometric mean of the cells' ratios."""
    yield from header(["ours", "peer", "cells", "forward", "backward"])
    by_pair = {}
    for _, backend, ours, peer, theirs in pairs(results, arguments):
        cell = [ratios(ours, theirs, phase) for phase in PHASES]
        if all(cell):
            by_pair.setdefault((backend, peer), []).append(
                [math.log(statistics.median(phase)) for phase in cell])
    for (backend, peer), logs in by_pair.items():
        means = (math.exp(statistics.mean(phase)) for phase in zip(*logs))
        yield row([backend, peer, len(logs),
                   *(f"**{mean:.2f}**" for mean in means)])


def tile_cost(ours, dense, phase, share):
    """Our time / our time under a causal mask / the share of its tiles that
    the cell's mask shows."""
    costs = [ratio / share for ratio in ratios(ours, dense, phase)]
    return with_range(costs) if costs else "n/a"


def tile_costs(results, arguments):
    yield ("Cost per visible tile: our time under the mask over our time under"
           " a causal mask in the same round, divided by the share of the"
           " causal mask's tiles of 128 x 128 in which a query sees a key;"
           " 1.00 if hidden tiles cost nothing.")
    yield ""
    yield from header(["head dim", "length", "mask", "precision", "ours",
                       "visible tiles", "forward cost", "backward cost"])
    for cell, records in results:
        visible, tiles = (
            visible_tiles(mask, cell["length"], cell["batch"])
            for mask in (parse_mask(cell["mask"]), Mask()))
        for backend in arguments.backends:
            ours, dense = (of_side(records, name)
                           for name in (backend, dense_name(backend)))
            costs = (tile_cost(ours, dense, phase, visible / tiles)
                     for phase in PHASES)
            yield row([cell["head_dim"], cell["length"], cell["mask"],
                       cell["precision"], backend,
                       f"{visible} of {tiles} = {100 * visible / tiles:.1f} %",
                       *costs])


def report(results, left_out, machines, arguments):
    ours, peer = machines
    yield (f"{ours['device']}; ours {ours['build']}; torch {peer['torch']},"
           f" cuDNN {peer['cudnn']}. Ours / PyTorch = ratio, below 1 if ours is"
           f" faster or smaller; medians of up to {arguments.rounds}"
           " alternating rounds, in brackets the range of the rounds' ratios.")
    yield ""
    yield from summary(results, arguments)
    yield ""
    yield from table(results, arguments)
    masked = [(cell, records) for cell, records in results
              if not is_plain(cell)]
    if masked:
        yield ""
        yield from tile_costs(masked, arguments)
    if left_out:
        names = ", ".join(f"d{c['head_dim']} n{c['length']} {c['mask']}"
                          f" {c['precision']}" for c in left_out)
        yield ""
        yield f"Not measured within {arguments.time_limit_s:.0f} s: {names}."


def numbers(text):
    return [int(word) for word in text.split(",")]


def mask_names(text):
    names = listed(text)
    for name in names:
        parse_mask(name)  # raises ValueError
    return names


def attention_parser(description, backends, **race):
    """A race_parser() with the options of cells, --backends and --raw."""
    parser = race_parser(description, **race)
    parser.add_argument("--backends", type=listed, default=backends)
    parser.add_argument("--head_dims", type=numbers, default=[64, 80, 96, 128])
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--masks", type=mask_names, default=["causal", "full"])
    parser.add_argument("--precisions", type=listed, default=["BF16"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--raw", type=pathlib.Path)
    return parser


def parse_arguments():
    parser = attention_parser(__doc__, ["FLASH_CUDA"],
                              peer_command=[sys.executable, str(PEER)])
    parser.add_argument("--peers", type=listed,
                        default=["cudnn", "flash", "efficient", "compiled"])
    return parser.parse_args()


def make_cells(arguments):
    return [dict(head_dim=head_dim, length=length, mask=mask,
                 precision=precision,
                 batch=arguments.batch or max(1, arguments.tokens // length),
                 heads=arguments.heads or max(1, arguments.width // head_dim))
            for head_dim, length, mask, precision in itertools.product(
                arguments.head_dims, arguments.lengths, arguments.masks,
                arguments.precisions)]


def race(arguments, servers, deadline):
    """The results and the cells left out, as of run_grid()."""
    sides = [Served("backend", name, servers["ours"])
             for name in arguments.backends]
    sides += [Served("variant", name, servers["the peer"])
              for name in arguments.peers]
    dense = [DenseCausal(name, servers["ours"]) for name in arguments.backends]
    results, left_out = [], []
    for plain, of_cells in itertools.groupby(make_cells(arguments), is_plain):
        measured, left = run_grid(list(of_cells),
                                  sides if plain else sides + dense,
                                  arguments.rounds, deadline)
        results += measured
        left_out += left
    return results, left_out


def write_results(lines, results, arguments):
    write_report(lines, arguments.out)
    if arguments.raw:
        arguments.raw.write_text("\n".join(raw_lines(results)) + "\n")


def main():
    arguments = parse_arguments()
    deadline = Deadline(arguments.time_limit_s)
    servers = start_servers(
        {"ours": arguments.ours, "the peer": arguments.peer_command}, deadline)
    try:
        results, left_out = race(arguments, servers, deadline)
    finally:
        stop_servers(servers)
    machines = [server.machine for server in servers.values()]
    write_results(report(results, left_out, machines, arguments), results,
                  arguments)


if __name__ == "__main__":
    main()
