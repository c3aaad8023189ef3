#!/usr/bin/env python3
"""Races our training step against PyTorch's on this machine, cell by cell.

usage: compare_lm_step.py --ours="DIR/run train_step_bench --json" [--peers=sdpa,compile]
           [--cells=small:128:4,2.7B:1024:4] [--precisions=BF16] [--rounds=3]
           [--time_limit_s=540] [--out=table.md]

A cell is SIZE:CONTEXT:BATCH. A clock drifts and a GPU warms up, so the sides
alternate, the first one changes in every round, and the table compares ratios.
Ours runs as one process per cell:

    OURS --config=configs/small.pbtxt --set=model.context_length=128 ...

whose last line of output is a JSON object with "step_ms" ({"median", "min",
"max"}), "first_step_s", "held_gib" and "backend". The peer is
bench/peers/lm_step.py --serve, one process for all cells, which holds no GPU
memory while ours runs. --ours_options adds options to ours for every cell, such
as --set=attention.backend=NAIVE.

Cells that do not fit in the time limit are left out and listed.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

from compare import (Deadline, Failed, OutOfTime, Served, header, listed,
                     lm_step_options, medians, of_side, raw_lines, row,
                     run_grid, start_servers, status_of, stop_servers)

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


def step_times(records):
    return medians(records, "step_ms")


def with_spread(values):
    """`4.10 ±0.5 %`: the median, and largest minus smallest in per cent of it."""
    median = statistics.median(values)
    spread = 100 * (max(values) - min(values)) / median
    return f"{median:.2f} ±{spread:.1f} %"


def largest_of(figure):
    return lambda records: [max(r[figure] for r in records
                                if r["status"] == "OK")]


# Title -> (values of one side's records, how they are written). The longest
# first step is the one for which nothing was in a compiler's cache.
FIGURES = {
    "Step, ms": (step_times, with_spread),
    "First step, s": (largest_of("first_step_s"),
                      lambda values: f"{values[0]:.1f}"),
    "Memory held, GiB": (largest_of("held_gib"),
                         lambda values: f"{values[0]:.2f}"),
}


def table(results, sides, title):
    values_of, written = FIGURES[title]
    yield from header(["size", "context", "batch", "precision", "attention",
                       *sides, "ours / least of PyTorch"])
    for cell, records in results:
        words = [cell["size"], cell["context"], cell["batch"],
                 cell["precision"],
                 next((r["backend"] for r in of_side(records, "ours")
                       if "backend" in r), "?")]
        least = {}
        for side in sides:
            of_this = of_side(records, side)
            if any(r["status"] == "OK" for r in of_this):
                values = values_of(of_this)
                least[side] = statistics.median(values)
                words.append(written(values))
            else:
                words.append(status_of(of_this, []))
        ours = least.pop("ours", None)
        words.append(f"**{ours / min(least.values()):.2f}**"
                     if ours and any(least.values()) else "")
        yield row(words)


def report(results, left_out, machine, arguments):
    yield (f"{machine['device']}, torch {machine['torch']}, cuDNN"
           f" {machine['cudnn']}. Up to {arguments.rounds} alternating rounds;"
           " a ratio below 1 means that ours is faster or smaller.")
    for title in FIGURES:
        yield ""
        yield f"{title}:"
        yield ""
        yield from table(results, ["ours", *arguments.peers], title)
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


def cells_of(text):
    """`small:128:4,...`: a list of (size, context, batch)."""
    cells = []
    for word in listed(text):
        try:
            size, context, batch = word.split(":")
            cells.append((size, int(context), int(batch)))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"'{word}' is not SIZE:CONTEXT:BATCH") from None
    return cells


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--ours_options", default="")
    parser.add_argument("--peers", type=listed, default=["sdpa"])
    parser.add_argument("--cells", type=cells_of,
                        default=cells_of("small:128:4,small:1024:4"))
    parser.add_argument("--precisions", type=listed, default=["BF16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time_limit_s", type=float, default=540)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--peer_command",
                        default=f"{sys.executable} {PEER} --serve")
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
