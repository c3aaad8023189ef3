"""Shared by the races against PyTorch: turns, time limit, ratios.

A clock drifts and a GPU warms up, so the sides of a race alternate, the first
one changes in every round, and only ratios are compared. A side is an object
with a name and measure(cell, deadline), which returns a dict of figures and may
raise Failed or OutOfTime; a dict without "status" counts as OK.
"""

import argparse
import json
import pathlib
import queue
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time


# The config fields in which the cells of a race of steps differ.
FIELDS = {"context": "model.context_length", "batch": "training.batch_size",
          "precision": "precision.mode", "backend": "attention.backend",
          "recompute": "recompute.policy", "every": "recompute.every",
          "micro_batches": "training.micro_batches",
          "storage": "execution.storage"}


def lm_step_options(cell):
    """The options of train_step_bench for a cell: its size and its fields."""
    return [f"--config=configs/{cell['size']}.pbtxt"] + [
        f"--set={FIELDS[key]}={value}" for key, value in cell.items()
        if key != "size"]


class Failed(Exception):
    """A side has no figures; the text says why. `exit_status` is that of its
    program, if that has ended."""

    def __init__(self, text, exit_status=None):
        super().__init__(text)
        self.exit_status = exit_status


class OutOfTime(Exception):
    """The time limit of the whole comparison has passed."""


class Deadline:
    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def left(self):
        left = self._end - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left


# `launch` labels the lines of its ranks.
_LABEL = re.compile(r"^\[\d+\] ")


def json_lines(command, deadline):
    """Runs the program and returns the objects of its lines of JSON. Raises
    Failed, with the program's last line on stderr, if there are none."""
    try:
        done = subprocess.run(
            command, timeout=deadline.left(), check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, universal_newlines=True)
    except subprocess.TimeoutExpired:
        raise OutOfTime from None
    lines = [_LABEL.sub("", line) for line in done.stdout.splitlines()]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    if records:
        return records
    said = done.stderr.strip().splitlines() or ["nothing on stderr"]
    raise Failed(f"exit status {done.returncode}: {said[-1]}", done.returncode)


class Server:
    """A program that describes its machine in a first line of JSON (`machine`)
    and then answers each line of JSON with one. If it has ended, it is started
    again for the next question. A thread reads the answers, so that waiting can
    time out."""

    def __init__(self, name, command, deadline):
        self._name = name
        self._command = shlex.split(command)
        self._start(deadline)

    def _start(self, deadline):
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            universal_newlines=True)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines),
                         daemon=True).start()
        self.machine = self._answer(deadline)

    @staticmethod
    def _read(process, lines):
        for line in process.stdout:
            if line.startswith("{"):  # torch.compile may print other lines
                lines.put(line)
        lines.put(None)

    def _answer(self, deadline):
        try:
            line = self._lines.get(timeout=deadline.left())
        except queue.Empty:
            raise OutOfTime from None
        if line is None:
            raise Failed(
                f"{self._name} ended, exit status {self._process.wait()}")
        return json.loads(line)

    def ask(self, question, deadline):
        if self._process.poll() is not None:
            self._start(deadline)
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self._name} has ended") from None
        return self._answer(deadline)

    def end(self, most_s):
        """Asks the program to end, so that its processes free their memory.
        Stops it if that takes longer than `most_s`."""
        self._process.stdin.close()
        try:
            self._process.wait(most_s)
        except subprocess.TimeoutExpired:
            self.stop()

    def stop(self):
        self._process.kill()
        self._process.wait()


def start_servers(commands, deadline):
    """{name: command} -> {name: Server}; exits if one does not start."""
    servers = {}
    for name, command in commands.items():
        try:
            servers[name] = Server(name, command, deadline)
        except (Failed, OutOfTime, OSError) as error:
            stop_servers(servers)
            sys.exit(f"{name} did not start: {error or 'out of time'}")
    return servers


def stop_servers(servers):
    for server in servers.values():
        server.stop()


class Served:
    """A side that a server measures: it gets the cell with {key: name}."""

    def __init__(self, key, name, server):
        self.name = name
        self._key = key
        self._server = server

    def measure(self, cell, deadline):
        return self._server.ask({**cell, self._key: self.name}, deadline)


def turns(sides, rounds):
    """Yields (round, side); another side is first in every round."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            yield number, side


def run_cell(cell, sides, rounds, deadline):
    """Yields a record per side and round; raises OutOfTime."""
    for number, side in turns(sides, rounds):
        try:
            figures = side.measure(cell, deadline)
        except Failed as failure:
            figures = {"status": str(failure)}
        yield {"side": side.name, "round": number, "status": "OK", **cell,
               **figures}


def run_grid(cells, sides, rounds, deadline):
    """(cell, records) of the cells measured, and the cells left out."""
    results = []
    for index, cell in enumerate(cells):
        records = []
        try:
            for record in run_cell(cell, sides, rounds, deadline):
                print(json.dumps(record), file=sys.stderr, flush=True)
                records.append(record)
        except OutOfTime:
            # Drops a round that not all sides completed.
            complete = records[:len(records) // len(sides) * len(sides)]
            if complete:
                results.append((cell, complete))
            return results, cells[index + bool(complete):]
        results.append((cell, records))
    return results, []


def of_side(records, name):
    return [record for record in records if record["side"] == name]


def medians(records, phase):
    return [record[phase]["median"] for record in records
            if record["status"] == "OK"]


def ratios(ours, peer, phase):
    """Ours / peer of each round in which both sides have figures."""
    theirs = {r["round"]: r for r in peer if r["status"] == "OK"}
    return [r[phase]["median"] / theirs[r["round"]][phase]["median"]
            for r in ours if r["status"] == "OK" and r["round"] in theirs]


def with_range(by_round, fewest=1):
    """`**0.50** (0.49 to 0.52)`: the median, and the range of at least `fewest`
    rounds; `-` of none."""
    if not by_round:
        return "-"
    text = f"**{statistics.median(by_round):.2f}**"
    if len(by_round) < fewest:
        return text
    return f"{text} ({min(by_round):.2f} to {max(by_round):.2f})"


def status_of(records, values, digits=2):
    if values:
        return f"{statistics.median(values):.{digits}f}"
    return records[-1]["status"].replace("|", "\\|") if records else "not run"


def row(words):
    return "| " + " | ".join(str(word) for word in words) + " |"


def header(titles):
    return [row(titles), "|---" * len(titles) + "|"]


def raw_lines(results):
    return [json.dumps(record) for _, records in results for record in records]


def listed(text):
    return text.split(",")


def write_report(lines, out):
    """Prints the lines, and writes them to the file `out` if it is given."""
    text = "\n".join(lines)
    print(text)
    if out:
        out.write_text(text + "\n")


def race_parser(description, peer_command=None, rounds=3):
    """The arguments that races have in common; --peer_command only with a
    default."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--time_limit_s", type=float, default=540)
    parser.add_argument("--out", type=pathlib.Path)
    if peer_command:
        parser.add_argument("--peer_command", default=shlex.join(peer_command))
    return parser
