#!/usr/bin/env python3
"""Unpacks the wheels of a hash-pinned lock into a per-user cache, once.

usage: wheels.py LOCK PYTHON_VERSION

Prints the folder that holds the unpacked tree. The folder's name is a digest
of the lock and of this script, so a changed pin or a changed way of unpacking
gets a new folder and clones that agree share one (the CUDA set is 6 GB).

All wheels go into one tree because their RPATHs are relative to each other.
The tree is built beside its final place and renamed once: an interrupted
download leaves nothing that a later run would mistake for a finished one, and
what it does leave, a later run removes.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

# What pip may pick: every manylinux level up to Debian 12's glibc (2.36).
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)] + [
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]

# torch's own protobuf headers would shadow the pinned ones.
SHADOWING = ["torch/include/google"]

# Not used by a C++ program; a quarter of the unpacked size.
UNUSED_SUFFIXES = (".py", ".pyi", ".pyc")


def cache_root() -> pathlib.Path:
    # Without HOME, the home of the password database.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "tessera" / "wheels"


def download(lock: str, python_version: str, into: pathlib.Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--require-hashes", "--only-binary=:all:", "--no-cache-dir",
               "--disable-pip-version-check", f"--dest={into}",
               f"--python-version={python_version}", "--implementation=cp",
               f"--requirement={lock}"]
    command += [f"--platform={p}" for p in PLATFORMS]
    # The user's proxies and mirrors count, but not what restricts an
    # installation. pip keeps the wheels in TMPDIR until it ends, gigabytes.
    environment = {key: value for key, value in os.environ.items()
                   if key != "PIP_CONSTRAINT"}
    environment |= {"PIP_REQUIRE_VIRTUALENV": "0", "TMPDIR": str(into.parent)}
    done = subprocess.run(command, check=False, stdout=sys.stderr,
                          env=environment)
    if done.returncode:
        sys.exit("pip cannot download the wheels; what it said is above")


def unpack(wheel: pathlib.Path, into: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith(UNUSED_SUFFIXES):
                continue
            path = archive.extract(entry, into)
            mode = entry.external_attr >> 16
            if mode & 0o111 and not entry.is_dir():
                os.chmod(path, 0o755)  # zipfile drops execute bits


def main() -> None:
    # As an exception it ends pip and removes what is unfinished.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lock, python_version = sys.argv[1:]
    digest = hashlib.sha256(
        pathlib.Path(lock).read_bytes() + pathlib.Path(__file__).read_bytes()
        + python_version.encode()).hexdigest()[:16]
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    tree = root / digest
    with open(root / f"{digest}.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # two clones may build at once
        if not tree.exists():
            unfinished = f"{digest}.unfinished-"
            for left in root.glob(f"{unfinished}*"):  # of a killed process
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=root,
                                             prefix=unfinished) as scratch:
                wheels, partial = (pathlib.Path(scratch) / name
                                   for name in ("wheels", "tree"))
                download(lock, python_version, wheels)
                for wheel in sorted(wheels.glob("*.whl")):
                    unpack(wheel, partial)
                    wheel.unlink()
                for folder in SHADOWING:
                    shutil.rmtree(partial / folder, ignore_errors=True)
                partial.rename(tree)
    print(tree)


if __name__ == "__main__":
    main()
