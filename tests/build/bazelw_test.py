"""Tests of bazelw on fake machines: what it installs and what it runs."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BAZELW = pathlib.Path("bazelw").resolve()

# Each fake program appends its arguments to calls/NAME, one per line.
FAKE = """#!/bin/sh
printf '%s\\n' "$@" >> "{calls}/{name}"
{then}
"""


def packages_of_bazelw():
    """file -> package, as bazelw lists them."""
    return dict(re.findall(r"^  (/[^:\s]+):(\S+)$", BAZELW.read_text(),
                           re.MULTILINE))


class BazelwTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        base = pathlib.Path(folder.name)
        self.root, self.path, self.calls = (
            base / name for name in ("root", "path", "calls"))
        for made in (self.root, self.path, self.calls):
            made.mkdir()
        for tool in ("bash", "cat", "env", "mktemp", "rm"):
            (self.path / tool).symlink_to(shutil.which(tool))
        self.add_fake("bazel", "exit 9")  # another version
        self.add_fake("sudo", 'exec "$@"')
        self.add_fake("uname", "echo x86_64")
        self.packages = packages_of_bazelw()

    def add_fake(self, name, then="exit 0", folder=None):
        fake = (folder or self.path) / name
        fake.write_text(FAKE.format(calls=self.calls, name=name, then=then))
        fake.chmod(0o755)

    def install_all_but(self, *missing):
        for path, package in self.packages.items():
            if package not in missing:
                target = self.root / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        self.add_fake("bazel", folder=self.root / "usr/bin")

    def run_bazelw(self, *arguments):
        environment = dict(os.environ, PATH=str(self.path),
                           BAZELW_ROOT=str(self.root))
        return subprocess.run(
            [shutil.which("bash"), str(BAZELW), *arguments], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, universal_newlines=True, check=False)

    def called_with(self, name):
        calls = self.calls / name
        return calls.read_text().splitlines() if calls.exists() else None

    def test_lists_its_packages(self):
        self.assertIn("bazel-bootstrap", self.packages.values())
        self.assertIn("python3", self.packages.values())

    def test_installs_nothing_if_nothing_is_missing(self):
        self.add_fake("apt-get")
        self.install_all_but()
        done = self.run_bazelw("test", "--config=cpu", "a b")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIsNone(self.called_with("apt-get"))
        self.assertEqual(self.called_with("bazel"),
                         ["test", "--config=cpu", "a b"])

    def test_returns_bazels_exit_status(self):
        self.install_all_but()
        self.add_fake("bazel", "exit 3", self.root / "usr/bin")
        self.assertEqual(self.run_bazelw("test").returncode, 3)

    def test_installs_exactly_what_is_missing(self):
        self.add_fake("apt-get")
        self.install_all_but("libabsl-dev", "zlib1g-dev")
        done = self.run_bazelw("info")
        self.assertEqual(done.returncode, 0, done.stderr)
        words = self.called_with("apt-get")
        self.assertLess(words.index("update"), words.index("install"))
        wanted = [word for word in words if word in self.packages.values()]
        self.assertEqual(wanted, ["libabsl-dev", "zlib1g-dev"])
        self.assertIn("-y", words)
        self.assertEqual(self.called_with("bazel"), ["info"])

    def test_shows_the_output_of_a_failed_installation(self):
        self.add_fake("apt-get", "echo 'E: no such package'; exit 100")
        done = self.run_bazelw("info")
        self.assertEqual(done.returncode, 2)
        self.assertIn("E: no such package", done.stderr)
        self.assertIsNone(self.called_with("bazel"))

    def test_refuses_another_processor_before_it_installs_anything(self):
        self.add_fake("apt-get")
        self.add_fake("uname", "echo aarch64")
        done = self.run_bazelw("info")
        self.assertEqual(done.returncode, 2)
        self.assertIn("this machine is aarch64", done.stderr)
        self.assertIsNone(self.called_with("apt-get"))

    def test_names_the_packages_without_apt(self):
        self.install_all_but("libgtest-dev")
        done = self.run_bazelw("info")
        self.assertEqual(done.returncode, 2)
        self.assertIn("libgtest-dev", done.stderr)
        self.assertNotIn("libabsl-dev", done.stderr)
        self.assertIsNone(self.called_with("bazel"))


if __name__ == "__main__":
    unittest.main()
