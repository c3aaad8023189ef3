"""Checks that the body of each function outside tests/ has at most 50 lines.

Expects C++ and CUDA as clang-format writes it: a body opens at the end of a
line and closes with a brace in the column in which the declaration began.
"""

import ast
import re

from tools.lint import source_tree

MAX_LINES = 50
# What holds functions: the members of a class are indented, what a namespace
# holds is not.
_NAMESPACE = re.compile(r'\s*((inline\s+)?namespace\b|extern "C")')
_CLASS = re.compile(r"\s*(template\b.*>\s*)?(class|struct|union|enum)\b")
_TABLE = re.compile(r"(=|\{)\s*\{$")
_RAW_STRING = re.compile(r'R"([^()\s]*)\(.*?\)\1"', re.DOTALL)
_COMMENT = re.compile(r"\s*//.*")
_NAME = re.compile(r"(?!__launch_bounds__|__align__)(~?\b\w+|operator\W+)\(")


def _code_lines(text):
    """The lines of text, without comments and what raw strings hold."""
    text = _RAW_STRING.sub(lambda match: '""' + "\n" * match[0].count("\n"),
                           text)
    return [_COMMENT.sub("", line) for line in text.splitlines()]


def _body_lines(lines, opened, column):
    """The number of lines until the brace that closes in `column`."""
    for number in range(opened, len(lines)):
        if lines[number].startswith(" " * column + "}"):
            return number - opened
    return len(lines) - opened


def _cpp_functions(text):
    """Yields the name of each function, its line, and the lines of its body."""
    lines = _code_lines(text)
    scopes = [(-1, 0)]  # the columns of its closing brace and of its contents
    declaration = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        brace, column = scopes[-1]
        if brace >= 0 and line.startswith(" " * brace + "}"):
            scopes.pop()
            continue
        if not line or line.startswith("#"):
            continue
        if len(line) - len(line.lstrip()) <= column:
            declaration = ""  # a new one begins
        declaration += line
        if not line.endswith("{"):
            continue
        if _NAMESPACE.match(declaration):
            scopes.append((column, column))
        elif _CLASS.match(declaration):
            scopes.append((column, column + 2))
        else:
            body = _body_lines(lines, number, column)
            name = _NAME.search(declaration)
            if name and not _TABLE.search(declaration):
                yield name[1], number, body
            number += body + 1


def _python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = node.body[0].lineno
            yield node.name, node.lineno, node.end_lineno - first + 1


def check(root):
    complaints = []
    for path in source_tree.files(root, source_tree.CPP + (".py",)):
        if path.parts[0] == "tests":
            continue
        find = _python_functions if path.suffix == ".py" else _cpp_functions
        text = (root / path).read_text(encoding="utf-8")
        for name, line, body_lines in find(text):
            if body_lines > MAX_LINES:
                complaints.append(f"{path}:{line}: {name} has {body_lines} "
                                  f"lines; at most {MAX_LINES}, split it")
    return complaints


if __name__ == "__main__":
    source_tree.main(check)
