"""Shared by the PyTorch peers: the clock, the model sizes, freeing memory."""

import argparse
import dataclasses
import functools
import gc
import json
import statistics
import sys
import time

import torch

VOCABULARY = 10_000


@dataclasses.dataclass(frozen=True)
class Size:
    d_model: int
    d_ff: int
    layers: int
    heads: int

    @property
    def head_dim(self):
        return self.d_model // self.heads


# As in configs/.
SIZES = {
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "2.7B": Size(2560, 10240, 32, 32),
}


def timed_ms(call, device):
    """Times a call: (by CUDA events on a GPU, by the host's clock until the
    call returns)."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
    begin = time.perf_counter()
    call()
    host_ms = (time.perf_counter() - begin) * 1e3
    if device != "cuda":
        return host_ms, host_ms
    end.record()
    end.synchronize()
    return start.elapsed_time(end), host_ms


def call_times_ms(call, device, warm_up=3, measured=10, prepare=None):
    """Times each of `measured` calls separately, by CUDA events on a GPU, so
    that the host's work between two kernels counts if the GPU waits for it.
    With `prepare`, each call gets the result of an untimed prepare()."""

    def one_ms():
        arguments = () if prepare is None else (prepare(),)
        if device == "cuda":
            torch.cuda.synchronize()
        return timed_ms(functools.partial(call, *arguments), device)[0]

    return [one_ms() for _ in range(warm_up + measured)][warm_up:]


def summary(times):
    """Statistics of times, with the names that our programs use."""
    return {"median": statistics.median(times), "min": min(times),
            "max": max(times), "samples": len(times),
            "std": statistics.stdev(times) if len(times) > 1 else 0.0}


def free_memory(device, keep_compiled=False):
    """Frees the device memory that earlier cells left."""
    if not keep_compiled:
        torch._dynamo.reset()  # CUDA graphs of compiled code hold tensors
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def held_gib(device):
    """Peak memory taken from the driver since free_memory(), the pools of CUDA
    graphs included; 0 on a CPU."""
    return torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0


def peer_parser(doc):
    """A parser of a peer's options, whose --help prints `doc`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser


def check_known(*fields):
    """Raises ValueError unless each (value, known) has its value in known."""
    for value, known in fields:
        if value not in known:
            raise ValueError(f"'{value}' is none of {', '.join(known)}")


def serve(device, run, keep_compiled=False):
    """Describes the machine in a line of JSON, then answers each line of
    standard input with run(**its object)."""
    print(json.dumps(describe(device)), flush=True)
    for line in sys.stdin:
        record = run(**json.loads(line))
        free_memory(device, keep_compiled)  # the other side's turn
        print(json.dumps(record), flush=True)


def describe(device):
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    cudnn = torch.backends.cudnn.version() if device == "cuda" else None
    return {"device": gpu, "torch": torch.__version__, "cudnn": cudnn}
