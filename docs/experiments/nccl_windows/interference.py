"""What a collective costs the products of a transformer block beside it.

Two GPUs of one host, BF16, CUDA graphs. The products are those of two blocks of
2.7B with 4,096 tokens, forward or backward; the collective moves one block's
weights or gradients (104.9 M values), once for each block:

  NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node=2 interference.py --out=FILE

alone_ms: the products; both_ms: with collectives on a stream of high priority,
both begun together; collective_ms: the collectives alone. lost = (both - alone)
/ collectives, in ms for each. Medians.
"""

import argparse
import json
import os
import pathlib
import statistics

import torch
import torch.distributed as dist

TOKENS, WIDTH, FF, BLOCKS = 4096, 2560, 10240, 2
VALUES = 4 * WIDTH * WIDTH + 3 * WIDTH * FF
PRODUCTS = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * FF), (FF, WIDTH))


def options(ctas=0, policy=None):
    made = dist.ProcessGroupNCCL.Options()
    if ctas:
        made.config.min_ctas = made.config.max_ctas = ctas
    if policy is not None:
        made.config.cta_policy = policy
    return made


PATHS = {  # name: (windows, options)
    "ring": (False, options()),
    "ring_16": (False, options(16)),
    "windows": (True, options()),
    "windows_16": (True, options(16)),
    "windows_8": (True, options(8)),
    "copy_engines": (True, options(policy=2)),
}


def graph_of(body):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        body()
    return graph


def median_ms(graph, repeats=15):
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--paths", default=",".join(PATHS))
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.bfloat16, device=device) * 0.02

    weights = [random(a, b) for a, b in PRODUCTS]
    inputs = {a: random(TOKENS, a) for a in (WIDTH, FF)}
    outputs = {b: random(TOKENS, b) for _, b in PRODUCTS}
    results = {b: random(TOKENS, b) for b in {*inputs, *outputs}}
    gradients = [random(a, b) for a, b in PRODUCTS]

    def forward():
        for _ in range(BLOCKS):
            for w in weights:
                torch.mm(inputs[w.shape[0]], w, out=results[w.shape[1]])

    def backward():
        for _ in range(BLOCKS):
            for w, g in zip(weights, gradients):
                torch.mm(outputs[w.shape[1]], w.t(), out=results[w.shape[0]])
                torch.mm(inputs[w.shape[0]].t(), outputs[w.shape[1]], out=g)

    products = {"forward": forward, "backward": backward}
    alone = {name: median_ms(graph_of(body)) for name, body in products.items()}
    side = torch.cuda.Stream(priority=-1)
    for path in arguments.paths.split(","):
        windows, made = PATHS[path]
        group = dist.new_group(pg_options=made)
        backend = group._get_backend(device)
        pool = torch.cuda.MemPool(backend.mem_allocator)

        def buffers():
            return (torch.zeros(VALUES, dtype=torch.bfloat16, device=device),
                    torch.zeros(VALUES, dtype=torch.bfloat16, device=device))

        dist.barrier(group)  # connects
        if windows:
            with torch.cuda.use_mem_pool(pool):
                whole, other = buffers()
            backend.register_mem_pool(pool, symm=True)
        else:
            whole, other = buffers()
        part = other[:VALUES // 2]
        total = torch.zeros(VALUES // 2, dtype=torch.bfloat16, device=device)

        def exchange():
            dist.all_to_all_single(other, whole, group=group)
            torch.sum(other.view(2, -1), 0, out=total)

        collectives = {
            "all_gather": lambda: dist.all_gather_into_tensor(
                whole, part, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(
                part, whole, group=group),
            "exchange_and_sum": exchange,
        }
        for name, collective in collectives.items():

            def communicate():
                for _ in range(BLOCKS):
                    collective()

            collective_ms = median_ms(graph_of(communicate)) / BLOCKS
            for which, body in products.items():

                def both():
                    main_stream = torch.cuda.current_stream()
                    side.wait_stream(main_stream)
                    with torch.cuda.stream(side):
                        communicate()
                    body()
                    main_stream.wait_stream(side)

                both_ms = median_ms(graph_of(both))
                again = median_ms(graph_of(body))
                if rank == 0:
                    lost = (both_ms - again) / BLOCKS
                    line = {"path": path, "collective": name,
                            "products": which, "alone_ms": again,
                            "first_alone_ms": alone[which],
                            "both_ms": both_ms, "collective_ms": collective_ms,
                            "lost_ms": lost}
                    print(f"{path:14} {name:17} {which:9} alone {again:6.3f} "
                          f"both {both_ms:6.3f} collective {collective_ms:.3f}"
                          f" lost {lost:.3f}", flush=True)
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(json.dumps(line) + "\n")
        torch.cuda.synchronize()
        dist.barrier()
        if windows:
            backend.deregister_mem_pool(pool)
        del whole, other, part, total
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
