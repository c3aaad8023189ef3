"""Counts the test cases of one `bazel test` run.

usage: count_tests.py EVENTS_FILE BAZEL_EXIT_STATUS

EVENTS_FILE is what --build_event_json_file wrote: it names every test target,
also those that did not build, and the XML report of each that ran. GoogleTest
writes one <testcase> a case; for any other test Bazel writes a report with a
single case. A target that failed with no failed case to show for it (crash,
time-out, no report, not built) counts as one failure.

Prints what failed, then `N passed, N failed, N skipped`; exits 1 where anything
failed or nothing passed.
"""

import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


class Counts:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []  # one line of text each


def read_events(path):
    """The events of the file; an interrupted Bazel may leave a torn last line."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def is_skipped(case):
    return (case.find("skipped") is not None
            or case.get("result") in ("skipped", "suppressed")
            or case.get("status") == "notrun")


def count_report(label, report, counts):
    """Adds the cases of one XML file; returns how many of them failed."""
    failed = 0
    for case in report.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            suite, name = case.get("classname"), case.get("name", "?")
            full_name = f"{suite}.{name}" if suite else name
            counts.failures.append(f"{label} {full_name}")
        elif is_skipped(case):
            counts.skipped += 1
        else:
            counts.passed += 1
    return failed


def find_report(result):
    """The parsed XML report of a test result, or None."""
    for output in result.get("testActionOutput", []):
        if output.get("name") != "test.xml":
            continue
        uri = urllib.parse.urlparse(output.get("uri", ""))
        try:
            return ElementTree.parse(urllib.parse.unquote(uri.path)).getroot()
        except (OSError, ElementTree.ParseError):
            return None
    return None


def count_result(label, result, counts):
    status = result.get("status", "NO_STATUS")
    report = find_report(result)
    failed = 0 if report is None else count_report(label, report, counts)
    if report is None and status in ("PASSED", "FLAKY"):
        counts.failures.append(f"{label} passed but left no readable report")
    elif status not in ("PASSED", "FLAKY") and failed == 0:
        counts.failures.append(f"{label} {status}")


def count(events, bazel_status):
    tests = set()
    results = {}  # (label, run, shard) -> its last attempt
    for event in events:
        event_id = event.get("id", {})
        if "targetConfigured" in event_id:
            if "testSize" in event.get("configured", {}):
                tests.add(event_id["targetConfigured"]["label"])
        elif "testResult" in event_id:
            test = event_id["testResult"]
            key = (test["label"], test.get("run", 1), test.get("shard", 1))
            results[key] = event.get("testResult", {})
    counts = Counts()
    for (label, _, _), result in sorted(results.items()):
        count_result(label, result, counts)
    for label in sorted(tests - {label for label, _, _ in results}):
        counts.failures.append(f"{label} did not build or did not run")
    if bazel_status != 0 and not counts.failures:
        counts.failures.append(f"bazel stopped with exit status {bazel_status}")
    return counts


def main():
    counts = count(read_events(pathlib.Path(sys.argv[1])), int(sys.argv[2]))
    for failure in counts.failures:
        print(f"FAILED {failure}")
    failed = len(counts.failures)
    print(f"{counts.passed} passed, {failed} failed, {counts.skipped} skipped")
    sys.exit(1 if failed or counts.passed == 0 else 0)


if __name__ == "__main__":
    main()
