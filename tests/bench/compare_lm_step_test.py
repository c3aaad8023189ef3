"""Tests of bench/compare_lm_step.py with two made-up sides."""

import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

COMPARE = pathlib.Path("bench/compare_lm_step.py").resolve()

# Both sides append a line to the log, so that their order is visible. Ours
# takes `ms`, the peer 8 ms. Ours is out of memory at context 4096 and fails at
# 8192.
OURS = """
import json, sys, time
log, ms, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
assert sys.argv[4] == "--config=configs/small.pbtxt", sys.argv
fields = dict(word[6:].split("=") for word in sys.argv[5:])
context = fields["model.context_length"]
open(log, "a").write("ours " + context + "\\n")
time.sleep(seconds)
times = {"median": ms, "min": ms, "max": ms}
figures = {"step_ms": times, "forward_ms": times, "forward_backward_ms": times,
           "first_step_s": 1.5, "held_gib": 1.0,
           "backend": fields.get("attention.backend", "AUTO")}
if context == "4096": sys.exit(3)
if context == "8192": sys.exit("head_dim 81 is not supported")
print("a line of log")
print(json.dumps(figures))
"""
PEER = """
import json, sys
print(json.dumps({"device": "a GPU", "torch": "2.11.0", "cudnn": 91900}), flush=True)
times = {"median": 8.0, "min": 8.0, "max": 8.0}
parts = {"forward_ms": {"median": 2.0}, "forward_backward_ms": {"median": 5.0}}
for line in sys.stdin:
    cell = json.loads(line)
    open(sys.argv[1], "a").write(cell["variant"] + " " + str(cell["context"]) + "\\n")
    print("chatter", flush=True)
    print(json.dumps(dict(cell, **parts, step_ms=times, first_step_s=6.0, held_gib=2.0,
                          status="OK")), flush=True)
"""


class CompareLmStepTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"

    def script(self, name, text, *arguments):
        path = self.folder / name
        path.write_text(text)
        return shlex.join([sys.executable, str(path), str(self.log),
                           *map(str, arguments)])

    def compare(self, *options, ours_seconds=0.0, ours_ms=4.0, peer=PEER):
        return subprocess.run(
            [sys.executable, str(COMPARE),
             "--ours=" + self.script("ours.py", OURS, ours_ms, ours_seconds),
             "--peer_command=" + self.script("peer.py", peer), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, check=False)

    def rows(self, text, title="Step, ms"):
        table = text.split(f"\n{title}:\n")[1].strip().split("\n\n")[0]
        return [[word.strip() for word in line.strip("|").split(" | ")]
                for line in table.splitlines() if line.startswith("| small")]

    def test_sides_alternate_and_the_ratio_is_ours_to_theirs(self):
        out = self.folder / "table.md"
        done = self.compare("--cells=small:128:4", "--rounds=2", f"--out={out}",
                            "--ours_options=--set=attention.backend=FLASH_CUDA")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.log.read_text().split("\n")[:-1],
                         ["ours 128", "sdpa 128", "sdpa 128", "ours 128"])
        (row,) = self.rows(done.stdout)
        self.assertEqual(row, ["small", "128", "4", "BF16", "FLASH_CUDA",
                               "4.00 ±0.0 %", "8.00 ±0.0 %", "**0.50**"])
        (row,) = self.rows(done.stdout, "First step, s")
        self.assertEqual(row[5:], ["1.5", "6.0", "**0.25**"])
        (row,) = self.rows(done.stdout, "Memory held, GiB")
        self.assertEqual(row[5:], ["1.00", "2.00", "**0.50**"])
        self.assertEqual(out.read_text(), done.stdout)
        self.assertIn("a GPU, torch 2.11.0", done.stdout)

    def test_parts_have_tables_of_their_own(self):
        done = self.compare("--cells=small:128:4", "--parts")
        for title, ratio in (("Forward, ms", "2.00"),
                             ("Forward and backward, ms", "0.80"),
                             ("Step, ms", "0.50")):
            self.assertEqual(self.rows(done.stdout, title)[0][-1], f"**{ratio}**")
        self.assertNotIn("Forward", self.compare("--cells=small:128:4").stdout)

    def test_every_measurement_is_in_the_raw_lines(self):
        done = self.compare("--cells=small:128:4,small:256:8",
                            "--peers=sdpa,compile", "--rounds=2")
        raw = [json.loads(line) for line in done.stdout.splitlines()
               if line.startswith("{")]
        self.assertEqual(len(raw), 2 * 3 * 2)
        self.assertEqual([row[1:3] for row in self.rows(done.stdout)],
                         [["128", "4"], ["256", "8"]])

    def test_a_side_without_figures_is_a_row_and_not_the_end(self):
        done = self.compare(
            "--cells=small:4096:4,small:8192:4,small:128:4", "--rounds=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        out_of_memory, failed, good = self.rows(done.stdout)
        self.assertEqual(out_of_memory[5:], ["OOM", "8.00 ±0.0 %", ""])
        self.assertIn("head_dim 81 is not supported", failed[5])
        self.assertEqual(good[-1], "**0.50**")

    def test_a_cell_that_is_none_is_an_error(self):
        done = self.compare("--cells=small:128")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'small:128' is not SIZE:CONTEXT:BATCH", done.stderr)

    def test_the_time_limit_ends_it_and_names_what_is_left(self):
        start = time.monotonic()
        done = self.compare("--cells=small:128:4,small:256:4,small:512:4",
                            "--rounds=1", "--time_limit_s=3", ours_seconds=2)
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row[1] for row in self.rows(done.stdout)], ["128"])
        self.assertIn("Not measured within 3 s: small 256 b4 BF16, small 512",
                      done.stdout)

    def test_a_peer_that_does_not_start_is_an_error(self):
        done = self.compare(peer="import sys; sys.exit(9)")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("exit status 9", done.stderr)

    def test_a_peer_that_dies_is_a_status(self):
        dying = PEER.replace("    print(\"chatter\"", "    sys.exit(4); print(\"chatter\"")
        done = self.compare("--cells=small:128:4", "--rounds=1", peer=dying)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the peer ended", self.rows(done.stdout)[0][6])


if __name__ == "__main__":
    unittest.main()
