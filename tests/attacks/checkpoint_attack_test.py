"""Damages the checkpoints of a run, resumes it, and generates from it.

Each round copies a run that was killed with four checkpoints, damages one or
several of them, and resumes it. Two results are correct:

  - exit code 2 and an error that names the damaged file;
  - the run resumes from the newest good checkpoint, warns about each newer one
    with the name of the damaged file, and then writes the same checkpoints,
    byte for byte, as an undisturbed run.

The same applies to `generate`.
"""

import collections
import ctypes
import json
import os
import shutil

import attack

STEPS = 15
EVERY_STEPS = 3
# The steps of the checkpoints that are damaged: all but the last.
SAVED = range(EVERY_STEPS, STEPS, EVERY_STEPS)

MANIFEST = "manifest.json"
STATE = "state.json"
CONFIG = "config.pbtxt"
TOKENIZER = "tokenizer.json"  # older checkpoints: in state.json
MODEL = "model.safetensors"

_DEEP = "[" * 100_000 + "]" * 100_000
# JSON values that may replace a field's value.
WRONG_JSON = ("null", "true", "-1", "0.5", "1e999", "9223372036854775808",
              "18446744073709551615", '""', '"12"', '"=="', '"\\ud83d\\ude00"',
              "[]", "[1]", '[""]', '["AAAA"]', "[{}]", "[null]", "{}",
              '{"a": 1}', _DEEP)
# Configs that no program writes.
WRONG_CONFIGS = (
    "", "model {", "\0", "model: 7", "unknown: 1",
    *("training { device: CPU } " + text for text in (
        "", "model {}", "data {}", "model { num_heads: 0 }",
        *("model { vocab_size: 300 num_layers: 2 d_model: 32 num_heads: 2 d_ff: 64 "
          "context_length: 16 %s }" % field
          for field in ("num_kv_heads: 0", "num_kv_heads: 3", "rope_theta: 0",
                        "rope_theta: nan", "norm_eps: -1", "frozen: ''")),
        *("model { vocab_size: %s num_layers: %s d_model: %s num_heads: %s d_ff: %s "
          "context_length: %s }" % sizes
          for sizes in ((300, 2, 32, 0, 64, 16), (300, 2, 33, 2, 64, 16),
                        (300, -1, 32, 2, 64, 16), (0, 2, 32, 2, 64, 16),
                        (-5, 2, 32, 2, 64, 16), (300, 2, 0, 2, 64, 16),
                        (300, 2, -32, 2, 64, 16), (300, 2, 32, 2, 0, 16),
                        (300, 2, 32, 2, 64, 0), (300, 2, 32, 2, 64, -16),
                        (300, 2147483647, 32, 2, 64, 16),
                        (2147483647, 2, 32, 2, 64, 16),
                        (2147483647, 2147483647, 2147483646, 2, 64, 16))))))


def names_in(checkpoint):
    return sorted(os.listdir(checkpoint))


def damage_bit(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def damage_page(path, rng):
    """Zeroes a page, as a disk that lost it may return it."""
    content = path.read_bytes()
    start = rng.randrange(len(content))
    page = content[start:start + 4096]
    # The page may already be zero.
    new = bytes(len(page)) if any(page) else b"\1" * len(page)
    path.write_bytes(content[:start] + new + content[start + 4096:])


def truncate(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def extend(path, rng):
    with open(path, "ab") as file:
        file.write(rng.randbytes(rng.choice((1, 8, 5000))))


def extend_by_far(path, _):
    os.truncate(path, 1 << 34)  # a hole


def empty(path, _):
    os.truncate(path, 0)


def delete(path, _):
    path.unlink()


def replace_by_directory(path, _):
    path.unlink()
    path.mkdir()


def replace_by_pipe(path, _):
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path, rng):
    path.unlink()
    path.symlink_to(rng.choice((path.name, "nowhere", "/dev/zero", ".")))


def replace_by_noise(path, rng):
    path.write_bytes(rng.randbytes(path.stat().st_size))


def replace_by_json(path, rng):
    path.write_text(rng.choice(WRONG_JSON))


def swap(path, rng):
    """Exchanges the file with another of its checkpoint."""
    other = path.parent / rng.choice(
        [name for name in names_in(path.parent) if name != path.name])
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return [path.name, other.name]


def replace_by_older_step(path, rng):
    older = [folder for folder in path.parent.parent.iterdir()
             if folder.name < path.parent.name
             and (folder / path.name).read_bytes() != path.read_bytes()]
    if not older:  # the first checkpoint, or a file that never changes
        return damage_bit(path, rng)
    shutil.copy(rng.choice(sorted(older)) / path.name, path)
    return None


DAMAGES = (damage_bit, damage_page, truncate, extend, extend_by_far, empty, delete,
           replace_by_directory, replace_by_pipe, replace_by_link,
           replace_by_noise, replace_by_json, swap, replace_by_older_step)


def places_in(value, path=()):
    """The path of every value in JSON, as keys and indices."""
    if path:
        yield path
    children = (value.items() if isinstance(value, dict)
                else enumerate(value) if isinstance(value, list) else ())
    for key, child in children:
        yield from places_in(child, (*path, key))


def damage_field(path, rng, field=None):
    """Replaces or removes one value in a JSON file (below that field)."""
    value = json.loads(path.read_text())
    place = rng.choice([place for place in places_in(value)
                        if field is None or (place[0] == field and place[1:])])
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    # Does not change the names of fields; damage_bit() may duplicate them.
    if rng.random() < 0.25:
        del parent[place[-1]]
        path.write_text(json.dumps(value, indent=2))
        return place
    marker = "the place of the new value"
    parent[place[-1]] = marker
    path.write_text(json.dumps(value, indent=2).replace(
        json.dumps(marker), rng.choice(WRONG_JSON)))
    return place


def seal(folder, name):
    """Updates the manifest for a changed text file of its checkpoint."""
    content = (folder / name).read_bytes()
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": len(content),
                               "xxh3_64": attack.xxh3_64(content)}
    # A manifest may have a checksum of itself.
    if manifest.pop("xxh3_64", None) is not None:
        manifest["xxh3_64"] = attack.xxh3_64(dump(manifest).encode())
    (folder / MANIFEST).write_text(dump(manifest))


def dump(manifest):
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def obey_permissions():
    """Runs in the child: drops root's permission to read everything."""
    prctl = ctypes.CDLL(None).prctl
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


class CheckpointAttack(attack.Attack):

    default_rounds = 36  # three of each kind

    def prepare(self):
        tokens = attack.prepare_tokens(self.folder)
        self.command = attack.toy_train(
            tokens, training__steps=STEPS, checkpoint__every_steps=EVERY_STEPS,
            checkpoint__keep_last=STEPS)
        self.expected = self.folder / "expected"
        done = attack.run([*self.command, f"--out={self.expected}"])
        attack.check(done.code == attack.DONE, f"cannot train: {done}")
        # The same run, killed after its second to last checkpoint.
        self.killed = self.folder / "killed"
        shutil.copytree(self.expected, self.killed)
        shutil.rmtree(attack.checkpoints_of(self.killed)[STEPS])
        self.samples = {}
        for step, path in attack.checkpoints_of(self.killed).items():
            done = attack.run(self.generate_command(path))
            attack.check(done.code == attack.DONE, f"cannot generate: {done}")
            self.samples[step] = done.stdout
        self.ends = collections.Counter()
        self.check_harness()

    def check_harness(self):
        """An attack with valid checksums must pass the checksum tests."""
        run_folder = self.folder / "sealed"
        shutil.copytree(self.killed, run_folder)
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        state = json.loads((newest / STATE).read_text())
        (newest / STATE).write_text(json.dumps(state))
        seal(newest, STATE)
        self.resume(run_folder, {})

    def summary(self):
        return ", ".join(f"{end}: {count}" for end, count in sorted(self.ends.items()))

    def attack(self, number, rng, folder):
        run_folder = folder / "run"
        shutil.copytree(self.killed, run_folder)
        kinds = (self.damage_files, self.damage_state, self.damage_files,
                 self.damage_manifest, self.damage_files, self.damage_state,
                 self.damage_tokenizer, self.damage_files, self.damage_folder,
                 self.damage_config, self.forbid_reading, self.damage_state)
        kinds[number % len(kinds)](run_folder, rng)

    # Each of these methods damages checkpoints of a run and resumes it.

    def damage_files(self, run_folder, rng):
        checkpoints = attack.checkpoints_of(run_folder)
        damaged = {}
        count = rng.choice((1, 1, 1, 2, 3, len(SAVED)))
        for step in sorted(SAVED, reverse=True)[:count]:
            path = checkpoints[step] / rng.choice(names_in(checkpoints[step]))
            damage = rng.choice(DAMAGES)
            names = damage(path, rng) or [path.name]
            damaged[step] = (f"{damage.__name__} {path.name}", names)
        if rng.random() < 0.3:
            self.generate(run_folder, damaged)
        self.resume(run_folder, damaged)

    def damage_manifest(self, run_folder, rng):
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        place = damage_field(newest / MANIFEST, rng)
        self.resume(run_folder, {SAVED[-1]: (f"manifest's {place}", [MANIFEST])})

    def damage_state(self, run_folder, rng):
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        place = damage_field(newest / STATE, rng)
        seal(newest, STATE)
        self.resume(run_folder, {SAVED[-1]: (f"state's {place}", [STATE])},
                    field=str(place[0]))

    def damage_config(self, run_folder, rng):
        """Damages the config. `generate` uses it; `train` only compares it."""
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        for text in rng.sample(WRONG_CONFIGS, 4):
            (newest / CONFIG).write_text(text)
            seal(newest, CONFIG)
            outcome = attack.run(self.generate_command(run_folder))
            self.ends["wrong config"] += 1
            try:
                attack.check_end(outcome, (attack.USER_ERROR,))
                attack.check(CONFIG in attack.error_of(outcome),
                             f"the error does not name {CONFIG}: {outcome}")
            except attack.Fault as fault:
                raise attack.Fault(f"{text!r}: {fault}") from fault

    def damage_tokenizer(self, run_folder, rng):
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        if (newest / TOKENIZER).exists():
            name, place = TOKENIZER, damage_field(newest / TOKENIZER, rng)
        else:
            name, place = STATE, damage_field(newest / STATE, rng, "tokenizer")
        seal(newest, name)
        self.generate(run_folder, {SAVED[-1]: (f"tokenizer's {place}", [name])})

    def damage_folder(self, run_folder, rng):
        """Replaces a checkpoint's folder by a file or an empty folder."""
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        shutil.rmtree(newest)
        kind = rng.choice(("empty", "file", "loop", "nowhere"))
        if kind == "empty":
            newest.mkdir()
        elif kind == "file":
            newest.write_text("")
        else:
            newest.symlink_to(newest.name if kind == "loop" else "nowhere")
        self.resume(run_folder, {SAVED[-1]: (f"folder {kind}", [])})

    def forbid_reading(self, run_folder, rng):
        """Without read permission a file is not damaged, so it is not skipped."""
        newest = attack.checkpoints_of(run_folder)[SAVED[-1]]
        path = rng.choice([newest, *newest.iterdir()])
        path.chmod(0)
        outcome = attack.run([*self.command, f"--out={run_folder}"], obey_permissions)
        path.chmod(0o700)
        self.ends["forbidden"] += 1
        attack.check_end(outcome, (attack.USER_ERROR,))
        attack.check("Permission denied" in attack.error_of(outcome)
                     and str(path) in attack.error_of(outcome),
                     f"{path} is not named as forbidden: {outcome}")

    def resume(self, run_folder, damaged, field=None):
        """Resumes and checks. `damaged`: by step, which files were damaged how.
        `field`: only this field was changed, with valid checksums, and an error
        must name it."""
        what = "; ".join(f"{step}: {how}" for step, (how, _) in damaged.items())
        outcome = attack.run([*self.command, f"--out={run_folder}"])
        attack.check_end(outcome)
        if outcome.code == attack.USER_ERROR:
            self.ends["refused"] += 1
            error = attack.error_of(outcome)
            attack.check(
                any(self.names(error, step, files)
                    for step, (_, files) in damaged.items())
                and (field is None or field in error),
                f"{what}: the error does not name what is damaged: {outcome}")
            return
        steps = [record["step"] for record in attack.read_log(run_folder)
                 if record["type"] == "resume"]
        good = [step for step in SAVED if step not in damaged]
        # Files that nobody reads may have any contents, so the damage may have
        # no effect; the written checkpoints are compared below.
        if (steps and steps[-1] in damaged
                and damaged[steps[-1]][1] == [STATE if field else MANIFEST]):
            good = [steps[-1]]
        attack.check(steps == good[-1:],
                     f"{what}: resumed from {steps}, not {good[-1:]}: {outcome}")
        self.ends[f"resumed from {good[-1]}"] += 1
        for step, (_, files) in damaged.items():
            if step > good[-1]:
                attack.check(self.names(attack.warning_of(outcome), step, files),
                             f"{what}: no warning names step {step}'s file: {outcome}")
        for step in range(good[-1] + EVERY_STEPS, STEPS + 1, EVERY_STEPS):
            name = f"checkpoints/step_{step:08d}"
            try:
                attack.check_same_files(run_folder / name, self.expected / name)
            except attack.Fault as fault:
                raise attack.Fault(f"{what}: {name}: {fault}") from fault

    @staticmethod
    def names(message, step, files):
        """Whether a line names the checkpoint and one of the files."""
        lines = [line for line in message.split("\n") if f"step_{step:08d}" in line]
        # If a file and its manifest disagree, either may be the damaged one.
        known = [*files, "the manifest"] if MANIFEST in files else files
        return any(not files or any(name in line for name in known) for line in lines)

    @staticmethod
    def generate_command(folder):
        return [attack.GENERATE, f"--checkpoint={folder}", "--prompt=the cat",
                "--max_tokens=8", "--temperature=0"]

    def generate(self, run_folder, damaged):
        """Generates and checks as resume() does."""
        what = "; ".join(f"{step}: {how}" for step, (how, _) in damaged.items())
        outcome = attack.run(self.generate_command(run_folder))
        attack.check_end(outcome)
        if outcome.code == attack.USER_ERROR:
            error = attack.error_of(outcome)
            stopped_at = [step for step, (_, files) in damaged.items()
                          if self.names(error, step, files)]
            attack.check(stopped_at, f"{what}: the error names no file: {outcome}")
            # Each skipped checkpoint is reported. Checkpoints after one that
            # may be good are not checked.
            said = error + "\n" + attack.warning_of(outcome)
            for step, (_, files) in damaged.items():
                attack.check(step < min(stopped_at) or self.names(said, step, files),
                             f"{what}: nothing names a file of {step}: {outcome}")
            return
        for step in sorted(SAVED, reverse=True):
            _, files = damaged.get(step, ("", []))
            # Only the model is needed.
            if (not {MODEL, CONFIG, TOKENIZER} & set(files)
                    and outcome.stdout == self.samples[step]):
                return
            attack.check(self.names(attack.warning_of(outcome), step, files),
                         f"{what}: no warning names step {step}'s file: {outcome}")
        raise attack.Fault(f"{what}: not a sample of a good checkpoint: {outcome}")


if __name__ == "__main__":
    CheckpointAttack().main()
