"""Tests how sanitize.py reads compute-sanitizer's output."""

import contextlib
import io
import unittest
import unittest.mock

import sanitize

BEGIN = "[==========] Running 1 test from 1 test suite.\n"
PASSED = "[       OK ] All/GpuConformance.MatchesOracle/x (12 ms)\n"
RACE = ("========= Error: Race reported between Write access at tessera::flash::"
        "hopper::{}(const void *, int)+0x8460 in ptx.cuh:92\n"
        "=========     and Read access at tessera::flash::hopper::"
        "BackwardConsumer<Traits<(int)96>>::{}(const float *) const+0x1cd0 in"
        " backward_kernel.cuh:225 [64 hazards]\n========= \n")


def run_of(text, tool="memcheck", family="hopper"):
    run = sanitize.Run(family, tool, None)
    for line in text.splitlines(keepends=True):
        run.feed(line)
    return run


def report(*lines):
    return ("========= Invalid __global__ write of size 4 bytes\n"
            + "".join(f"=========     {line}\n" for line in lines)
            + "========= \n")


def summary(count):
    return f"========= ERROR SUMMARY: {count} errors\n"


class SanitizeTest(unittest.TestCase):

    def test_passes_if_nothing_is_reported(self):
        self.assertTrue(run_of(BEGIN + PASSED + summary(0)).ok())

    def test_fails_if_a_case_fails_or_the_run_does_not_end(self):
        self.assertFalse(run_of(BEGIN + summary(0)).ok())
        self.assertFalse(run_of(BEGIN + PASSED).ok())
        self.assertFalse(run_of(summary(0)).ok())

    def test_tells_kernels_apart(self):
        other = report("at void at::native::fill<float>(int)+0x150",
                       "by thread (0,0,0) in block (19,0,0)")
        self.assertTrue(run_of(BEGIN + other + PASSED + summary(1)).ok())
        for ours in ("SoftmaxForward+0x1a0",
                     "void tessera::flash::fp32::ForwardKernel<x>(int)+0x10"):
            self.assertFalse(run_of(BEGIN + report(f"at {ours}") + PASSED
                                    + summary(1)).ok())

    def test_knows_what_reads_padding(self):
        for kernel, ok in (("CrossEntropyForward", True),
                           ("RmsNormForward", False)):
            run = run_of(BEGIN + report(
                f"at void tessera::<unnamed>::{kernel}<float, (int)4>(int)+0x10",
                "by thread (7,0,0) in block (19,0,0)") + PASSED + summary(1),
                         tool="initcheck", family="ops")
            self.assertEqual(run.ok(), ok)

    def test_reports_without_a_kernel_are_ours(self):
        failed_call = report("Saved host backtrace up to driver entry point at"
                             " error", "    Host Frame: main")
        self.assertFalse(run_of(BEGIN + failed_call + PASSED + summary(1)).ok())

    def test_fails_if_the_tools_count_differs(self):
        self.assertFalse(run_of(BEGIN + PASSED + summary(7)).ok())

    def test_fails_if_reports_are_lost(self):
        lost = "========= 18496 errors were skipped (error buffer overflow).\n"
        self.assertFalse(run_of(BEGIN + PASSED + summary(0) + lost).ok())

    def test_knows_one_race_of_one_family(self):
        end = PASSED + ("========= RACECHECK SUMMARY: 1 hazard displayed"
                        " (1 error, 0 warnings)\n")

        def ok(write, read, family="hopper"):
            return run_of(BEGIN + RACE.format(write, read) + end, "racecheck",
                          family).ok()

        self.assertTrue(ok("BulkLoad", "Exponentiate"))
        self.assertTrue(ok("BulkLoad", "Differentiate"))
        self.assertFalse(ok("BulkLoad", "AddDq"))
        self.assertFalse(ok("TmaLoad", "Exponentiate"))
        self.assertFalse(ok("BulkLoad", "Exponentiate", family="portable"))
        self.assertFalse(ok("Exponentiate", "BulkLoad"))

    def test_a_read_that_is_named_by_its_kernel_is_known(self):
        read = ("void tessera::flash::hopper::BackwardKernel<Traits<(int)96>>"
                "(BackwardArgs)")
        end = PASSED + ("========= RACECHECK SUMMARY: 1 hazard displayed"
                        " (1 error, 0 warnings)\n")
        for write, good in (("BulkLoad", True), ("TmaLoad", False)):
            race = ("========= Error: Race reported between Write access at"
                    f" tessera::flash::hopper::{write}(const void *)+0x10 in"
                    f" ptx.cuh:92\n=========     and Read access at {read}"
                    "+0x2900 [32 hazards]\n========= \n")
            self.assertEqual(run_of(BEGIN + race + end, "racecheck").ok(), good)

    def test_a_call_that_runs_nothing_fails(self):
        for tool, family in sanitize.NOT_RUN:
            command = ["sanitize.py", f"--tools={tool}", f"--families={family}"]
            with unittest.mock.patch("sys.argv", command):
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    with self.assertRaises(SystemExit) as end:
                        sanitize.main()
            self.assertEqual(end.exception.code, 1)
            self.assertIn("0 of 0 ok", said.getvalue())

    def test_every_family_has_cases(self):
        for family in sanitize.FAMILIES:
            for tool in sanitize.TOOLS:
                cases = sanitize.filter_of(family, tool).split(":")
                least = 1 if family == "generation" else 5
                self.assertGreaterEqual(len(cases), least)
                self.assertEqual(len(cases), len(set(cases)))


if __name__ == "__main__":
    unittest.main()
