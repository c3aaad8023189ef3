"""Code that the attacks share: programs, seeds, rounds and exit checks.

An attack runs a number of rounds. Each round draws its actions from a generator
that depends only on the attack's seed and the round's number, so that a single
round can be repeated. Flags of every attack:

  --seed=N    the seed; default: $TESSERA_ATTACK_SEED, else a new one each time.
              The seed is printed.
  --rounds=N  number of rounds; default: what CI has time for
  --only=N    run only that round
  --keep      keep the folder of the attack, and print its name
  --set=FIELD=VALUE
              changes the toy run of the attack; may be repeated. On a GPU:
              --set=training.device=CUDA --set=precision.mode=BF16

A failure prints the flags that repeat it.
"""

import argparse
import ctypes
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

# The programs are data of the test, in Bazel's layout.
TRAIN = pathlib.Path("trainers/train").resolve()
GENERATE = pathlib.Path("trainers/generate").resolve()
PREPARE_DATA = pathlib.Path("trainers/prepare_data").resolve()
CONFIGS = pathlib.Path("configs")

DONE = 0
USER_ERROR = 2

# More than any program needs here, even on a busy machine.
TIMEOUT_S = 60
# An error must shorten the values that it shows.
MAX_ERROR_LINE_BYTES = 4096
MAX_ERROR_LINES = 110

# Output of a program that crashed.
_TRACES = re.compile(
    r"terminate called|Sanitizer|runtime error:|Exception raised from|"
    r"INTERNAL ASSERT|CHECK failed|stack trace|\bfatal\b|^frame #\d|^#\d+ 0x",
    re.MULTILINE)

# A run of two layers that takes a moment on a CPU: the flags of
# tests/trainers/program.cc with text from this folder.
_TOY = {
    "model.vocab_size": 300,
    "model.num_layers": 2,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.d_ff": 64,
    "model.context_length": 16,
    "training.batch_size": 4,
    "training.sample_tokens_at_end": 0,
    "training.eval_every_steps": 6,
    "training.eval_batches": 2,
    "observe.log_every_steps": 1,
    "optimizer.schedule.warmup_steps": 2,
}
# Fields of the run log that depend on the clock.
_WALL_CLOCK = ("time", "step_ms", "tokens_per_s", "tflops", "phases_ms")


class Fault(Exception):
    """The attack found a fault in a program."""


@dataclasses.dataclass
class Outcome:
    """How a program ended; a negative code is the signal that ended it."""
    command: list
    code: int
    stdout: str
    stderr: str

    def __str__(self):
        return (f"exit code {self.code} of {pathlib.Path(self.command[0]).name}\n"
                f"{self.stderr[-4000:]}")


def environment():
    # One thread, because other tests run on the machine at the same time.
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(command, preexec_fn=None):
    command = [str(word) for word in command]
    try:
        done = subprocess.run(
            command, env=environment(), check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S,
            preexec_fn=preexec_fn)
    except subprocess.TimeoutExpired as error:
        raise Fault(f"hangs: {' '.join(command)}") from error
    return Outcome(command, done.returncode, done.stdout.decode(errors="replace"),
                   done.stderr.decode(errors="replace"))


def check(holds, message):
    if not holds:
        raise Fault(message)


def check_end(outcome, codes=(DONE, USER_ERROR)):
    """Checks for one of these exit codes, no crash, and an error if it is 2."""
    check(outcome.code in codes, f"unexpected {outcome}")
    check(not _TRACES.search(outcome.stdout + outcome.stderr),
          f"a trace of a crash: {outcome}")
    if outcome.code == USER_ERROR:
        check(error_of(outcome), f"no line 'error: ...': {outcome}")
        check_size(error_of(outcome))


def check_size(error):
    lines = error.split("\n")
    check(len(lines) <= MAX_ERROR_LINES,
          f"an error of {len(lines)} lines, more than {MAX_ERROR_LINES}: {error[:500]}...")
    size = max(len(line.encode()) for line in lines)
    check(size <= MAX_ERROR_LINE_BYTES,
          f"an error of {size} bytes in a line, more than {MAX_ERROR_LINE_BYTES}: "
          f"{error[:500]}...")


def error_of(outcome):
    return _lines_of("error: ", outcome)


def warning_of(outcome):
    return _lines_of("warning: ", outcome)


def _lines_of(severity, outcome):
    return "\n".join(line[len(severity):] for line in outcome.stderr.split("\n")
                     if line.startswith(severity))


def prepare_tokens(folder):
    """A prepared folder of a small text, with its tokenizer."""
    words = random.Random(0).choices("the cat sat on a mat and ran".split(), k=9000)
    (folder / "text.txt").write_text(" ".join(words))
    done = run([PREPARE_DATA, f"--input={folder / 'text.txt'}",
                f"--out={folder / 'tokens'}", "--tokenizer=bpe", "--vocab_size=300",
                "--validation_fraction=0.2", "--threads=1"])
    check(done.code == DONE, f"cannot prepare data: {done}")
    return folder / "tokens"


def toy_train(tokens, **changes):
    """`train` of the toy without --out; `model__d_ff=8` sets model.d_ff."""
    fields = {**_TOY, "data.token_files.train": tokens}
    fields.update({name.replace("__", "."): value for name, value in changes.items()})
    command = [TRAIN, "--config=configs/tiny_cpu.pbtxt"]
    for field, value in fields.items():
        command += ["--set", f"{field}={value}"]
    return command


def files_in(folder):
    """The bytes of all files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def check_same_files(found, expected):
    found, expected = files_in(found), files_in(expected)
    check(found.keys() == expected.keys(),
          f"files {sorted(found)}, expected {sorted(expected)}")
    for name, content in expected.items():
        check(found[name] == content, f"{name} differs from the expected one")


def read_log(run_folder):
    """The records of a run log. The last line may be torn by a kill."""
    text = (run_folder / "run.jsonl").read_bytes()
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def effective_log(run_folder):
    """Step and eval records without superseded ones: after a resume, earlier
    records of later steps do not count. Without fields that depend on time."""
    kept = []
    for record in read_log(run_folder):
        if record["type"] == "resume":
            kept = [old for old in kept if old["step"] <= record["step"]]
        elif record["type"] in ("step", "eval"):
            kept.append({name: value for name, value in record.items()
                         if name not in _WALL_CLOCK})
    return kept


def checkpoints_of(run_folder):
    """The checkpoint folders with their final names, by step."""
    folder = run_folder / "checkpoints"
    if not folder.is_dir():
        return {}
    return {int(path.name[len("step_"):]): path for path in folder.glob("step_*")}


def temporaries_of(run_folder):
    return sorted(str(path.relative_to(run_folder))
                  for path in run_folder.rglob("*") if ".tmp" in path.name)


def xxh3_64(content):
    """The checksum of manifests, by the library that the programs use."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.XXH3_64bits.restype = ctypes.c_uint64
    return f"{library.XXH3_64bits(content, len(content)):016x}"


class Attack:
    """Subclasses set `default_rounds`, and define prepare(), called once, and
    attack(), called for each round.

    `self.folder` belongs to the attack. attack() gets an empty folder below it
    and the round's generator, and raises Fault.
    """

    default_rounds = 1

    def prepare(self):
        pass

    def attack(self, number, rng, folder):
        raise NotImplementedError

    def main(self):
        parser = argparse.ArgumentParser(
            formatter_class=argparse.RawDescriptionHelpFormatter,
            description=sys.modules["__main__"].__doc__)
        parser.add_argument(
            "--seed", type=int,
            default=os.environ.get("TESSERA_ATTACK_SEED",
                                   random.SystemRandom().randrange(10**9)))
        parser.add_argument("--rounds", type=int, default=self.default_rounds)
        parser.add_argument("--only", type=int)
        parser.add_argument("--keep", action="store_true")
        parser.add_argument("--set", action="append", default=[],
                            metavar="FIELD=VALUE")
        options = parser.parse_args()
        _TOY.update(assignment.split("=", 1) for assignment in options.set)
        # $TEST_TMPDIR is Bazel's.
        self.folder = pathlib.Path(tempfile.mkdtemp(
            prefix="attack-", dir=os.environ.get("TEST_TMPDIR"))).resolve()
        try:
            sys.exit(self._run(options))
        finally:
            if options.keep:
                print(f"left {self.folder}")
            else:
                _remove_tree(self.folder)

    def _run(self, options):
        name = pathlib.Path(sys.argv[0]).stem
        rounds = range(options.rounds) if options.only is None else [options.only]
        print(f"{name}: --seed={options.seed}, {len(rounds)} rounds", flush=True)
        self.prepare()
        start = time.monotonic()
        faults = 0
        for number in rounds:
            folder = self.folder / f"round_{number}"
            folder.mkdir()
            try:
                self.attack(number, random.Random(f"{options.seed}/{number}"), folder)
            except Fault as fault:
                faults += 1
                print(f"FAULT in round {number}: {fault}\nrepeat it with "
                      f"{name} --seed={options.seed} --only={number}\n", flush=True)
            if not options.keep:
                _remove_tree(folder)
        print(f"{name}: {len(rounds)} rounds in {time.monotonic() - start:.0f} s, "
              f"{faults} faults; {self.summary()}")
        return 1 if faults or not rounds else 0

    def summary(self):
        """A summary of the rounds, which shows that they did something."""
        return ""


def _remove_tree(folder):
    """Also removes what an attack made unreadable."""
    for path, _, _ in os.walk(folder):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
    shutil.rmtree(folder)
