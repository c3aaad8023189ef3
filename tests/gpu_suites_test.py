"""Tests of the script that keeps the table of GPU tests."""

import unittest
import xml.etree.ElementTree as ElementTree

import gpu_suites

REPORT = """<testsuites>
  <testsuite name="All/GpuConformance">
    <testcase name="A/0" status="run" classname="All/GpuConformance"/>
    <testcase name="A/1" status="run" classname="All/GpuConformance">
      <failure message="a"/><failure message="b"/>
    </testcase>
    <testcase name="A/2" status="notrun" classname="All/GpuConformance"/>
  </testsuite>
  <testsuite name="Gpu/RmsNormTest">
    <testcase name="Grad/0" status="run" classname="Gpu/RmsNormTest"/>
  </testsuite>
  <testsuite name="GpuProcessGroupTest">
    <testcase name="Two" status="run" classname="GpuProcessGroupTest">
      <skipped message="needs two GPUs"/>
    </testcase>
  </testsuite>
</testsuites>
"""


def line(card, commit, **suites):
    return {"card": card, "date": "2026-01-02", "commit": commit,
            "suites": {name.replace("_", " "): counts
                       for name, counts in suites.items()}}


class GpuSuitesTest(unittest.TestCase):
    def test_counts_cases_by_suite(self):
        self.assertEqual(
            gpu_suites.count(ElementTree.fromstring(REPORT)),
            {"attention: conformance":
                 {"passed": 1, "failed": ["All/GpuConformance.A/1"],
                  "skipped": 0},
             "ops, optimizer, parameters":
                 {"passed": 1, "failed": [], "skipped": 0},
             "two GPUs": {"passed": 0, "failed": [], "skipped": 1}})

    def test_adds_the_counts_of_shards(self):
        suites = {}
        for _ in range(2):
            gpu_suites.merge(suites, {"a": {"passed": 2, "failed": ["X.Y"],
                                            "skipped": 1}})
        self.assertEqual(suites, {"a": {"passed": 4, "failed": ["X.Y", "X.Y"],
                                        "skipped": 2}})

    def test_each_card_has_its_newest_run(self):
        passed = {"passed": 7, "failed": [], "skipped": 0}
        page = gpu_suites.page([
            line("H200", "a" * 40, training=passed),
            line("H200", "b" * 40, training={"passed": 5, "failed": ["X.Y"],
                                             "skipped": 1}),
            line("H100", "c" * 40, training=passed),
            # Skipped as a whole: no run of that suite.
            line("H200", "d" * 40,
                 training={"passed": 0, "failed": [], "skipped": 9})])
        rows = [row for row in page.split("\n") if row.startswith("| training")]
        self.assertEqual(rows, [
            f"| training | H100 | 2026-01-02 | {'c' * 10} | 7 | 0 | 0 |",
            f"| training | H200 | 2026-01-02 | {'b' * 10} | 5 | 1 | 1 |"])
        self.assertIn("- X.Y on H200", page)

    def test_a_part_that_ended_later_is_no_problem(self):
        lines = [dict(line("H200", "a"), parts=["most", "large"],
                      problems=["large: did not end in time"])]
        self.assertIn("- large: did not end in time on H200",
                      gpu_suites.page(lines))
        lines.append(dict(line("H200", "b"), parts=["large"], problems=[]))
        self.assertNotIn("did not end", gpu_suites.page(lines))


if __name__ == "__main__":
    unittest.main()
