#!/usr/bin/env python3
"""Draws the attention benches' results as docs/images/attention_*.svg.

usage: plot_attention.py [--results=docs/results/attention_h200]
           [--out=docs/images]

Needs matplotlib (Debian: python3-matplotlib). Equal results give equal files.
Reads, if they exist,
  flash_cuda_bench.txt  attention_bench     -> attention_{forward,backward}.svg
  seed_race.jsonl       compare_attention.py --raw  -> attention_seed_grid.svg
  step_2k.jsonl         train_step_bench, one line a backend -> attention_step.svg
"""

import itertools
import math

import matplotlib
from matplotlib import figure as figures
from matplotlib import lines, ticker

import attention_results as results
import figure as pictures

WIDTH = 9.0  # inches of 100 pixels

# Okabe and Ito's colours, which can be told apart with any colour blindness.
STYLES = {
    "FLASH_CUDA": ("FLASH_CUDA", "#0072B2", "o", "-"),
    "TORCH_CUDNN": ("cuDNN", "#D55E00", "s", "-"),
    "TORCH_FLASH": ("TORCH_FLASH", "#56B4E9", "^", "-"),
    "TORCH_EFFICIENT": ("TORCH_EFFICIENT", "#CC79A7", "v", "-"),
    "COMPILED_FUSED": ("COMPILED_FUSED", "#009E73", "^", "-"),
    "NAIVE": ("NAIVE", "#000000", "D", "-"),
    "FLASH_TILED": ("FLASH_TILED", "#999999", "x", "-"),
    "compiled": ("torch.compile", "#E69F00", "s", "--"),
    "compiled_as_written": ("torch.compile as written", "#555555", "P", ":"),
    "naive": ("PyTorch, written out", "#CC79A7", "v", "--"),
    "cudnn": ("PyTorch, cuDNN", "#D55E00", "s", "--"),
    "flash": ("PyTorch, flash", "#56B4E9", "<", "--"),
    "efficient": ("PyTorch, efficient", "#999999", ">", "--"),
}
GREY = "#666666"
RACE_BASELINE = "compiled"
MAX_COLUMNS = 4
LEGEND_COLUMNS = 5


def set_style():
    matplotlib.rcParams.update({
        "svg.hashsalt": "tessera",
        "svg.fonttype": "path",
        "figure.dpi": 100,
        "figure.facecolor": "white",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#E3E3E3",
        "grid.linewidth": 0.7,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "xtick.labelcolor": "#333333",
        "ytick.labelcolor": "#333333",
        "lines.linewidth": 1.6,
        "lines.markersize": 4.5,
    })


def style(name):
    """Keywords of a side's line; grey for sides that STYLES does not list.

    PyTorch's lines are dashed, with large hollow markers that leave others
    visible.
    """
    label, color, marker, dashes = STYLES.get(name, (name, GREY, "P", ":"))
    peers = {"markerfacecolor": "none", "markersize": 7.5, "zorder": 3}
    return dict(label=label, color=color, marker=marker, linestyle=dashes,
                **(peers if dashes == "--" else {}))


def in_order(names):
    known = list(STYLES)
    return sorted(names, key=lambda name: (
        known.index(name) if name in known else len(known), name))


def draw(axes, name, points):
    """Draws points, {x: y}, if there are any."""
    if points:
        axes.plot(*zip(*sorted(points.items())), **style(name))


def thousands(length):
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def length_axis(axes, lengths):
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [thousands(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)


def new_figure(title, subtitle, handles, height):
    """A figure with room for panels of `height` inches below the text."""
    legend_rows = math.ceil(len(handles) / LEGEND_COLUMNS)
    panels = height
    height += 0.6 + 0.2 * legend_rows
    figure = figures.Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, panels / height),
                                   h_pad=0.06, w_pad=0.06)
    figure.text(0.012, 1 - 0.08 / height, title, fontsize=12,
                fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.33 / height, subtitle, fontsize=9,
                color="#444444", va="top")
    figure.legend(handles=handles, loc="upper left",
                  ncol=min(len(handles), LEGEND_COLUMNS), frameon=False,
                  fontsize=9, handlelength=2.4, columnspacing=1.6,
                  borderaxespad=0, bbox_to_anchor=(0.008, 1 - 0.53 / height))
    return figure


def save(figure, path):
    pictures.save(figure, path, "plot_attention.py")


def legend_line(name):
    return lines.Line2D([], [], **style(name))


# attention_forward.svg, attention_backward.svg


def series(cells, phase, head_dim, mask):
    """{backend: {length: TFLOP/s}}; cuDNN's is from FLASH_CUDA's cells."""
    found, cudnn = {}, {}
    for cell, counters in cells.items():
        if (cell.phase, cell.head_dim, cell.mask) != (phase, head_dim, mask):
            continue
        found.setdefault(cell.backend, {})[cell.length] = counters["TFLOP/s"]
        beside = results.cudnn_tflops(counters)
        if cell.backend == "FLASH_CUDA" and beside:
            cudnn[cell.length] = beside
    if cudnn:
        found.setdefault("TORCH_CUDNN", {}).update(cudnn)
    return found


def range_of_ratios(found):
    """The range of our speed / cuDNN's speed over the lengths."""
    ours, cudnn = found.get("FLASH_CUDA", {}), found.get("TORCH_CUDNN", {})
    both = [ours[length] / cudnn[length] for length in ours if length in cudnn]
    return f"{min(both):.2f} to {max(both):.2f} × cuDNN" if both else ""


def draw_rates(axes, found, gemm, title):
    axes.set_title(title, loc="left", pad=17)
    axes.text(0, 1.04, range_of_ratios(found), transform=axes.transAxes,
              color="#444444", fontsize=8.5)
    for name in reversed(in_order(found)):
        draw(axes, name, found[name])
    if gemm:
        axes.axhline(gemm, color=GREY, linewidth=1, linestyle=(0, (4, 3)))


def plot_rates(cells, phase, device, path):
    gemm = results.gemm_tflops(cells)
    head_dims = sorted({cell.head_dim for cell in cells})
    lengths = sorted({cell.length for cell in cells})
    masks = [mask for mask in ("causal", "full")
             if any(cell.mask == mask for cell in cells)]
    backends = {cell.backend for cell in cells}
    if any("cudnn/ours" in counters for counters in cells.values()):
        backends.add("TORCH_CUDNN")
    handles = [legend_line(name) for name in in_order(backends)]
    if gemm:
        handles.append(lines.Line2D(
            [], [], color=GREY, linewidth=1, linestyle=(0, (4, 3)),
            label=f"BF16 product of 8192 × 8192: {gemm:.0f}"))
    figure = new_figure(
        f"Attention {phase}, BF16, {device}",
        "16k tokens, heads × head dim about 2048; a causal mask counts half"
        + (", backward 2.5 forwards" if phase == "backward" else ""),
        handles, 2.0 * len(masks))
    panels = figure.subplots(len(masks), len(head_dims), sharex=True,
                             sharey=True, squeeze=False)
    for (row, mask), (column, head_dim) in itertools.product(
            enumerate(masks), enumerate(head_dims)):
        axes = panels[row][column]
        draw_rates(axes, series(cells, phase, head_dim, mask), gemm,
                   f"head dim {head_dim}, {mask}")
        length_axis(axes, lengths)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(ticker.MultipleLocator(200))
        if column == 0:
            axes.set_ylabel("TFLOP/s")
        if row == len(masks) - 1:
            axes.set_xlabel("length")
    save(figure, path)


# attention_seed_grid.svg


def log_ratio_axis(axes):
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    axes.minorticks_off()
    axes.axhline(1, **{**style(RACE_BASELINE), "marker": ""})


def draw_time_ratios(axes, sides, phase):
    log_ratio_axis(axes)
    peer = sides.get(RACE_BASELINE, {})
    for name in reversed(in_order(sides)):
        if name != RACE_BASELINE:
            draw(axes, name, results.ratios(sides[name], peer, phase))


def draw_held(axes, sides):
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(
        ticker.FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.minorticks_off()
    axes.margins(y=0.14)
    for name in reversed(in_order(sides)):
        draw(axes, name, results.most(sides[name], "saved_mib"))
        for length in results.out_of_memory(sides[name]):
            axes.plot(length, 0.97, "x", color=style(name)["color"],
                      transform=axes.get_xaxis_transform(), markersize=6)


RACE_ROWS = (
    ("forward, time ratio",
     lambda axes, s: draw_time_ratios(axes, s, "forward_ms")),
    ("backward, time ratio",
     lambda axes, s: draw_time_ratios(axes, s, "backward_ms")),
    ("held, MiB", draw_held),
)


def race_note(grid):
    note = "batch 8, one head, no mask; time / torch.compile's, below 1 faster"
    if any(results.out_of_memory(rounds)
           for sides in grid.values() for rounds in sides.values()):
        note += "; ×: out of memory"
    return note


def race_blocks(grid):
    """The columns of each block of rows: one block, or one per precision."""
    groups = sorted(grid, key=lambda group: (group[0] != "BF16", *group))
    if len(groups) <= MAX_COLUMNS:
        return [groups]
    return [list(block) for _, block in
            itertools.groupby(groups, key=lambda group: group[0])]


def draw_race(panels, blocks, grid, lengths):
    for (number, block), (row, (what, draw_panel)) in itertools.product(
            enumerate(blocks), enumerate(RACE_ROWS)):
        for axes, group in zip(panels[3 * number + row], block):
            draw_panel(axes, grid[group])
            length_axis(axes, lengths)
            if row == 0:
                axes.set_title(f"{group[0]}, head dim {group[1]}", loc="left")
            if row == 2:
                axes.set_xlabel("length")
                axes.tick_params(labelbottom=True)
        panels[3 * number + row][0].set_ylabel(what)
        for unused in panels[3 * number + row][len(block):]:
            unused.set_visible(False)


def plot_race(records, device, path):
    grid = results.by_side(records)
    blocks = race_blocks(grid)
    sides = {side for group in grid.values() for side in group}
    handles = [legend_line(name) for name in in_order(sides)]
    figure = new_figure(f"Attention beside torch.compile's, {device}",
                        race_note(grid), handles, 5.0 * len(blocks))
    panels = figure.subplots(3 * len(blocks), max(map(len, blocks)),
                             sharex=True, sharey="row", squeeze=False)
    draw_race(panels, blocks, grid,
              sorted({record["length"] for record in records}))
    figure.align_ylabels(panels[:, 0])
    save(figure, path)


# attention_step.svg


def parts(step):
    """(phase, ms) of a training step, in order."""
    forward = step["forward_ms"]["median"]
    both = step["forward_backward_ms"]["median"]
    return [("forward", forward), ("backward", both - forward),
            ("optimizer", step["step_ms"]["median"] - both)]


def plot_steps(steps, path):
    colors = {"forward": "#56B4E9", "backward": "#0072B2",
              "optimizer": "#E69F00"}
    handles = [lines.Line2D([], [], color=color, linewidth=6, label=what)
               for what, color in colors.items()]
    first = steps[0]
    figure = new_figure(
        f"A training step of {first['size']}, {first['device']}",
        f"{first['batch']} sequences of {first['context']} tokens, "
        f"{first['precision']}; median; peak memory",
        handles, 0.55 + 0.42 * len(steps))
    axes = figure.subplots()
    for row, step in enumerate(steps):
        left = 0
        for what, ms in parts(step):
            axes.barh(row, ms, left=left, height=0.62, color=colors[what])
            left += ms
        axes.text(left, row, f"  {left:.0f} ms, {step['tflops']:.0f} TFLOP/s, "
                  f"{step['peak_gib']:.0f} GiB", va="center")
    axes.set_yticks(range(len(steps)), [step["backend"] for step in steps])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    longest = max(step["step_ms"]["median"] for step in steps)
    axes.set_xlim(0, 1.32 * longest)
    axes.set_xlabel("ms")
    save(figure, path)


def read(path, reader):
    if not path.exists():
        return reader(())
    with path.open(encoding="utf-8") as file:
        return reader(file)


def main():
    arguments = pictures.arguments(
        __doc__, results="docs/results/attention_h200", out="docs/images")
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_style()
    folder = arguments.results
    steps = read(folder / "step_2k.jsonl", results.read_jsonl)
    device = steps[0]["device"] if steps else "one GPU"
    cells = read(folder / "flash_cuda_bench.txt", results.read_bench)
    race = read(folder / "seed_race.jsonl", results.read_jsonl)
    if cells:
        for phase in ("forward", "backward"):
            plot_rates(cells, phase, device,
                       arguments.out / f"attention_{phase}.svg")
    if race:
        plot_race(race, device, arguments.out / "attention_seed_grid.svg")
    if steps:
        plot_steps(steps, arguments.out / "attention_step.svg")


if __name__ == "__main__":
    main()
