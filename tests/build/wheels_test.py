"""Tests of third_party/wheels.py with a fake pip."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WHEELS = pathlib.Path("third_party/wheels.py").resolve()

# Writes a wheel of one file and, beside it, its environment.
PIP = """
import json, os, pathlib, sys, time, zipfile
dest = next(a[7:] for a in sys.argv if a.startswith("--dest="))
os.makedirs(dest, exist_ok=True)
with zipfile.ZipFile(dest + "/a.whl", "w") as wheel:
    wheel.writestr("torch/lib/libtorch.so", "library")
    wheel.writestr("torch/__init__.py", "")
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(dict(os.environ)))
time.sleep(float(os.environ.get("SECONDS_TO_TAKE", "0")))
sys.exit(int(os.environ.get("PIP_STATUS", "0")))
"""


class WheelsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        base = pathlib.Path(folder.name)
        self.cache = base / "cache/tessera/wheels"
        self.seen = base / "seen"
        (base / "modules/pip").mkdir(parents=True)
        (base / "modules/pip/__init__.py").touch()
        (base / "modules/pip/__main__.py").write_text(PIP)
        self.lock = base / "some.lock"
        self.lock.write_text("torch==1 --hash=sha256:0\n")
        self.environment = dict(
            os.environ, PYTHONPATH=str(base / "modules"), SEEN=str(self.seen),
            XDG_CACHE_HOME=str(base / "cache"), PIP_CONSTRAINT="/some/file",
            PIP_REQUIRE_VIRTUALENV="1", PIP_INDEX_URL="https://mirror")

    def start(self, **variables):
        return subprocess.Popen(
            [sys.executable, str(WHEELS), str(self.lock), "3.11"],
            env={**self.environment, **variables}, universal_newlines=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for_pip(self, process):
        while not self.seen.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.05)

    def trees(self):
        return [path for path in self.cache.iterdir() if path.is_dir()]

    def test_unpacks_once(self):
        for status in ("0", "1"):  # the second time, pip is not asked
            process = self.start(PIP_STATUS=status)
            out, errors = process.communicate()
            self.assertEqual(process.returncode, 0, errors)
            tree = pathlib.Path(out.strip())
            self.assertEqual(self.trees(), [tree])
            self.assertTrue((tree / "torch/lib/libtorch.so").exists())
            self.assertFalse((tree / "torch/__init__.py").exists())

    def test_pip_keeps_the_mirror_and_no_restriction(self):
        self.start().communicate()
        seen = self.seen.read_text()
        self.assertIn("https://mirror", seen)
        self.assertNotIn("PIP_CONSTRAINT", seen)
        self.assertIn('"PIP_REQUIRE_VIRTUALENV": "0"', seen)
        self.assertIn(f'"TMPDIR": "{self.cache}', seen)

    def test_a_failing_pip_leaves_nothing(self):
        process = self.start(PIP_STATUS="1")
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 1)
        self.assertIn("pip cannot download the wheels", errors)
        self.assertEqual(self.trees(), [])

    def test_an_interrupted_download_leaves_nothing(self):
        process = self.start(SECONDS_TO_TAKE="60")
        self.wait_for_pip(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 143)
        self.assertEqual(self.trees(), [])

    def test_removes_what_a_killed_process_left(self):
        process = self.start(SECONDS_TO_TAKE="5")
        self.wait_for_pip(process)
        process.kill()
        process.communicate()
        self.assertEqual(len(self.trees()), 1)
        self.start().communicate(timeout=30)
        tree, = self.trees()
        self.assertNotIn("unfinished", tree.name)


if __name__ == "__main__":
    unittest.main()
