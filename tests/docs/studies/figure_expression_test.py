"""Tests of docs/studies/figure_expression.py with made-up records."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path("docs/studies").resolve()))

import figure_expression
from figure_expression import ExpressionError


def record(size, precision, step_ms, status="OK"):
    kernels = [{"name": "gemm", "class": "GEMM", "ms": step_ms / 2},
               {"name": "norm", "class": "other", "ms": step_ms / 4},
               {"name": "norm", "class": "other", "ms": step_ms / 8}]
    figures = {"step_ms": {"median": step_ms}, "kernels": kernels,
               "phases": {"forward/head": 1.0}, "roof": [{"x": 1}, {"x": 2}],
               "gain": None}
    return json.dumps({"type": "cell", "status": status,
                       "cell": {"size": size, "precision": precision},
                       **({"figures": figures} if status == "OK" else {})})


STUDY = figure_expression.Study([
    '{"type":"study","name":"made_up"}',
    record("small", "FP32", 99),
    record("small", "FP32", 8), record("small", "BF16", 2),
    record("2.7B", "FP32", 80), record("2.7B", "BF16", 10),
    record("a, b", "FP32", 7), record("a, b", "BF16", 0, status="OOM")])
SHEETS = figure_expression.Study([
    json.dumps({"type": "cell", "status": "OK", "cell": {"d": d, "n": n},
                "figures": {"mib": int(n)}})
    for d in ("64", "128") for n in ("64", "256")])


def values(text, study=STUDY, **others):
    return figure_expression.evaluate(text, study, **others).list()


class ExpressionTest(unittest.TestCase):

    def test_a_cell_is_named_by_labels(self):
        self.assertEqual(values("step_ms.median[small, BF16]"), [2])
        self.assertEqual(values('step_ms.median["a, b", FP32]'), [7])
        self.assertEqual(values("phases.forward/head[2.7B, BF16]"), [1])

    def test_the_newest_record_counts(self):
        self.assertEqual(values("step_ms.median[small, FP32]"), [8])

    def test_an_axis_without_label_stands_for_all(self):
        self.assertEqual(values("step_ms.median[FP32]"), [8, 80, 7])
        self.assertEqual(values("step_ms.median[FP32, small|2.7B]"), [8, 80])
        self.assertEqual(values("step_ms.median[FP32, !small]"), [80, 7])
        self.assertEqual(values("step_ms.median[FP32, !small|2.7B]"), [7])

    def test_cells_match_by_their_open_axes(self):
        self.assertEqual(
            values("step_ms.median[FP32] / step_ms.median[BF16]"), [4, 8])
        self.assertEqual(
            values("step_ms.median[] / step_ms.median[FP32]"),
            [1, 0.25, 1, 0.125, 1])
        self.assertEqual(
            values("step_ms.median[small] - step_ms.median[small, BF16]"),
            [6, 0])

    def test_functions(self):
        self.assertEqual(values("max(step_ms.median[])"), [80])
        self.assertEqual(values("min(step_ms.median[], size)"), [7, 2])
        self.assertEqual(values("sum(step_ms.median[small])"), [10])
        self.assertEqual(values("geomean(step_ms.median[small])"), [4])
        self.assertEqual(values("count(step_ms.median[] < 10)"), [3])
        self.assertEqual(values("cells(step_ms.median[])"), [5])
        self.assertEqual(values("where(step_ms.median[], step_ms.median[] > 9"
                                " and step_ms.median[] < 11)"), [10])
        self.assertEqual(values("lesser(step_ms.median[BF16], 5)"), [2, 5])
        self.assertEqual(values("abs(-step_ms.median[small])"), [8, 2])
        self.assertEqual(values("step_ms.median[small] * ms / s"),
                         [0.008, 0.002])

    def test_elements_of_lists(self):
        self.assertEqual(values("kernels.ms[small, BF16, name=gemm]"), [1])
        self.assertEqual(values("kernels.ms[small, BF16, class=oth*]"),
                         [0.5, 0.25])
        self.assertEqual(values("sum(kernels.ms[BF16, name=norm*], name)"),
                         [0.75, 3.75])
        self.assertEqual(values("roof.x[small, BF16, element=1]"), [2])

    def test_status(self):
        self.assertEqual(values('count(status[BF16] == "OK")'), [2])

    def test_names_and_other_studies(self):
        gain = figure_expression.evaluate(
            "step_ms.median[FP32] / step_ms.median[BF16]", STUDY)
        self.assertEqual(values("gain[2.7B]", defined={"gain": gain}), [8])
        self.assertEqual(values("max(gain)", defined={"gain": gain}), [8])
        self.assertEqual(values("other::mib[d=64, n=256]",
                                other_study={"other": SHEETS}.get), [256])

    def test_what_is_wrong_is_said(self):
        for text, study, what in (
                ("step_ms.median[tiny]", STUDY, "no cell has the label tiny"),
                ("step_ms.mode[small]", STUDY, "no cell has step_ms.mode"),
                ("gain[small]", STUDY, "no cell has gain"),
                ('step_ms.median["a, b", BF16]', STUDY, "no cell has step_ms"),
                ("mib[64, 256]", SHEETS, "write d=64"),
                ("kernels.ms[small, name=norm]", STUDY, "several elements"),
                ("2 + 2", STUDY, "names no cell"),
                ("step_ms + min(step_ms.median[])", STUDY, "step_ms is nei"),
                ("min(step_ms.median[small], size)", STUDY, "do not differ"),
                ("step_ms.median[small] / 0", STUDY, "zero"),
                ("step_ms.median[small] /", STUDY, "no expression"),
                ("open(step_ms.median[small])", STUDY, "there is no open()"),
                ("[x for x in step_ms.median[small]]", STUDY, "not arithmetic"),
        ):
            with self.subTest(text):
                with self.assertRaisesRegex(ExpressionError, what):
                    values(text, study)


if __name__ == "__main__":
    unittest.main()
