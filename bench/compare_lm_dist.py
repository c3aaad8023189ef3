#!/usr/bin/env python3
"""Races our data-parallel training step against PyTorch's on this machine.

usage: compare_lm_dist.py --ours="DIR/run launch --program=train_step_bench --json" --nproc=2
           [--peers=ddp,ddp_compile,fsdp2,fsdp2_compile,zero1]
           [--cells=small:1024:8,2.7B:1024:4] [--rounds=3] [--time_limit_s=540]
           [--ours_options="--set=..."] [--peer_options="--reduce=FP32"] [--out=table.md]

A cell is SIZE:CONTEXT:BATCH, with the batch of one GPU. --sizes, --contexts and
--batches, given together, are all their combinations instead. As in
compare_lm_step.py, the sides alternate and the first one changes in every round.
Ours runs as one launch per cell:

    OURS --nproc=2 --config=configs/small.pbtxt --set=model.context_length=1024 ...

whose last line of output is a JSON object, which train_step_bench prints on rank
0. The peers are the variants of bench/peers/lm_dist.py --serve, one group of
processes for all cells. It ends before ours starts, so that ours finds the GPUs
empty, and is started again for the next cell of a peer. --peer_options are
options of lm_dist.py: its --help says what each variant is.

All times and figures of memory are the maximum over the ranks.
"""

import argparse
import itertools
import pathlib
import sys

from compare import (Deadline, Failed, OutOfTime, Served, Server, listed,
                     lm_step_options, race_parser, run_grid, write_report)
from lm_race import OurStep, cells_of, largest, median_ms, report

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "lm_dist.py"
MOST_LEFT_GIB = 0.25

FIGURES = [
    median_ms("Step, ms"),
    largest("Step by the host's clock, largest mean of a round, ms",
            "step_wall_ms", 2),
    largest("Peak of the allocated memory of a GPU, GiB", "peak_gib", 2),
    largest("Memory held by the allocator of a GPU, GiB", "held_gib", 2),
    largest("Memory in use on a GPU, all of it, GiB", "in_use_gib", 2),
    largest("First step, s", "first_step_s", 1),
]


class Peers:
    """The ranks of all peers, which are there only between the first question
    and stop()."""

    def __init__(self, command):
        self._command = command
        self._server = None
        self.machine = {}

    def ask(self, cell, deadline):
        try:
            if self._server is None:
                self._server = Server("the peer", self._command, deadline)
                self.machine = self._server.machine
            answer = self._server.ask(cell, deadline)
        except (Failed, OutOfTime):
            self.stop(most_s=1)
            raise
        # A rank that fails ends all of them. Processes that still hold memory
        # of this cell would take it from the next.
        if answer["status"] != "OK" or answer.get("left_gib", 0) > MOST_LEFT_GIB:
            self.stop()
        return answer

    def stop(self, most_s=30):
        if self._server is not None:
            self._server.end(most_s)
            self._server = None


class OurRanks(OurStep):
    """Our side, which has the GPUs for itself."""

    def __init__(self, arguments, peers):
        def options_of(cell):
            batch = cell["batch"] * arguments.nproc
            return [f"--nproc={arguments.nproc}",
                    *lm_step_options({**cell, "batch": batch})]

        super().__init__(arguments.ours, arguments.ours_options, options_of)
        self._peers = peers

    def measure(self, cell, deadline):
        self._peers.stop()
        figures = super().measure(cell, deadline)
        figures.pop("batch", None)  # of all GPUs; the cell has that of one
        return figures


def heading(machine, arguments):
    device = machine.get("device", "unknown devices")
    return (f"{arguments.nproc} x {device}, torch {machine.get('torch', '?')}."
            " The batch is that of one GPU. Up to"
            f" {arguments.rounds} alternating rounds; a ratio below 1 means"
            " that ours is faster or smaller.")


def make_parser():
    parser = race_parser(__doc__, [sys.executable, str(PEER), "--serve"])
    parser.add_argument("--ours_options", default="")
    parser.add_argument("--nproc", type=int, required=True,
                        help="number of ranks, one per GPU")
    parser.add_argument("--peers", type=listed,
                        default=["ddp", "ddp_compile", "fsdp2", "fsdp2_compile",
                                 "zero1"])
    parser.add_argument("--peer_options", default="")
    parser.add_argument("--cells", type=cells_of,
                        default=cells_of("small:1024:8"))
    for name in ("--sizes", "--contexts", "--batches"):
        parser.add_argument(name, type=listed)
    return parser


def parse_arguments():
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.nproc < 1:
        parser.error("--nproc must be at least 1")
    axes = [arguments.sizes, arguments.contexts, arguments.batches]
    if any(axes):
        if not all(axes):
            parser.error("--sizes, --contexts and --batches go together")
        try:
            arguments.cells = cells_of(",".join(
                ":".join(words) for words in itertools.product(*axes)))
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    return arguments


def main():
    arguments = parse_arguments()
    peers = Peers(f"{arguments.peer_command} --nproc={arguments.nproc}"
                  f" {arguments.peer_options}")
    sides = [OurRanks(arguments, peers)]
    sides += [Served("variant", name, peers) for name in arguments.peers]
    cells = [dict(size=size, context=context, precision="BF16", batch=batch)
             for size, context, batch in arguments.cells]
    try:
        results, left_out = run_grid(cells, sides, arguments.rounds,
                                     Deadline(arguments.time_limit_s))
    finally:
        peers.stop()
    write_report(report(heading(peers.machine, arguments), FIGURES, results,
                        left_out, arguments), arguments.out)


if __name__ == "__main__":
    main()
