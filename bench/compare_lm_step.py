#!/usr/bin/env python3
"""Races our training step against PyTorch's on this machine, cell by cell.

usage: compare_lm_step.py --ours="DIR/run lm_step" [--peers=sdpa,compile]
           [--sizes=small,2.7B] [--contexts=128,1024] [--precisions=BF16]
           [--batches=4] [--rounds=3] [--time_limit_s=540] [--out=table.md]

A clock drifts and a GPU warms up, so the sides alternate in every round and
change who begins, and the table compares ratios. Ours runs as a process a
cell:

    OURS --size=small --context=128 --precision=FP32 --batch=4

whose last line of output is a JSON object with "forward_ms",
"forward_backward_ms" and "step_ms" (each {"median", "min", "max"}) and
"peak_gib". The peer is bench/peers/lm_step.py --serve, one process for all
cells, which holds no GPU memory while ours runs. --ours_options adds options
to ours for every cell.

What does not fit in the time limit is left out, and the table says so.
"""

import argparse
import itertools
import json
import pathlib
import queue
import shlex
import statistics
import subprocess
import sys
import threading
import time

PHASES = ("forward_ms", "forward_backward_ms", "step_ms")
# Ours ends so (framework/base/exit_code.h).
OUT_OF_MEMORY = 3
PEER = pathlib.Path(__file__).resolve().parent / "peers" / "lm_step.py"


class Failed(Exception):
    """A side gave no figures; the text says why."""


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


class Ours:
    name = "ours"

    def __init__(self, command):
        self._command = shlex.split(command)

    def measure(self, cell, deadline):
        options = [f"--{key}={value}" for key, value in cell.items()]
        try:
            done = subprocess.run(
                self._command + options, timeout=deadline.left(), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, universal_newlines=True)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        lines = done.stdout.strip().splitlines()
        if lines and lines[-1].startswith("{"):
            return json.loads(lines[-1])
        if done.returncode == OUT_OF_MEMORY:
            return {"status": "OOM"}
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise Failed(f"exit status {done.returncode}: {said[-1]}")


class PeerProcess:
    """The peers' server; answers are read by a thread, so waits can end."""

    def __init__(self, command, deadline):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            universal_newlines=True)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.machine = self._answer(deadline)

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("{"):  # torch.compile may chatter
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, deadline):
        try:
            line = self._lines.get(timeout=deadline.left())
        except queue.Empty:
            raise OutOfTime from None
        if line is None:
            raise Failed(f"the peer ended, exit status {self._process.wait()}")
        return json.loads(line)

    def ask(self, question, deadline):
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed("the peer has ended") from None
        return self._answer(deadline)

    def stop(self):
        self._process.kill()
        self._process.wait()


class Peer:
    def __init__(self, variant, process):
        self.name = variant
        self._process = process

    def measure(self, cell, deadline):
        return self._process.ask(dict(cell, variant=self.name), deadline)


def run_cell(cell, sides, rounds, deadline):
    """Yields a record per side and round; raises OutOfTime."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
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
            # A round in which only one side ran would compare nothing.
            complete = records[:len(records) // len(sides) * len(sides)]
            if complete:
                results.append((cell, complete))
            return results, cells[index + bool(complete):]
        results.append((cell, records))
    return results, []


def medians(records, phase):
    return [record[phase]["median"] for record in records
            if record["status"] == "OK"]


def spread_percent(values):
    """Largest less smallest of the rounds, in per cent of their median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def compare_times(ours, peer, phase):
    """`4.10 / 8.20 = 0.50 (±1.2, 3.4 %)`: ours / peer, spread of each."""
    a, b = medians(ours, phase), medians(peer, phase)
    if not a or not b:
        return f"{status_of(ours, a)} / {status_of(peer, b)}"
    x, y = statistics.median(a), statistics.median(b)
    return (f"{x:.2f} / {y:.2f} = **{x / y:.2f}**"
            f" (±{spread_percent(a):.1f}, {spread_percent(b):.1f} %)")


def compare_peaks(ours, peer):
    a, b = ([r["peak_gib"] for r in side if r["status"] == "OK"]
            for side in (ours, peer))
    if not a or not b or not max(b):
        return "n/a"
    return f"{max(a):.2f} / {max(b):.2f} = **{max(a) / max(b):.2f}**"


def status_of(records, values):
    if values:
        return f"{statistics.median(values):.2f}"
    return records[-1]["status"].replace("|", "\\|") if records else "not run"


def table(results):
    yield ("| size | context | batch | precision | ours | peer | forward, ms"
           " | forward + backward, ms | step, ms | peak, GiB |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for cell, records in results:
        ours = [r for r in records if r["side"] == "ours"]
        backend = next((r["backend"] for r in ours if "backend" in r), "?")
        for name in sorted({r["side"] for r in records} - {"ours"}):
            peer = [r for r in records if r["side"] == name]
            words = [cell["size"], cell["context"], cell["batch"],
                     cell["precision"], backend, name]
            words += [compare_times(ours, peer, phase) for phase in PHASES]
            words.append(compare_peaks(ours, peer))
            yield "| " + " | ".join(str(word) for word in words) + " |"


def report(results, left_out, machine, arguments):
    yield (f"{machine['device']}, torch {machine['torch']}, cuDNN"
           f" {machine['cudnn']}. Ours / PyTorch = ratio, below 1 where ours is"
           f" faster or smaller; medians of up to {arguments.rounds} alternating"
           " rounds, in brackets the spread of ours and of the peer.")
    yield ""
    yield from table(results)
    if left_out:
        names = ", ".join(
            f"{c['size']} {c['context']} b{c['batch']} {c['precision']}"
            for c in left_out)
        yield ""
        yield (f"Not measured within {arguments.time_limit_s:.0f} s: {names}.")
    yield ""
    yield "```"
    for _, records in results:
        for record in records:
            yield json.dumps(record)
    yield "```"


def listed(text):
    return text.split(",")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--ours_options", default="")
    parser.add_argument("--peers", type=listed, default=["sdpa"])
    parser.add_argument("--sizes", type=listed, default=["small"])
    parser.add_argument("--contexts", type=listed, default=["128", "1024"])
    parser.add_argument("--batches", type=listed, default=["4"])
    parser.add_argument("--precisions", type=listed, default=["BF16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time_limit_s", type=float, default=540)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--peer_command",
                        default=f"{sys.executable} {PEER} --serve")
    return parser.parse_args()


def make_cells(arguments):
    return [dict(size=size, context=int(context), precision=precision,
                 batch=int(batch))
            for size, context, batch, precision in itertools.product(
                arguments.sizes, arguments.contexts, arguments.batches,
                arguments.precisions)]


def main():
    arguments = parse_arguments()
    deadline = Deadline(arguments.time_limit_s)
    try:
        process = PeerProcess(shlex.split(arguments.peer_command), deadline)
    except (Failed, OutOfTime) as error:
        sys.exit(f"the peer did not start: {error or 'out of time'}")
    sides = [Ours(f"{arguments.ours} {arguments.ours_options}")]
    sides += [Peer(variant, process) for variant in arguments.peers]
    try:
        results, left_out = run_grid(make_cells(arguments), sides,
                                     arguments.rounds, deadline)
    finally:
        process.stop()
    text = "\n".join(report(results, left_out, process.machine, arguments))
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
