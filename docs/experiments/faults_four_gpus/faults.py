"""Kills or stops a rank of training runs at random times.

usage: faults.py --launch="DIR/run launch" [--config=configs/tiny_gpu.pbtxt]
           [--nproc=4] [--runs=10] [--at_once=10] [--seed=1]
           [--out=faults.jsonl]

Starts --runs runs for SIGKILL and as many for SIGSTOP, --at_once at a time,
with all pairs of ZeRO stage and EAGER or GRAPH in turn. Prints a record per
run: when the signal was sent, how long afterwards the launch ended, its exit
code, and the first error that a rank or, if none did, the launcher printed.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

SETS = ("data.synthetic.successors=3", "model.num_layers=4",
        "model.d_model=512", "training.steps=1000000",
        "training.eval_batches=0", "observe.watch_communications=true",
        "execution.tune_products=false")
LONGEST_S = 150


def rank_processes(launcher):
    """{rank: process id} of the launcher's children."""
    ranks = {}
    listed = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
    for child in listed.read_text().split():
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(b"RANK="):
                ranks[int(entry[5:])] = int(child)
    return ranks


def first_error(output):
    lines = output.splitlines()
    errors = ([line for line in lines if "error: " in line] or
              [line for line in lines if line.startswith("launch: ")])
    return errors[0] if errors else ""


def started(process, log, wanted):
    """Whether `wanted` is printed before the process ends and in LONGEST_S."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end and process.poll() is None:
        if wanted in log.read_text(errors="replace"):
            return True
        time.sleep(0.05)
    return False


def one_run(settings):
    options, name, number = settings
    chance = random.Random(f"{options.seed} {name} {number}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="faults_"))
    log = folder / "log"
    mode, zero = ("EAGER", "GRAPH")[number // 4 % 2], number % 4
    sets = [*SETS, f"execution.mode={mode}", f"layout.zero={zero}",
            f"training.batch_size={8 * options.nproc}"]
    command = [*shlex.split(options.launch), f"--nproc={options.nproc}",
               "--program=train", f"--config={options.config}",
               f"--out={folder / 'run'}", *(f"--set={s}" for s in sets)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output,
                                   stdin=subprocess.DEVNULL,
                                   start_new_session=True)
    record = dict(signal=name, number=number, mode=mode, zero=zero)
    try:
        if not started(process, log, "grad norm"):
            raise OSError("the run did not begin")
        delay = chance.uniform(0, 15)
        time.sleep(delay)
        rank = chance.randrange(options.nproc)
        sent = time.monotonic()
        os.kill(rank_processes(process.pid)[rank], signal.Signals[name])
        record.update(rank=rank, delay_s=round(delay, 2))
        record["exit_code"] = process.wait(LONGEST_S)
        record["ended_after_s"] = round(time.monotonic() - sent, 2)
    except (subprocess.TimeoutExpired, KeyError, OSError) as error:
        record["failed"] = repr(error)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    text = log.read_text(errors="replace")
    record["steps"] = sum(line.startswith("[0]") and line.split()[1].isdigit()
                          for line in text.splitlines() if len(line) > 8)
    record["error"] = first_error(text).replace(str(folder), "FOLDER")
    shutil.rmtree(folder)
    return record


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launch", required=True)
    parser.add_argument("--config", default="configs/tiny_gpu.pbtxt")
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--at_once", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="faults.jsonl")
    options = parser.parse_args()
    work = [(options, name, number) for number in range(options.runs)
            for name in ("SIGKILL", "SIGSTOP")]
    with (concurrent.futures.ThreadPoolExecutor(options.at_once) as pool,
          open(options.out, "w", encoding="utf-8") as out):
        for record in pool.map(one_run, work):
            line = json.dumps(record)
            print(line, flush=True)
            out.write(line + "\n")


if __name__ == "__main__":
    main()
