"""Checks that dependencies between folders go one way: docs/design.md.

Reads the deps of every BUILD.bazel. A folder may depend on itself and on every
folder of an earlier layer.
"""

import ast

from tools.lint import source_tree

LAYERS = (
    ("framework/base",),
    ("framework/cuda",),
    ("framework/params", "framework/precision"),
    ("framework/program", "framework/mesh"),
    ("framework/ops", "framework/optim", "framework/dist", "framework/data",
     "framework/checkpoint", "framework/observe"),
    ("attention_backends",),
    ("models",),
    ("trainers",),
    ("bench",),
    ("tests", "docs"),
)
_DEPS = ("deps", "implementation_deps")


def _layer(package):
    """(layer, folder) of a package, or None for tools, third_party, ..."""
    for number, folders in enumerate(LAYERS):
        for folder in folders:
            if package == folder or package.startswith(folder + "/"):
                return number, folder
    return None


def _dependencies(text):
    """Yields (line, label) for every string in a deps attribute.

    BUILD files have Python's syntax. Strings inside select() etc. count.
    """
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            if keyword.arg not in _DEPS:
                continue
            for node in ast.walk(keyword.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.lineno, node.value


def _check_dependency(package, label):
    if not label.startswith("//"):
        return None
    target = label[2:].split(":")[0]
    here, there = _layer(package), _layer(target)
    if here is None or there is None or here[1] == there[1]:
        return None
    if there[0] < here[0]:
        return None
    return f"{here[1]} may not depend on {there[1]}: {label}"


def check(root):
    complaints = []
    for path in source_tree.files(root, ("BUILD.bazel",)):
        package = path.parent.as_posix()
        text = (root / path).read_text(encoding="utf-8")
        try:
            dependencies = list(_dependencies(text))
        except SyntaxError as error:
            complaints.append(f"{path}:{error.lineno}: {error.msg}")
            continue
        for line, label in dependencies:
            complaint = _check_dependency(package, label)
            if complaint:
                complaints.append(f"{path}:{line}: {complaint}")
    return complaints


if __name__ == "__main__":
    source_tree.main(check)
