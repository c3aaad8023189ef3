#!/usr/bin/env python3
"""Draws one step of a trace: what runs beside what.

usage: plot_streams.py [--trace=docs/experiments/two_gpus_h100/trace.json.gz]
           [--title=TEXT] [--out=docs/images/two_gpus_step.svg]

--trace is the trace.json.gz of a run with observe.trace whose update is
deferred. A step is drawn from its first kernel of the update to that of the
next. Needs matplotlib (Debian: python3-matplotlib). Equal traces give equal
files.
"""

import gzip
import json
import sys

import figure

# The first row whose word is part of a kernel's name has it.
ROWS = [("update", "AdamWUpdate", "#E69F00"),
        ("sums over the ranks", "nccl", "#009E73"),
        ("gradient norm", "SumOfSquares", "#CC79A7"),
        ("forward and backward", "", "#0072B2")]
LEAST_GAP_MS = 0.05


def step_of(path):
    """[(row, begin, length)] of the first whole step, in ms"""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [(next(row for row, (_, word, _) in enumerate(ROWS)
                     if word in event["name"]), event["ts"], event["dur"])
               for event in events if event.get("cat") == "kernel"]
    kernels.sort(key=lambda kernel: kernel[1])
    # A step begins with the first kernel of the update after a gradient norm.
    begins, norm_since = [], True
    for row, begin, _ in kernels:
        if ROWS[row][0] == "gradient norm":
            norm_since = True
        elif ROWS[row][0] == "update" and norm_since:
            begins.append(begin)
            norm_since = False
    if len(begins) < 2:
        sys.exit(f"plot_streams: {path} does not have two steps with an "
                 "update; trace two steps with execution.defer_update")
    return [(row, (begin - begins[0]) / 1e3, length / 1e3)
            for row, begin, length in kernels
            if begins[0] <= begin < begins[1]]


def joined(spans):
    """spans with gaps of less than LEAST_GAP_MS filled"""
    result = []
    for begin, end in spans:
        if result and begin - result[-1][1] < LEAST_GAP_MS:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


def draw(step, title, path):
    picture = figure.plain(8, 2.2)
    axes = picture.subplots()
    for row, (_, _, color) in enumerate(ROWS):
        spans = joined([(begin, begin + length)
                        for at, begin, length in step if at == row])
        axes.broken_barh([(begin, end - begin) for begin, end in spans],
                         (row - 0.35, 0.7), facecolors=color)
    axes.set_yticks(range(len(ROWS)), [name for name, _, _ in ROWS])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("ms of one step")
    axes.set_xlim(left=0)
    axes.set_title(title, loc="left", fontsize=10)
    figure.save(picture, path, "plot_streams.py")


def main():
    arguments = figure.arguments(
        __doc__, title="2.7B, 4 x 1,024 tokens, one of two H100",
        trace="docs/experiments/two_gpus_h100/trace.json.gz",
        out="docs/images/two_gpus_step.svg")
    draw(step_of(arguments.trace), arguments.title, arguments.out)


if __name__ == "__main__":
    main()
