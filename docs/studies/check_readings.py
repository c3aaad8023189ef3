#!/usr/bin/env python3
"""Recomputes every figure of the studies' readings from their results.

usage: docs/studies/check_readings.py [NAME...]
       docs/studies/check_readings.py NAME --value=EXPRESSION

Each number of the text under `## Reading` in NAME/README.md has a line in
NAME/reading.figures, in the same order: the number as the text has it, and what
it is. figure_expression.py says what an EXPRESSION is, and --value prints one.

    2.52 = step_ms.median[small, 128, BF16, GRAPH]  rounds to 2.52
    12 = held_mib[!NAIVE]                       rounds to 12 in each cell
    0.6, 1.1 = forward_ms.median[small, BF16]   one number for each cell
    77 to 92 = kernels.gemm_share[FP32]         the least and the greatest
    41 % = 1 - a[...] / b[...]                  100 times the expression
    1,200 ~ a[...] / b[...]                     rounds to 1,200 in hundreds
    5 >= max(a[...])                            a bound; also <=
    128, 256 : tokens                           not from the results, and why
    eight = count(a[...] > b[...])              a number in words; half, twice
    every cell = a[...] < b[...]                a phrase: true in each cell
    mask := a[...] - b[...]                     a name for the lines below

Only numbers in digits must have a line, except in code, in links, and in names
such as BF16, or 2.7B if that is a label of a cell. An indented line continues
the line above; a line that starts with # is a comment.
"""

import argparse
import dataclasses
import difflib
import functools
import math
import pathlib
import re
import sys

import figure_expression
from figure_expression import ExpressionError

STUDIES = pathlib.Path(__file__).parent

_WORDS = {word: str(number) for number, word in enumerate(
    "zero one two three four five six seven eight nine ten eleven "
    "twelve".split())} | {"half": "0.5", "twice": "2.0"}
_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*"
_NUMBERS = re.compile(rf"{_NUMBER}(?: to {_NUMBER}|(?:, {_NUMBER})*)")
# With the letters that make it a name.
_IN_TEXT = re.compile(rf"(?<!\w)(?<!\d\.)({_NUMBER})([A-Za-z]\w*)?")
_NOT_TEXT = re.compile(r"(`+).*?\1|\]\([^)]*\)|https?://\S+", re.DOTALL)
_LINE = re.compile(r"(.+?)\s+(=|~|<=|>=|:=|:)\s+(.+)")


@dataclasses.dataclass
class Number:
    """A number of a reading."""
    text: str
    offset: int  # in the reading
    line: int  # in the page


@dataclasses.dataclass
class Entry:
    """A line of a reading.figures."""
    line: int
    left: str
    operator: str
    expression: str

    @property
    def percent(self):
        return self.left.endswith(" %")

    @property
    def words(self):
        return self.left.removesuffix(" %")

    @property
    def numbers(self):
        """The numbers on the left; none if there are words."""
        if not _NUMBERS.fullmatch(self.words):
            return []
        return re.split(", | to ", self.words)

    @property
    def is_range(self):
        return bool(self.numbers) and " to " in self.words


def reading_of(page):
    """The text under `## Reading`, and the number of its first line."""
    lines = page.splitlines()
    if "## Reading" not in lines:
        return "", 1
    first = lines.index("## Reading") + 1
    last = next((number for number in range(first, len(lines))
                 if lines[number].startswith("## ")), len(lines))
    return "\n".join(lines[first:last]), first + 1


def numbers_of(text, first_line, labels):
    """The numbers of a reading that need a line, in order."""
    names = {word for label in labels for word in label.split()}
    text = _NOT_TEXT.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), text)
    return [Number(match[1], match.start(1),
                   first_line + text.count("\n", 0, match.start(1)))
            for match in _IN_TEXT.finditer(text)
            if not (match[2] and match[1] + match[2] in names)]


def read_entries(text):
    """The lines of a reading.figures, and (line, text) of those that are none.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace() and lines:
            lines[-1][1] += " " + line.strip()
        else:
            lines.append([number, line.strip()])
    entries, others = [], []
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match:
            entries.append(Entry(number, *match.groups()))
        else:
            others.append((number, line))
    return entries, others


def digits_of(number):
    """The digits after the point."""
    return len(number.partition(".")[2])


def agrees(number, value, comparison):
    """Whether `value` is what the text says with `number`."""
    said = float(number.replace(",", ""))
    if comparison in ("<=", ">="):
        return value >= said if comparison == "<=" else value <= said
    last_digit = -digits_of(number)
    if comparison == "~" and last_digit == 0 and said != 0:
        plain = number.replace(",", "")
        last_digit = len(plain) - len(plain.rstrip("0"))
    # 0.125 may have been rounded up or down.
    return abs(value - said) <= 0.5 * 10.0**last_digit * (1 + 1e-9)


def as_written(low, high, number):
    """The values from low to high, with as many digits as `number`."""
    texts = [f"{value:,.{digits_of(number)}f}" for value in (low, high)]
    return " to ".join(dict.fromkeys(texts))


def spans_of(entry, numbers, values):
    """The least and the greatest value that each number stands for."""
    for value in values:
        if isinstance(value, (str, bool)) or not math.isfinite(value):
            raise ExpressionError(
                f"its value is {value}; must be a finite number")
    scale = 100 if entry.percent else 1
    values = [scale * value for value in values]
    low, high = min(values), max(values)
    if entry.is_range:
        return [(low, low), (high, high)]
    if len(numbers) == 1:
        return [(low, high)]
    if len(numbers) != len(values):
        raise ExpressionError(f"it has {len(values)} values for {len(numbers)} "
                              "numbers")
    return [(value, value) for value in values]


def wrong_numbers(entry, values):
    """Yields the index of each number that is wrong, and what it should be."""
    numbers = entry.numbers
    if not numbers:
        word = _WORDS.get(entry.words.lower())
        if word is None:
            yield from _wrong_claim(values)
            return
        numbers = [word]
    for index, (low, high) in enumerate(spans_of(entry, numbers, values)):
        number = numbers[index]
        if not all(agrees(number, value, entry.operator)
                   for value in (low, high)):
            yield index, as_written(low, high, number)


def _wrong_claim(values):
    if not all(isinstance(value, bool) for value in values):
        raise ExpressionError("it is no comparison, and there is no number")
    if not all(values):
        yield 0, f"false in {values.count(False)} of {len(values)} cells"


class Checker:
    """Checks the reading of one study."""

    def __init__(self, folder, study_of):
        self._page = folder / "README.md"
        self._figures = folder / "reading.figures"
        self._study_of = study_of
        self._study = study_of(folder.name)
        self._defined = {}
        self.numbers = []
        self.recomputed = 0
        self.faults = []

    def run(self):
        text, first_line = reading_of(self._page.read_text(encoding="utf-8"))
        self.numbers = numbers_of(text, first_line, self._study.labels())
        entries, others = read_entries(
            self._figures.read_text(encoding="utf-8")
            if self._figures.is_file() else "")
        for line, other in others:
            self._fault(self._figures, line,
                        f"{other!r} is not of the form NUMBER = EXPRESSION")
        places = self._match(entries)
        self._find_words(text, entries, places)
        for entry in entries:
            self._check(entry, places.get(entry.line, []))
        return self

    def _fault(self, path, line, what):
        self.faults.append(f"{path}:{line}: {what}")

    def _match(self, entries):
        """The numbers of the text that each entry is about, by its line."""
        written = [(number, entry) for entry in entries
                   for number in entry.numbers]
        matcher = difflib.SequenceMatcher(
            None, [number.text for number in self.numbers],
            [number for number, _ in written], autojunk=False)
        places = {}
        for tag, i, i_end, j, j_end in matcher.get_opcodes():
            if tag == "equal":
                for number, (_, entry) in zip(self.numbers[i:i_end],
                                              written[j:j_end]):
                    places.setdefault(entry.line, []).append(number)
                continue
            for number in self.numbers[i:i_end]:
                self._fault(self._page, number.line, f"{number.text} has no "
                            f"line in {self._figures.name}")
            for number, entry in written[j:j_end]:
                self._fault(self._figures, entry.line,
                            f"{number} is not here in the reading")
        return places

    def _find_words(self, text, entries, places):
        """Looks for words between the numbers of the entries around them."""
        start = 0
        for index, entry in enumerate(entries):
            ends = [number.offset + len(number.text)
                    for number in places.get(entry.line, [])]
            if entry.numbers or entry.operator == ":=":
                start = max([start, *ends])
                continue
            end = min([len(text)] + [number.offset
                                     for later in entries[index:]
                                     for number in places.get(later.line, [])])
            words = r"\s+".join(map(re.escape, entry.words.split()))
            found = re.compile(rf"\b{words}", re.IGNORECASE).search(
                text, start, end)
            if found:
                start = found.end()
            else:
                self._fault(self._figures, entry.line,
                            f"{entry.words!r} is not here in the reading")

    def _check(self, entry, places):
        if entry.operator == ":":
            return
        try:
            values = figure_expression.evaluate(
                entry.expression, self._study, self._study_of, self._defined)
            if entry.operator == ":=":
                self._defined[entry.left] = values
                return
            wrong = list(wrong_numbers(entry, values.list()))
            self.recomputed += len(places)
        except (ExpressionError, ValueError) as error:
            self._fault(self._figures, entry.line,
                        f"{entry.expression}: {error}")
            return
        for index, should in wrong:
            if len(places) == len(entry.numbers) > 0:
                self._fault(self._page, places[index].line,
                            f"{places[index].text} should be {should}, by line "
                            f"{entry.line} of {self._figures.name}: "
                            f"{entry.expression}")
            else:
                self._fault(self._figures, entry.line, f"{entry.left} should "
                            f"be {should}: {entry.expression}")


def loader(studies):
    """study_of(NAME): the Study of a folder, read once."""

    @functools.cache
    def study_of(name):
        path = studies / name / "results.jsonl"
        if not path.is_file():
            raise ExpressionError(f"there is no study {name}")
        with path.open(encoding="utf-8") as lines:
            return figure_expression.Study(lines)

    return study_of


def check(studies, names):
    """Prints what is wrong in the readings, and returns it."""
    study_of = loader(studies)
    checkers = [Checker(studies / name, study_of).run() for name in names]
    faults = [fault for checker in checkers for fault in checker.faults]
    for fault in faults:
        print(fault)
    print(f"{len(checkers)} readings, "
          f"{sum(len(checker.numbers) for checker in checkers)} numbers, "
          f"{sum(checker.recomputed for checker in checkers)} of them "
          f"recomputed, {len(faults)} faults")
    return faults


def names_of(studies):
    return sorted(path.parent.name for path in studies.glob("*/results.jsonl"))


def print_values(name, expression):
    study_of = loader(STUDIES)
    values = figure_expression.evaluate(expression, study_of(name), study_of)
    for labels, value in values.at.items():
        print(*[", ".join(labels)] if labels else [], value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--value", metavar="EXPRESSION")
    arguments = parser.parse_args()
    if arguments.value is not None and len(arguments.names) != 1:
        parser.error("--value needs the NAME of one study")
    try:
        if arguments.value is None:
            names = arguments.names or names_of(STUDIES)
            sys.exit(1 if check(STUDIES, names) else 0)
        print_values(arguments.names[0], arguments.value)
    except ExpressionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
