"""PyTorch's collectives, timed as bench/dist/comm_bench.cc times ours.

usage: comm.py --nproc=N [--operations=all_reduce,...] [--dtypes=BF16,FP32]
           [--min_kib=1] [--max_kib=4194304] [--beside] [--device=cuda|cpu]
       torchrun --nproc-per-node=N comm.py ...

Prints comm_bench's lines of JSON with the side "pytorch": the calls are those of
torch.distributed on the current stream, in place where ours are. With --beside,
also what they cost matrix products of [4096 x 2560] x [2560 x 20480] in BF16
that run beside them.
"""

import functools
import math
import statistics

import torch
import torch.distributed as dist

import ranks
from common import free_memory, peer_parser, summary, timed_ms

KIB, MIB, GIB = 2**10, 2**20, 2**30
DTYPES = {"BF16": torch.bfloat16, "FP32": torch.float32}
# As in comm_timing.cc and comm_bench.cc.
LEAD, MAX_CALLS, MARKS, RESERVE_BYTES = 4, 4000, 64, 2 * GIB


def other_parts(world):
    return (world - 1) / world


# Operation -> (bytes on a link in units of the operand's, number of tensors as
# large as the operand, call of (whole, own part of it, other)).
OPERATIONS = {
    "all_reduce": (lambda world: 2 * other_parts(world), 1,
                   lambda whole, own, other: dist.all_reduce(whole)),
    "reduce_scatter": (other_parts, 1, lambda whole, own, other:
                       dist.reduce_scatter_tensor(own, whole)),
    "all_gather": (other_parts, 1, lambda whole, own, other:
                   dist.all_gather_into_tensor(whole, own)),
    "all_to_all": (other_parts, 2, lambda whole, own, other:
                   dist.all_to_all_single(other, whole)),
    "broadcast": (lambda world: 1, 1,
                  lambda whole, own, other: dist.broadcast(whole, 0)),
}


def make_call(operation, size, dtype, device):
    """The call, and the bytes of its operand."""
    _, tensors, call = OPERATIONS[operation]
    rank, world = dist.get_rank(), dist.get_world_size()
    part = max(1, size // dtype.itemsize // world)
    whole = torch.zeros(part * world, dtype=dtype, device=device)
    if operation != "all_reduce":  # which would grow from call to call
        whole.normal_()
    other = torch.empty_like(whole) if tensors == 2 else None
    return (functools.partial(call, whole, whole.narrow(0, part * rank, part),
                              other), whole.nbytes)


def align(device):
    """Lets the ranks continue on the current stream at the same time."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.all_reduce(torch.zeros(1, device=device))


def over_ranks(values, device):
    return summary(ranks.max_over_ranks(values, device))


def back_to_back(call, calls, options, device):
    """(summary of ms, the host's us) of a call."""

    def repeat():
        for _ in range(calls):
            call()

    samples = []
    for _ in range(2 + options.samples):
        align(device)
        samples.append(timed_ms(repeat, device.type))
    ms, host_ms = zip(*samples[2:])
    host_us = statistics.median(host_ms) / calls * 1e3
    return (over_ranks([sample / calls for sample in ms], device),
            ranks.max_over_ranks([host_us], device)[0])


class Products:

    def __init__(self, device):
        new = functools.partial(torch.randn, dtype=torch.bfloat16,
                                device=device)
        self._a, self._b, self._c = new(4096, 2560), new(2560, 20480), new(
            4096, 20480)

    def run(self, count):
        for _ in range(count):
            torch.mm(self._a, self._b, out=self._c)

    def alone_ms(self, count, device):
        align(device)
        return timed_ms(lambda: self.run(count), device.type)[0] / count


def marked_event(stream):
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def beside_sample(call, calls, products, count, device):
    """ms of (a product, a call) of those that run beside one another."""
    main, stream = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
    stride = math.ceil(calls / MARKS)
    marks = []

    def enqueue(begin, end):
        with torch.cuda.stream(stream):
            for i in range(begin, end):
                call()
                if (i + 1) % stride == 0:
                    marks.append(marked_event(stream))

    with torch.cuda.stream(stream):
        align(device)
    main.wait_stream(stream)
    marks.append(marked_event(stream))
    enqueue(0, min(LEAD, calls))
    start = marked_event(main)
    products.run(count)
    end = marked_event(main)
    enqueue(min(LEAD, calls), calls)
    torch.cuda.synchronize()
    products_ms = start.elapsed_time(end)
    last = 1
    while (last + 1 < len(marks)
           and start.elapsed_time(marks[last + 1]) <= products_ms):
        last += 1
    return products_ms / count, marks[0].elapsed_time(marks[last]) / last / stride


def beside_products(call, alone_ms, options, device):
    """The figures of calls beside products (comm_timing.h)."""
    products = Products(device)
    products.run(options.products)  # warm-up
    (product_ms,) = ranks.max_over_ranks(
        [products.alone_ms(options.products, device)], device)
    count = max(options.products, math.ceil(3 * alone_ms / product_ms))
    calls = min(MAX_CALLS, math.ceil(1.3 * count * product_ms / alone_ms) + LEAD)
    samples = []
    for _ in range(1 + options.samples):
        product_ms = products.alone_ms(count, device)
        beside_ms, call_ms = beside_sample(call, calls, products, count, device)
        samples.append((product_ms, beside_ms, call_ms))
    product, beside, ms = (over_ranks(list(values), device)
                           for values in zip(*samples[1:]))
    slow_down = beside["median"] / product["median"]
    return {"product_ms": product, "product_beside_ms": beside, "time_ms": ms,
            "slow_down": slow_down,
            "lost_ms": (slow_down - 1) * ms["median"]}


def calls_per_sample(size):
    if size <= MIB:
        return 50
    return 20 if size <= 64 * MIB else 5


def measure(operation, size, dtype, options, device):
    bus_factor, _, _ = OPERATIONS[operation]
    call, nbytes = make_call(operation, size, dtype, device)
    time_ms, host_us = back_to_back(call, calls_per_sample(nbytes), options,
                                    device)
    gb_per_s = nbytes / time_ms["median"] * 1e-6
    figures = {"bytes": nbytes, "time_ms": time_ms,
               "algorithm_gb_per_s": gb_per_s,
               "bus_gb_per_s": gb_per_s * bus_factor(dist.get_world_size()),
               "host_us": host_us}
    if options.beside:
        figures["beside"] = beside_products(call, time_ms["median"], options,
                                            device)
    return figures


def bytes_for_operands(device):
    """The bytes that operands may take on every rank."""
    if device.type == "cpu":
        return math.inf
    free, _ = torch.cuda.mem_get_info()
    return -ranks.max_over_ranks([RESERVE_BYTES - free], device)[0]


def run(operation, name, size, available, options, device):
    record = {"side": "pytorch", "operation": operation, "dtype": name,
              "size": size, "world": dist.get_world_size(),
              "backend": dist.get_backend(),
              "device": (torch.cuda.get_device_name()
                         if device.type == "cuda" else "CPU"), "status": "OK"}
    if OPERATIONS[operation][1] * size > available:
        record["status"] = "OOM"
    else:
        try:
            record.update(measure(operation, size, DTYPES[name], options,
                                  device))
        except Exception as error:
            ranks.fail(record, error)
        free_memory(device.type)
    ranks.print_record(record)


def names(text):
    return text.split(",")


def parse_arguments():
    parser = peer_parser(__doc__)
    parser.add_argument("--nproc", type=int,
                        help="number of ranks to start; not under torchrun")
    parser.add_argument("--operations", type=names, default=[
        "all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
    parser.add_argument("--dtypes", type=names, default=["BF16", "FP32"])
    parser.add_argument("--min_kib", type=int, default=1)
    parser.add_argument("--max_kib", type=int, default=0,
                        help="0: 4 GiB on a GPU, 1 MiB on a CPU")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--products", type=int, default=40)
    parser.add_argument("--samples", type=int, default=7)
    options = parser.parse_args()
    for flag, given, known in (("operations", options.operations, OPERATIONS),
                               ("dtypes", options.dtypes, DTYPES)):
        for name in given:
            if name not in known:
                parser.error(f"--{flag} has '{name}'; it can have"
                             f" {', '.join(known)}")
    options.max_kib = options.max_kib or (
        (4 * GIB if options.device == "cuda" else MIB) // KIB)
    for flag in ("min_kib", "products", "samples"):
        if getattr(options, flag) < 1:
            parser.error(f"--{flag} must be at least 1")
    if options.beside and options.device == "cpu":
        parser.error("--beside needs a GPU")
    if not ranks.is_rank() and (options.nproc or 0) < 2:
        parser.error("give --nproc=N, at least 2, or start this with torchrun")
    return options


def main():
    options = parse_arguments()
    if not ranks.is_rank():
        raise SystemExit(ranks.run_ranks(options.nproc))
    device = ranks.join(options.device)
    available = bytes_for_operands(device)
    for operation in options.operations:
        for name in options.dtypes:
            size = options.min_kib * KIB
            while size <= options.max_kib * KIB:
                run(operation, name, size, available, options, device)
                size *= 4
    ranks.leave()


if __name__ == "__main__":
    main()
