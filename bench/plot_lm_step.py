#!/usr/bin/env python3
"""Draws a race of compare_lm_step.py as docs/images/lm_step.svg.

usage: plot_lm_step.py [--race=docs/results/lm_step_h200/variants.md]
           [--out=docs/images/lm_step.svg]

Needs matplotlib (Debian: python3-matplotlib). Equal results give equal files.
"""

import collections
import json
import statistics

import figure

# Okabe and Ito's colours, which can be told apart with any colour blindness.
SIDES = {
    "seed": ("PyTorch, eager", "#999999"),
    "sdpa": ("PyTorch, SDPA", "#56B4E9"),
    "compile": ("torch.compile", "#E69F00"),
    "compile_graphs": ("torch.compile, CUDA graphs", "#D55E00"),
    "ours": ("Tessera", "#0072B2"),
}


def read(path):
    """The GPU, and {(size, context, batch, precision): {side: median step, ms}}
    of the cells that all sides ran"""
    device = "a GPU"
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in path.read_text().splitlines():
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        device = record.get("device", device)
        if record["status"] == "OK":
            cell = (record["size"], record["context"], record["batch"],
                    record["precision"])
            times[cell][record["side"]].append(record["step_ms"]["median"])
    return device, {cell: {side: statistics.median(values)
                           for side, values in sides.items()}
                    for cell, sides in times.items()
                    if len(sides) == len(SIDES)}


def draw(device, cells, path):
    picture = figure.plain(9, 2.9)
    panels = picture.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    labels = [label for label, _ in SIDES.values()]
    for axes, (cell, sides) in zip(panels, cells.items()):
        size, context, batch, _ = cell
        axes.set_title(f"{size}\n{batch} x {context} tokens", fontsize=9,
                       loc="left")
        for row, (side, (_, color)) in enumerate(SIDES.items()):
            if side not in sides:
                continue
            axes.barh(row, sides[side], 0.72, color=color)
            axes.text(sides[side], row, f" {sides[side]:.1f}", va="center",
                      fontweight="bold" if side == "ours" else "normal")
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(left=False)
        axes.set_xlim(0, 1.35 * max(sides.values()))
    panels[0].invert_yaxis()
    picture.supxlabel("milliseconds per training step: shorter is faster",
                     fontsize=9)
    picture.suptitle(f"A training step in BF16 on one {device}", x=0.01,
                     ha="left", fontweight="bold", fontsize=12)
    figure.save(picture, path, "plot_lm_step.py")


def main():
    arguments = figure.arguments(
        __doc__, race="docs/results/lm_step_h200/variants.md",
        out="docs/images/lm_step.svg")
    draw(*read(arguments.race), arguments.out)


if __name__ == "__main__":
    main()
