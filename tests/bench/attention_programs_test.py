"""Runs the programs of //bench/attention_backends at a size for a CPU."""

import json
import pathlib
import subprocess
import unittest

PROGRAMS = pathlib.Path("bench/attention_backends").resolve()
CELL = {"backend": "NAIVE", "precision": "FP32", "mask": "causal", "batch": 1,
        "heads": 2, "length": 32, "head_dim": 16}


def run(program, *arguments, given=""):
    return subprocess.run(
        [str(PROGRAMS / program), *arguments], input=given, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


class AttentionCellTest(unittest.TestCase):

    def ask(self, *cells):
        done = run("attention_bench", "--serve", given="".join(
            (cell if isinstance(cell, str) else json.dumps(cell)) + "\n"
            for cell in cells))
        self.assertEqual(done.returncode, 0, done.stderr)
        machine, *answers = map(json.loads, done.stdout.splitlines())
        self.assertIn("tessera", machine["build"])
        self.assertEqual(len(answers), len(cells))
        return answers

    def test_answers_with_times(self):
        (answer,) = self.ask(CELL)
        self.assertEqual(answer["status"], "OK")
        self.assertEqual({**answer, **CELL}, answer)
        for phase, products in (("forward", 2), ("backward", 5)):
            times = answer[f"{phase}_ms"]
            self.assertLessEqual(0, times["min"])
            self.assertLessEqual(times["min"], times["median"])
            self.assertLessEqual(times["median"], times["max"])
            # Each product takes 2 B H S T D operations, half of them causal.
            operations = products * 2 * 32 * 32 * 16
            self.assertAlmostEqual(answer[f"{phase}_tflops"],
                                   operations / times["median"] / 1e9)

    def test_packed_documents_run_and_count_visible_pairs(self):
        (answer,) = self.ask({**CELL, "mask": "documents_3", "length": 16})
        self.assertEqual(answer["status"], "OK")
        # Documents of 1, 1, 5, 5, 3 and 1 tokens.
        operations = 2 * 2 * 2 * (1 + 1 + 15 + 15 + 6 + 1) * 16
        self.assertAlmostEqual(answer["forward_tflops"], operations / 1e9
                               / answer["forward_ms"]["median"])

    def test_reports_a_bad_cell_and_continues(self):
        answers = self.ask({**CELL, "mask": "some"},
                           {**CELL, "backend": "NO_SUCH"},
                           {**CELL, "length": "32"}, "not JSON", CELL)
        self.assertEqual(
            [answer["status"] for answer in answers[:2]],
            ["mask is 'some'; it must be causal, full, window_512 (the 512"
             " latest tokens) or documents_512 (packed documents of 512 tokens"
             " on average)",
             "NO_SUCH is not part of this build"])
        self.assertIn('a cell needs "length", a whole number',
                      answers[2]["status"])
        self.assertEqual(answers[3]["status"],
                         "a cell must be a JSON object on one line")
        self.assertEqual(answers[4]["status"], "OK")


class AttentionBenchTest(unittest.TestCase):

    def test_runs_what_the_filter_names(self):
        done = run("attention_bench", "--samples=3", "--benchmark_format=json",
                   "--benchmark_filter=NAIVE/.*/d64/n.*/full")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertGreaterEqual(len(report["benchmarks"]), 2)
        for cell in report["benchmarks"]:
            self.assertNotIn("error_occurred", cell)
            self.assertGreater(cell["%GEMM"], 0)
            self.assertGreater(cell["TFLOP/s"], 0)

    def test_refuses_what_it_does_not_know(self):
        for argument, said in (("--reference=NAIVE", "must be one of TORCH_"),
                               ("d64", "unexpected argument 'd64'")):
            done = run("attention_bench", argument)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
