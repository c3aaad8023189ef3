"""Shared by the PyTorch peers of several processes: starting the ranks of one
machine, joining them, and figures over all of them."""

import ctypes
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

# The exit status of a program that ran out of memory, and of one that failed.
OUT_OF_MEMORY, FAILED = 3, 1
_PR_SET_PDEATHSIG = 1


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _die_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_rank(rank, nproc, port):
    environment = dict(
        os.environ, RANK=str(rank), WORLD_SIZE=str(nproc),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return subprocess.Popen(
        [sys.executable, *sys.argv], env=environment,
        stdin=None if rank == 0 else subprocess.DEVNULL,
        preexec_fn=_die_with_parent)


def is_rank():
    """Whether torchrun or run_ranks() has started this process."""
    return "RANK" in os.environ


def run_ranks(nproc):
    """Runs this command again as `nproc` ranks, of which rank 0 inherits
    standard input. Returns 0, or the exit status of the first rank that failed,
    after ending the others, which would wait for it."""
    port = _free_port()
    ranks = [_start_rank(rank, nproc, port) for rank in range(nproc)]
    while True:
        states = [process.poll() for process in ranks]
        failed = [state for state in states if state]
        if failed or all(state == 0 for state in states):
            break
        time.sleep(0.05)
    for process in ranks:
        process.kill()
        process.wait()
    return failed[0] if failed else 0


def join(device):
    """Joins the other ranks, with NCCL between GPUs and Gloo between CPUs.
    Returns this rank's device."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(own)
    dist.init_process_group("nccl", device_id=own)
    return own


def leave():
    dist.destroy_process_group()


def print_record(record):
    """Prints a line of JSON on rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)


def fail(record, error):
    """Prints the record with the error, from whichever rank this is, and ends
    the process at once: the other ranks may be waiting in a collective, and
    NCCL would wait for them."""
    out_of_memory = "out of memory" in str(error).lower()
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    print(json.dumps(dict(record, status="OOM" if out_of_memory else text,
                          error=text)), flush=True)
    os._exit(OUT_OF_MEMORY if out_of_memory else FAILED)


def max_over_ranks(values, device):
    """The largest of each value over the ranks."""
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.tolist()


class Commands:
    """Lines of rank 0's standard input, for all ranks. Waiting for one keeps no
    GPU busy."""

    def __init__(self):
        self._group = dist.new_group(backend="gloo",
                                     timeout=datetime.timedelta(days=1))

    def __iter__(self):
        while True:
            line = [sys.stdin.readline() if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(line, src=0, group=self._group,
                                       device=torch.device("cpu"))
            if not line[0]:
                return
            yield line[0]
