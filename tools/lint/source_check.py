"""Checks C++, CUDA and .proto files for what clang-format does not check.

Header guards, headers that a file must not include, constructs that this
project does not use, and the width of .proto files.
"""

import re

from tools.lint import source_tree

_INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
# These drag in all of LibTorch: half a minute per source.
_UMBRELLAS = {"torch/torch.h", "torch/all.h", "torch/extension.h"}
# nvcc's sources do not include LibTorch or Protocol Buffers, so that nvcc's
# version is independent of theirs.
_HOST_ONLY = re.compile(r"(torch|ATen|c10|google/protobuf)/|.*\.pb\.h$")
_BANNED = (
    (re.compile(r"\busing namespace\b"), "`using namespace`; name what you use"),
    (re.compile(r"\bTODO(?!\(\w)"), "a TODO without its owner"),
)
_LAUNCH = re.compile(r"<<<")
# Configs are converted to plain structs and objects in X_config.{h,cc}; only
# trainers/ includes those.
_CONFIG = re.compile(r".*_config(\.pb)?\.h$")
_BELOW_TRAINERS = ("framework", "attention_backends", "models")
_MAX_PROTO_COLUMNS = 100


def _guard(path):
    return re.sub(r"[^A-Z0-9]", "_", str(path).upper()) + "_"


def _check_guard(path, lines):
    guard = _guard(path)
    directives = [line for line in lines if line.startswith("#")]
    want = [f"#ifndef {guard}", f"#define {guard}"]
    if directives[:2] != want or lines[-1:] != [f"#endif  // {guard}"]:
        yield f"{path}:1: the header guard must be {guard}"


def _check_lines(path, lines):
    for number, line in enumerate(lines, 1):
        include = _INCLUDE.match(line)
        if include and include.group(1) in _UMBRELLAS:
            yield (f"{path}:{number}: {include.group(1)} is all of LibTorch; "
                   "include what you use, e.g. ATen/ATen.h")
        if (include and _CONFIG.match(include.group(1))
                and path.parts[0] in _BELOW_TRAINERS
                and not path.stem.endswith("_config")):
            yield (f"{path}:{number}: {include.group(1)} below trainers/; use "
                   "the plain struct that X_config.h makes from the config")
        for pattern, what in _BANNED:
            if pattern.search(line):
                yield f"{path}:{number}: {what}"
        if path.suffix in (".h", ".cc") and _LAUNCH.search(line):
            yield f"{path}:{number}: a kernel launch outside a .cu file"


def _check_device_includes(root, path):
    """Follows the includes of a .cu file through this tree's headers."""
    pending, seen = [path], {path}
    while pending:
        current = pending.pop()
        for number, line in enumerate(_lines(root, current), 1):
            include = _INCLUDE.match(line)
            if not include:
                continue
            name = include.group(1)
            if _HOST_ONLY.match(name):
                yield (f"{current}:{number}: {name} is not for device code; "
                       f"{path} includes it")
            header = path.__class__(name)
            if header not in seen and (root / header).is_file():
                seen.add(header)
                pending.append(header)


def _check_width(path, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_PROTO_COLUMNS:
            yield (f"{path}:{number}: {len(line)} columns; at most "
                   f"{_MAX_PROTO_COLUMNS}")


def _lines(root, path):
    return (root / path).read_text(encoding="utf-8").splitlines()


def check(root):
    complaints = []
    for path in source_tree.files(root, source_tree.CPP):
        lines = _lines(root, path)
        if path.suffix in (".h", ".cuh"):
            complaints += _check_guard(path, lines)
        if path.suffix in (".cu", ".cuh"):
            complaints += _check_device_includes(root, path)
        complaints += _check_lines(path, lines)
    for path in source_tree.files(root, (".proto",)):
        complaints += _check_width(path, _lines(root, path))
    return complaints


if __name__ == "__main__":
    source_tree.main(check)
