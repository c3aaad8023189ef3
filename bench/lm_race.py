"""Shared by the races of training steps: our side, tables and report."""

import argparse
import dataclasses
import shlex
import statistics
import typing

from compare import (Failed, header, json_lines, listed, medians, of_side,
                     raw_lines, row, status_of)

# Our exit status when out of memory (framework/base/exit_code.h).
OUT_OF_MEMORY = 3


class OurStep:
    """Our side of a race: runs a command, with options_of(cell) and `options`,
    whose last line of JSON has the figures."""
    name = "ours"

    def __init__(self, command, options, options_of):
        self._command = shlex.split(command)
        self._options = shlex.split(options)
        self._options_of = options_of

    def measure(self, cell, deadline):
        options = self._options_of(cell) + self._options
        try:
            return json_lines(self._command + options, deadline)[-1]
        except Failed as failure:
            if failure.exit_status == OUT_OF_MEMORY:
                return {"status": "OOM"}
            raise


@dataclasses.dataclass(frozen=True)
class Figure:
    """A table of a race."""
    title: str
    values_of: typing.Callable  # records of one side -> values
    written: typing.Callable    # values -> what the table shows of them


def with_spread(values):
    """`4.10 ±0.5 %`: the median, and largest minus smallest in per cent of it."""
    median = statistics.median(values)
    spread = 100 * (max(values) - min(values)) / median
    return f"{median:.2f} ±{spread:.1f} %"


def median_ms(title, figure="step_ms"):
    return Figure(title, lambda records: medians(records, figure), with_spread)


def largest(title, figure, digits):
    """The largest value over the rounds."""
    return Figure(
        title,
        lambda records: [max(r[figure] for r in records
                             if r["status"] == "OK")],
        lambda values: f"{values[0]:.{digits}f}")


def table(results, sides, figure):
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
                values = figure.values_of(of_this)
                least[side] = statistics.median(values)
                words.append(figure.written(values))
            else:
                words.append(status_of(of_this, []))
        ours = least.pop("ours", None)
        words.append(f"**{ours / min(least.values()):.2f}**"
                     if ours and any(least.values()) else "")
        yield row(words)


def report(heading, figures, results, left_out, arguments):
    """The lines of the report: its heading, a table for each figure, the cells
    that were left out, and all records."""
    yield heading
    for figure in figures:
        yield ""
        yield f"{figure.title}:"
        yield ""
        yield from table(results, ["ours", *arguments.peers], figure)
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
