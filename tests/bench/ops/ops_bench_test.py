"""Runs //bench/ops:ops_bench at a size for a CPU."""

import json
import pathlib
import subprocess
import unittest

PROGRAM = pathlib.Path("bench/ops/ops_bench").resolve()
NAMES = [f"{op}/{phase}" for op in ("rms_norm", "torch_rms_norm", "add_rms_norm",
                                    "residual", "qk_norm_head",
                                    "qk_norm_projection", "rope", "swiglu",
                                    "embedding")
         for phase in ("forward", "backward")]


class OpsBenchTest(unittest.TestCase):

    def test_every_op_has_its_share_of_a_ceiling(self):
        done = subprocess.run(
            [str(PROGRAM), "--benchmark_format=json"], check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        copy = float(report["context"]["copy, GB/s"])
        cells = {"/".join(cell["name"].split("/")[:-3]): cell
                 for cell in report["benchmarks"]}
        self.assertEqual(list(cells), NAMES + [
            "adamw/update", "linear_cross_entropy/v100/forward",
            "linear_cross_entropy/v100/forward_backward"])
        for name, cell in cells.items():
            self.assertNotIn("error_occurred", cell, name)
            if name.startswith("linear"):
                self.assertGreater(cell["%GEMM"], 0)
            else:
                self.assertAlmostEqual(
                    cell["%copy"] * copy / cell["GB/s"], 100, 2)
        # Least bytes: BF16 x, dy and dx; FP32 gain and r; the gain's gradient.
        rows, width = 64, 128
        backward = cells["rms_norm/backward"]
        self.assertAlmostEqual(
            backward["GB/s"] * backward["real_time"] * 1e6,
            3 * 2 * rows * width + 4 * rows + 2 * 4 * width, 0)


if __name__ == "__main__":
    unittest.main()
