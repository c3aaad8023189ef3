"""Tests of docs/studies/check_readings.py with a made-up study and docs'."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

STUDIES = pathlib.Path("docs/studies")
sys.path.insert(0, str(STUDIES.resolve()))

import check_readings

PAGE = """\
# A study of 3 sizes

## Reading

BF16 takes 2.87 ms at 128 tokens, 41 % less than FP32, and in every cell less.
Two of 2 sizes of the 2.7B kind take 2.9 to
11.0 ms; see [x](../12.md) and `w13`. On an H100 about 1,200
and at most 20.

## Tables

| 99 |
"""
FIGURES = """\
# Numbers of the reading.
fast := step_ms[BF16]

2.87 = step_ms[small, BF16]
128 : tokens
41 % = 1 - step_ms[small, BF16]
    / step_ms[small, FP32]
in every cell = step_ms[BF16] < step_ms[FP32]
two = count(fast < 12)
2 = cells(fast)
2.9 to 11.0 = fast
1,200 ~ 100 * max(step_ms[])
20 >= step_ms[]
"""
STEPS = {("small", "FP32"): 4.864, ("small", "BF16"): 2.874,
         ("2.7B", "FP32"): 12.4, ("2.7B", "BF16"): 11.04}


class FaultsTest(unittest.TestCase):

    def faults(self, page=PAGE, figures=FIGURES):
        """The faults, without the folder and with the lines of the files."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "made_up"
            folder.mkdir()
            (folder / "README.md").write_text(page)
            if figures is not None:
                (folder / "reading.figures").write_text(figures)
            (folder / "results.jsonl").write_text("\n".join(json.dumps(
                {"type": "cell", "status": "OK",
                 "cell": {"size": size, "precision": precision},
                 "figures": {"step_ms": step}})
                for (size, precision), step in STEPS.items()))
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                faults = check_readings.check(folder.parent, ["made_up"])
            self.assertEqual(printed.getvalue().splitlines()[:-1], faults)
            return [fault.removeprefix(f"{folder}/") for fault in faults]

    def change(self, before, after):
        """The faults if this is changed in the figures."""
        self.assertEqual(FIGURES.count(before), 1)
        return self.faults(figures=FIGURES.replace(before, after))

    def test_nothing_is_wrong(self):
        self.assertEqual(self.faults(), [])

    def test_a_number_has_no_line(self):
        self.assertEqual(self.change("128 : tokens\n", ""), [
            "README.md:5: 128 has no line in reading.figures"])

    def test_there_are_no_figures(self):
        faults = self.faults(figures=None)
        self.assertEqual(len(faults), 8)
        self.assertIn("README.md:7: 11.0 has no line in reading.figures",
                      faults)
        self.assertEqual(self.faults("# A study\n", None), [])

    def test_a_line_has_no_number(self):
        self.assertEqual(self.change("128 : tokens", "128, 256 : tokens"), [
            "reading.figures:5: 256 is not here in the reading"])

    def test_a_number_is_wrong(self):
        page = PAGE.replace("2.87 ms", "2.88 ms").replace("41 %", "42 %")
        figures = FIGURES.replace("2.87 =", "2.88 =").replace("41 %", "42 %")
        self.assertEqual(self.faults(page, figures), [
            "README.md:5: 2.88 should be 2.87, by line 4 of reading.figures: "
            "step_ms[small, BF16]",
            "README.md:5: 42 should be 41, by line 6 of reading.figures: "
            "1 - step_ms[small, BF16] / step_ms[small, FP32]"])

    def test_a_number_is_that_of_several_cells(self):
        self.assertEqual(self.change("[small, BF16]\n128", "[BF16]\n128"), [
            "README.md:5: 2.87 should be 2.87 to 11.04, by line 4 of "
            "reading.figures: step_ms[BF16]"])

    def test_the_end_of_a_range_is_wrong(self):
        self.assertEqual(self.change("2.9 to 11.0 = fast",
                                     "2.9 to 11.0 = fast[small]"), [
            "README.md:7: 11.0 should be 2.9, by line 11 of reading.figures: "
            "fast[small]"])

    def test_zeros_at_the_end_are_digits(self):
        self.assertEqual(self.change("1,200 ~", "1,200 ="), [
            "README.md:7: 1,200 should be 1,240, by line 12 of "
            "reading.figures: 100 * max(step_ms[])"])

    def test_a_bound_is_passed(self):
        self.assertEqual(self.change("20 >= step_ms[]", "20 >= 2 * step_ms[]"),
                         ["README.md:8: 20 should be 6 to 25, by line 13 of "
                          "reading.figures: 2 * step_ms[]"])

    def test_a_number_in_words_is_wrong(self):
        self.assertEqual(self.change("fast < 12", "fast < 11"), [
            "reading.figures:9: two should be 1: count(fast < 11)"])

    def test_what_the_text_says_is_false(self):
        self.assertEqual(self.change("[BF16] < step", "[BF16] * 2 < step"), [
            "reading.figures:8: in every cell should be false in 2 of 2 cells: "
            "step_ms[BF16] * 2 < step_ms[FP32]"])

    def test_words_are_not_in_the_text(self):
        self.assertEqual(self.change("two =", "three ="), [
            "reading.figures:9: 'three' is not here in the reading",
            "reading.figures:9: three should be 2: count(fast < 12)"])

    def test_an_expression_names_no_cell(self):
        self.assertEqual(self.change("2 = cells(fast)", "2 = cells(a[huge])"), [
            "reading.figures:10: cells(a[huge]): no cell has the label huge"])
        self.assertEqual(self.change("2 = cells(fast)", "2 = 2"), [
            "reading.figures:10: 2: it names no cell"])

    def test_values_do_not_fit_the_numbers(self):
        self.assertEqual(self.change("128 : tokens", "128 = fast > 1"), [
            "reading.figures:5: fast > 1: its value is True; must be a "
            "finite number"])
        self.assertEqual(self.change("step_ms[BF16] < step_ms[FP32]", "fast"), [
            "reading.figures:8: fast: it is no comparison, and there is no "
            "number"])
        self.assertEqual(self.change("2.9 to 11.0 = fast", "2.9, 11.0 = 1 * "
                                     "step_ms[]"), [
            "reading.figures:11: 1 * step_ms[]: it has 4 values for 2 numbers"])

    def test_a_line_is_none(self):
        self.assertEqual(self.change("128 : tokens", "128 tokens")[0],
                         "reading.figures:5: '128 tokens' is not of the form NUMBER = "
                         "EXPRESSION")


class PagesTest(unittest.TestCase):

    def test_readings_agree_with_their_results(self):
        names = check_readings.names_of(STUDIES)
        self.assertGreater(len(names), 10)
        self.assertEqual(check_readings.check(STUDIES, names), [])


if __name__ == "__main__":
    unittest.main()
