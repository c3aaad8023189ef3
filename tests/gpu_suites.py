#!/usr/bin/env python3
"""Runs the GPU tests and keeps docs/results/gpu_tests.md.

usage: gpu_suites.py run --run=DIR/run --commit=HASH --out=FILE
           [--parts=most,conformance,large|two] [--gpus=1]
           [--time_limit_s=540]
       gpu_suites.py add FILE...

`run` starts gpu_tests of a bundle and appends a line of JSON to FILE: the card,
the date, the commit, and for each suite the numbers of cases that passed,
failed and were skipped. The cases of attention's conformance run in four
processes side by side, by dtype, the cases of tensors beyond 2^31 elements in a
process of their own, and all other suites in one process, as a user would run
them, or with --gpus in one for each GPU.
Exit status 1 if a case fails, none passes or a process does not end in time.

`add` appends such lines to docs/results/gpu_tests.jsonl and writes the page
anew: for each suite and card, the newest line that ran it.

Not a Bazel test: it needs a GPU.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/gpu_tests.md"

# The filters of each part's processes. Those of conformance divide it by dtype:
# GoogleTest's shards would separate the backends of a problem, which share its
# inputs and expected results if they run one after another.
PARTS = {
    "most": ["Gpu*:*/Gpu*-*GpuConformance*:*GpuLargeTensor*"],
    "conformance": ["*GpuConformance*_BFloat16*", "*GpuConformance*_Half*",
                    "*GpuConformance*_tf32*",
                    "*GpuConformance*-*_BFloat16*:*_Half*:*_tf32*"],
    "large": ["*GpuLargeTensor*"],
    # The ranks of all but the first mostly wait.
    "two": ["GpuProcessGroup*:*GpuGraphRanks*-*.WaitsFor*:*.EveryRank*",
            "GpuProcessGroup*.WaitsFor*", "GpuProcessGroup*.EveryRank*",
            "GpuHangingRank*"],
}
# Parts whose processes are divided further, into one for each GPU.
PER_GPU = ("most", "conformance")
# What a machine with one GPU runs: "two" is for a short call on two.
DEFAULT_PARTS = "most,conformance,large"

# The rows of the table: patterns over the names of GoogleTest's suites, the
# first that matches.
SUITES = (
    ("attention: conformance", r"GpuConformance"),
    ("attention: planned memory", r"GpuPlan\b"),
    ("attention: tensors beyond 2^31 elements", r"GpuLargeTensor"),
    ("attention: other", r"GpuFlashCuda|GpuCompiledFused|GpuGraphCapture"
                         r"|GpuAttention"),
    ("two GPUs", r"GpuProcessGroup|GpuGraphRanks|GpuHangingRank"),
    ("golden losses", r"GpuGolden"),
    ("CUDA graphs", r"GpuCudaGraph|GpuGraphStep|GpuProgress"),
    ("training", r"GpuTrain|GpuLoss|GpuSampling|GpuResumed|TrainingState"
                 r"|GpuNotFinite|BatchPrefetcher|GpuCell|Nvtx|GpuPlanned"
                 r"|GpuFailing"),
    ("instruments", r"GpuCounters|GpuKernelCounters|GpuPhaseTimer|GpuTrace"
                    r"|GpuSnapshot|MemoryRecorder"),
    ("ops, optimizer, parameters", r""),
)


def suite_of(name):
    return next(suite for suite, pattern in SUITES if re.search(pattern, name))


def count(report):
    """{suite: {"passed": n, "failed": [names], "skipped": n}} of an XML file."""
    suites = {}
    for case in report.iter("testcase"):
        name = case.get("classname", "")
        counts = suites.setdefault(
            suite_of(name), {"passed": 0, "failed": [], "skipped": 0})
        if case.find("failure") is not None:
            counts["failed"].append(f"{name}.{case.get('name')}")
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        elif case.get("status") == "run":
            counts["passed"] += 1
    return suites


def merge(suites, more):
    for suite, counts in more.items():
        into = suites.setdefault(suite,
                                 {"passed": 0, "failed": [], "skipped": 0})
        for kind, cases in counts.items():
            into[kind] += cases


def card():
    names = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], check=True,
        stdout=subprocess.PIPE, universal_newlines=True).stdout.split("\n")
    return names[0].strip()


def shares_of(part, gpus):
    """(filter, index of the shard, number of shards) of each process."""
    shards = gpus if part in PER_GPU else 1
    return [(cases, shard, shards) for cases in PARTS[part]
            for shard in range(shards)]


def start(arguments, part, process, xml):
    cases, shard, shards = shares_of(part, arguments.gpus)[process]
    environment = {**os.environ, "GTEST_SHARD_INDEX": str(shard),
                   "GTEST_TOTAL_SHARDS": str(shards)}
    if arguments.gpus > 1 and part != "two":
        environment["CUDA_VISIBLE_DEVICES"] = str(process % arguments.gpus)
    return subprocess.Popen(
        [arguments.run, "gpu_tests", f"--gtest_filter={cases}",
         f"--gtest_output=xml:{xml}"], cwd=arguments.run.parent,
        env=environment)


def end(process, deadline):
    """Why a process ended badly; None if it did not."""
    try:
        status = process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "did not end in time"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return None


def run_part(arguments, part, deadline):
    """The counts of each suite, and what went wrong with the processes."""
    suites, problems = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        files = [pathlib.Path(scratch, f"{process}.xml")
                 for process in range(len(shares_of(part, arguments.gpus)))]
        processes = [start(arguments, part, process, xml)
                     for process, xml in enumerate(files)]
        for process, xml in zip(processes, files):
            problem = end(process, deadline)
            if problem is not None:
                problems.append(f"{part}: {problem}")
            if xml.exists():
                merge(suites, count(ElementTree.parse(xml).getroot()))
    return suites, problems


def run(arguments):
    begin = time.monotonic()
    suites, problems = {}, []
    for part in arguments.parts:
        more, wrong = run_part(arguments, part, begin + arguments.time_limit_s)
        merge(suites, more)
        problems += wrong
    line = {"card": card(), "date": datetime.date.today().isoformat(),
            "commit": arguments.commit, "parts": arguments.parts,
            "seconds": round(time.monotonic() - begin, 1),
            "problems": problems, "suites": suites}
    with open(arguments.out, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    failed = [name for counts in suites.values() for name in counts["failed"]]
    passed = sum(counts["passed"] for counts in suites.values())
    for name in failed:
        print(f"failed: {name}")
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{line['card']}: {passed} passed, {len(failed)} failed,"
          f" {sum(counts['skipped'] for counts in suites.values())} skipped"
          f" in {line['seconds']} s")
    return 1 if problems or failed or passed == 0 else 0


def page(lines):
    """The text of gpu_tests.md for lines of JSON, oldest first."""
    newest = collections.OrderedDict()
    for line in lines:
        for suite, counts in line["suites"].items():
            if counts["passed"] or counts["failed"]:
                newest[suite, line["card"]] = (line, counts)
    order = [suite for suite, _ in SUITES]
    rows = sorted(newest.items(),
                  key=lambda row: (order.index(row[0][0]), row[0][1]))
    text = [
        "# GPU tests by card", "",
        "The newest run of each suite of `gpu_tests` on each kind of card. A"
        " row is in the table only if", "its suite ran there. Raw lines:"
        " [gpu_tests.jsonl](gpu_tests.jsonl). Written by", "",
        "    python3 tests/gpu_suites.py run --run=DIR/run --commit=HASH"
        " --out=FILE   # on the GPU machine",
        "    python3 tests/gpu_suites.py add FILE                            "
        "      # in the source tree", "",
        "| suite | card | date | commit | passed | failed | skipped |",
        "|---|---|---|---|---|---|---|"]
    for (suite, name), (line, counts) in rows:
        text.append(f"| {suite} | {name} | {line['date']} |"
                    f" {line['commit'][:10]} | {counts['passed']} |"
                    f" {len(counts['failed'])} | {counts['skipped']} |")
    failures = [f"- {name} on {line['card']}"
                for _, (line, counts) in rows for name in counts["failed"]]
    newest_of_part = {(part, line["card"]): line
                      for line in lines for part in line.get("parts", [])}
    failures += [f"- {problem} on {name}"
                 for (part, name), line in newest_of_part.items()
                 for problem in line["problems"]
                 if problem.startswith(f"{part}: ")]
    if failures:
        text += ["", "Failed:", ""] + failures
    return "\n".join(text) + "\n"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def add(files):
    raw = PAGE.with_suffix(".jsonl")
    lines = read_lines(raw) if raw.exists() else []
    for file in files:
        lines += [line for line in read_lines(file) if line not in lines]
    raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    PAGE.write_text(page(lines))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--run", type=pathlib.Path, required=True)
    runs.add_argument("--commit", required=True)
    runs.add_argument("--out", required=True)
    runs.add_argument("--parts", default=DEFAULT_PARTS)
    runs.add_argument("--gpus", type=int, default=1)
    runs.add_argument("--time_limit_s", type=float, default=540)
    adds = commands.add_parser("add")
    adds.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "add":
        return add(arguments.files)
    arguments.run = arguments.run.resolve()
    arguments.parts = arguments.parts.split(",")
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"--parts: no part {part!r}; there are"
                         f" {', '.join(PARTS)}")
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
