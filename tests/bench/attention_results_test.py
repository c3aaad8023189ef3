"""Tests of bench/attention_results.py with made-up results and docs' results."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path("bench").resolve()))

import attention_results as results

RESULTS = pathlib.Path("docs/results/attention_h200")

BENCH = """\
NVIDIA H200
Benchmark                           Time   CPU   Iterations UserCounters...
FLASH_CUDA/forward/d64/n1024/causal/iterations:1/manual_time 0.2 ms 0.002 ms \
1 %GEMM=40 GB/s=1.5k TFLOP/s=300 cudnn/ours=1.2 cudnn/ours_spread%=3
TORCH_CUDNN/backward/d128/n16384/full/iterations:1/manual_time 11 ms 0.002 ms \
1 %GEMM=60 GB/s=48 TFLOP/s=450 saved_MiB=66
NAIVE/forward/d64/n16384/full/iterations:1/manual_time ERROR OCCURRED: 'OOM'
"""


def record(side, length, number, ms=None, status="OK"):
    figures = {"forward_ms": {"median": ms}, "saved_mib": 2 * ms} if ms else {}
    return {"side": side, "length": length, "round": number, "status": status,
            "precision": "BF16", "head_dim": 64, **figures}


class BenchTest(unittest.TestCase):

    def test_reads_cells_and_units_and_leaves_out_errors(self):
        cells = results.read_bench(BENCH.splitlines(keepends=True))
        self.assertEqual(list(cells), [
            results.Cell("FLASH_CUDA", "forward", 64, 1024, "causal"),
            results.Cell("TORCH_CUDNN", "backward", 128, 16384, "full")])
        ours, cudnn = cells.values()
        self.assertEqual(ours["GB/s"], 1500)
        self.assertEqual(ours["cudnn/ours_spread%"], 3)
        self.assertEqual(results.cudnn_tflops(ours), 250)
        self.assertIsNone(results.cudnn_tflops(cudnn))
        self.assertEqual(results.gemm_tflops(cells), 750)
        self.assertIsNone(results.gemm_tflops({}))

    def test_the_later_of_two_lines_counts(self):
        first = BENCH.splitlines(keepends=True)[2]
        again = first.replace("TFLOP/s=300", "TFLOP/s=600")
        (counters,) = results.read_bench([first, again]).values()
        self.assertEqual(counters["TFLOP/s"], 600)


class RaceTest(unittest.TestCase):

    def setUp(self):
        grid = results.by_side([
            record("ours", 1024, 0, 4.0), record("peer", 1024, 0, 8.0),
            record("ours", 1024, 1, 9.0), record("peer", 1024, 1, 9.0),
            record("ours", 4096, 0, 1.0), record("peer", 4096, 0, status="OOM"),
            record("ours", 8192, 0, status="no kernel"),
            record("peer", 8192, 0, 2.0)])
        self.assertEqual(list(grid), [("BF16", 64)])
        self.sides = grid["BF16", 64]

    def test_ratios_are_of_the_same_round(self):
        self.assertEqual(
            results.ratios(self.sides["ours"], self.sides["peer"],
                           "forward_ms"), {1024: 0.75})

    def test_failures_have_no_figures(self):
        self.assertEqual(results.most(self.sides["ours"], "saved_mib"),
                         {1024: 18.0, 4096: 2.0})
        self.assertEqual(results.out_of_memory(self.sides["peer"]), [4096])
        self.assertEqual(results.out_of_memory(self.sides["ours"]), [])


class ResultsInDocsTest(unittest.TestCase):

    def read(self, name, reader):
        with (RESULTS / name).open(encoding="utf-8") as file:
            return reader(file)

    def test_can_all_be_read(self):
        cells = self.read("flash_cuda_bench.txt", results.read_bench)
        ours = [c for cell, c in cells.items() if cell.backend == "FLASH_CUDA"]
        self.assertGreaterEqual(len(ours), 80)
        self.assertTrue(any(map(results.cudnn_tflops, ours)))
        self.assertGreater(results.gemm_tflops(cells), 0)
        grid = results.by_side(self.read("seed_race.jsonl", results.read_jsonl))
        for sides in grid.values():
            self.assertTrue(results.most(sides["compiled"], "saved_mib"))
        for step in self.read("step_2k.jsonl", results.read_jsonl):
            self.assertLess(step["forward_ms"]["median"],
                            step["step_ms"]["median"])


if __name__ == "__main__":
    unittest.main()
