"""Tests of bench/compare_attention.py with two made-up sides."""

import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path("bench/compare_attention.py").resolve()

# Both sides append a line to the log, so that their order is visible. Ours
# takes 4, 6, 4, 6, ... ms, the peer always 8. Ours is out of memory at length
# 4096 and dies at 8192; the peer rejects head dim 80.
OURS = """
import json, sys
print(json.dumps({"device": "a GPU", "build": "tessera"}), flush=True)
ms = 6.0
for line in sys.stdin:
    cell = json.loads(line)
    open(sys.argv[1], "a").write(f"{cell['backend']} {cell['length']}\\n")
    if cell["length"] == 8192: sys.exit(7)
    ms = 10.0 - ms
    times = {"median": ms, "min": ms, "max": ms}
    figures = {"forward_ms": times, "backward_ms": times, "saved_mib": 33.0,
               "peak_mib": 100.0, "status": "OK"}
    if cell["length"] == 4096: figures = {"status": "OOM"}
    print(json.dumps({**cell, **figures}), flush=True)
"""
PEER = """
import json, sys
print(json.dumps({"device": "a GPU", "torch": "2.11.0", "cudnn": 91900}), flush=True)
times = {"median": 8.0, "min": 8.0, "max": 8.0}
for line in sys.stdin:
    cell = json.loads(line)
    open(sys.argv[1], "a").write(f"{cell['variant']} {cell['length']}\\n")
    figures = {"forward_ms": times, "backward_ms": times, "saved_mib": 66.0,
               "peak_mib": 200.0, "status": "OK"}
    if cell["head_dim"] == 80: figures = {"status": "no kernel"}
    print(json.dumps({**cell, **figures}), flush=True)
"""


class CompareAttentionTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return shlex.join([sys.executable, str(path), str(self.log)])

    def compare(self, *options, ours=OURS):
        return subprocess.run(
            [sys.executable, str(COMPARE),
             "--ours=" + self.script("ours.py", ours),
             "--peer_command=" + self.script("peer.py", PEER),
             "--masks=causal", "--peers=cudnn", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, check=False)

    def rows(self, text, columns):
        """The rows of the table with that many columns, without its header."""
        rows = [[word.strip() for word in line.strip("|").split(" | ")]
                for line in text.splitlines() if line.startswith("| ")]
        return [row for row in rows if len(row) == columns][1:]

    def cells(self, text):
        return self.rows(text, 10)

    def test_ratios_are_of_the_same_round(self):
        out = self.folder / "table.md"
        done = self.compare("--head_dims=64", "--lengths=1024", "--rounds=3",
                            f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.log.read_text().split("\n")[:-1],
                         ["FLASH_CUDA 1024", "cudnn 1024", "cudnn 1024",
                          "FLASH_CUDA 1024", "FLASH_CUDA 1024", "cudnn 1024"])
        (row,) = self.cells(done.stdout)
        self.assertEqual(
            row[:6], ["64", "1024", "causal", "BF16", "FLASH_CUDA", "cudnn"])
        self.assertEqual(row[6], "4.000 / 8.000 = **0.50** (0.50 to 0.75)")
        self.assertEqual(row[8:], ["33 / 66 = **0.50**", "100 / 200 = **0.50**"])
        self.assertEqual(out.read_text(), done.stdout)

    def test_cells_keep_the_number_of_tokens_and_the_width(self):
        raw = self.folder / "raw.jsonl"
        done = self.compare("--head_dims=80", "--lengths=2048", "--rounds=1",
                            f"--raw={raw}")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in raw.read_text().splitlines()]
        self.assertEqual([(r["side"], r["batch"], r["heads"]) for r in records],
                         [("FLASH_CUDA", 8, 25), ("cudnn", 8, 25)])

    def test_the_summary_is_the_geometric_mean(self):
        # 4 / 8 in the first cell, 6 / 8 in the second.
        done = self.compare("--head_dims=64", "--lengths=1024,2048",
                            "--rounds=1")
        (row,) = self.rows(done.stdout, 5)
        self.assertEqual(row, ["FLASH_CUDA", "cudnn", "2", "**0.61**",
                               "**0.61**"])

    def test_a_window_is_compared_with_the_causal_mask(self):
        raw = self.folder / "raw.jsonl"
        done = self.compare("--head_dims=64", "--lengths=1024", "--rounds=2",
                            "--masks=window_128", f"--raw={raw}")
        self.assertEqual(done.returncode, 0, done.stderr)
        # 1, 2, 2, ... of 1, 2, 3, ... tiles. Ours takes 4 ms, then the causal
        # mask 6, 4 in the next round, then ours 6.
        (row,) = self.rows(done.stdout, 8)
        self.assertEqual(
            row[2:6], ["window_128", "BF16", "FLASH_CUDA", "240 of 576"
                       " = 41.7 %"])
        self.assertEqual(row[6], "**2.60** (1.60 to 3.60)")
        self.assertEqual(row[7], row[6])
        records = [json.loads(line) for line in raw.read_text().splitlines()]
        self.assertEqual([(r["side"], r["mask"]) for r in records[:3]],
                         [("FLASH_CUDA", "window_128"),
                          ("cudnn", "window_128"),
                          ("FLASH_CUDA, causal", "causal")])

    def test_an_unknown_mask_is_an_error(self):
        done = self.compare("--masks=window_0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--masks", done.stderr)

    def test_a_side_without_figures_is_a_row_and_not_in_the_summary(self):
        done = self.compare("--head_dims=64,80", "--lengths=4096,1024",
                            "--rounds=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        out_of_memory, good, both_fail, no_kernel = self.cells(done.stdout)
        self.assertEqual(out_of_memory[6], "OOM / 8.000")
        self.assertIn("**0.75**", good[6])
        self.assertEqual(both_fail[6], "OOM / no kernel")
        self.assertEqual(no_kernel[6], "6.000 / no kernel")
        self.assertEqual(no_kernel[9], "n/a")
        (row,) = self.rows(done.stdout, 5)
        self.assertEqual(row[2], "1")

    def test_a_side_that_dies_is_started_again(self):
        done = self.compare("--head_dims=64", "--lengths=8192,1024",
                            "--rounds=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        died, good = self.cells(done.stdout)
        self.assertEqual(died[6], "ours ended, exit status 7 / 8.000")
        self.assertIn("**0.50**", good[6])

    def test_a_side_that_does_not_start_is_an_error(self):
        done = self.compare(ours="import sys; sys.exit(9)")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ours did not start: ours ended, exit status 9",
                      done.stderr)


if __name__ == "__main__":
    unittest.main()
