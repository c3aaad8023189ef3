#!/usr/bin/env python3
"""Runs our kernels under compute-sanitizer and checks its reports.

usage: sanitize.py [--run=DIR/run]
           [--families=hopper,portable,tf32,fp32,fused,generation,ops]
           [--tools=memcheck,synccheck,racecheck,initcheck] [--out=FOLDER]
           [--jobs=4] [--time_limit_s=560]

A family is a set of cases of gpu_tests. Those of attention have lengths that
are not multiples of a tile, equal and unequal, also with rows that see no key,
default and deterministic, with and without a soft cap of scores, at every head
dim that has a kernel, and some have windows, packed documents and sinks;
"generation" is the attention of a generated token; "ops" are the tests of all
other ops, of the optimizer and of what ranks add. Each family runs under each
tool in a separate process; a line shows how many cases ran and what was
reported, by kernel. Exit status 1 if a case fails or none runs, if a run does
not end, or if there is a report that is neither about another library's kernel
nor in KNOWN; also if the tool lost reports or its count differs from the number
of reports read.

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
import signal
import subprocess
import sys
import threading
import time

DIMS = {"hopper": (64, 80, 96, 128), "portable": (32, 64, 80, 96, 128, 192, 256),
        "tf32": (32, 64, 80, 96, 128), "fp32": (32, 64, 96, 128, 192, 256),
        "fused": (64, 72)}
DTYPES = {"hopper": ("BFloat16", "Half"), "portable": ("BFloat16",),
          "tf32": ("Float_tf32",), "fp32": ("Float",),
          "fused": ("BFloat16", "Float")}
# Cases of the conformance suite, by the shape in their names.
SHAPES = ["b2_s100_t65_*", "b1_s65_t777_*"]
DETERMINISTIC = ["b1_s129_t129_h2_g1_*", "b2_s300_t300_*", "b1_s330_t270_*",
                 "b1_s300_t300_*"]
# Shapes with special tile sizes.
SHAPES_OF = {"hopper": ["b1_s130_t1100_*"], "fp32": ["b9_s70_t70_h32_*"]}
# The head dims of kernels with a soft cap (kernel_family.bzl).
CAPPED_DIMS = {"portable": (64, 128, 256), "tf32": (64, 128),
               "fp32": (64, 128, 256)}
# Windows; packed documents; sinks, alone and with documents.
MASKED = [("b1_s270_t270_h1_g1_d96_before39_after0", ""),
          ("b1_s270_t270_h1_g1_d96_before20_after13", ""),
          ("b1_s270_t270_h1_g1_d96_beforeall_after70", ""),
          ("b3_s65_t65_h2_g1_d40_causal", "_documents"),
          ("b2_s129_t129_h3_g1_d128_causal", "_documents"),
          ("b2_s129_t129_h3_g1_d128_before29_after0", "_documents"),
          ("b2_s65_t65_h4_g2_d40_before20_after13", "_sinks"),
          ("b2_s129_t129_h3_g1_d128_causal", "_documents_sinks")]
UNEQUAL = ["b2_s129_t64_*", "b1_s129_t400_*", "b1_s260_t200_*",
           "b1_s200_t330_*"]
# Rows in two passes, CUDA blocks of 1024 threads, bands, packs.
FUSED_SUITE = [f"*GpuCompiledFused*/{i}" for i in range(5)]
OPS = ["Gpu/CrossEntropyTest.*", "Gpu/EmbeddingTest.*", "Gpu/FusionTest.*",
       "Gpu/LinearCrossEntropyTest.*", "Gpu/QkNormTest.*",
       "Gpu/ReluSquaredTest.*", "Gpu/ResidualTest.*", "Gpu/RmsNormTest.*",
       "Gpu/RopeTest.*", "Gpu/SwiGluTest.*", "GpuAdamW.*",
       "GpuDocumentBounds.*", "*GpuEmaTest.*/FP16", "*GpuFewRowsTest.*",
       "GpuInitialValues.*", "*GpuMuon.*", "GpuSumAddends.*",
       "GpuSumOfSquares.*", "GpuSymmetricProduct.EqualsFp64"]
# Several blocks divide the keys of a head; windows, sinks and grouped heads.
GENERATION = "GpuNextTokenTest.ALongTextHasTheSameLogits"
# racecheck, told to look at our kernels only, ends in an internal error here.
WITH_PRODUCTS = ["Gpu/FusionTest.*", "Gpu/LinearCrossEntropyTest.*",
                 "*GpuMuon.*"]
# Thousands of launches, mostly of another library's kernels, where other cases
# of the same suites run our kernels at the same shapes.
MANY_LAUNCHES = ["*CentralDifferences*", "*ANanLogitGivesANanLoss*"]
FAMILIES = [*DIMS, "generation", "ops"]
TOOLS = {
    # Each tensor is a separate allocation with padding around it.
    "memcheck": ["--padding", "512"],
    "synccheck": [],
    "racecheck": ["--print-limit", "1000"],
    "initcheck": ["--check-api-memory-access", "no", "--show-backtrace", "no",
                  "--print-limit", "100000000"],
}
# Runs that the tools cannot do. A generated token is a CUDA graph of products:
# racecheck takes longer than 10 minutes, and initcheck does not see what
# cuBLAS's kernels store by the copy engine.
NOT_RUN = {("racecheck", "generation"), ("initcheck", "generation")}
OURS = re.compile(r"tessera::|tessera_|\bSoftmax(Forward|Backward)\b")

# The location in a line of a report.
PLACE = re.compile(r"(?:^|access )at (.+?)(?:\+0x|\(|$)")

# False positives by (tool, family): patterns for the first of a report's lines
# with a location and for all others, and the reason.
KNOWN = {
    ("racecheck", "hopper"): (
        # Writes row statistics only.
        re.compile(r"\bBulkLoad\("),
        # In some kernels the tool names neither of the two functions that read
        # them, which are inlined.
        re.compile(r"hopper::(BackwardConsumer<.*>::"
                   r"(Exponentiate|Differentiate)\(|BackwardKernel<)"),
        "row statistics are read before one thread of each warp arrives at the"
        " barrier that the next bulk copy over them waits for; the tool expects"
        " every thread to arrive (docs/experiments/sanitizers)"),
    ("initcheck", "ops"): (
        re.compile(r"\bCrossEntropy(Forward|Backward)<"),
        re.compile(r"\bCrossEntropy(Forward|Backward)<"),
        "the last pack of a row of logits also reads the columns that fill up"
        " the pack, and ignores them"),
}


def known(tool, family, report):
    if (tool, family) not in KNOWN:
        return False
    places = [line for line in report if PLACE.search(line)]
    first, others, _ = KNOWN[tool, family]
    return (bool(places) and bool(first.search(places[0]))
            and all(others.search(line) for line in places[1:]))


def sanitizer():
    found = shutil.which("compute-sanitizer") or next(
        iter(sorted(map(str, pathlib.Path("/usr/local").glob(
            "cuda*/bin/compute-sanitizer")))), None)
    return found or sys.exit("no compute-sanitizer here; it comes with the"
                             " CUDA toolkit")


def kernels_of(family, tool):
    """Options that restrict a tool to our kernels. Only for racecheck, which
    takes ten times as long as the others, mostly in the oracle's kernels. With
    these options racecheck fails with an internal error at UNEQUAL, where
    cuBLAS fails, and in the fused family's long rows."""
    named = tool == "racecheck" and family != "fused"
    return ["--kernel-name", "kns=tessera"] if named else []


def filter_of(family, tool):
    if family == "ops":
        if tool == "racecheck":
            return ":".join(suite for suite in OPS
                            if suite not in WITH_PRODUCTS)
        return ":".join(OPS) + "-" + ":".join(MANY_LAUNCHES)
    if family == "generation":
        return GENERATION
    own = SHAPES_OF.get(family, [])
    shapes = [f"b*_s129_t129_*_d{dim}" for dim in DIMS[family]] + SHAPES + own
    deterministic = DETERMINISTIC + own
    if not kernels_of(family, tool):
        # In b2_s129_t64 the copy engine fills an input, which initcheck does
        # not see: it would report the oracle's reads, more than it can hold.
        unequal = UNEQUAL[1:] if tool == "initcheck" else UNEQUAL
        shapes += unequal
        deterministic += unequal
    elif family == "fp32":  # as many instructions as the other families in all
        deterministic = DETERMINISTIC[:2]
    if family == "fused":
        deterministic = []  # the same kernels
    backend = "COMPILED_FUSED" if family == "fused" else "FLASH_CUDA"
    suite = [f"*GpuConformance*/{backend}_{shape}_*_{dtype}{mode}"
             for mode, some in (("", shapes), ("_deterministic", deterministic))
             for shape in some for dtype in DTYPES[family]]
    suite += [f"*GpuConformance*/{backend}_b1_s129_t129_h2_g1_d{dim}_*_{dtype}"
              f"_capped{mode}" for mode in ("", "_deterministic")
              for dim in CAPPED_DIMS.get(family, ()) for dtype in DTYPES[family]]
    if family != "fused":
        # fp32's take racecheck ten times as long as the others'.
        short = family == "fp32" and tool == "racecheck"
        suite += [f"*GpuConformance*/FLASH_CUDA_{shape}_{dtype}{what}{mode}"
                  for mode in ("", "_deterministic") for shape, what in MASKED
                  if "_s65_" in shape or not short for dtype in DTYPES[family]]
    # At these sizes cuBLAS's kernels store by the copy engine, which initcheck
    # does not see: it would report our kernels, which read the products.
    if family == "fused" and tool != "initcheck":
        suite += FUSED_SUITE
    return ":".join(suite)


class Run:
    """The output of one process, read line by line: a report is a line that
    begins right after "========= ", and the indented lines that follow."""

    KEPT = 20  # reports per kernel that the log keeps
    NO_REPORTS = re.compile(r"COMPUTE-SANITIZER|Target application|$")
    # Lines that say that reports are missing.
    LOST = re.compile(r"not printed|skipped|dropped|overflow")

    def __init__(self, family, tool, log):
        self.family, self.tool, self._log = family, tool, log
        self.cases = self.passed = 0
        self.summary = self.lost = ""
        self.reports = collections.Counter()  # by kind and kernel
        self._report, self._kept = [], True

    def feed(self, line):
        if line.startswith("========="):
            self._feed_report(line[len("========="):].rstrip())
        else:
            self._end_report()
            running = re.search(r"Running (\d+) tests?", line)
            self.cases = int(running[1]) if running else self.cases
            self.passed += bool(re.match(r"\[       OK \] .*ms\)$", line))
        if self._log and self._kept:
            self._log.write(line)

    def _feed_report(self, text):
        if text.startswith("     "):
            self._report.append(text.strip())
            return
        self._end_report()
        text = text.strip()
        if self.LOST.search(text):
            self.lost = text
        if "SUMMARY: " in text:
            self.summary = text
        elif not self.NO_REPORTS.match(text):
            self._report = [text]

    def _end_report(self):
        self._kept = True
        if not self._report:
            return
        places = [place[1] for place in map(PLACE.search, self._report)
                  if place]
        # Reports without a kernel count as ours.
        kernel = places[0] if places else "tessera::? " + self._report[0]
        kind = ("another library's" if not OURS.search(kernel) else
                "known" if known(self.tool, self.family, self._report)
                else "OURS")
        self.reports[kind, kernel] += 1
        self._kept = self.reports[kind, kernel] <= self.KEPT
        self._report = []

    def counted(self):
        """The number of reports in the tool's last line."""
        count = re.search(r"SUMMARY: (\d+)", self.summary)
        return int(count[1]) if count else -1

    def ok(self):
        return (0 < self.cases == self.passed and not self.lost
                and self.counted() == sum(self.reports.values())
                and not any(kind == "OURS" for kind, _ in self.reports))

    def describe(self, code, seconds):
        last = self.lost or self.summary or f"ended by {code}"
        lines = [f"{'ok    ' if self.ok() else 'FAILED'} {self.family}"
                 f" {self.tool}: {self.passed} of {self.cases} cases, {last},"
                 f" {seconds:.0f} s"]
        for (kind, kernel), count in self.reports.most_common():
            lines.append(f"         {count} x {kind}: {kernel[:110]}")
        return "\n".join(lines)


def check(family, tool, arguments):
    command = [sanitizer(), "--tool", tool, *TOOLS[tool],
               *kernels_of(family, tool), *arguments.run, "gpu_tests",
               f"--gtest_filter={filter_of(family, tool)}"]
    environment = dict(os.environ)
    # The graphs of generation need the caching allocator.
    if tool == "memcheck" and family != "generation":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if family == "portable":
        environment["TESSERA_MAX_COMPUTE_CAPABILITY"] = "80"
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    # Kills the program too, which would keep the pipe open.
    timer = threading.Timer(max(arguments.end - began, 1), os.killpg,
                            (process.pid, signal.SIGKILL))
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
    parser.add_argument("--families", type=names, default=FAMILIES)
    parser.add_argument("--tools", type=names, default=list(TOOLS))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--time_limit_s", type=float, default=560)
    arguments = parser.parse_args()
    for given, all_of_them in ((arguments.families, FAMILIES),
                               (arguments.tools, TOOLS)):
        for name in given:
            if name not in all_of_them:
                sys.exit(f"'{name}' is none of {', '.join(all_of_them)}")
    arguments.run = arguments.run.split()
    arguments.end = time.monotonic() + arguments.time_limit_s
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # Starts the slow tools first.
        checks = [pool.submit(check, family, tool, arguments)
                  for tool in reversed(arguments.tools)
                  for family in arguments.families
                  if (tool, family) not in NOT_RUN]
        good = [future.result() for future in checks]
    for (tool, family), (_, _, why) in KNOWN.items():
        print(f"known: {tool} of {family}: {why}")
    print(f"{sum(good)} of {len(good)} ok")
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
