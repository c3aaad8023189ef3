"""Kills a tiny run at random times until it ends, and compares every byte.

Each round starts one run repeatedly with the same command. SIGKILL, or in some
rounds a signal that asks it to stop, ends it during the start, between two
steps or during a save. After each kill, every checkpoint with its final name
must be equal to the uninterrupted run's at that step. At the end, the
checkpoint and the log (without superseded records) must be those of the
uninterrupted run, and no temporary file may be left.
"""

import collections
import json
import os
import signal
import subprocess
import time

import attack

STEPS = 24
EVERY_STEPS = 3
# Maximum number of kills in a round; then the run may finish.
MOST_KILLS = 4
# Fields that differ only because the configs differ.
_OF_THE_CONFIG = ("config_hash",)


class Process:
    """A run that will be killed."""

    def __init__(self, command, run_folder):
        self.run_folder = run_folder
        self.process = subprocess.Popen(
            [str(word) for word in command], env=attack.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)

    def is_over(self):
        return self.process.poll() is not None

    def wait_until(self, condition):
        deadline = time.monotonic() + attack.TIMEOUT_S
        while not self.is_over() and not condition():
            if time.monotonic() > deadline:
                self.process.kill()
                raise attack.Fault("the run hangs")
            time.sleep(2e-4)

    def kill(self, number):
        self.process.send_signal(number)  # no effect after the end

    def end(self):
        """The outcome, after the process has ended."""
        try:
            _, stderr = self.process.communicate(timeout=attack.TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            self.process.communicate()
            raise attack.Fault("the run does not end after its signal") from error
        return attack.Outcome(self.process.args, self.process.returncode, "",
                              stderr.decode(errors="replace"))

    def log_size(self):
        try:
            return os.stat(self.run_folder / "run.jsonl").st_size
        except FileNotFoundError:
            return 0

    def is_saving(self):
        """Whether the run is replacing its config or writing a checkpoint."""
        return any(".tmp" in name for name in
                   (*names_in(self.run_folder),
                    *names_in(self.run_folder / "checkpoints")))


def names_in(folder):
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


class KillAttack(attack.Attack):

    default_rounds = 8

    def prepare(self):
        tokens = attack.prepare_tokens(self.folder)
        flags = {"training__steps": STEPS}
        self.command = attack.toy_train(
            tokens, **flags, checkpoint__every_steps=EVERY_STEPS)
        self.expected = self.folder / "expected"
        start = time.monotonic()
        self.train(self.command, self.expected)
        self.seconds = time.monotonic() - start
        # A run stopped by a signal may save at any step.
        self.every_step = self.folder / "every_step"
        self.train(attack.toy_train(tokens, **flags, checkpoint__every_steps=1,
                                    checkpoint__keep_last=STEPS), self.every_step)
        self.log_bytes = (self.expected / "run.jsonl").stat().st_size
        self.ends = collections.Counter()

    def train(self, command, run_folder):
        done = attack.run([*command, f"--out={run_folder}"])
        attack.check(done.code == attack.DONE, f"cannot train: {done}")

    def summary(self):
        return "exit codes " + ", ".join(
            f"{code}: {count}" for code, count in sorted(self.ends.items()))

    def attack(self, number, rng, folder):
        run_folder = folder / "run"
        kills = rng.randint(1, MOST_KILLS)
        polite = rng.random() < 0.4
        while True:
            process = Process([*self.command, f"--out={run_folder}"], run_folder)
            signals = []
            if kills > 0:
                kills -= 1
                signals = self.signals(polite, rng)
                self.strike(process, signals, rng)
            outcome = process.end()
            self.ends[outcome.code] += 1
            self.check_end(outcome, signals)
            self.check_between(run_folder, outcome)
            if outcome.code == attack.DONE:
                break
        self.check_after(run_folder)

    @staticmethod
    def signals(polite, rng):
        if not polite:
            return [signal.SIGKILL]
        first = rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                            signal.SIGUSR1))
        # Like a supervisor with a short grace period.
        return [first, signal.SIGKILL] if rng.random() < 0.3 else [first]

    def strike(self, process, signals, rng):
        """Signals the process at a random time."""
        moment = rng.choice(("any", "start", "step", "save"))
        if moment == "any":
            delay = rng.uniform(0, self.seconds)
        elif moment == "start":
            delay = rng.uniform(0, self.seconds / 4)
        elif moment == "step":
            size = process.log_size() + rng.uniform(0, self.log_bytes)
            process.wait_until(lambda: process.log_size() >= size)
            delay = rng.uniform(0, 0.01)
        else:
            for _ in range(rng.randrange(4)):
                process.wait_until(process.is_saving)
                process.wait_until(lambda: not process.is_saving())
            process.wait_until(process.is_saving)
            delay = rng.choice((0, rng.uniform(0, 0.005)))
        end = time.monotonic() + delay
        process.wait_until(lambda: time.monotonic() >= end)
        for number in signals:
            process.kill(number)
            time.sleep(rng.uniform(0, 0.005))

    def check_end(self, outcome, signals):
        codes = {attack.DONE}
        for number in signals:
            # Before the program has installed its handler, the signal kills it.
            codes |= {-number} if number == signal.SIGKILL else {-number, 128 + number}
        attack.check_end(outcome, codes)
        attack.check("skipping checkpoint" not in outcome.stderr,
                     f"a kill damaged a checkpoint: {outcome}")

    def check_between(self, run_folder, outcome):
        checkpoints = attack.checkpoints_of(run_folder)
        for step, folder in checkpoints.items():
            self.check_checkpoint(step, folder)
        if outcome.code > 128:  # stopped by the signal after its step
            last = max(record["step"] for record in attack.effective_log(run_folder))
            attack.check(last in checkpoints,
                         f"step {last} was logged but not saved: {outcome}")

    def check_checkpoint(self, step, folder):
        """Checks that it is complete and equal to the uninterrupted run's."""
        files = attack.files_in(folder)
        expected = attack.files_in(self.every_step / "checkpoints" / folder.name)
        attack.check(files.keys() == expected.keys(),
                     f"{folder.name} has the files {sorted(files)}")
        for name in ("model.safetensors", "optimizer.safetensors"):
            attack.check(files[name] == expected[name], f"{folder.name}/{name} differs")
        states = [json.loads(content["state.json"]) for content in (files, expected)]
        for state in states:
            for field in _OF_THE_CONFIG:
                state.pop(field)
        attack.check(states[0] == states[1], f"{folder.name}/state.json differs")
        manifest = json.loads(files["manifest.json"])
        attack.check(manifest["step"] == step, f"{folder.name}/manifest.json: its step")
        for name in ("state.json", "config.pbtxt"):
            attack.check(
                manifest["files"][name]["xxh3_64"] == attack.xxh3_64(files[name]),
                f"{folder.name}/{name}: its checksum")

    def check_after(self, run_folder):
        last = f"checkpoints/step_{STEPS:08d}"
        attack.check_same_files(run_folder / last, self.expected / last)
        attack.check(
            attack.effective_log(run_folder) == attack.effective_log(self.expected),
            "the log's steps and evaluations differ")
        attack.check(not attack.temporaries_of(run_folder),
                     f"temporaries are left: {attack.temporaries_of(run_folder)}")


if __name__ == "__main__":
    KillAttack().main()
