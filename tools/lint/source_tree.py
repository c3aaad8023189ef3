"""Where the source files are, for the checks of this folder."""

import pathlib
import sys

CPP = (".h", ".cc", ".cu", ".cuh")
_NOT_SOURCES = (".git", ".bundle", "runs")


def files(root, suffixes):
    """Every file below root that ends so, as sorted paths relative to root."""
    found = []
    pending = [root]
    while pending:
        for path in pending.pop().iterdir():
            if path.is_symlink():  # bazel-bin and its like
                continue
            if path.is_dir():
                if path.name not in _NOT_SOURCES:
                    pending.append(path)
            elif path.name.endswith(suffixes):
                found.append(path.relative_to(root))
    return sorted(found)


def main(check):
    """Runs check(root), which returns complaints, on the real source tree.

    The tests see a farm of links to it: the one argument, WORKSPACE, is a link
    out of there.
    """
    complaints = check(pathlib.Path(sys.argv[1]).resolve().parent)
    for complaint in complaints:
        print(complaint)
    if complaints:
        sys.exit(f"complaints: {len(complaints)}")
