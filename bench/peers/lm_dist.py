"""The data-parallel training step of the same language model in PyTorch, timed.

usage: lm_dist.py --nproc=N [options] VARIANT,... SIZE:CONTEXT:BATCH ...
       lm_dist.py --nproc=N [options] --serve
       lm_dist.py --nproc=N [options] --depth VARIANT SIZE:CONTEXT:BATCH
       torchrun --nproc-per-node=N lm_dist.py [options] VARIANT,... SIZE:...

VARIANT  ddp                 DistributedDataParallel
         ddp_compile         ddp, and torch.compile of the whole model, which
                             splits its graph at the buckets
         ddp_compile_blocks  ddp, and torch.compile of each block and the loss
         fsdp2               fully_shard of each block and of the root
         fsdp2_compile       fsdp2, and torch.compile of each block and the loss
         zero1               ddp, each rank with a part of the optimizer's state
                             (ZeroRedundancyOptimizer)
         zero1_compile       zero1, and torch.compile of each block and the loss

BATCH is per GPU. All compute in BF16 from FP32 weights: ddp and zero1 under
autocast, fsdp2 by its mixed precision, which also keeps the residual stream in
BF16. The step clips the norm of the gradients and updates with fused AdamW.

Prints a line of JSON for each variant and cell. Times are by CUDA events, the
maximum over the ranks for each step; figures of memory are the maximum over the
ranks, too: peak_gib (allocated) and held_gib (taken from the driver) of
PyTorch's allocator, and in_use_gib, which is everything that is in use on the
GPU. "loss" is rank 0's after all steps on the same tokens, and "graphs" the
number of graphs that torch.compile made.

--depth finds the largest number of layers of that width which trains, with a
set of processes for each trial.

--serve answers questions as lm_step.py --serve does. A rank that fails prints
the record with "error" and ends the whole program, because others may be waiting
for it.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ranks
from common import (SIZES, VOCABULARY, Size, call_times_ms, check_known,
                    describe, free_memory, held_gib, peer_parser, summary)
from depth import find_depth
from lm_step import TransformerLm, library_attention, step_flops

GIB = 2**30
# As in configs/, except for the rate, which the schedule changes.
ADAMW = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
# For a CPU, as configs/tiny_cpu.pbtxt.
SIZES = {**SIZES, "tiny_cpu": Size(128, 512, 4, 4)}


@dataclasses.dataclass(frozen=True)
class Variant:
    fsdp: bool = False
    zero: bool = False
    compiled: str = ""  # "whole" or "blocks"


VARIANTS = {
    "ddp": Variant(),
    "ddp_compile": Variant(compiled="whole"),
    "ddp_compile_blocks": Variant(compiled="blocks"),
    "fsdp2": Variant(fsdp=True),
    "fsdp2_compile": Variant(fsdp=True, compiled="blocks"),
    "zero1": Variant(zero=True),
    "zero1_compile": Variant(zero=True, compiled="blocks"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    variant: str
    size: str
    context: int
    batch: int  # sequences per GPU

    def __post_init__(self):
        check_known((self.variant, VARIANTS), (self.size, SIZES))


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LmLoss(nn.Module):
    """The loss of the language model: what DDP and FSDP wrap."""

    def __init__(self, size, context):
        super().__init__()
        self.lm = TransformerLm(size, context, library_attention)
        self.loss = cross_entropy

    def forward(self, ids, targets):
        return self.loss(self.lm(ids), targets)

    def compile_blocks(self):
        for block in self.lm.blocks:
            block.compile(dynamic=False)
        self.loss = torch.compile(cross_entropy, dynamic=False)


def make_sharded(size, cell, options, device):
    """The model under FSDP2, without ever holding all of its weights."""
    with torch.device("meta"):
        model = LmLoss(size, cell.context)
    blocks = model.lm.blocks
    if options.checkpoint_blocks:
        for i, block in enumerate(blocks):
            blocks[i] = checkpoint_wrapper(block)
    if VARIANTS[cell.variant].compiled:
        model.compile_blocks()
    shard = functools.partial(
        fully_shard,
        mesh=init_device_mesh(device.type, (dist.get_world_size(),)),
        # RoPE's tables stay in FP32, as under autocast.
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                       reduce_dtype=options.reduce,
                                       cast_forward_inputs=False))
    for block in blocks:
        shard(block, reshard_after_forward=options.reshard_after_forward)
    shard(model)
    model.to_empty(device=device)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    buffers = TransformerLm(dataclasses.replace(size, layers=0), cell.context,
                            library_attention)
    for name, buffer in buffers.named_buffers():
        model.lm.get_buffer(name).copy_(buffer)
    return model


def make_replicated(size, cell, options, device):
    """The model under DDP."""
    variant = VARIANTS[cell.variant]
    with device:
        model = LmLoss(size, cell.context)
    if variant.compiled == "blocks":
        model.compile_blocks()
    model = DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True,
        broadcast_buffers=False,  # which never change
        bucket_cap_mb=options.bucket_mib)
    if options.reduce == torch.bfloat16:
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return torch.compile(model, dynamic=False) if (
        variant.compiled == "whole") else model


def make_optimizer(model, variant):
    if variant.zero:
        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True, fused=True, **ADAMW)
    return torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)


def make_step(size, cell, options, device):
    """Returns the step, a function that returns the loss, and the number of
    parameters."""
    torch.manual_seed(0)
    variant = VARIANTS[cell.variant]
    make = make_sharded if variant.fsdp else make_replicated
    model = make(size, cell, options, device)
    optimizer = make_optimizer(model, variant)
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    ids, targets = (torch.randint(0, VOCABULARY, (cell.batch, cell.context),
                                  device=device) for _ in range(2))
    precision = (contextlib.nullcontext() if variant.fsdp else
                 torch.autocast(device.type, torch.bfloat16))

    def step():
        model.zero_grad(set_to_none=True)
        with precision:
            loss = model(ids, targets)
        loss.backward()
        if options.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        optimizer.step()
        return loss.detach()

    return step, sum(p.numel() for p in model.parameters())


def memory_gib(device):
    """{figure: GiB} of the steps, the maximum over the ranks."""
    if device.type == "cpu":
        return {"peak_gib": 0.0, "held_gib": 0.0, "in_use_gib": 0.0}
    free, total = torch.cuda.mem_get_info()
    peak, held, in_use = ranks.max_over_ranks(
        [torch.cuda.max_memory_allocated() / GIB, held_gib(device.type),
         (total - free) / GIB], device)
    return {"peak_gib": peak, "held_gib": held, "in_use_gib": in_use}


def nccl_version(device):
    return (".".join(map(str, torch.cuda.nccl.version()))
            if device.type == "cuda" else None)


def left_gib(device):
    """What is still allocated, which the next cell would have less of."""
    if device.type == "cpu":
        return 0.0
    return ranks.max_over_ranks([torch.cuda.memory_allocated() / GIB],
                                device)[0]


def measure(size, cell, options, device):
    """The cell's figures."""
    start = time.monotonic()
    step, parameters = make_step(size, cell, options, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    call_times_ms(step, device.type, warm_up=0, measured=1)
    first_step_s = time.monotonic() - start
    call_times_ms(step, device.type, warm_up=0, measured=options.warm_up)
    start = time.monotonic()
    times = call_times_ms(step, device.type, warm_up=0,
                          measured=options.measured)
    wall_ms = 1e3 * (time.monotonic() - start) / options.measured
    (wall_ms, first_step_s), times = (
        ranks.max_over_ranks(values, device)
        for values in ([wall_ms, first_step_s], times))
    loss = step().item()
    step_ms = summary(times)
    tokens = cell.batch * cell.context
    return {
        "step_ms": step_ms, "step_wall_ms": wall_ms,
        "first_step_s": first_step_s,
        "tokens_per_s": tokens * dist.get_world_size() / step_ms["median"] * 1e3,
        # Of each GPU.
        "tflops": step_flops(size, parameters, cell) / step_ms["median"] / 1e9,
        "parameters": parameters, "loss": loss, **memory_gib(device),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


def run(cell, options, device):
    """Prints the cell's record on rank 0. If the cell fails, prints the error
    and ends the process."""
    free_memory(device.type)
    torch._dynamo.utils.counters.clear()
    size = SIZES[cell.size]
    if options.layers:
        size = dataclasses.replace(size, layers=options.layers)
    record = dict(dataclasses.asdict(cell), backend=f"pytorch_{cell.variant}",
                  layers=size.layers, world=dist.get_world_size(),
                  reduce=str(options.reduce).removeprefix("torch."),
                  reshard_after_forward=options.reshard_after_forward,
                  clip_norm=options.clip_norm, nccl=nccl_version(device),
                  **describe(device.type))
    try:
        figures = measure(size, cell, options, device)
    except Exception as error:
        ranks.fail(record, error)
    free_memory(device.type)  # before the answer: then it is the other's turn
    ranks.print_record(dict(record, status="OK", **figures,
                            left_gib=left_gib(device)))


def serve(options, device):
    commands = ranks.Commands()
    ranks.print_record(dict(describe(device.type),
                            world=dist.get_world_size()))
    for line in commands:
        asked = json.loads(line)
        run(Cell(**{field.name: asked[field.name]
                    for field in dataclasses.fields(Cell)}), options, device)


def train_trial(layers):
    """The record of this command's cell with `layers` layers."""
    words = [word for word in sys.argv if word != "--depth"]
    done = subprocess.run(
        [sys.executable, *words, f"--layers={layers}"], check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    records = [json.loads(line) for line in done.stdout.splitlines()
               if line.startswith("{")]
    if not records:
        sys.exit(f"{layers} layers: no record, exit status {done.returncode}")
    record = records[0]
    print(f"{layers} layers: {record['status']}", file=sys.stderr, flush=True)
    if record["status"] not in ("OK", "OOM"):
        sys.exit(f"{layers} layers: {record['error']}")
    return record


def print_depth(cell, options):
    best, too_many = find_depth(options.layers or SIZES[cell.size].layers,
                                options.within, train_trial)
    if best is None:
        sys.exit(f"{cell.size}: {too_many} layers do not fit, the fewest tried")
    print(json.dumps(dict(best, depth=best["layers"], too_many=too_many)))


def cell_of(variant, text):
    try:
        size, context, batch = text.split(":")
        return Cell(variant, size, int(context), int(batch))
    except ValueError as error:
        raise SystemExit(f"'{text}' is not SIZE:CONTEXT:BATCH: {error}")


def make_parser():
    parser = peer_parser(__doc__)
    parser.add_argument("--nproc", type=int,
                        help="number of ranks to start; not under torchrun")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--depth", action="store_true")
    parser.add_argument(
        "--reduce", choices=("BF16", "FP32"), default="BF16",
        help="what gradients are sent in; the default is what ours sends")
    parser.add_argument("--reshard_after_forward", default=True,
                        action=argparse.BooleanOptionalAction,
                        help="fsdp2: free a block's weights after its forward")
    parser.add_argument("--checkpoint_blocks", action="store_true",
                        help="fsdp2: recompute each block in backward")
    parser.add_argument("--bucket_mib", type=int, default=25,
                        help="ddp: size of a bucket; PyTorch's default")
    parser.add_argument("--clip_norm", type=float, default=1.0,
                        help="limit of the gradients' norm; 0: none")
    parser.add_argument("--layers", type=int,
                        help="instead of the size's; with --depth, to try first")
    parser.add_argument("--within", type=int, default=1,
                        help="--depth: stop when this many layers are open")
    parser.add_argument("--warm_up", type=int, default=3)
    parser.add_argument("--measured", type=int, default=10)
    parser.add_argument("variants", nargs="?", metavar="VARIANT,...")
    parser.add_argument("cells", nargs="*", metavar="SIZE:CONTEXT:BATCH")
    return parser


def parse_arguments():
    """The options, and the list of cells."""
    parser = make_parser()
    options = parser.parse_args()
    if bool(options.cells) == options.serve:
        parser.error("give VARIANT,... SIZE:CONTEXT:BATCH, or --serve")
    if not ranks.is_rank() and not options.nproc:
        parser.error("give --nproc=N, the number of ranks, one per GPU, or "
                     "start this with torchrun")
    for name in ("measured", "within"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    options.reduce = {"BF16": torch.bfloat16,
                      "FP32": torch.float32}[options.reduce]
    cells = [cell_of(variant, text) for text in options.cells
             for variant in options.variants.split(",")]
    if options.depth and (len(cells) != 1 or ranks.is_rank()):
        parser.error("--depth takes one variant, one cell and --nproc")
    return options, cells


def main():
    options, cells = parse_arguments()
    if options.depth:
        print_depth(cells[0], options)
        return
    if not ranks.is_rank():
        sys.exit(ranks.run_ranks(options.nproc))
    device = ranks.join(options.device)
    if options.serve:
        serve(options, device)
    for cell in cells:
        run(cell, options, device)
    ranks.leave()


if __name__ == "__main__":
    main()
