#!/usr/bin/env python3
"""Races our training step against PyTorch's on this machine, cell by cell.

usage: compare_lm_step.py --ours="DIR/run lm_step" [--peers=sdpa,compile]
           [--sizes=small,2.7B] [--contexts=128,1024] [--precisions=BF16]
           [--batches=4] [--rounds=3] [--time_limit_s=540] [--out=table.md]

A clock drifts and a GPU warms up, so the sides alternate, the first one changes
in every round, and the table compares ratios. Ours runs as one process per
cell:

    OURS --config=configs/small.pbtxt --set=model.context_length=128 ...

whose last line of output is a JSON object with "forward_ms",
"forward_backward_ms" and "step_ms" (each {"median", "min", "max"}) and
"peak_gib". The peer is bench/peers/lm_step.py --serve, one process for all
cells, which holds no GPU memory while ours runs. --ours_options adds options
to ours for every cell, such as --set=attention.backend=NAIVE.

Cells that do not fit in the time limit are left out and listed.
"""

import argparse
import itertools
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

from compare import (Deadline, Failed, OutOfTime, Served, header, listed,
                     lm_step_options, medians, of_side, raw_lines, row,
                     run_grid, start_servers, status_of, stop_servers)

PHASES = ("forward_ms", "forward_backward_ms", "step_ms")
# Our exit status when out of memory (framework/base/exit_code.h).
OUT_OF_MEMORY = 3
PEER = pathlib.Path(__file__).resolve().parent / "peers" / "lm_step.py"


class Ours:
    name = "ours"

    def __init__(self, command, options):
        self._command = shlex.split(command)
        self._options = shlex.split(options)

    def measure(self, cell, deadline):
        options = lm_step_options(cell) + self._options
        try:
            done = subprocess.run(
                self._command + options, timeout=deadline.left(), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, universal_newlines=True)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        lines = done.stdout.strip().splitlines()
        if lines and lines[-1].startswith("{"):
            return json.loads(lines[-1])
        if done.returncode == OUT_OF_MEMORY:
            return {"status": "OOM"}
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise Failed(f"exit status {done.returncode}: {said[-1]}")


def spread_percent(values):
    """Largest minus smallest value, in per cent of the median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def compare_times(ours, peer, phase):
    """`4.10 / 8.20 = 0.50 (±1.2, 3.4 %)`: ours / peer, spread of each."""
    a, b = medians(ours, phase), medians(peer, phase)
    if not a or not b:
        return f"{status_of(ours, a)} / {status_of(peer, b)}"
    x, y = statistics.median(a), statistics.median(b)
    return (f"{x:.2f} / {y:.2f} = **{x / y:.2f}**"
            f" (±{spread_percent(a):.1f}, {spread_percent(b):.1f} %)")


def compare_peaks(ours, peer):
    a, b = ([r["peak_gib"] for r in side if r["status"] == "OK"]
            for side in (ours, peer))
    if not a or not b or not max(b):
        return "n/a"
    return f"{max(a):.2f} / {max(b):.2f} = **{max(a) / max(b):.2f}**"


def table(results):
    yield from header(["size", "context", "batch", "precision", "ours", "peer",
                       "forward, ms", "forward + backward, ms", "step, ms",
                       "peak, GiB"])
    for cell, records in results:
        ours = of_side(records, "ours")
        backend = next((r["backend"] for r in ours if "backend" in r), "?")
        for name in sorted({r["side"] for r in records} - {"ours"}):
            peer = of_side(records, name)
            words = [cell["size"], cell["context"], cell["batch"],
                     cell["precision"], backend, name]
            words += [compare_times(ours, peer, phase) for phase in PHASES]
            yield row(words + [compare_peaks(ours, peer)])


def report(results, left_out, machine, arguments):
    yield (f"{machine['device']}, torch {machine['torch']}, cuDNN"
           f" {machine['cudnn']}. Ours / PyTorch = ratio, below 1 if ours is"
           f" faster or smaller; medians of up to {arguments.rounds} alternating"
           " rounds, in brackets the spread of ours and of the peer.")
    yield ""
    yield from table(results)
    if left_out:
        names = ", ".join(
            f"{c['size']} {c['context']} b{c['batch']} {c['precision']}"
            for c in left_out)
        yield ""
        yield (f"Not measured within {arguments.time_limit_s:.0f} s: {names}.")
    yield ""
    yield "```"
    yield from raw_lines(results)
    yield "```"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--ours_options", default="")
    parser.add_argument("--peers", type=listed, default=["sdpa"])
    parser.add_argument("--sizes", type=listed, default=["small"])
    parser.add_argument("--contexts", type=listed, default=["128", "1024"])
    parser.add_argument("--batches", type=listed, default=["4"])
    parser.add_argument("--precisions", type=listed, default=["BF16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time_limit_s", type=float, default=540)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--peer_command",
                        default=f"{sys.executable} {PEER} --serve")
    return parser.parse_args()


def make_cells(arguments):
    return [dict(size=size, context=int(context), precision=precision,
                 batch=int(batch))
            for size, context, batch, precision in itertools.product(
                arguments.sizes, arguments.contexts, arguments.batches,
                arguments.precisions)]


def main():
    arguments = parse_arguments()
    deadline = Deadline(arguments.time_limit_s)
    servers = start_servers({"the peer": arguments.peer_command}, deadline)
    peer = servers["the peer"]
    sides = [Ours(arguments.ours, arguments.ours_options)]
    sides += [Served("variant", name, peer) for name in arguments.peers]
    try:
        results, left_out = run_grid(make_cells(arguments), sides,
                                     arguments.rounds, deadline)
    finally:
        stop_servers(servers)
    text = "\n".join(report(results, left_out, peer.machine, arguments))
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
