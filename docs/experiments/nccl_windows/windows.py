"""Do collectives in NCCL's symmetric windows read what is written?

Two GPUs of one host. Every value of every collective is compared, in CUDA
graphs that are launched many times:

  nvcc -O2 -arch=sm_90 -shared -Xcompiler=-fPIC -o producer.so producer.cu
  NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node=2 windows.py --out=FILE

A line per guard, producer and collective: launches and wrong values.

  --path    kernels: reduce-scatter and all-gather by symmetric kernels, or
            copies: all-gather and all-to-all by copy engines
  guard     what is between the producer and the collective: nothing, a memset,
            a kernel, or an event, because the collective is on another stream
  producer  plain, or early: it permits the next kernel to start at once, and
            writes after a delay
"""

import argparse
import ctypes
import json
import os
import pathlib

import torch
import torch.distributed as dist

GUARDS = ("none", "memset", "kernel", "event")
PRODUCERS = ("plain", "early")
SIZES = (4 << 10, 256 << 10, 4 << 20, 32 << 20)  # bytes of the whole
DELAY_NS = 30_000


OPERATIONS = {"kernels": ("reduce_scatter", "all_gather"),
              "copies": ("all_gather", "all_to_all")}


POINTER, SIZE_T = ctypes.c_void_p, ctypes.c_size_t


def stream():
    return POINTER(torch.cuda.current_stream().cuda_stream)


class Windows:
    """Three buffers that are symmetric windows, and what moves between them."""

    def __init__(self, path, device):
        options = dist.ProcessGroupNCCL.Options()
        if path == "copies":
            options.config.cta_policy = 2  # NCCL_CTA_POLICY_ZERO
        self.group = dist.new_group(pg_options=options)
        dist.barrier(self.group)  # connects
        self.backend = self.group._get_backend(device)
        self.pool = torch.cuda.MemPool(self.backend.mem_allocator)
        with torch.cuda.use_mem_pool(self.pool):
            self.whole, self.shard, self.received = (
                torch.empty(max(SIZES), dtype=torch.uint8, device=device)
                for _ in range(3))
        self.backend.register_mem_pool(self.pool, symm=True)

    def collective(self, op, dtype, size):
        whole = self.whole[:size].view(dtype)
        shard = self.shard[:size // 2].view(dtype)
        if op == "reduce_scatter":
            dist.reduce_scatter_tensor(shard, whole, group=self.group)
        elif op == "all_gather":
            dist.all_gather_into_tensor(whole, shard, group=self.group)
        else:
            dist.all_to_all_single(self.received[:size].view(dtype), whole,
                                   group=self.group)

    def release(self):
        torch.cuda.synchronize()
        dist.barrier()
        self.backend.deregister_mem_pool(self.pool)


class Step:
    """Every case once: produce, guard, collective, check."""

    def __init__(self, windows, cases, device):
        self.windows, self.cases = windows, cases
        self.rank = dist.get_rank()
        self.library = ctypes.CDLL(
            pathlib.Path(__file__).with_name("producer.so"))
        self.launch = torch.zeros(1, dtype=torch.int32, device=device)
        self.scratch = torch.zeros(16, dtype=torch.uint8, device=device)
        self.wrong = torch.zeros(len(cases), dtype=torch.int64, device=device)
        self.side = torch.cuda.Stream(priority=-1)

    def run(self, guard, producer):
        self.library.count(POINTER(self.launch.data_ptr()), stream())
        for index, (op, dtype, size) in enumerate(self.cases):
            self.produce(index, op, dtype, size, producer == "early")
            self.guarded(guard, op, dtype, size)
            half = size // 2 // dtype.itemsize
            if op == "reduce_scatter":
                self.check(index, self.windows.shard, 0, half * self.rank, -1)
                continue
            for r in range(2):
                if op == "all_gather":
                    self.check(index, self.windows.whole, r * size // 2, 0, r)
                else:
                    self.check(index, self.windows.received, r * size // 2,
                               half * self.rank, r)

    def produce(self, index, op, dtype, size, early):
        gathers = op == "all_gather"
        to = self.windows.shard if gathers else self.windows.whole
        count = (size // 2 if gathers else size) // dtype.itemsize
        self.library.produce(
            POINTER(to.data_ptr()), SIZE_T(count), dtype == torch.bfloat16,
            POINTER(self.launch.data_ptr()), index, self.rank,
            ctypes.c_int64(DELAY_NS if early else 0), early, stream())

    def guarded(self, guard, *case):
        if guard == "event":
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.windows.collective(*case)
            torch.cuda.current_stream().wait_stream(self.side)
            return
        if guard == "memset":
            self.library.clear(POINTER(self.scratch.data_ptr()), SIZE_T(16),
                               stream())
        elif guard == "kernel":
            self.library.nothing(stream())
        self.windows.collective(*case)

    def check(self, index, memory, offset, first, of_rank):
        _, dtype, size = self.cases[index]
        self.library.check(
            POINTER(memory.data_ptr() + offset),
            SIZE_T(size // 2 // dtype.itemsize), SIZE_T(first),
            dtype == torch.bfloat16, POINTER(self.launch.data_ptr()), index,
            of_rank, POINTER(self.wrong[index:].data_ptr()), stream())


def kernel_names(call):
    """Of the GPU's work, without our own kernels."""
    with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sorted({e.key for e in profile.key_averages()
                   if "nccl" in e.key or "Mem" in e.key})


def repeat(step, guard, producer, arguments):
    """The number of wrong values of each case, of both ranks."""
    step.wrong.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if not arguments.eager:
        with torch.cuda.graph(graph):
            step.run(guard, producer)
    dist.barrier()
    for _ in range(arguments.launches):
        if arguments.eager:
            step.run(guard, producer)
        else:
            graph.replay()
    torch.cuda.synchronize()
    dist.all_reduce(step.wrong)
    return step.wrong.tolist()


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--path", choices=OPERATIONS, default="kernels")
    parser.add_argument("--eager", action="store_true",
                        help="without CUDA graphs")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    # NCCL's copy engines cannot be used from the default stream.
    torch.cuda.set_stream(torch.cuda.Stream())
    dist.init_process_group("nccl", device_id=device)
    windows = Windows(arguments.path, device)
    cases = [(op, dtype, size) for op in OPERATIONS[arguments.path]
             for dtype in (torch.bfloat16, torch.float32) for size in SIZES]
    names = [kernel_names(lambda case=case: windows.collective(*case))
             for case in cases]
    step = Step(windows, cases, device)
    for guard in GUARDS:
        for producer in PRODUCERS:
            wrong = repeat(step, guard, producer, arguments)
            if dist.get_rank() > 0:
                continue
            print(guard, producer, sum(wrong), "wrong values", flush=True)
            with arguments.out.open("a") as file:
                for case, errors, kernels in zip(cases, wrong, names):
                    file.write(json.dumps({
                        "path": arguments.path, "eager": arguments.eager,
                        "guard": guard, "producer": producer, "op": case[0],
                        "dtype": str(case[1]).split(".")[-1],
                        "bytes": case[2], "launches": arguments.launches,
                        "wrong": errors, "kernels": kernels}) + "\n")
    windows.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
