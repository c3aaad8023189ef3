"""What a collective costs the products of a transformer block beside it.

Two GPUs of one host, BF16, CUDA graphs. The products are those of two blocks of
2.7B with 4,096 tokens, forward or backward; the collective moves one block's
weights or gradients (104.9 M values), once for each block:

  NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node=2 interference.py --out=FILE

alone_ms is the time of the products. both_ms is the time until products and
collectives are done if both begin together, with the collectives on a stream of
high priority. collective_ms is the time of one collective if nothing else runs.
lost_ms = (both_ms - alone_ms) / BLOCKS is what one collective costs. All are
medians.
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


class Products:
    """The products of BLOCKS blocks, forward and backward."""

    def __init__(self, device):
        def random(*shape):
            return torch.randn(*shape, dtype=torch.bfloat16,
                               device=device) * 0.02

        self.weights = [random(a, b) for a, b in PRODUCTS]
        self.gradients = [random(a, b) for a, b in PRODUCTS]
        self.inputs = {a: random(TOKENS, a) for a in (WIDTH, FF)}
        self.outputs = {b: random(TOKENS, b) for _, b in PRODUCTS}
        self.results = {b: random(TOKENS, b)
                        for b in {*self.inputs, *self.outputs}}

    def forward(self):
        for _ in range(BLOCKS):
            for w in self.weights:
                torch.mm(self.inputs[w.shape[0]], w,
                         out=self.results[w.shape[1]])

    def backward(self):
        for _ in range(BLOCKS):
            for w, g in zip(self.weights, self.gradients):
                torch.mm(self.outputs[w.shape[1]], w.t(),
                         out=self.results[w.shape[0]])
                torch.mm(self.inputs[w.shape[0]].t(),
                         self.outputs[w.shape[1]], out=g)


class Collectives:
    """Those of one path, each by name."""

    def __init__(self, path, device):
        windows, made = PATHS[path]
        self.group = dist.new_group(pg_options=made)
        dist.barrier(self.group)  # connects
        self.backend = self.group._get_backend(device)
        self.pool = torch.cuda.MemPool(self.backend.mem_allocator)

        def buffers():
            return [torch.zeros(VALUES, dtype=torch.bfloat16, device=device)
                    for _ in range(2)]

        if windows:
            with torch.cuda.use_mem_pool(self.pool):
                self.whole, self.other = buffers()
            self.backend.register_mem_pool(self.pool, symm=True)
        else:
            self.whole, self.other = buffers()
        self.registered = windows
        self.part = self.other[:VALUES // 2]
        self.total = torch.zeros_like(self.part)

    def all_gather(self):
        dist.all_gather_into_tensor(self.whole, self.part, group=self.group)

    def reduce_scatter(self):
        dist.reduce_scatter_tensor(self.part, self.whole, group=self.group)

    def exchange_and_sum(self):
        dist.all_to_all_single(self.other, self.whole, group=self.group)
        torch.sum(self.other.view(2, -1), 0, out=self.total)

    def release(self):
        torch.cuda.synchronize()
        dist.barrier()
        if self.registered:
            self.backend.deregister_mem_pool(self.pool)


def measure(path, collective, name, body, side):
    """A record of one collective beside one pass."""

    def communicate():
        for _ in range(BLOCKS):
            collective()

    def both():
        main_stream = torch.cuda.current_stream()
        side.wait_stream(main_stream)
        with torch.cuda.stream(side):
            communicate()
        body()
        main_stream.wait_stream(side)

    alone_ms = median_ms(graph_of(body))
    both_ms = median_ms(graph_of(both))
    return {"path": path, "collective": name, "products": body.__name__,
            "alone_ms": alone_ms, "both_ms": both_ms,
            "collective_ms": median_ms(graph_of(communicate)) / BLOCKS,
            "lost_ms": (both_ms - alone_ms) / BLOCKS}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--paths", default=",".join(PATHS))
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    products = Products(device)
    side = torch.cuda.Stream(priority=-1)
    for path in arguments.paths.split(","):
        made = Collectives(path, device)
        for collective in (made.all_gather, made.reduce_scatter,
                           made.exchange_and_sum):
            for body in (products.forward, products.backward):
                line = json.dumps(measure(path, collective,
                                          collective.__name__, body, side))
                if rank == 0:
                    print(line, flush=True)
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(line + "\n")
        made.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
