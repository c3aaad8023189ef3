"""Mutates configs and --set, and loads and plans the results.

Each round changes one of configs/*.pbtxt, or overrides its fields, and passes
it to load_configs, in a fifth of the rounds on top of another config; sometimes
also to `train --dry_run`, whose output must agree. A config must be accepted or
rejected within seconds; if rejected, with exit code 2 and an error of limited
length whose lines name the file with line and column, or --set. An accepted
config must survive --print_config.
"""

import collections
import dataclasses
import json
import os
import re
import subprocess
import threading

import attack

# Loading and planning take milliseconds, but a plan of hundreds of layers that
# tries what fits takes seconds, and the machine may be busy.
# With a sanitizer a program takes about twenty times as long.
TASK_TIMEOUT_S = 1200 if "ASAN_OPTIONS" in os.environ else 60
# Starting the programs takes most of a second, so it is done in one of this
# many rounds.
PROGRAM_EVERY = 100
OUT_OF_MEMORY = 3  # the plan exceeds the machine's memory

# Fields that configs/ does not use.
_RARE = """
model { num_layers: 2 d_model: 32 num_heads: 4 num_kv_heads: 2 d_ff: 64
        context_length: 16 rope_theta: 5e5 rope_layout: HALVED norm_eps: 1e-6
        tied_head: true frozen: ["ln*", 'layers.0.*'] logit_soft_cap: 30
        attention_window { tokens: 5 } attention_window {} qk_norm: HEAD
        attention_soft_cap: 50
        head_dim: 24 norm_placement: AFTER rope_scaling { factor: 8 } }
data { token_files { train: "/data/a" train: '/data/b' validation: "/data/c"
                     format: NANOGPT documents_end_with: 9 }
       shuffle: false validation_fraction: 0.5 documents: SEPARATE
       train_across_documents: true }
training { device: CPU steps: 100 batch_size: 4 micro_batches: 2 seed: 7
           deterministic: true sample_prompt: "\\303\\251\\n"
           label_smoothing: 0.1 z_loss: 1e-4 }
optimizer {
  adamw { lr: 1e-3 beta1: 0.8 eps: 1e-9
          groups { name: "a" patterns: "*" weight_decay: 0 lr_multiplier: 2 } }
  schedule { warmup_steps: 5 wsd { decay_steps: 10 final_ratio: 0.1 decay: SQRT } }
  clip_norm: 1
}
precision { mode: BF16 }
recompute { policy: BLOCK every: 2 }
attention { backend: NAIVE }
checkpoint { every_steps: 10 keep_last: 3 keep_every_steps: 20 }
observe { log_every_steps: 1 progress_bar: OFF peak_tflops: 100 saved_bytes: true }
"""

_NUMBERS = (
    "0", "-0", "1", "-1", "2", "3", "7", "127", "128", "1000003", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "18446744073709551616", "0.5", "1.0000001", "1e-320", "1e-46", "1e-38",
    "1e38", "1e39", "1e308", "1e309", "-1e308", "nan", "-nan", "inf", "-inf",
    "0x10", "010", "08", "1e", "1.", ".5", "1f", "--1", "1_000")
_PLAUSIBLE = {"int": ("1", "2", "3", "4", "8", "16", "32", "64", "100", "512"),
              "float": ("0", "0.1", "0.5", "0.99", "1e-3", "1", "2.0", "1e4"),
              "word": ("true", "false", "CPU", "BF16", "AUTO", "NAIVE", "BLOCK")}
_WORDS = ("true", "false", "UNSPECIFIED", "BF16", "FP16", "TF32", "CPU", "CUDA",
          "BPE", "BYTES", "NAIVE", "FLASH_CUDA", "FLASH_TILED", "TORCH_CUDNN",
          "COMPILED_FUSED", "AUTO", "BLOCK", "FFN", "NONE", "LINEAR", "HALVED",
          "LLMC", "DETECT", "JOINED", "SEPARATE", "cpu", "constant", "linear",
          "unknown_field")
_TEXTS = ('""', '"x"', "'*'", '"\\0"', '"\\377\\376"', '"\\xff"', '"\\u2028"',
          '"\\n"', '"', "'", '"a" "b"', '"' + "x" * 5000 + '"', '"[*"', '"/"')
_MESSAGES = ("{}", "{", "}", "[]", "[", "]", "[1, 2]", "{a: 1}", "<>", "[,]", "",
             "[{}]", "[[]]", "{ }}", "[x.y/z] { }", "[a.b]: 1")
_JUNK = (b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\x80", b"\r", b"\x1b[31m", b"{",
         b"}", b"<", b">", b":", b";", b",", b"#", b"\"", b"\\", b"/*", b"%", b"-",
         b"x" * 100_000, b"9" * 100_000, b"{" * 10_000, b"model {" * 10_000,
         b"a: 1 " * 1_000, b"# " + b"y" * 1_000_000, "é\u2028".encode())

# Prefix of load_configs' answers; all other output is on stderr.
_ANSWER = b"answer: "

_TOKEN = re.compile(
    rb"""#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_][\w.]*"""
    rb"""|[-+]?\d[\w.+-]*|\s+|.""", re.DOTALL)


def other_value(value, rng, gentle):
    """Another value; if `gentle`, of the same kind and likely to be valid."""
    kind = ("text" if value[:1] in "\"'" else
            "message" if value[:1] in "{[" else
            "int" if re.fullmatch(r"-?\d+", value) else
            "float" if re.match(r"[-+.\d]|inf|nan", value) else "word")
    if gentle and kind in _PLAUSIBLE:
        return rng.choice(_PLAUSIBLE[kind])
    if not gentle and rng.random() < 0.3:
        kind = rng.choice(("int", "word", "text", "message"))
    return rng.choice({"int": _NUMBERS, "float": _NUMBERS, "word": _WORDS,
                       "text": _TEXTS, "message": _MESSAGES}[kind])


class Mutator:
    """Mutates texts; `texts` are examples of them."""

    def __init__(self, texts):
        self.values = {path: value for text in texts
                       for path, value in fields_of(text)}
        self.paths = sorted(self.values)
        self.names = sorted({name for path in self.paths for name in path.split(".")})

    def change(self, text, rng, gentle):
        if gentle:
            return self.change_value(text, rng, gentle)
        change = rng.choice((self.change_value, self.change_value, self.add_field,
                             self.change_tokens, self.change_tokens,
                             self.change_bytes, self.change_name, self.recode))
        return change(text, rng)

    @staticmethod
    def change_value(text, rng, gentle=False):
        places = list(re.finditer(rb":\s*([^\s{}]+)", text))
        if not places:
            return text
        place = rng.choice(places)
        value = other_value(place[1].decode(errors="replace"), rng, gentle)
        return text[:place.start(1)] + value.encode() + text[place.end(1):]

    def change_name(self, text, rng):
        places = list(re.finditer(rb"\b[a-z_]\w*(?=\s*[:{])", text))
        if not places:
            return text
        place = rng.choice(places)
        name = rng.choice(self.names)
        if rng.random() < 0.3:
            at = rng.randrange(len(name))
            name = name[:at] + rng.choice("xyz_Z") + name[at + 1:]
        return text[:place.start()] + name.encode() + text[place.end():]

    def add_field(self, text, rng):
        path = rng.choice(self.paths)
        *outer, name = path.split(".")
        value = other_value(self.values[path], rng, False)
        field = f"{name} {value}" if value[:1] in "{<" else f"{name}: {value}"
        for message in reversed(outer):
            # Into the existing message, or as a second one.
            match = re.search(rb"\b%s\s*\{" % message.encode(), text)
            if match and rng.random() < 0.8:
                at = match.end()
                return text[:at] + b" " + field.encode() + text[at:]
            field = f"{message} {{ {field} }}"
        return text + b"\n" + field.encode() + b"\n"

    @staticmethod
    def change_tokens(text, rng):
        tokens = _TOKEN.findall(text) or [b""]
        at = rng.randrange(len(tokens))
        end = min(len(tokens), at + rng.choice((1, 1, 1, 2, 5, 30)))
        other = rng.randrange(len(tokens))
        kind = rng.choice(("delete", "double", "swap", "move", "cut"))
        if kind == "delete":
            del tokens[at:end]
        elif kind == "double":
            tokens[at:at] = tokens[at:end] * rng.choice((1, 1, 2, 100))
        elif kind == "swap":
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == "move":
            tokens[other:other] = tokens[at:end]
        else:
            del tokens[at:]
        return b"".join(tokens)

    @staticmethod
    def change_bytes(text, rng):
        content = bytearray(text)
        at = rng.randrange(len(content) + 1)
        kind = rng.choice(("insert", "noise", "flip", "front"))
        if kind == "insert":
            content[at:at] = rng.choice(_JUNK)
        elif kind == "noise":
            content[at:at + 8] = rng.randbytes(8)
        elif kind == "front":
            content[:0] = rng.choice(_JUNK)
        elif content:
            content[at % len(content)] ^= 1 << rng.randrange(8)
        return bytes(content)

    @staticmethod
    def recode(text, rng):
        kind = rng.choice(("utf-16", "utf-16-le", "utf-8-sig", "\r\n", "\r", " "))
        if kind in ("\r\n", "\r", " "):
            return text.replace(b"\n", kind.encode())
        return text.decode("latin-1").encode(kind)

    def override(self, rng, gentle):
        """A FIELD=VALUE."""
        path = rng.choice(self.paths)
        value = other_value(self.values[path], rng, gentle)
        kind = rng.random()
        if gentle or kind < 0.8:
            return f"{path}={value}"
        if kind < 0.85:
            return path + rng.choice(("==", " = ", ":", "")) + value
        if kind < 0.9:
            return f"{path}=" + rng.choice("9x{['\" \n,") * rng.choice((100, 100_000))
        path = rng.choice((
            path + ".x", path + ".", "." + path, path + "[0]", path.upper(),
            path.split(".")[0], " " + path, "", path.replace(".", ".."),
            path[:rng.randrange(len(path))]))
        return f"{path}={value}"


def fields_of(text):
    """The path and value of each field of a printed config."""
    outer = []
    for line in text.decode().splitlines():
        match = re.match(r"\s*(\w+):? (.+)$", line)
        if match:
            yield ".".join([*outer, match[1]]), match[2]
        if line.endswith("{"):
            outer.append(match[1])
        elif line.strip() == "}":
            outer.pop()


@dataclasses.dataclass
class Result:
    """An answer of load_configs."""
    stage: str
    code: int
    stderr: str


class Loader:
    """load_configs, restarted after an attack has ended it."""

    PROGRAM = "tests/attacks/load_configs"

    def __init__(self):
        self.process = None

    def load(self, configs, overrides):
        if self.process is None:
            self.process = subprocess.Popen(
                [self.PROGRAM], env=attack.environment(), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        task = json.dumps({"config": list(map(str, configs)), "set": overrides})
        timer = threading.Timer(TASK_TIMEOUT_S, self.process.kill)
        timer.start()
        lines = []
        try:
            self.process.stdin.write(task.encode() + b"\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.startswith(_ANSWER):
                    return Result(*json.loads(line[len(_ANSWER):]),
                                  b"".join(lines).decode(errors="replace"))
                lines.append(line)
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        code = self.close()
        raise attack.Fault(f"loading hangs or crashes (exit code {code}; -9 after "
                           f"{TASK_TIMEOUT_S} s): {b''.join(lines[-30:])[-3000:]}")

    def close(self):
        """The exit code. The process has ended, or is about to."""
        process, self.process = self.process, None
        process.stdout.close()
        code = process.wait()
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # the input was not read to its end
        return code


class ConfigAttack(attack.Attack):

    default_rounds = 800  # a minute

    def prepare(self):
        self.loader = Loader()
        self.ends = collections.Counter()
        rare = self.folder / "rare.pbtxt"
        rare.write_text(_RARE)
        configs = sorted(attack.CONFIGS.glob("*.pbtxt"))
        self.texts = []
        for path in [rare, *configs]:
            text = path.read_bytes()
            copy = self.folder / path.name
            copy.write_bytes(text)
            result = self.loader.load([copy], [])
            attack.check(result.stage in ("plan", "done"), f"{path}: {result}")
            self.texts += [text, printed_of(copy).read_bytes()]
        self.mutator = Mutator(self.texts[1::2])

    def summary(self):
        return ", ".join(f"{end}: {count}" for end, count in sorted(self.ends.items()))

    def attack(self, number, rng, folder):
        config = folder / "c.pbtxt"
        text = rng.choice(self.texts)
        if rng.random() < 0.7:  # otherwise the plan ends early without a GPU
            text = text.replace(b"device: CUDA", b"device: CPU")
        gentle = rng.random() < 0.5
        in_text, in_overrides = rng.choice(((1, 0), (1, 0), (1, 1), (0, 1)))
        overrides = []
        if in_text:
            for _ in range(rng.choice((1, 1, 1, 3))):
                text = self.mutator.change(text, rng, gentle)
        if in_overrides:
            for _ in range(rng.choice((1, 1, 1, 3))):
                overrides.append(self.mutator.override(rng, gentle))
        config.write_bytes(text)
        configs = [config]
        if rng.random() < 0.2:
            base = folder / "base.pbtxt"
            base.write_bytes(rng.choice(self.texts))
            configs = [base, config]
        try:
            result = self.loader.load(configs, overrides)
            self.ends["accepted" if result.stage == "done"
                      else f"refused in {result.stage}"] += 1
            self.check_result(configs, result)
            if number % PROGRAM_EVERY == 0:
                self.check_program(configs, overrides, result)
        except attack.Fault as fault:
            shown = [override[:200] for override in overrides]
            texts = [path.read_bytes()[:2000] for path in configs]
            raise attack.Fault(f"{fault}\nconfig: {texts}\n--set: {shown}") from fault

    @staticmethod
    def check_result(configs, result):
        codes = {"load": (attack.USER_ERROR,), "print": (), "done": (attack.DONE,),
                 "plan": (attack.USER_ERROR, OUT_OF_MEMORY)}
        outcome = attack.Outcome([Loader.PROGRAM], result.code, "", result.stderr)
        attack.check_end(outcome, codes[result.stage])
        rest = [line for line in result.stderr.rstrip("\n").split("\n")
                if line and not line.startswith("error: ")]
        attack.check(not rest, f"not only errors: {outcome}")
        if result.stage == "load":
            check_places(attack.error_of(outcome), configs)

    @staticmethod
    def check_program(configs, overrides, result):
        """Checks that `train` agrees with load_configs."""
        command = [attack.TRAIN, *(f"--config={config}" for config in configs)]
        for override in overrides:
            command += ["--set", override]
        planned = attack.run([*command, "--dry_run"])
        attack.check_end(planned, (result.code,))
        attack.check(planned.stderr == result.stderr,
                     f"load_configs says '{result.stderr}', --dry_run: {planned}")
        if result.stage == "load":
            return
        printed = attack.run([*command, "--print_config"])
        attack.check(printed.code == attack.DONE, f"cannot print: {printed}")
        # The user's text need not be UTF-8.
        expected = printed_of(configs[-1]).read_bytes().decode(errors="replace")
        attack.check(printed.stdout == expected,
                     "--print_config prints another config than load_configs")


def printed_of(config):
    """The file to which load_configs writes the printed config."""
    return config.with_name(config.name + ".printed")


def lines_in(config):
    text = config.read_bytes()
    return text.count(b"\n") + text.count(b"\r") + 1


def check_places(error, configs):
    """Checks that every line has a location: FILE:line:column, --set, FILE for
    a wrong encoding, or all files for a field of a message that none has."""
    lines = {str(config): lines_in(config) for config in configs}
    one, every = "|".join(map(re.escape, lines)), re.escape(" + ".join(lines))
    for line in error.split("\n"):
        if re.match(rf"--set|({one}) is UTF-|\.\.\. \d+ more", line):
            continue
        if re.match(rf"{every}: [a-z_]+[\w.\[\]]*: ", line):
            continue
        match = re.match(rf"({one}):(\d+):(\d+): ", line)
        attack.check(match, f"a line of the error names no place: {line!r}")
        attack.check(1 <= int(match[2]) <= lines[match[1]] + 1
                     and int(match[3]) >= 1, f"no such line: {line!r}")


if __name__ == "__main__":
    ConfigAttack().main()
