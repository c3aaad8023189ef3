"""Tests of .ci/run in a fake clone whose bazelw only records its calls."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

RUN = pathlib.Path(".ci/run").resolve()
COUNT = pathlib.Path(".ci/count_tests.py").resolve()

# Leaves a read-only folder behind, as Bazel does, and the events in EVENTS.
BAZELW = """#!/bin/bash
echo "cuda=$TESSERA_CUDA $*" >> calls
root=${1#--output_user_root=}
mkdir -p "$root/base/read_only"
touch "$root/base/read_only/file"
chmod a-w "$root/base/read_only"
for word in "$@"; do
  [[ $word == --build_event_json_file=* ]] && cp events "${word#*=}"
done
[[ $2 == shutdown ]] && echo "said by shutdown"
cat status &>/dev/null && exit "$(cat status)"
exit 0
"""

REPORT = """<testsuites><testsuite><testcase name="A" classname="B"/>
</testsuite></testsuites>"""
EVENTS = """\
{"id": {"targetConfigured": {"label": "//t:t"}}, "configured": {"testSize": "SMALL"}}
{"id": {"testResult": {"label": "//t:t"}}, "testResult": {"status": "PASSED", \
"testActionOutput": [{"name": "test.xml", "uri": "file://REPORT"}]}}
"""


class CiRunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.clone = pathlib.Path(folder.name, "clone")
        self.scratch = pathlib.Path(folder.name, "tmp")
        (self.clone / ".ci").mkdir(parents=True)
        self.scratch.mkdir()
        for script in (RUN, COUNT):
            shutil.copy(script, self.clone / ".ci")
        bazelw = self.clone / "bazelw"
        bazelw.write_text(BAZELW)
        bazelw.chmod(0o755)
        report = self.clone / "report.xml"
        report.write_text(REPORT)
        (self.clone / "events").write_text(EVENTS.replace("REPORT", str(report)))

    def run_ci(self, **variables):
        environment = {"PATH": os.environ["PATH"], "CI": "true",
                       "TMPDIR": str(self.scratch), **variables}
        return subprocess.run(
            [str(self.clone / ".ci" / "run")], env=environment, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True, check=False)

    def test_counts_and_leaves_nothing_behind(self):
        done = self.run_ci()
        self.assertEqual(done.stdout.splitlines()[-1],
                         "1 passed, 0 failed, 0 skipped")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_builds_cuda_in_its_own_output_base_and_shuts_it_down(self):
        self.run_ci()
        test, shutdown = (self.clone / "calls").read_text().splitlines()
        self.assertIn(" test --config=cuda ", test)
        self.assertTrue(test.endswith(" //..."))
        self.assertTrue(test.startswith("cuda=1 "))
        self.assertEqual(shutdown.split()[1:], [test.split()[1], "shutdown"])
        self.assertIn(f"--output_user_root={self.scratch}", shutdown)
        self.assertNotIn("--disk_cache", test)

    def test_does_not_enter_the_tree_of_an_earlier_build(self):
        link = self.clone / "bazel-clone"
        link.symlink_to(self.scratch)
        (self.clone / "bazel-bin").symlink_to(self.scratch)
        self.run_ci()
        self.assertFalse(link.is_symlink())
        self.assertTrue((self.clone / "bazel-bin").is_symlink())
        self.assertTrue(self.scratch.is_dir())

    def test_a_failing_bazel_fails(self):
        (self.clone / "status").write_text("1")
        done = self.run_ci()
        self.assertEqual(done.stdout.splitlines()[-1],
                         "1 passed, 1 failed, 0 skipped")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_a_disk_cache_is_used_on_request(self):
        self.run_ci(TESSERA_CI_DISK_CACHE="/some/cache")
        calls = (self.clone / "calls").read_text()
        self.assertIn("--disk_cache=/some/cache", calls)
        self.assertIn("--nocache_test_results", calls)

    def test_without_a_temporary_folder_nothing_runs(self):
        done = self.run_ci(TMPDIR=str(self.scratch / "none"))
        self.assertEqual(done.stdout.splitlines()[-1],
                         "0 passed, 1 failed, 0 skipped")
        self.assertEqual(done.returncode, 1)
        self.assertFalse((self.clone / "calls").exists())

    def test_ends_soon_when_asked_to(self):
        slow = (self.clone / "bazelw").read_text().replace(
            "cat status", '[[ $2 == test ]] && exec sleep 60\ncat status')
        (self.clone / "bazelw").write_text(slow)
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.scratch)}
        process = subprocess.Popen([str(self.clone / ".ci" / "run")],
                                   env=environment, cwd="/",
                                   stdout=subprocess.DEVNULL)
        while not (self.clone / "calls").exists():
            time.sleep(0.05)
        process.terminate()
        self.assertEqual(process.wait(timeout=30), 143)
        self.assertEqual(list(self.scratch.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
