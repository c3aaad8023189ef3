#!/usr/bin/env python3
"""Compares the planned peak of device memory with the measured one.

usage: memory_plan.py --ours="DIR/run lm_step" [--before="OLD/run lm_step"]
           [--only=small,ARENA] [--raw=FILE] [--out=FILE]
       memory_plan.py --read=RAW --out=FILE

Runs lm_step (forward, forward + backward and the whole step, once each after a
warm-up) in a separate process for every cell of the list below, and writes a
table and a histogram of planned / measured. With --before, an older build also
runs every cell, for its measured peak. --raw saves the programs' output, from
which --read makes the table again.
"""

import argparse
import collections
import json
import math
import pathlib
import shlex
import subprocess
import sys

from compare import lm_step_options


def cell(size, context, batch, precision, backend="AUTO", **sets):
    return {"size": size, "context": context, "batch": batch,
            "precision": precision, "backend": backend, "set": sets}


def cells():
    for size in ("small", "medium", "large"):
        for context in (128, 512, 1024):
            for precision in ("FP32", "BF16"):
                yield cell(size, context, 4, precision)
    for size in ("small", "medium"):
        for backend in ("NAIVE", "COMPILED_FUSED", "FLASH_TILED", "TORCH_FLASH",
                        "TORCH_CUDNN", "TORCH_EFFICIENT"):
            yield cell(size, 512, 4, "BF16", backend)
    for precision in ("FP32", "BF16"):
        for policy in ("BLOCK", "ATTENTION", "FFN"):
            yield cell("medium", 512, 4, precision, recompute=policy)
            yield cell("small", 1024, 4, precision, recompute=policy,
                       micro_batches=2)
    yield cell("medium", 512, 4, "BF16", recompute="BLOCK", every=2)
    for batch in (1, 16, 32):
        for precision in ("FP32", "BF16"):
            yield cell("small", 512, batch, precision)
    for micro_batches in (2, 4, 8):
        for precision in ("BF16", "FP16"):
            yield cell("small", 512, 8, precision, micro_batches=micro_batches)
    for precision in ("TF32", "FP16", "BF16_PURE"):
        for size in ("small", "medium"):
            yield cell(size, 512, 4, precision)
    for precision in ("FP32", "BF16"):
        yield cell("small", 512, 4, precision, storage="ARENA")
        yield cell("small", 128, 4, precision, storage="ARENA")
        yield cell("medium", 512, 4, precision, storage="ARENA")
    yield cell("medium", 512, 4, "BF16", recompute="BLOCK", storage="ARENA")
    yield cell("small", 4096, 1, "BF16")
    yield cell("medium", 2048, 2, "BF16", "NAIVE")
    yield cell("small", 1000, 3, "BF16")
    yield cell("xl", 512, 4, "BF16")
    yield cell("xl", 2048, 2, "BF16", recompute="BLOCK")
    yield cell("2.7B", 128, 4, "BF16")
    yield cell("2.7B", 512, 4, "BF16")
    yield cell("2.7B", 2048, 4, "BF16")
    yield cell("2.7B", 512, 4, "FP32")


def measure(command, wanted):
    fields = {key: value for key, value in wanted.items() if key != "set"}
    done = subprocess.run(
        shlex.split(command) + lm_step_options({**fields, **wanted["set"]}) +
        ["--set=training.deterministic=false", "--warmup=1", "--iterations=1"],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    said = done.stderr.strip().splitlines()
    return {"error": said[-1] if said else f"exit status {done.returncode}"}


def collect(arguments):
    only = arguments.only.split(",") if arguments.only else None
    rows = []
    for wanted in cells():
        words = {wanted["size"], wanted["precision"], wanted["backend"],
                 *wanted["set"].values()}
        if only and not words.intersection(only):
            continue
        row = {"cell": wanted, "ours": measure(arguments.ours, wanted)}
        # The older build has no arena.
        if arguments.before and "storage" not in wanted["set"]:
            row["before"] = measure(arguments.before, wanted)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def name_of(wanted):
    sets = " ".join(f"{key}={value}" for key, value in wanted["set"].items())
    return (f"| {wanted['size']} | {wanted['context']} | {wanted['batch']} | "
            f"{wanted['precision']} | %s | {sets} ")


def table(rows):
    lines = ["| size | context | batch | precision | backend | other | planned, "
             "GiB | measured, GiB | planned / measured - 1 | before, GiB | "
             "ours / before |", "|" + "---|" * 11]
    errors = []
    for row in rows:
        name = name_of(row["cell"])
        ours = row["ours"]
        if "error" in ours:
            lines.append(name % row["cell"]["backend"] + f"| {ours['error']} |")
            continue
        error = ours["planned_gib"] / ours["peak_gib"] - 1
        errors.append(error)
        before = row.get("before", {}).get("peak_gib")
        lines.append(
            name % ours["backend"] +
            f"| {ours['planned_gib']:.4f} | {ours['peak_gib']:.4f} | "
            f"{error:+.3%} | " +
            (f"{before:.4f} | {ours['peak_gib'] / before:.4f} |" if before
             else "| |"))
    return lines, errors


def histogram(errors, step=0.001):
    bins = collections.Counter(math.floor(error / step) for error in errors)
    return [f"{low * step:+.1%} to {(low + 1) * step:+.1%}  {bins[low]:3d}  "
            + "#" * bins[low] for low in range(min(bins), max(bins) + 1)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours")
    parser.add_argument("--before")
    parser.add_argument("--only", help="cells with one of these words")
    parser.add_argument("--read", type=pathlib.Path)
    parser.add_argument("--raw", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if bool(arguments.ours) == bool(arguments.read):
        parser.error("give --ours or --read")
    if arguments.read:
        rows = [json.loads(line)
                for line in arguments.read.read_text().splitlines()]
    else:
        rows = collect(arguments)
    if arguments.raw:
        arguments.raw.write_text(
            "".join(json.dumps(row) + "\n" for row in rows))
    lines, errors = table(rows)
    if not errors:
        sys.exit("no cell could be measured")
    text = "\n".join(
        lines + ["", f"{len(errors)} cells; planned / measured - 1 from "
                 f"{min(errors):+.3%} to {max(errors):+.3%}:", "", "```"] +
        histogram(errors) + ["```", ""])
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
