"""Tests of //tools/bundle: the contents of a bundle, and its launcher."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUNDLE = pathlib.Path("tools/bundle/bundle.py").resolve()
LAUNCHER = pathlib.Path("tools/bundle/run").resolve()
COMMIT = pathlib.Path("tools/commit.sh").resolve()
PROGRAM = pathlib.Path("tests/build/torch_program")
DATA = pathlib.Path("tests/build/torch_program.txt")

PRINT_ENVIRONMENT = """#!/bin/sh
echo "$LD_LIBRARY_PATH"
printf '%s\\n' "$@"
"""


def run(*command, environment=None, cwd=None):
    return subprocess.run(
        [str(word) for word in command], env=environment, cwd=cwd, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def torch_package():
    """The pinned wheels' torch, with which the program was linked."""
    for line in run("ldd", PROGRAM.resolve()).stdout.splitlines():
        if "libtorch_cpu.so =>" in line:
            return pathlib.Path(line.split()[2]).resolve().parents[1]
    raise AssertionError(f"{PROGRAM} is not linked with LibTorch")


class TemporaryFolderTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()


class LauncherTest(TemporaryFolderTest):

    def setUp(self):
        super().setUp()
        self.bundle = self.folder / "bundle"
        (self.bundle / "bin").mkdir(parents=True)
        shutil.copy(LAUNCHER, self.bundle / "run")
        (self.bundle / "torch_version").write_text("2.11\n")
        program = self.bundle / "bin" / "show"
        program.write_text(PRINT_ENVIRONMENT)
        program.chmod(0o755)

    def add_torch(self, version):
        """A site-packages folder with a torch of that version."""
        site = self.folder / "site"
        (site / "torch" / "lib").mkdir(parents=True)
        (site / f"torch-{version}.dist-info").mkdir()
        # Importing it fails, because the launcher must not import torch.
        (site / "torch" / "__init__.py").write_text("raise SystemExit(1)")
        (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        (site / "nvidia" / "nccl" / "include").mkdir(parents=True)
        return site

    def launch(self, *words, **variables):
        environment = {"PATH": os.environ["PATH"], **variables}
        return run(self.bundle / "run", *words, environment=environment)

    def test_finds_the_torch_that_python_would_import(self):
        site = self.add_torch("2.11.0")
        done = self.launch("show", "--config=a b", PYTHONPATH=str(site),
                           LD_LIBRARY_PATH="/driver")
        self.assertEqual(done.returncode, 0, done.stderr)
        path, *arguments = done.stdout.splitlines()
        self.assertEqual([os.path.normpath(entry) for entry in path.split(":")],
                         [str(self.bundle / "lib"), str(site / "torch/lib"),
                          str(site / "nvidia/cu13/lib"), "/driver"])
        self.assertEqual(arguments, ["--config=a b"])

    def test_a_named_torch_needs_no_python(self):
        site = self.add_torch("2.11.0+cu130")
        done = self.launch("show", TESSERA_TORCH=f"{site}/torch/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{site}/torch/", done.stdout)

    def test_refuses_another_version(self):
        for version in ("2.10.1", "2.1.1", "2.110.0"):
            with self.subTest(version):
                site = self.add_torch(version)
                done = self.launch("show", TESSERA_TORCH=f"{site}/torch")
                self.assertEqual(done.returncode, 2)
                self.assertIn(version, done.stderr)
                self.assertIn("pip install torch==2.11.*", done.stderr)
                shutil.rmtree(site)

    def test_refuses_two_versions_in_one_folder(self):
        site = self.add_torch("2.11.0")
        (site / "torch-2.10.0.dist-info").mkdir()
        done = self.launch("show", TESSERA_TORCH=f"{site}/torch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("several versions of torch: torch-2.10.0.dist-info",
                      done.stderr)

    def test_names_the_libraries_that_torch_lacks(self):
        site = self.add_torch("2.11.0+cpu")
        shutil.copy(PROGRAM, self.bundle / "bin" / "show")
        fake = self.folder / "ldd"
        fake.write_text("#!/bin/sh\necho 'libtorch_cuda.so => not found'\n")
        fake.chmod(0o755)
        done = self.launch("show", TESSERA_TORCH=f"{site}/torch",
                           PATH=f"{self.folder}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("lacks libtorch_cuda.so", done.stderr)

    def test_says_that_torch_is_missing(self):
        done = self.launch("show", TESSERA_TORCH=str(self.folder / "no/where"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("no/where", done.stderr)

    def test_names_the_programs_it_has(self):
        for words in ([], ["trian"]):
            done = self.launch(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn("it has: show", done.stderr)


class BundleTest(TemporaryFolderTest):

    def setUp(self):
        super().setUp()
        self.target = self.folder / "made"

    def make_bundle(self, program, cwd=None, environment=None):
        return run(sys.executable, BUNDLE, f"--launcher={LAUNCHER}",
                   f"--lock={self.lock()}", f"--commit={COMMIT}",
                   f"--program={program}", self.target, cwd=cwd,
                   environment=environment)

    def lock(self):
        path = self.folder / "lock"
        path.write_text("torch==2.11.0 --hash=sha256:0\n")
        return path

    def runfiles_with(self, program):
        """A runfiles folder with a program and a data file."""
        runfiles = self.folder / "runfiles"
        for path in ("programs/x", "configs/a.pbtxt", "tools/y", "_solib_k8/z"):
            (runfiles / path).parent.mkdir(parents=True)
            (runfiles / path).write_text("text")
        shutil.copy(program, runfiles / "programs" / "program")
        (runfiles / "programs" / "x").unlink()
        return runfiles

    def test_a_torch_program_runs_outside_bazel(self):
        runfiles = self.folder / "runfiles"
        for path in (PROGRAM, DATA):
            link = runfiles / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        done = self.make_bundle(PROGRAM, cwd=runfiles)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(self.target / "run", "torch_program", "x", environment={
            "PATH": os.environ["PATH"], "TESSERA_TORCH": str(torch_package())})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sum 10, 1 arguments", done.stdout)
        self.assertIn(str(self.target / DATA), done.stdout)

    def test_packs_libraries_and_data_but_no_tools(self):
        runfiles = self.runfiles_with("/usr/bin/protoc")
        done = self.make_bundle("programs/program", cwd=runfiles)
        self.assertEqual(done.returncode, 0, done.stderr)
        libraries = {path.name.split(".")[0]
                     for path in (self.target / "lib").iterdir()}
        self.assertIn("libprotoc", libraries)
        self.assertFalse(libraries & {"libc", "libm", "libstdc++", "libgcc_s"})
        self.assertEqual(
            sorted(str(path.relative_to(self.target))
                   for path in self.target.rglob("*")
                   if path.is_file()
                   and path.parent.name not in ("lib", "licenses")),
            ["bin/program", "configs/a.pbtxt", "run", "torch_version"])
        for package in ("libabsl-dev", "libsodium-dev"):
            licence = (self.target / "licenses" / package).read_text()
            self.assertRegex(licence, "(?i)copyright")

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_names_the_commit(self):
        tree = self.folder / "tree"
        for words in (["init", "-q", tree],
                      ["-C", tree, "-c", "user.name=n", "-c", "user.email=e@x",
                       "commit", "-q", "--allow-empty", "-m", "m"]):
            self.assertEqual(run("git", *words).returncode, 0)
        done = self.make_bundle(
            "programs/program", cwd=self.runfiles_with("/usr/bin/protoc"),
            environment={**os.environ, "BUILD_WORKSPACE_DIRECTORY": str(tree)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex((self.target / "commit").read_text(),
                         r"^[0-9a-f]{10}\n$")

    def test_replaces_a_bundle_and_nothing_else(self):
        runfiles = self.runfiles_with("/usr/bin/protoc")
        self.target.mkdir()
        for name in ("thesis.txt", "run"):
            (self.target / name).touch()
            done = self.make_bundle("programs/program", cwd=runfiles)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("is not a bundle", done.stderr)
            self.assertTrue((self.target / name).exists())
        shutil.rmtree(self.target)
        for _ in range(2):
            done = self.make_bundle("programs/program", cwd=runfiles)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.target / "bin" / "program").exists())

    def test_keeps_runs_that_lie_in_a_bundle(self):
        runfiles = self.runfiles_with("/usr/bin/protoc")
        self.make_bundle("programs/program", cwd=runfiles)
        log = self.target / "runs" / "first" / "run.jsonl"
        log.parent.mkdir(parents=True)
        log.touch()
        done = self.make_bundle("programs/program", cwd=runfiles)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("also holds runs", done.stderr)
        self.assertTrue(log.exists())
        self.assertTrue((self.target / "run").exists())

    def test_rejects_a_bundle_that_is_too_large(self):
        runfiles = self.runfiles_with("/usr/bin/protoc")
        with open(runfiles / "configs" / "a.pbtxt", "wb") as file:
            file.truncate(97 << 20)
        done = self.make_bundle("programs/program", cwd=runfiles)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("96 MiB", done.stderr)
        self.assertFalse(self.target.exists())


if __name__ == "__main__":
    unittest.main()
