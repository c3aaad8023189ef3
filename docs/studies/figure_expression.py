"""Computes the expressions of docs/studies/*/reading.figures from records.

    step_ms.median[small, 128, BF16, GRAPH]

is a figure of one cell: its path in the record's "figures", and the labels of
the cell. An axis without a label stands for all its labels, so that

    max(step_ms.median[GRAPH, FP32] / step_ms.median[GRAPH, BF16])

is over all sizes and contexts: an operator matches the cells of its two sides
by the axes that both have left open. Cells without the figure are left out.

    step_ms.median[128|256]              either label; !128|256 are the others
    held_mib[d=64]                       a label that several axes have
    step_ms.mean["BLOCK, every 2nd"]     a label with a comma
    kernels.kernels.ms[name=nvjet*]      elements of a list, by a field of them,
                                         or by element=0 if it has no text
    status[BF16] == "OK"                 the status of a cell
    precision::step_ms.mean[BF16]        a figure of another study

    min max sum mean median geomean   over all cells, or the axes that follow:
                                      min(forward_ms.median[BF16], backend)
    count                             how many are true
    cells                             how many there are
    where(VALUES, CONDITION)          the values for which it is true
    lesser(A, B) greater(A, B)        one of two values, in each cell
    abs sqrt ceil floor               of each value
    KiB MiB GiB KB MB GB TB us ms s   in bytes and seconds

Put spaces around a division: a path may have a `/`, too.
"""

import ast
import fnmatch
import functools
import json
import math
import operator
import re
import statistics


class ExpressionError(Exception):
    """What is wrong with an expression."""


class Values:
    """A value for each combination of labels of `axes`."""

    def __init__(self, axes, at):
        self.axes = tuple(axes)
        self.at = at

    def list(self):
        return list(self.at.values())

    def map(self, function):
        return Values(self.axes, {k: function(v) for k, v in self.at.items()})

    def combine(self, other, function):
        """function(a, b) for all cells that agree in the axes of both."""
        shared = [axis for axis in self.axes if axis in other.axes]
        new = tuple(axis for axis in other.axes if axis not in shared)
        partners = {}
        for key, value in other.at.items():
            cell = dict(zip(other.axes, key))
            partners.setdefault(_labels_of(cell, shared), []).append(
                (_labels_of(cell, new), value))
        at = {}
        for key, value in self.at.items():
            cell = dict(zip(self.axes, key))
            for added, partner in partners.get(_labels_of(cell, shared), []):
                at[key + added] = function(value, partner)
        if not at:
            raise ExpressionError("its two sides have no cell in common")
        return Values(self.axes + new, at)

    def reduce(self, function, over):
        """function(values) over the axes `over`, or over all cells."""
        for axis in over:
            if axis not in self.axes:
                raise ExpressionError(f"its cells do not differ in {axis}")
        kept = [axis for axis in self.axes if over and axis not in over]
        groups = {}
        for key, value in self.at.items():
            cell = dict(zip(self.axes, key))
            groups.setdefault(_labels_of(cell, kept), []).append(value)
        return Values(kept, {k: function(v) for k, v in groups.items()})

    def choose(self, labels):
        """The values with these labels, of which an axis has a list."""
        kept = [axis for axis in self.axes
                if axis not in labels or len(labels[axis]) > 1]
        at = {}
        for key, value in self.at.items():
            cell = dict(zip(self.axes, key))
            if all(cell.get(axis) in names for axis, names in labels.items()):
                at[_labels_of(cell, kept)] = value
        return Values(kept, at)

    def drop(self, axis):
        """The values without an axis in which they do not differ."""
        kept = [other for other in self.axes if other != axis]
        at = {_labels_of(dict(zip(self.axes, key)), kept): value
              for key, value in self.at.items()}
        if len(at) < len(self.at):
            raise ExpressionError(f"a cell has several elements of this {axis}")
        return Values(kept, at)


def _labels_of(cell, axes):
    return tuple(cell[axis] for axis in axes)


class Study:
    """The cells of a results.jsonl, the newest record of each."""

    def __init__(self, lines):
        self._cells = {}
        for line in lines:
            record = json.loads(line)
            if record["type"] == "cell":
                self._cells[tuple(record["cell"].items())] = record
        self._axes = {}
        for cell in self._cells:
            for axis, label in cell:
                self._axes.setdefault(axis, {})[label] = None

    def labels(self):
        return {label for labels in self._axes.values() for label in labels}

    def select(self, path, text, defined=()):
        """The figures at `path`, or of that name, of the cells in `text`."""
        labels, fields = self._wanted(text)
        values = (defined[path] if path in defined
                  else self._figures(path, fields)).choose(labels)
        if not values.at:
            raise ExpressionError(f"no cell has {path}[{text}]")
        for field, names in fields.items():
            if field in values.axes and names == [names[0].replace("*", "")]:
                values = values.drop(field)
        return values

    def _wanted(self, text):
        """The labels that `text` names, by axis, and the texts, by field."""
        labels, fields = {}, {}
        for part in re.findall(r'(?:"[^"]*"|[^,"])+', text):
            part = part.strip().replace('"', "")
            negated = part.startswith("!")
            names = part.removeprefix("!").split("|")
            axis = self._axis_of(names)
            if axis is None:
                axis, equals, value = part.partition("=")
                if equals and axis not in self._axes:
                    fields[axis] = value.split("|")
                    continue
                negated = value.startswith("!")
                names = value.removeprefix("!").split("|")
                if not set(names) <= set(self._axes.get(axis, ())):
                    raise ExpressionError(f"no cell has the label {part}")
            labels[axis] = [label for label in self._axes[axis]
                            if (label in names) != negated]
        return labels, fields

    def _axis_of(self, names):
        """The axis that has all these labels; None if there is none."""
        axes = [axis for axis, labels in self._axes.items()
                if all(name in labels for name in names)]
        if len(axes) > 1:
            both = "|".join(names)
            raise ExpressionError(f"{both} is a label of {' and '.join(axes)}; "
                                  f"write {axes[0]}={both}")
        return axes[0] if axes else None

    def _figures(self, path, fields):
        """The figures of all cells; those of a list have an axis more."""
        at, axes = {}, list(self._axes)
        for cell, record in self._cells.items():
            for texts, figure in _figures_of(record, path):
                if not _matches(dict(texts), fields):
                    continue
                key = _labels_of(dict(cell), self._axes)
                if texts:
                    field, text = texts[0]
                    axes = [*self._axes, field]
                    key += (_unused(at, key, text),)
                at[key] = figure
        return Values(axes, at)


def _figures_of(record, path):
    if path == "status":
        return [((), record["status"])]
    return _figures_at(record.get("figures", {}), path.split("."))


def _figures_at(figures, path, texts=()):
    """Yields each figure at `path`, and the texts of its element of a list."""
    if isinstance(figures, list):
        for number, element in enumerate(figures):
            fields = [(field, text) for field, text in element.items()
                      if isinstance(text, str)] or [("element", str(number))]
            yield from _figures_at(element, path, (*texts, *fields))
    elif not path:
        if figures is not None and not isinstance(figures, dict):
            yield texts, figures
    elif isinstance(figures, dict) and path[0] in figures:
        yield from _figures_at(figures[path[0]], path[1:], texts)


def _matches(texts, fields):
    return all(any(fnmatch.fnmatchcase(texts.get(field, ""), name)
                   for name in names) for field, names in fields.items())


def _unused(at, key, text):
    """`text`, with a number if another element of the list has it, too."""
    number, label = 1, text
    while key + (label,) in at:
        number += 1
        label = f"{text} #{number}"
    return label


_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.Pow: operator.pow, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.And: lambda a, b: a and b, ast.Or: lambda a, b: a or b,
    ast.USub: operator.neg, ast.Not: operator.not_,
}
_REDUCTIONS = {
    "min": min, "max": max, "sum": sum, "cells": len,
    "mean": statistics.fmean, "median": statistics.median,
    "geomean": statistics.geometric_mean,
    "count": lambda values: sum(map(bool, values)),
}
_PAIRS = {"lesser": min, "greater": max}
_FUNCTIONS = {"abs": abs, "sqrt": math.sqrt, "ceil": math.ceil,
              "floor": math.floor}
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 1e3, "MB": 1e6,
          "GB": 1e9, "TB": 1e12, "us": 1e-6, "ms": 1e-3, "s": 1}


def _constant(value):
    return Values((), {(): value})


class _Evaluator:
    """Evaluates a syntax tree whose names are units or values of cells."""

    def __init__(self, names):
        self._names = names

    def value(self, node):
        visit = getattr(self, "_" + type(node).__name__.lower(), None)
        if visit is None:
            raise ExpressionError(f"it has {ast.unparse(node)}, which is not "
                                  "arithmetic over cells")
        return visit(node)

    def _constant(self, node):
        return _constant(node.value)

    def _name(self, node):
        if node.id not in self._names:
            raise ExpressionError(f"{node.id} is neither a unit nor defined; "
                                  "figures have labels in brackets, or []")
        return self._names[node.id]

    def _binop(self, node):
        return self.value(node.left).combine(
            self.value(node.right), _operator(node.op))

    def _unaryop(self, node):
        return self.value(node.operand).map(_operator(node.op))

    def _boolop(self, node):
        both = _operator(node.op)
        return functools.reduce(lambda a, b: a.combine(b, both),
                                map(self.value, node.values))

    def _compare(self, node):
        if len(node.ops) > 1:
            raise ExpressionError("it compares three values; use `and`")
        return self.value(node.left).combine(
            self.value(node.comparators[0]), _operator(node.ops[0]))

    def _call(self, node):
        name, count = ast.unparse(node.func), len(node.args)
        if not node.args or node.keywords:
            raise ExpressionError(f"{name} needs values in parentheses")
        values = self.value(node.args[0])
        if name in _REDUCTIONS:
            return values.reduce(_REDUCTIONS[name],
                                 [ast.unparse(axis) for axis in node.args[1:]])
        if name in _FUNCTIONS and count == 1:
            return values.map(_FUNCTIONS[name])
        if name in _PAIRS and count == 2:
            return values.combine(self.value(node.args[1]), _PAIRS[name])
        if name == "where" and count == 2:
            return _where(values, self.value(node.args[1]))
        raise ExpressionError(f"there is no {name}() of {count} values")


def _operator(node):
    if type(node) not in _OPERATORS:
        raise ExpressionError(f"{type(node).__name__} is no operator here")
    return _OPERATORS[type(node)]


def _where(values, condition):
    both = values.combine(condition, lambda value, true: (value, true))
    at = {key: value for key, (value, true) in both.at.items() if true}
    if not at:
        raise ExpressionError("where() leaves no cell")
    return Values(both.axes, at)


_CELLS = re.compile(r"(?:(\w+)::)?([A-Za-z_][\w./]*)\[([^\]]*)\]")


def evaluate(text, study, other_study=None, defined=()):
    """The Values of an expression.

    other_study(NAME) loads another Study; `defined` has Values by their names.
    """
    values = dict(defined)

    def name_of(match):
        other, path, labels = match.groups()
        name = f"cells_{len(values)}"
        values[name] = (other_study(other) if other else study).select(
            path, labels, defined)
        return name

    try:
        # In parentheses, because it may have several lines.
        tree = ast.parse(f"({_CELLS.sub(name_of, text)})", mode="eval")
        if not any(isinstance(node, ast.Name) and node.id in values
                   for node in ast.walk(tree)):
            raise ExpressionError("it names no cell")
        units = {unit: _constant(value) for unit, value in _UNITS.items()}
        return _Evaluator(units | values).value(tree.body)
    except SyntaxError:
        raise ExpressionError("it is no expression") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ExpressionError(str(error)) from None
