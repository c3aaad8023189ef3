"""Checks that //tests:gpu_tests links every test with a GPU tag."""

import pathlib
import re
import sys
import unittest

TESTS = pathlib.Path(sys.argv.pop(1)).resolve().parent / "tests"

RULE = re.compile(r"^(?:tessera|cuda)_test\($(.*?)^\)$",
                  re.MULTILINE | re.DOTALL)
NAME = re.compile(r'^    name = "(\w+)",$', re.MULTILINE)
GPU_TAG = re.compile(r'tags = \[[^\]]*"gpu(-multi)?"')


def tagged_libraries():
    for build in sorted(TESTS.rglob("BUILD.bazel")):
        package = build.parent.relative_to(TESTS.parent)
        for rule in RULE.findall(build.read_text()):
            if GPU_TAG.search(rule):
                yield f"//{package}:{NAME.search(rule).group(1)}_lib"


class GpuTestsListTest(unittest.TestCase):

    def test_finds_tagged_tests(self):
        found = list(tagged_libraries())
        self.assertIn("//tests/framework/optim:adamw_test_lib", found)
        self.assertIn("//tests/framework/cuda:cuda_graph_test_lib", found)

    def test_every_tagged_test_is_listed(self):
        listed = (TESTS / "BUILD.bazel").read_text()
        missing = [label for label in tagged_libraries()
                   if f'"{label}"' not in listed]
        self.assertEqual(missing, [], "add these to gpu_tests in"
                         " tests/BUILD.bazel")


if __name__ == "__main__":
    unittest.main()
