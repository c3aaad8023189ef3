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
import time

import torch
import torch.distributed as dist

GUARDS = ("none", "memset", "kernel", "event")
PRODUCERS = ("plain", "early")
SIZES = (4 << 10, 256 << 10, 4 << 20, 32 << 20)  # bytes of the whole
DELAY_NS = 30_000


OPERATIONS = {"kernels": ("reduce_scatter", "all_gather"),
              "copies": ("all_gather", "all_to_all")}


def windows(backend, device):
    """The pool of three buffers that are symmetric windows, and the buffers."""
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        buffers = [torch.empty(max(SIZES), dtype=torch.uint8, device=device)
                   for _ in range(3)]
    backend.register_mem_pool(pool, symm=True)
    return pool, buffers


def kernel_names(call):
    """Of the GPU's work, without our own kernels."""
    with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sorted({e.key for e in profile.key_averages()
                   if "nccl" in e.key or "Mem" in e.key})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--path", choices=OPERATIONS, default="kernels")
    parser.add_argument("--eager", action="store_true",
                        help="without CUDA graphs")
    parser.add_argument("--guards", default=",".join(GUARDS))
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    # NCCL's copy engines cannot be used from the default stream.
    torch.cuda.set_stream(torch.cuda.Stream())
    dist.init_process_group("nccl", device_id=device)
    options = dist.ProcessGroupNCCL.Options()
    if arguments.path == "copies":
        options.config.cta_policy = 2  # NCCL_CTA_POLICY_ZERO
    group = dist.new_group(pg_options=options)
    dist.barrier(group)  # connects
    backend = group._get_backend(device)
    library = ctypes.CDLL(pathlib.Path(__file__).with_name("producer.so"))
    pool, (whole_bytes, shard_bytes, received) = windows(backend, device)
    launch = torch.zeros(1, dtype=torch.int32, device=device)
    pointer = ctypes.c_void_p
    size_t = ctypes.c_size_t
    cases = [(op, dtype, size) for op in OPERATIONS[arguments.path]
             for dtype in (torch.bfloat16, torch.float32) for size in SIZES]

    def collective(op, dtype, size):
        whole = whole_bytes[:size].view(dtype)
        shard = shard_bytes[:size // 2].view(dtype)
        if op == "reduce_scatter":
            dist.reduce_scatter_tensor(shard, whole, group=group)
        elif op == "all_gather":
            dist.all_gather_into_tensor(whole, shard, group=group)
        else:
            dist.all_to_all_single(received[:size].view(dtype), whole,
                                   group=group)

    names = {f"{op} {dtype} {size}":
             kernel_names(lambda: collective(op, dtype, size))
             for op, dtype, size in cases}

    def stream():
        return pointer(torch.cuda.current_stream().cuda_stream)

    side = torch.cuda.Stream(priority=-1)
    scratch = torch.zeros(16, dtype=torch.uint8, device=device)

    def guarded(guard, call):
        if guard == "event":
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call()
            torch.cuda.current_stream().wait_stream(side)
            return
        if guard == "memset":
            library.clear(pointer(scratch.data_ptr()), size_t(16), stream())
        elif guard == "kernel":
            library.nothing(stream())
        call()

    def one(case, index, guard, producer, wrong):
        op, dtype, size = case
        bf16 = dtype == torch.bfloat16
        produced = shard_bytes if op == "all_gather" else whole_bytes
        count = (size // 2 if op == "all_gather" else size) // dtype.itemsize
        library.produce(pointer(produced.data_ptr()), size_t(count), bf16,
                        pointer(launch.data_ptr()), index, rank,
                        ctypes.c_int64(DELAY_NS if producer == "early" else 0),
                        producer == "early", stream())
        guarded(guard, lambda: collective(op, dtype, size))
        half = size // 2 // dtype.itemsize

        def check(memory, offset, first, of_rank):
            library.check(pointer(memory.data_ptr() + offset), size_t(half),
                          size_t(first), bf16, pointer(launch.data_ptr()),
                          index, of_rank, pointer(wrong[index:].data_ptr()),
                          stream())

        if op == "reduce_scatter":
            check(shard_bytes, 0, half * rank, -1)
            return
        for r in range(2):
            if op == "all_gather":
                check(whole_bytes, r * size // 2, 0, r)
            else:
                check(received, r * size // 2, half * rank, r)

    lines = []
    for guard in arguments.guards.split(","):
        for producer in PRODUCERS:
            wrong = torch.zeros(len(cases), dtype=torch.int64, device=device)

            def step():
                library.count(pointer(launch.data_ptr()), stream())
                for index, case in enumerate(cases):
                    one(case, index, guard, producer, wrong)

            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            if not arguments.eager:
                with torch.cuda.graph(graph):
                    step()
            dist.barrier()
            begin = time.monotonic()
            for _ in range(arguments.launches):
                step() if arguments.eager else graph.replay()
            torch.cuda.synchronize()
            seconds = time.monotonic() - begin
            dist.all_reduce(wrong)
            for case, errors in zip(cases, wrong.tolist()):
                op, dtype, size = case
                lines.append({
                    "path": arguments.path, "eager": arguments.eager,
                    "guard": guard,
                    "producer": producer, "op": op,
                    "dtype": str(dtype).split(".")[-1], "bytes": size,
                    "launches": arguments.launches, "wrong": errors,
                    "kernels": names[f"{op} {dtype} {size}"]})
            if rank == 0:
                bad = [line for line in lines[-len(cases):] if line["wrong"]]
                print(guard, producer, f"{seconds:.1f} s, {len(bad)} of "
                      f"{len(cases)} collectives wrong,",
                      sum(line["wrong"] for line in bad), "values", flush=True)
            del graph
    if rank == 0:
        print(sorted({n for kernels in names.values() for n in kernels}))
        if arguments.out:
            with arguments.out.open("a") as file:
                for line in lines:
                    file.write(json.dumps(line) + "\n")
    torch.cuda.synchronize()
    dist.barrier()
    backend.deregister_mem_pool(pool)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
