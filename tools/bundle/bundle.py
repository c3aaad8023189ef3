"""Packs the programs for machines that have pip's torch but no Bazel.

usage: bazel run [--config=cuda] //tools/bundle -- DIR

DIR/run           the launcher: `DIR/run train --config=configs/tiny_cpu.pbtxt`
DIR/bin/*         the programs, stripped
DIR/lib/*         the shared libraries that they need, except torch's
DIR/configs, ...  the files that they read at run time, as in the source tree
DIR/commit        what they were built from (tools/commit.sh), if that is known
DIR/LICENSE       of the programs; DIR/NOTICE and DIR/licenses/* of the code of
                  other projects in them
DIR/bench/*       the scripts that compare them with PyTorch (bench/README.md)

An earlier bundle in DIR is replaced. The data files of the programs come from
Bazel's runfiles, so this script has no list of them.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
# Bundles are copied often. A larger one contains something that was not
# stripped, or a kernel built for too many architectures.
MAX_BYTES = 96 * MIB

# Every system has these, and they must match its kernel or compiler.
SYSTEM_LIBRARIES = re.compile(
    r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so")
# Folders of the wheels' libraries; `run` uses the installed ones instead.
WHEEL_FOLDERS = re.compile(r"/(torch/lib|nvidia/[^/]+/lib)/")

# Runfiles that Bazel needs but the programs do not.
NOT_DATA = re.compile(r"(_solib|external|third_party|tools)")

# Packages whose code is in a bundle (NOTICE), and where the distribution has
# their licences.
PACKAGES = ("libabsl-dev", "libbenchmark-dev", "libgtest-dev", "libjs-chart.js",
            "libpcre2-dev", "libprotobuf-dev", "libsentencepiece-dev",
            "libsodium-dev", "libutf8proc-dev", "libxxhash-dev",
            "libzstd-dev", "nlohmann-json3-dev", "zlib1g-dev")
DOCUMENTATION = pathlib.Path("/usr/share/doc")


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout


def check_search_path(binary):
    """Rejects search paths into this machine, which would precede the
    launcher's. The wheels' path is harmless: it holds the pinned version."""
    for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]",
                           output_of("readelf", "-d", binary)):
        foreign = [folder for folder in path.split(":")
                   if not folder.startswith("$ORIGIN")
                   and not WHEEL_FOLDERS.search(folder + "/")]
        if foreign:
            sys.exit(f"{binary} looks for libraries in {foreign}, folders of"
                     " this machine; link it with relative paths only")


def needed_libraries(binary):
    """Returns name -> file of the libraries that must go with `binary`."""
    needed = {}
    for line in output_of("ldd", binary).splitlines():
        if "=>" not in line:
            continue
        name, found = (side.strip() for side in line.split("=>"))
        if SYSTEM_LIBRARIES.match(name):
            continue
        if found == "not found":
            sys.exit(f"{binary} needs {name}, which is not on this machine")
        path = os.path.realpath(found.split(" (")[0])
        if not WHEEL_FOLDERS.search(path):
            needed[name] = path
    return needed


def add_binary(source, target, libraries):
    """Copies a program or library stripped, and records what it needs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = os.path.realpath(source)  # ldd resolves $ORIGIN from here
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), source],
                   check=True)
    check_search_path(target)
    libraries.update(needed_libraries(source))


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def data_files(runfiles, programs):
    for folder, _, names in os.walk(runfiles, followlinks=True):
        for name in names:
            path = pathlib.Path(folder, name).relative_to(runfiles)
            if path not in programs and not NOT_DATA.match(path.parts[0]):
                yield path


def fill(into, arguments):
    runfiles = pathlib.Path.cwd()
    programs = {pathlib.Path(program) for program in arguments.program}
    libraries = {}
    for program in programs:
        add_binary(program, into / "bin" / program.name, libraries)
    for path in data_files(runfiles, programs):
        if os.path.realpath(path) in libraries.values():
            continue
        if is_elf(path):  # a plug-in, or a program that another program starts
            add_binary(path, into / path, libraries)
        else:
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into / path)
    (into / "lib").mkdir()
    for name, path in libraries.items():
        subprocess.run(["strip", "--strip-unneeded", "-o",
                        str(into / "lib" / name), path], check=True)
    add_licenses(into / "licenses")
    shutil.copy(arguments.launcher, into / "run")
    (into / "run").chmod(0o755)
    pin = re.search(r"^torch==(\d+\.\d+)\.",
                    pathlib.Path(arguments.lock).read_text(), re.MULTILINE)
    (into / "torch_version").write_text(pin.group(1) + "\n")
    if "BUILD_WORKSPACE_DIRECTORY" in os.environ:
        commit = subprocess.run(
            [arguments.commit, os.environ["BUILD_WORKSPACE_DIRECTORY"]],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            universal_newlines=True)
        if commit.returncode == 0:
            (into / "commit").write_text(commit.stdout)


def add_licenses(into):
    into.mkdir()
    for package in PACKAGES:
        text = DOCUMENTATION / package / "copyright"
        if not text.is_file():
            sys.exit(f"{text} is missing; install the package {package} with"
                     " its documentation")
        shutil.copyfile(text, into / package)


def total_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*")
               if path.is_file())


def report_size(folder):
    for part in sorted(folder.rglob("*")):
        if part.is_file() and part.stat().st_size > MIB:
            print(f"{part.stat().st_size / MIB:8.1f} MiB"
                  f"  {part.relative_to(folder)}")
    print(f"{total_bytes(folder) / MIB:8.1f} MiB  in all")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIR")
    # The BUILD file sets the other arguments.
    for name in ("--launcher", "--lock", "--commit"):
        parser.add_argument(name, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--program", action="append", required=True,
                        help=argparse.SUPPRESS)
    return parser.parse_args()


def is_bundle(folder):
    return ((folder / "run").is_file() and (folder / "bin").is_dir()
            and (folder / "torch_version").is_file())


def check_holds_nothing_else(old, made):
    """Rejects a bundle to be replaced in which someone keeps runs."""
    foreign = sorted(set(os.listdir(old)) - set(os.listdir(made)) - {"commit"})
    if foreign:
        sys.exit(f"{old} also holds {', '.join(foreign)}, which is not part of"
                 " a bundle; move it away")


def main():
    arguments = parse_arguments()
    started_in = os.environ.get("BUILD_WORKING_DIRECTORY", ".")
    target = pathlib.Path(started_in, arguments.directory).resolve()
    if target.exists() and os.listdir(target) and not is_bundle(target):
        sys.exit(f"{target} exists and is not a bundle; name a new or empty"
                 " folder")
    if os.path.ismount(target):
        sys.exit(f"{target} is a mount point; name a folder in it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = pathlib.Path(scratch, "bundle")
        made.mkdir()
        fill(made, arguments)
        report_size(made)
        if total_bytes(made) > MAX_BYTES:
            sys.exit(f"the bundle exceeds {MAX_BYTES // MIB} MiB, the limit;"
                     f" nothing was written to {target}")
        if target.exists():
            check_holds_nothing_else(target, made)
            target.rename(pathlib.Path(scratch, "old"))
        made.rename(target)
    print(f"try it: {target}/run {sorted(os.listdir(target / 'bin'))[0]} --help")


if __name__ == "__main__":
    main()
