"""Finds the source files, for the checks in this folder."""

import pathlib
import sys

CPP = (".h", ".cc", ".cu", ".cuh")
_NOT_SOURCES = (".git", ".bundle", "runs")


def files(root, suffixes):
    """Every file below root with a suffix of `suffixes`, relative and sorted."""
    found = []
    pending = [root]
    while pending:
        for path in pending.pop().iterdir():
            if path.is_symlink():  # bazel-bin etc.
                continue
            if path.is_dir():
                if path.name not in _NOT_SOURCES:
                    pending.append(path)
            elif path.name.endswith(suffixes):
                found.append(path.relative_to(root))
    return sorted(found)


def main(check):
    """Runs check(root), which returns complaints, on the real source tree.

    Tests run in a tree of symbolic links; the only argument, WORKSPACE, is a
    link from which the real tree is found.
    """
    complaints = check(pathlib.Path(sys.argv[1]).resolve().parent)
    for complaint in complaints:
        print(complaint)
    if complaints:
        sys.exit(f"complaints: {len(complaints)}")
