"""Tests of tools/cuda/compile.py with a fake nvcc that writes its inputs."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPILE = pathlib.Path("tools/cuda/compile.py").resolve()

# Writes the dependency file named by -MF and the object named by -o.
FAKE_NVCC = """#!{python}
import pathlib, sys
words = sys.argv[1:]
after = lambda option: pathlib.Path(words[words.index(option) + 1])
if "-DFAIL" in words:
    sys.exit(7)
after("-MF").write_text("out.o : kernel.cu \\\\\\n {reads}\\n")
after("-o").write_text("object")
"""


class CudaCompileTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.object = self.folder / "out.o"

    def compile(self, reads, declared=(), options=(), from_file=False):
        nvcc = self.folder / "toolkit" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True, exist_ok=True)
        nvcc.write_text(FAKE_NVCC.format(python=sys.executable,
                                         reads=" \\\\\\n ".join(reads)))
        nvcc.chmod(0o755)
        words = ["--nvcc", str(nvcc), "--src", "kernel.cu",
                 "--out", str(self.object)]
        for header in declared:
            words += ["--hdr", header]
        words += ["--", "-std=c++20", *options]
        if from_file:
            params = self.folder / "params"
            params.write_text("\n".join(words) + "\n")
            words = [f"@{params}"]
        return subprocess.run(
            [sys.executable, str(COMPILE), *words], cwd=self.folder,
            stderr=subprocess.PIPE, universal_newlines=True, check=False)

    def test_declared_headers_are_accepted(self):
        done = self.compile(["a/tile.cuh", "a/warp.cuh"],
                            declared=["a/tile.cuh", "a/warp.cuh", "a/other.h"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(self.object.exists())

    def test_an_undeclared_header_is_refused_by_name(self):
        done = self.compile(["a/tile.cuh", "a/warp.cuh"],
                            declared=["a/tile.cuh"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a/warp.cuh", done.stderr)
        self.assertNotIn("a/tile.cuh", done.stderr)
        self.assertFalse(self.object.exists(), "a refused object must not stay")

    def test_one_header_named_two_ways_is_one_header(self):
        done = self.compile(["a/../a/tile.cuh"], declared=["./a/tile.cuh"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_headers_of_the_toolkit_and_the_system_need_no_declaration(self):
        done = self.compile(["/usr/include/stdio.h", "external/libtorch/x.h"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_failing_nvcc_fails(self):
        self.assertNotEqual(self.compile([], options=["-DFAIL"]).returncode, 0)
        self.assertFalse(os.path.exists(self.object))

    def test_arguments_may_come_from_a_file(self):
        done = self.compile(["a/tile.cuh"], declared=["a/tile.cuh"],
                            from_file=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.compile(["a/tile.cuh"], from_file=True)
        self.assertIn("a/tile.cuh", done.stderr)


if __name__ == "__main__":
    unittest.main()
