#!/usr/bin/env python3
"""Draws where a step's time goes, beside the least time of each op.

usage: plot_step.py [--step=docs/experiments/step_anatomy_h200/small_1024.json]
           [--title=TEXT] [--out=docs/images/step_anatomy.svg]

--step is what `train --print_step --measured=RUN --json` prints. Needs
matplotlib (Debian: python3-matplotlib). Equal results give equal files.
"""

import json
import re

import figure

TOOK, BEST = "#9ecae1", "#0072B2"
# Ops that take less are one bar.
LEAST_MS = 0.03


def read(path):
    """{(phase, op): [took ms, least ms]}, in the order of the step"""
    times = {}
    for row in json.loads(path.read_text()):
        if row["measured_us"] is None:
            continue
        # The norms around a block differ in name only; a gradient's addition
        # belongs to its op.
        op = re.sub(r"ln(\d+|_final)", "norm", row["op"]).lstrip("+ ")
        if row["kind"] == "adamw":
            op = "AdamW"
        took, best = times.setdefault((row["phase"], op), [0, 0])
        runs = row["count"] * 1e-3
        times[row["phase"], op] = [took + runs * row["measured_us"],
                                   best + runs * row["roofline_us"]]
    kept = {key: value for key, value in times.items()
            if value[0] >= LEAST_MS}
    rest = [value for key, value in times.items() if key not in kept]
    kept["", f"ops below {LEAST_MS} ms"] = [sum(column)
                                            for column in zip(*rest)]
    return kept


def draw(times, title, path):
    picture = figure.plain(8, 0.24 * len(times) + 1.3)
    axes = picture.subplots()
    labels = []
    for row, ((phase, op), (took, best)) in enumerate(times.items()):
        labels.append(f"{phase}  {op}" if phase and phase != op else op)
        axes.barh(row, took, 0.75, color=TOOK, label="took" if row == 0 else "")
        axes.barh(row, best, 0.75, color=BEST,
                  label="least time by roofline" if row == 0 else "")
        times_best = f"   {took / best:.1f} x" if best > 0 else ""
        axes.text(took, row, f" {took:.2f}{times_best}", va="center")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(left=False)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(took for took, _ in times.values()))
    axes.set_xlabel("milliseconds in a step, all blocks together")
    axes.legend(loc="lower right", frameon=False)
    took, best = (sum(column) for column in zip(*times.values()))
    picture.suptitle(f"{title}: {took:.2f} ms of kernels, at least {best:.2f}",
                    x=0.01, ha="left", fontweight="bold", fontsize=11)
    figure.save(picture, path, "plot_step.py")


def main():
    arguments = figure.arguments(
        __doc__, title="small, 4 x 1,024 tokens, BF16",
        step="docs/experiments/step_anatomy_h200/small_1024.json",
        out="docs/images/step_anatomy.svg")
    draw(read(arguments.step), arguments.title, arguments.out)


if __name__ == "__main__":
    main()
