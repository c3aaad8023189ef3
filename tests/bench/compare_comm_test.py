"""Tests of bench/compare_comm.py with two made-up sides."""

import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path("bench/compare_comm.py").resolve()

SIDE = """
import json, sys
log, side, label, ms = sys.argv[1:5]
open(log, "a").write(" ".join([side, *sys.argv[5:]]) + "\\n")
if "--fail" in sys.argv: sys.exit("no GPU")
for size in (1024, 4096):
    record = {"side": side, "operation": "all_gather", "dtype": "BF16",
              "size": size, "device": "a GPU", "status": "OK",
              "time_ms": {"median": float(ms)}, "bus_gb_per_s": 2.0,
              "host_us": 5.0}
    if "--beside" in sys.argv:
        record["beside"] = {"time_ms": {"median": 3.0}, "slow_down": 1.1,
                            "lost_ms": 0.3}
    if size == 4096 and side == "pytorch": record["status"] = "OOM"
    print(label + json.dumps(record))
"""


class CompareCommTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "side.py").write_text(SIDE)

    def side(self, *arguments):
        return shlex.join([sys.executable, str(self.folder / "side.py"),
                           str(self.folder / "log"), *arguments])

    def compare(self, *options):
        return subprocess.run(
            [sys.executable, str(COMPARE), "--nproc=2",
             "--ours=" + self.side("ours", "[0] ", "2"),
             "--peer_command=" + self.side("pytorch", "", "4"), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, check=False)

    def rows(self, text):
        return [[word.strip() for word in line.strip("|").split(" | ")]
                for line in text.splitlines() if line.startswith("| all")]

    def test_sides_alternate_and_the_ratio_is_ours_to_theirs(self):
        done = self.compare("--options=--samples=3", "--peer_options=--x",
                            "--rounds=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours, theirs = "ours --nproc=2 --samples=3", "pytorch --nproc=2 --samples=3 --x"
        self.assertEqual((self.folder / "log").read_text().splitlines(),
                         [ours, theirs, theirs, ours])
        first, second = self.rows(done.stdout)
        self.assertEqual(first, [
            "all_gather", "BF16", "1", "**0.50** (0.50 to 0.50)", "2.0000",
            "4.0000", "2.0", "2.0", "5.0", "5.0"])
        self.assertEqual(second[3:6], ["-", "2.0000", "-"])
        self.assertEqual(done.stdout.count('{"side"'), 8)

    def test_the_figures_beside_products_are_columns(self):
        done = self.compare("--options=--beside", "--rounds=1")
        self.assertEqual(self.rows(done.stdout)[0][10:],
                         ["3.0000", "3.0000", "1.100", "1.100", "0.3000",
                          "0.3000"])

    def test_a_side_that_fails_is_an_error(self):
        done = self.compare("--options=--fail")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ours: exit status 1: no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
