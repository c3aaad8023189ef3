"""The training step of the same language model in PyTorch, timed.

usage: lm_step.py [--device=cuda|cpu] VARIANT PRECISION SIZE:CONTEXT:BATCH ...
       lm_step.py [--device=cuda|cpu] --serve

VARIANT    seed            attention as two einsums and a softmax
           seed_compile    seed under torch.compile
           sdpa            F.scaled_dot_product_attention
           compile         sdpa under torch.compile
           compile_graphs  compile with CUDA graphs (mode reduce-overhead)
PRECISION  FP32, TF32, or BF16 (autocast)

Measures the step with fused AdamW, its forward pass and that with the backward
pass, the seconds from the making of the model to the end of its first step,
compilation included, and the memory that PyTorch's allocator takes from the
driver. --serve reads cells from standard input, one
JSON object per line ({"variant": .., "precision": .., "size": ..,
"context": .., "batch": ..}), and answers each with one line of JSON: importing
torch takes seconds, so one process measures many cells.
"""

import dataclasses
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

from common import (SIZES, VOCABULARY, call_times_ms, check_known, free_memory,
                    held_gib, peer_parser, serve, summary)

VARIANTS = ("seed", "seed_compile", "sdpa", "compile", "compile_graphs")
PRECISIONS = ("FP32", "TF32", "BF16")
ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Cell:
    variant: str
    precision: str
    size: str
    context: int
    batch: int

    def __post_init__(self):
        check_known((self.variant, VARIANTS), (self.precision, PRECISIONS),
                    (self.size, SIZES))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate_pairs(x_bhsd, cos_sd, sin_sd):
    """RoPE on the interleaved pairs (0, 1), (2, 3), ... of the head dimension."""
    even, odd = x_bhsd[..., 0::2], x_bhsd[..., 1::2]
    rotated = torch.stack(
        (even * cos_sd - odd * sin_sd, even * sin_sd + odd * cos_sd), dim=-1)
    return rotated.flatten(-2).to(x_bhsd.dtype)


def written_out_attention(q_bhsd, k_bhsd, v_bhsd, mask_ss):
    scores = torch.einsum("...qd,...kd->...qk", q_bhsd, k_bhsd)
    scores = scores / math.sqrt(q_bhsd.shape[-1])
    scores = torch.where(mask_ss, scores, float("-inf"))
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = scores.exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.einsum("...qk,...kd->...qd", weights, v_bhsd)


def library_attention(q_bhsd, k_bhsd, v_bhsd, mask_ss):
    del mask_ss  # causal, which the library has an option for
    return F.scaled_dot_product_attention(q_bhsd, k_bhsd, v_bhsd,
                                          is_causal=True)


class Attention(nn.Module):

    def __init__(self, size, attend):
        super().__init__()
        self.heads, self.attend = size.heads, attend
        self.query, self.key, self.value, self.output = (
            linear(size.d_model, size.d_model) for _ in range(4))

    def forward(self, x_bsc, cos, sin, mask):
        b, s, c = x_bsc.shape
        q, k, v = (project(x_bsc).view(b, s, self.heads, -1).transpose(1, 2)
                   for project in (self.query, self.key, self.value))
        y_bhsd = self.attend(rotate_pairs(q, cos, sin),
                             rotate_pairs(k, cos, sin), v, mask)
        return self.output(y_bhsd.transpose(1, 2).reshape(b, s, c))


class FeedForward(nn.Module):
    """W_2(silu(W_1 x) * W_3 x)."""

    def __init__(self, size):
        super().__init__()
        self.gate = linear(size.d_model, size.d_ff)
        self.up = linear(size.d_model, size.d_ff)
        self.down = linear(size.d_ff, size.d_model)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):

    def __init__(self, size, attend):
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.d_model, eps=NORM_EPSILON)
        self.attention = Attention(size, attend)
        self.feed_forward_norm = nn.RMSNorm(size.d_model, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(size)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class TransformerLm(nn.Module):

    def __init__(self, size, context, attend):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.d_model)
        self.blocks = nn.ModuleList(
            Block(size, attend) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.d_model, eps=NORM_EPSILON)
        self.head = linear(size.d_model, VOCABULARY)
        exponents = torch.arange(0, size.head_dim, 2) / size.head_dim
        angles = torch.arange(context)[:, None] * ROPE_THETA**-exponents
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer(
            "mask", torch.ones(context, context, dtype=torch.bool).tril())

    def forward(self, ids_bs):
        x_bsc = self.embedding(ids_bs)
        for block in self.blocks:
            x_bsc = block(x_bsc, self.cos, self.sin, self.mask)
        return self.head(self.norm(x_bsc))


def step_flops(size, parameters, cell):
    """6 per weight and token, without the embedding; causal attention counts
    half of the full scores and P*V."""
    weights = parameters - VOCABULARY * size.d_model
    attention = size.layers * size.d_model * cell.context
    return 6 * (weights + attention) * cell.batch * cell.context


def make_loss(model, cell, device):
    def loss(ids, targets):
        with torch.autocast(device, torch.bfloat16,
                            enabled=cell.precision == "BF16"):
            logits = model(ids)
            return F.cross_entropy(logits.flatten(0, 1).float(),
                                   targets.flatten())

    if cell.variant in ("compile", "seed_compile"):
        return torch.compile(loss, dynamic=False)
    if cell.variant == "compile_graphs":
        return torch.compile(loss, mode="reduce-overhead", dynamic=False)
    return loss


def measure(cell, device):
    """The cell's figures; raises torch.OutOfMemoryError."""
    start = time.monotonic()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(
        "high" if cell.precision == "TF32" else "highest")
    size = SIZES[cell.size]
    attend = (written_out_attention
              if cell.variant.startswith("seed") else library_attention)
    with torch.device(device):
        model = TransformerLm(size, cell.context, attend)
        ids, targets = (torch.randint(0, VOCABULARY, (cell.batch, cell.context))
                        for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss = make_loss(model, cell, device)

    def forward():
        torch.compiler.cudagraph_mark_step_begin()
        return loss(ids, targets)

    def forward_backward():
        model.zero_grad(set_to_none=True)
        forward().backward()

    def step():
        forward_backward()
        optimizer.step()

    call_times_ms(step, device, warm_up=0, measured=1)
    first_step_s = time.monotonic() - start
    step_ms, forward_backward_ms, forward_ms = (
        summary(call_times_ms(call, device))
        for call in (step, forward_backward, forward))
    parameters = sum(p.numel() for p in model.parameters())
    tflops = step_flops(size, parameters, cell) / step_ms["median"] / 1e9
    return {"step_ms": step_ms, "forward_backward_ms": forward_backward_ms,
            "forward_ms": forward_ms, "first_step_s": first_step_s,
            "tflops": tflops, "held_gib": held_gib(device),
            "parameters": parameters}


def run(cell, device):
    """One record: the cell, its status and, if that is OK, its figures."""
    free_memory(device)
    record = dict(dataclasses.asdict(cell), backend=f"pytorch_{cell.variant}")
    try:
        return dict(record, status="OK", **measure(cell, device))
    except torch.OutOfMemoryError:
        return dict(record, status="OOM")


def as_row(record):
    row = (f"{record['variant']:14s} {record['precision']:4s}"
           f" {record['size']:6s} ctx {record['context']:5d}"
           f" batch {record['batch']:3d}")
    if record["status"] != "OK":
        return f"{row}  {record['status']}"
    return (f"{row}  {record['parameters'] / 1e6:7.1f} M"
            f"  first step {record['first_step_s']:6.1f} s"
            f"  step {record['step_ms']['median']:8.2f} ms"
            f"  {record['tflops']:6.1f} TFLOP/s"
            f"  held {record['held_gib']:6.2f} GiB")


def parse_arguments():
    parser = peer_parser(__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("variant", nargs="?", choices=VARIANTS)
    parser.add_argument("precision", nargs="?", choices=PRECISIONS)
    parser.add_argument("cells", nargs="*", metavar="SIZE:CONTEXT:BATCH")
    arguments = parser.parse_args()
    if not arguments.serve and not arguments.cells:
        parser.error("give VARIANT PRECISION SIZE:CONTEXT:BATCH, or --serve")
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.serve:
        serve(arguments.device,
              lambda **cell: run(Cell(**cell), arguments.device))
        return
    for text in arguments.cells:
        size, context, batch = text.split(":")
        cell = Cell(arguments.variant, arguments.precision, size, int(context),
                    int(batch))
        print(as_row(run(cell, arguments.device)), flush=True)


if __name__ == "__main__":
    main()
