"""Tests of bench/compare_lm_dist.py with two made-up sides."""

import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path("bench/compare_lm_dist.py").resolve()

# Both sides append a line to the log. Ours prints as rank 0 under `launch`.
OURS = """
import json, sys
log, nproc, config = sys.argv[1:4]
fields = dict(word[6:].split("=") for word in sys.argv[4:])
open(log, "a").write(" ".join(["ours", nproc, config,
                               fields["training.batch_size"]]) + "\\n")
if fields["model.context_length"] == "4096": sys.exit(3)
times = {"median": 4.0, "min": 4.0, "max": 4.0}
print("[1] a line of log")
print("[0] " + json.dumps(
    {"step_ms": times, "step_wall_ms": 4.5, "first_step_s": 1.5,
     "held_gib": 1.0, "peak_gib": 0.9, "in_use_gib": 1.5, "batch": 16,
     "world": 2, "backend": fields.get("attention.backend", "AUTO")}))
"""
PEER = """
import json, sys
log = open(sys.argv[1], "a")
log.write("start " + " ".join(sys.argv[2:]) + "\\n")
log.flush()
print(json.dumps({"device": "a GPU", "torch": "2.11.0"}), flush=True)
times = {"median": 8.0, "min": 8.0, "max": 8.0}
for line in sys.stdin:
    cell = json.loads(line)
    log.write(" ".join([cell["variant"], str(cell["batch"])]) + "\\n")
    log.flush()
    record = dict(cell, step_ms=times, step_wall_ms=8.5, first_step_s=6.0,
                  held_gib=2.0, peak_gib=1.8, in_use_gib=3.0, status="OK")
    if cell["variant"] == "leaks": record["left_gib"] = 9.0
    if cell["variant"] == "large": record = dict(cell, status="OOM", error="no memory")
    print(json.dumps(record), flush=True)
    if cell["variant"] == "large": sys.exit(3)
"""


class CompareLmDistTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return shlex.join([sys.executable, str(path), str(self.folder / "log")])

    def compare(self, *options):
        return subprocess.run(
            [sys.executable, str(COMPARE), "--nproc=2",
             "--ours=" + self.script("ours.py", OURS),
             "--peer_command=" + self.script("peer.py", PEER), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, check=False)

    def log(self):
        return (self.folder / "log").read_text().splitlines()

    def rows(self, text, title="Step, ms"):
        table = text.split(f"\n{title}:\n")[1].strip().split("\n\n")[0]
        return [[word.strip() for word in line.strip("|").split(" | ")]
                for line in table.splitlines()[2:]]

    def test_sides_alternate_and_the_peers_are_gone_while_ours_runs(self):
        out = self.folder / "table.md"
        done = self.compare("--cells=small:128:8", "--peers=ddp,fsdp2",
                            "--rounds=2", "--peer_options=--reduce=FP32",
                            f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = "ours --nproc=2 --config=configs/small.pbtxt 16"
        self.assertEqual(self.log(), [
            ours, "start --nproc=2 --reduce=FP32", "ddp 8", "fsdp2 8",
            "fsdp2 8", "ddp 8", ours])
        (row,) = self.rows(done.stdout)
        self.assertEqual(row, ["small", "128", "8", "BF16", "AUTO",
                               "4.00 ±0.0 %", "8.00 ±0.0 %", "8.00 ±0.0 %",
                               "**0.50**"])
        (row,) = self.rows(done.stdout,
                           "Memory in use on a GPU, all of it, GiB")
        self.assertEqual(row[5:], ["1.50", "3.00", "3.00", "**0.50**"])
        self.assertIn("2 x a GPU, torch 2.11.0", done.stdout)
        self.assertEqual(out.read_text(), done.stdout)
        raw = [json.loads(line) for line in done.stdout.splitlines()
               if line.startswith("{")]
        self.assertEqual([(r["side"], r["batch"]) for r in raw],
                         [("ours", 8), ("ddp", 8), ("fsdp2", 8),
                          ("fsdp2", 8), ("ddp", 8), ("ours", 8)])

    def test_peers_that_fail_or_keep_memory_are_started_again(self):
        done = self.compare("--cells=small:4096:8", "--rounds=1",
                            "--peers=large,leaks,ddp")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.log()[1:], [
            "start --nproc=2", "large 8", "start --nproc=2", "leaks 8",
            "start --nproc=2", "ddp 8"])
        (row,) = self.rows(done.stdout)
        self.assertEqual(row[5:], ["OOM", "OOM", "8.00 ±0.0 %", "8.00 ±0.0 %",
                                   ""])

    def test_cells_are_all_combinations_of_the_axes(self):
        done = self.compare("--sizes=small,xl", "--contexts=128",
                            "--batches=1,2", "--rounds=1", "--peers=ddp")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row[:3] for row in self.rows(done.stdout)],
                         [["small", "128", "1"], ["small", "128", "2"],
                          ["xl", "128", "1"], ["xl", "128", "2"]])

    def test_wrong_arguments_are_named(self):
        for options, said in (
                (["--sizes=small"], "--sizes, --contexts and --batches go"),
                (["--cells=small:1"], "'small:1' is not SIZE:CONTEXT:BATCH"),
                (["--sizes=a", "--contexts=b", "--batches=1"],
                 "'a:b:1' is not SIZE:CONTEXT:BATCH"),
                (["--nproc=0"], "--nproc must be at least 1")):
            done = self.compare(*options)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
