"""Runs train_step_bench at a size for a CPU."""

import json
import pathlib
import subprocess
import unittest

PROGRAM = pathlib.Path("bench/train_step_bench").resolve()
LAUNCH = pathlib.Path("trainers/launch").resolve()
SMALL = ["--set=model.context_length=16", "--set=training.batch_size=2"]


def run(*arguments, start=(str(PROGRAM),)):
    return subprocess.run(
        [*start, *arguments], check=False, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True)


def run_ranks(*arguments):
    return run(*arguments,
               start=(str(LAUNCH), "--nproc=2", f"--program={PROGRAM}"))


class TrainStepBenchTest(unittest.TestCase):
    def test_prints_the_step_of_a_config(self):
        done = run("--json", "--config=configs/tiny_cpu.pbtxt", *SMALL,
                   "--warmup=1", "--iterations=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        self.assertEqual(record["size"], "tiny_cpu")
        self.assertEqual((record["context"], record["batch"]), (16, 2))
        for part in ("forward_ms", "forward_backward_ms", "step_ms"):
            times = record[part]
            self.assertLess(0, times["min"])
            self.assertLessEqual(times["min"], times["median"])
            self.assertLessEqual(times["median"], times["max"])
            self.assertEqual(times["samples"], 3)
        self.assertLess(0, record["planned_gib"])
        self.assertLess(record["step_ms"]["median"] * 1e-5,
                        record["first_step_s"])
        self.assertLess(record["first_step_s"], 600)

    def test_rank_0_prints_the_step_of_two_ranks(self):
        done = run_ranks("--json", "--config=configs/tiny_cpu.pbtxt", *SMALL,
                         "--warmup=1", "--iterations=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        (line,) = done.stdout.splitlines()
        self.assertTrue(line.startswith("[0] {"), line)
        record = json.loads(line[len("[0] "):])
        self.assertEqual((record["world"], record["batch"]), (2, 2))
        self.assertEqual(record["step_ms"]["samples"], 3)
        # Tokens of both ranks.
        self.assertAlmostEqual(record["tokens_per_s"],
                               2 * 16 / record["step_ms"]["mean"] * 1e3)
        # FLOP/s of each rank.
        alone = json.loads(run("--json", "--config=configs/tiny_cpu.pbtxt",
                               *SMALL, "--warmup=1", "--iterations=3").stdout)
        flops = [r["tflops"] / r["tokens_per_s"] for r in (record, alone)]
        self.assertAlmostEqual(2 * flops[0] / flops[1], 1)

    def test_the_benchmarks_are_for_one_rank(self):
        done = run_ranks("--benchmark_filter=tiny_cpu")
        self.assertEqual(done.returncode, 2)
        self.assertIn("this is one of 2; add --json", done.stderr)

    def test_is_a_benchmark_without_a_config(self):
        done = run("--benchmark_filter=tiny_cpu/FP32/128/NAIVE",
                   "--benchmark_format=json", "--benchmark_min_time=0")
        self.assertEqual(done.returncode, 0, done.stderr)
        output = json.loads(done.stdout)
        self.assertIn("tessera", output["context"]["build"])
        names = [b["name"].split("/")[4] for b in output["benchmarks"]]
        self.assertEqual(names, ["forward", "forward_backward", "step"])
        for benchmark in output["benchmarks"]:
            self.assertNotIn("error_occurred", benchmark)
            self.assertLess(0, benchmark["real_time"])
            self.assertLess(0, benchmark["tokens/s"])

    def test_wrong_input_is_named(self):
        done = run("--json", "--config=configs/none.pbtxt")
        self.assertEqual(done.returncode, 2)
        self.assertIn("configs/none.pbtxt", done.stderr)


if __name__ == "__main__":
    unittest.main()
