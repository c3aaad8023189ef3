"""Tests of the script that counts test results in CI."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(".ci/count_tests.py")

GTEST_REPORT = """<?xml version="1.0"?>
<testsuites tests="5" failures="1" disabled="1" errors="0" name="AllTests">
  <testsuite name="Linear" tests="5">
    <testcase name="Forward" status="run" result="completed"
              classname="Linear"/>
    <testcase name="Backward" status="run" result="completed"
              classname="Linear"/>
    <testcase name="Wrong" status="run" result="completed" classname="Linear">
      <failure message="a != b" type=""><![CDATA[a != b]]></failure>
      <failure message="c != d" type=""><![CDATA[c != d]]></failure>
    </testcase>
    <testcase name="OnGpu" status="run" result="skipped" classname="GpuLinear">
      <skipped message="needs a CUDA GPU"><![CDATA[needs a GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_Old" status="notrun" result="suppressed"
              classname="Linear"/>
  </testsuite>
</testsuites>
"""

# Bazel's report for a test that writes none.
SHELL_REPORT = """<?xml version="1.0"?>
<testsuites>
  <testsuite name="tests/build/x_test" tests="1" failures="0" errors="{errors}">
    <testcase name="tests/build/x_test" status="run" duration="1" time="1">
      {error}</testcase>
  </testsuite>
</testsuites>
"""
PASSING = SHELL_REPORT.format(errors=0, error="")
FAILING = SHELL_REPORT.format(
    errors=1, error='<error message="exited with error code 1"></error>')


class CountTestsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.events = []

    def add_target(self, label, is_test=True):
        configured = {"targetKind": "cc_test rule", "testSize": "SMALL"}
        self.events.append({
            "id": {"targetConfigured": {"label": label}},
            "configured": configured if is_test else {"targetKind": "x rule"}})

    def add_result(self, label, status, report=None, attempt=1, shard=1):
        result = {"status": status, "testActionOutput": []}
        if report is not None:
            path = self.folder / f"report {len(self.events)}.xml"
            path.write_text(report)
            result["testActionOutput"].append(
                {"name": "test.xml", "uri": path.as_uri()})
        self.events.append({
            "id": {"testResult": {"label": label, "run": 1, "shard": shard,
                                  "attempt": attempt}},
            "testResult": result})

    def add_test(self, label, status, report=None):
        self.add_target(label)
        self.add_result(label, status, report)

    def count(self, bazel_status=0, torn=""):
        """(last line, exit status, everything printed) of the script."""
        events = self.folder / "events.json"
        events.write_text(
            "".join(json.dumps(event) + "\n" for event in self.events) + torn)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(events), str(bazel_status)],
            stdout=subprocess.PIPE, universal_newlines=True, check=False)
        return done.stdout.splitlines()[-1], done.returncode, done.stdout

    def test_counts_cases_not_targets(self):
        self.add_test("//t:gtest", "FAILED", GTEST_REPORT)
        self.add_test("//t:shell", "PASSED", PASSING)
        line, status, text = self.count(bazel_status=3)
        self.assertEqual(line, "3 passed, 1 failed, 2 skipped")
        self.assertEqual(status, 1)
        self.assertIn("FAILED //t:gtest Linear.Wrong", text)

    def test_all_passed(self):
        self.add_test("//t:shell", "PASSED", PASSING)
        self.add_target("//t:library", is_test=False)
        self.assertEqual(self.count()[:2], ("1 passed, 0 failed, 0 skipped", 0))

    def test_a_failed_shell_test_is_one_failure(self):
        self.add_test("//t:shell", "FAILED", FAILING)
        self.add_test("//t:good", "PASSED", PASSING)
        self.assertEqual(self.count(3)[:2],
                         ("1 passed, 1 failed, 0 skipped", 1))

    def test_a_timeout_without_a_report_is_one_failure(self):
        self.add_test("//t:slow", "TIMEOUT")
        self.assertEqual(self.count(3)[:2],
                         ("0 passed, 1 failed, 0 skipped", 1))

    def test_a_timeout_whose_report_shows_only_passes_is_one_failure(self):
        self.add_test("//t:slow", "TIMEOUT", PASSING)
        self.assertEqual(self.count(3)[0], "1 passed, 1 failed, 0 skipped")

    def test_an_unreadable_report_is_a_failure(self):
        self.add_test("//t:torn", "PASSED", GTEST_REPORT[:200])
        self.assertEqual(self.count()[:2], ("0 passed, 1 failed, 0 skipped", 1))

    def test_a_target_that_did_not_build_is_one_failure(self):
        self.add_test("//t:good", "PASSED", PASSING)
        self.add_target("//t:broken")
        line, status, text = self.count(1)
        self.assertEqual((line, status), ("1 passed, 1 failed, 0 skipped", 1))
        self.assertIn("//t:broken did not build", text)

    def test_bazel_itself_failing_is_a_failure(self):
        self.add_test("//t:good", "PASSED", PASSING)
        line, status, text = self.count(1)
        self.assertEqual((line, status), ("1 passed, 1 failed, 0 skipped", 1))
        self.assertIn("exit status 1", text)

    def test_only_the_last_attempt_of_a_flaky_test_counts(self):
        self.add_target("//t:flaky")
        self.add_result("//t:flaky", "FAILED", FAILING, attempt=1)
        self.add_result("//t:flaky", "PASSED", PASSING, attempt=2)
        self.assertEqual(self.count()[0], "1 passed, 0 failed, 0 skipped")

    def test_every_shard_counts(self):
        self.add_target("//t:sharded")
        self.add_result("//t:sharded", "PASSED", PASSING, shard=1)
        self.add_result("//t:sharded", "PASSED", PASSING, shard=2)
        self.assertEqual(self.count()[0], "2 passed, 0 failed, 0 skipped")

    def test_no_tests_is_not_a_success(self):
        self.assertEqual(self.count()[:2], ("0 passed, 0 failed, 0 skipped", 1))

    def test_an_interrupted_run_counts_what_it_wrote(self):
        self.add_test("//t:good", "PASSED", PASSING)
        self.assertEqual(self.count(8, torn='{"id": {"testRes')[0],
                         "1 passed, 1 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
