#!/usr/bin/env python3
"""Runs our attention kernels under compute-sanitizer and checks what it says.

usage: sanitize.py [--run=DIR/run] [--families=hopper,portable,fp32,fused]
           [--tools=memcheck,synccheck,racecheck,initcheck] [--out=FOLDER]
           [--jobs=4] [--time_limit_s=560]

A family is a set of conformance cases of gpu_tests, at lengths that are no
multiple of a tile and at every head dim that has a kernel. Each goes through
each tool in a process of its own; a line says how many cases ran and what was
reported, by kernel. Exit status 1 where a case fails, a run does not end, or
something is reported of a kernel of ours that is not in KNOWN.

Not a Bazel test: it needs a GPU, the CUDA toolkit's compute-sanitizer and
minutes. --out keeps each process's whole output.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

CASES = "*GpuConformance*/{}_b*_s129_t129_*_d{}_*_{}"
DIMS = {"hopper": (64, 80, 96, 128), "portable": (32, 64, 80, 96, 128, 192, 256),
        "fp32": (32, 64, 96, 128, 192, 256), "fused": (64, 72)}
DTYPES = {"hopper": ("BFloat16", "Half"), "portable": ("BFloat16",),
          "fp32": ("Float",), "fused": ("BFloat16", "Float")}
TOOLS = {
    # A tensor is an allocation of its own, with room around it.
    "memcheck": ["--padding", "512"],
    "synccheck": [],
    "racecheck": ["--print-limit", "1000"],
    "initcheck": ["--check-api-memory-access", "no", "--show-backtrace", "no",
                  "--print-limit", "100000000"],
}
ENVIRONMENT = {"memcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}
OURS = re.compile(r"tessera::|tessera_")
# (tool, kernel): why a report of it is the tool's, not the kernel's.
KNOWN = {
    ("racecheck", "hopper::BackwardKernel"):
        "row statistics are read before one thread of each warp arrives at the"
        " barrier that the next bulk copy over them waits for; the tool wants"
        " every thread to arrive (docs/results/attention_h200)",
}


def sanitizer():
    found = shutil.which("compute-sanitizer") or next(
        iter(sorted(map(str, pathlib.Path("/usr/local").glob(
            "cuda*/bin/compute-sanitizer")))), None)
    return found or sys.exit("no compute-sanitizer here; it comes with the"
                             " CUDA toolkit")


def filter_of(family):
    backend = "COMPILED_FUSED" if family == "fused" else "FLASH_CUDA"
    return ":".join(CASES.format(backend, dim, dtype)
                    for dim in DIMS[family] for dtype in DTYPES[family])


def known(tool, kernel):
    return any(tool == t and part in kernel for t, part in KNOWN)


class Run:
    """What one process said, read line by line: initcheck reports every read
    of another library's by itself, a million of them."""

    KEPT = 20  # reports of a kernel that the log keeps

    def __init__(self, family, tool, log):
        self.family, self.tool, self._log = family, tool, log
        self.cases = self.passed = 0
        self.summary = self.unprinted = ""
        self.kernels = collections.Counter()
        self._in_report, self._kept = False, True

    def feed(self, line):
        if line.startswith("========="):
            self._feed_report(line[len("========="):].strip())
        else:
            self._kept = True
            running = re.search(r"Running (\d+) tests", line)
            self.cases = int(running[1]) if running else self.cases
            self.passed += bool(re.match(r"\[       OK \] .*ms\)$", line))
        if self._log and self._kept:
            self._log.write(line)

    def _feed_report(self, text):
        if "SUMMARY: " in text:
            self.unprinted = text if "not printed" in text else self.unprinted
            self.summary = text
            self._kept = True
        elif re.match(r"(Error|Warning|Uninitialized|Invalid|Barrier|Race"
                      r"|Program|Host API|Unspecified|CUDA)", text):
            self._in_report = True
        at = re.search(r"\bat (.+?)(?:\+0x|\(|$)", text)
        if self._in_report and at:
            kernel = at[1].strip()
            self.kernels[kernel] += 1
            self._kept = self.kernels[kernel] <= self.KEPT
            self._in_report = False

    def ours(self):
        return {k: n for k, n in self.kernels.items()
                if OURS.search(k) and not known(self.tool, k)}

    def ok(self):
        return (bool(self.summary) and not self.unprinted and self.cases > 0
                and self.passed == self.cases and not self.ours())

    def describe(self, code, seconds):
        last = self.summary or f"ended by {code}"
        lines = [f"{'ok    ' if self.ok() else 'FAILED'} {self.family}"
                 f" {self.tool}: {self.passed} of {self.cases} cases, {last},"
                 f" {seconds:.0f} s"]
        for kernel, count in self.kernels.most_common():
            kind = ("OURS" if kernel in self.ours() else "ours, known"
                    if OURS.search(kernel) else "another library's")
            lines.append(f"         {count} x {kind}: {kernel[:110]}")
        return "\n".join(lines)


def check(family, tool, arguments):
    command = [sanitizer(), "--tool", tool, *TOOLS[tool], *arguments.run,
               "gpu_tests", f"--gtest_filter={filter_of(family)}"]
    environment = {**os.environ, **ENVIRONMENT.get(tool, {})}
    if family == "portable":
        environment["TESSERA_MAX_COMPUTE_CAPABILITY"] = "80"
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, text=True,
                               stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    timer = threading.Timer(max(arguments.end - began, 1), process.kill)
    timer.start()
    log = (open(arguments.out / f"{family}_{tool}.log", "w", encoding="utf-8")
           if arguments.out else None)
    run = Run(family, tool, log)
    for line in process.stdout:
        run.feed(line)
    code = process.wait()
    timer.cancel()
    if log:
        log.close()
    print(run.describe(code, time.monotonic() - began), flush=True)
    return run.ok()


def main():
    def names(text):
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", default="./run")
    parser.add_argument("--families", type=names, default=list(DIMS))
    parser.add_argument("--tools", type=names, default=list(TOOLS))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--time_limit_s", type=float, default=560)
    arguments = parser.parse_args()
    for given, all_of_them in ((arguments.families, DIMS),
                               (arguments.tools, TOOLS)):
        for name in given:
            if name not in all_of_them:
                sys.exit(f"'{name}' is none of {', '.join(all_of_them)}")
    arguments.run = arguments.run.split()
    arguments.end = time.monotonic() + arguments.time_limit_s
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # The slow tools first.
        checks = [pool.submit(check, family, tool, arguments)
                  for tool in reversed(arguments.tools)
                  for family in arguments.families]
        good = [future.result() for future in checks]
    for (tool, kernel), why in KNOWN.items():
        print(f"known: {tool} of {kernel}: {why}")
    print(f"{sum(good)} of {len(good)} ok")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
