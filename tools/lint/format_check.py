"""Checks that every C++ and CUDA file is formatted by clang-format."""

import re
import shutil
import subprocess

from tools.lint import source_tree

_COMPLAINT = re.compile(r"(\S+?):(\d+):\d+: error: ")


def check(root):
    if shutil.which("clang-format") is None:
        return ["clang-format is missing; install the package clang-format"]
    run = subprocess.run(
        ["clang-format", "--dry-run", "--Werror",
         *source_tree.files(root, source_tree.CPP)],
        cwd=root, capture_output=True, text=True, check=False)
    first_lines = {}
    for path, line in _COMPLAINT.findall(run.stderr):
        first_lines.setdefault(path, line)
    complaints = [f"{path}:{line}: run clang-format -i {path}"
                  for path, line in first_lines.items()]
    if run.returncode != 0 and not complaints:
        complaints = [run.stderr]
    return complaints


if __name__ == "__main__":
    source_tree.main(check)
