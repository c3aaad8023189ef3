"""Runs nvcc for cuda_library and checks what it read.

usage: compile.py --nvcc NVCC --src FILE --out FILE (--hdr HEADER)... -- NVCC_ARGUMENTS...
       compile.py @PARAMS, the same, a word a line in a file

Fails if the source includes a file of this workspace that the rule does not
declare: Bazel would not rebuild the object when such a header changes.
"""

import os
import pathlib
import subprocess
import sys
import tempfile


def parse(lines):
    split = lines.index("--")
    named = {"--hdr": set()}
    for key, value in zip(lines[:split:2], lines[1:split:2]):
        if key == "--hdr":
            named[key].add(os.path.normpath(value))
        else:
            named[key] = value
    return named, lines[split + 1:]


def main():
    words = sys.argv[1:]
    if words[0].startswith("@"):
        words = pathlib.Path(words[0][1:]).read_text().splitlines()
    named, options = parse(words)
    source = named["--src"]
    toolkit = pathlib.Path(named["--nvcc"]).parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        made = os.path.join(scratch, "deps.d")
        subprocess.run(
            [named["--nvcc"], *options, f"-I{toolkit}/include/cccl", "-MD",
             "-MF", made, "-c", source, "-o", named["--out"]], check=True)
        read = pathlib.Path(made).read_text().replace("\\\n", " ").split(":", 1)
    workspace = os.getcwd()
    undeclared = []
    for word in read[1].split():
        path = os.path.relpath(os.path.join(workspace, word), workspace)
        outside = path.startswith("..") or path.startswith("external/")
        if not outside and path != source and path not in named["--hdr"]:
            undeclared.append(path)
    if undeclared:
        os.unlink(named["--out"])
        sys.exit(f"{source} includes headers that no dep declares: "
                 f"{', '.join(sorted(undeclared))}; add them to hdrs or deps")


if __name__ == "__main__":
    main()
