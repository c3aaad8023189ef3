"""Runs //bench/dist:comm_bench with Gloo on a CPU."""

import json
import pathlib
import subprocess
import unittest

LAUNCH = pathlib.Path("trainers/launch").resolve()
PROGRAM = pathlib.Path("bench/dist/comm_bench").resolve()
OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all",
              "broadcast"]


def run(*arguments, nproc=2):
    start = [str(LAUNCH), f"--nproc={nproc}", f"--program={PROGRAM}"]
    return subprocess.run(
        [*(start if nproc else [str(PROGRAM)]), *arguments], check=False,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def records(done):
    lines = done.stdout.splitlines()
    # Only rank 0 prints.
    assert all(line.startswith("[0] {") for line in lines), done.stdout
    return [json.loads(line[len("[0] "):]) for line in lines]


class CommBenchTest(unittest.TestCase):

    def test_times_every_operation_dtype_and_size(self):
        done = run("--operations=" + ",".join(OPERATIONS), "--min_kib=4",
                   "--max_kib=64", "--samples=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = records(done)
        self.assertEqual(
            [(cell["operation"], cell["dtype"], cell["bytes"])
             for cell in cells],
            [(operation, dtype, kib * 1024) for operation in OPERATIONS
             for dtype in ("BF16", "FP32") for kib in (4, 16, 64)])
        # The bytes on a link of two ranks, by nccl-tests.
        bus = dict(zip(OPERATIONS, (1, 0.5, 0.5, 0.5, 1)))
        for cell in cells:
            self.assertEqual(cell["status"], "OK")
            self.assertEqual((cell["world"], cell["backend"]), (2, "gloo"))
            times = cell["time_ms"]
            self.assertEqual(times["samples"], 3)
            self.assertLess(0, times["min"])
            self.assertAlmostEqual(cell["algorithm_gb_per_s"],
                                   cell["bytes"] / times["median"] * 1e-6)
            self.assertAlmostEqual(
                cell["bus_gb_per_s"],
                cell["algorithm_gb_per_s"] * bus[cell["operation"]])
            self.assertLess(0, cell["host_us"])
            self.assertLess(cell["host_us"], times["max"] * 1e5)
            self.assertNotIn("beside", cell)

    def test_operands_divide_by_the_ranks(self):
        done = run("--operations=all_gather", "--dtypes=FP32", "--max_kib=1",
                   "--samples=1", nproc=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        (cell,) = records(done)
        self.assertEqual((cell["size"], cell["bytes"]), (1024, 1020))

    def test_names_what_it_rejects(self):
        for argument, said in (
                ("--operations=sum", "no operation 'sum'; the operations are"
                                     " all_reduce, "),
                ("--dtypes=FP16", "'FP16'; the dtypes are BF16 and FP32"),
                ("--beside", "--beside needs a GPU"),
                ("--min_kib=0", "--min_kib=0 must be at least 1"),
                ("--min_kib=2048", "--max_kib=1024 must be at least"
                                   " --min_kib=2048"),
                ("--samples=0", "--samples=0 must be at least 1"),
                ("all_reduce", "unexpected argument 'all_reduce'")):
            done = run(argument)
            self.assertEqual(done.returncode, 2, argument)
            self.assertEqual(done.stdout, "")
            self.assertIn(said, done.stderr)

    def test_needs_more_than_one_rank(self):
        done = run(nproc=0)
        self.assertEqual(done.returncode, 2)
        self.assertIn("launch --nproc=2 --program=comm_bench", done.stderr)


if __name__ == "__main__":
    unittest.main()
