"""Checks that tests lie where their sources do, and that none is too long.

A test in tests/X tests the folder X. If X has a folder with a source called Y,
Y_test is in the folder of that name.
"""

import collections
import pathlib

from tools.lint import source_tree

MAX_LINES = 750
_TESTS = pathlib.Path("tests")
# Folders of tests of the whole, and of what exists only in tests/.
_WITHOUT_SOURCES = (".", "attacks", "build", "testing",
                    "attention_backends/flash_cuda/emulation")


def _sources(root):
    """The folders that hold a source of each name."""
    folders = collections.defaultdict(set)
    for path in source_tree.files(root, source_tree.CPP + (".py",)):
        if path.parts[0] != "tests":
            folders[path.stem].add(path.parent)
    return folders


def check(root):
    complaints = []
    sources = _sources(root)
    for path in source_tree.files(root / _TESTS, ("_test.cc", "_test.py")):
        folder, test = path.parent, _TESTS / path
        lines = (root / test).read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            complaints.append(f"{test}:1: {lines} lines; at most {MAX_LINES}, "
                              "split it along the sources that it tests")
        if str(folder) in _WITHOUT_SOURCES:
            continue
        if not (root / folder).is_dir():
            complaints.append(f"{test}:1: there is no folder {folder}; move it "
                              "to tests/X for the folder X that it tests")
        homes = sources[path.stem.removesuffix("_test")]
        below = sorted(home for home in homes if folder in home.parents)
        if below and folder not in homes:
            complaints.append(f"{test}:1: move it to tests/{below[0]}, as its "
                              f"source is in {below[0]}")
    return complaints


if __name__ == "__main__":
    source_tree.main(check)
