#!/usr/bin/env python3
"""Races our collectives against PyTorch's on this machine.

usage: compare_comm.py --ours="DIR/run launch --program=comm_bench" --nproc=2
           [--options="--beside --min_kib=1024"] [--peer_options=--device=cpu]
           [--rounds=2] [--time_limit_s=540] [--out=table.md]

Runs comm_bench and bench/peers/comm.py, which time the same calls, in turns; the
first one changes in every round. --options are for both programs, --peer_options
only for PyTorch's. The table has the median over the rounds and, with more than
one, the range of the ratios.
"""

import pathlib
import shlex
import statistics
import sys

from compare import (Deadline, Failed, OutOfTime, header, json_lines, of_side,
                     race_parser, ratios, raw_lines, row, turns, with_range,
                     write_report)

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "comm.py"
KEY = ("operation", "dtype", "size")
# Title -> (figure of a record, digits).
ALONE = {
    "ms": (lambda r: r["time_ms"]["median"], 4),
    "bus GB/s": (lambda r: r["bus_gb_per_s"], 1),
    "host us": (lambda r: r["host_us"], 1),
}
BESIDE = {
    "ms beside GEMMs": (lambda r: r["beside"]["time_ms"]["median"], 4),
    "GEMMs": (lambda r: r["beside"]["slow_down"], 3),
    "lost ms": (lambda r: r["beside"]["lost_ms"], 4),
}


def run_rounds(commands, rounds, deadline):
    """The records of all rounds; ends early if the time is over."""
    records = []
    for number, name in turns(list(commands), rounds):
        try:
            measured = json_lines(commands[name], deadline)
        except OutOfTime:
            break
        except Failed as failure:
            sys.exit(f"{name}: {failure}")
        records += [dict(record, round=number) for record in measured]
    return records


def by_cell(records):
    """{cell: its records}."""
    cells = {}
    for record in records:
        cells.setdefault(tuple(record[key] for key in KEY), []).append(record)
    return cells


def written(records, figure, digits):
    values = [figure(record) for record in records if record["status"] == "OK"]
    return f"{statistics.median(values):.{digits}f}" if values else "-"


def table(records):
    beside = any("beside" in record for record in records)
    figures = {**ALONE, **(BESIDE if beside else {})}
    yield from header(["operation", "dtype", "KiB", "ours / PyTorch",
                       *(f"{title}, {side}" for title in figures
                         for side in ("ours", "PyTorch"))])
    for (operation, dtype, size), of_cell in by_cell(records).items():
        sides = [of_side(of_cell, name) for name in ("ours", "pytorch")]
        yield row([operation, dtype, size // 1024,
                   with_range(ratios(*sides, "time_ms"), fewest=2),
                   *(written(side, *figure) for figure in figures.values()
                     for side in sides)])


def report(records, arguments):
    device = records[0]["device"] if records else "no record"
    yield (f"{arguments.nproc} x {device}. Up to {arguments.rounds} alternating"
           " rounds; a ratio below 1 means that ours is faster. GEMMs is the"
           " factor by which the collectives make products beside them slower.")
    yield ""
    yield from table(records)
    yield ""
    yield "```"
    yield from raw_lines([(None, records)])
    yield "```"


def parse_arguments():
    parser = race_parser(__doc__, [sys.executable, str(PEER)], rounds=2)
    parser.add_argument("--nproc", type=int, required=True,
                        help="number of ranks, one per GPU")
    parser.add_argument("--options", default="")
    parser.add_argument("--peer_options", default="")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    options = [f"--nproc={arguments.nproc}", *shlex.split(arguments.options)]
    commands = {
        "ours": shlex.split(arguments.ours) + options,
        "pytorch": shlex.split(arguments.peer_command) + options
        + shlex.split(arguments.peer_options)}
    records = run_rounds(commands, arguments.rounds,
                         Deadline(arguments.time_limit_s))
    write_report(report(records, arguments), arguments.out)


if __name__ == "__main__":
    main()
