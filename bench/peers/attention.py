"""PyTorch's attention, timed.

usage: attention.py [--device=cuda|cpu] [--check]

Reads cells from standard input, a JSON object per line,

  {"variant": "cudnn", "precision": "BF16", "mask": "causal", "batch": 4,
   "heads": 16, "length": 4096, "head_dim": 128}

and answers each with one line of JSON; the first line describes the machine.

variant    cudnn, flash (FlashAttention-2) or efficient: that kernel of
           F.scaled_dot_product_attention only; for windows and documents,
           flash is torch.nn.attention.varlen
           sdpa_mask efficient, given the mask as a tensor of booleans
           flex      compiled flex_attention with a block mask
           fa4       FlashAttention-4 (the package flash-attn-4)
           naive     softmax(Q K^T) V written out
           compiled  naive under torch.compile, which in half precision
                     recognises it and calls a flash kernel instead
           compiled_as_written
                     compiled without the pattern matcher, so that the
                     products and the softmax are compiled as written
precision  FP32 (without TF32), BF16, FP16
mask       a name of masks.py. What a variant needs of it (a block mask, a
           tensor of booleans, cumulative lengths) is made before the clock
           starts: "mask_ms" is the time that takes, "mask_mib" its memory,
           which the peak includes. A variant that cannot compute a mask
           answers "not supported: ...".

--check compares every variant with naive in FP32 at a small shape and prints
its largest error for each mask, of the output and, on a GPU, the gradients.

Q, K and V are slices of one fused projection, as in a model. Their gradients
stay where autograd puts them: PyTorch is not charged for copying them into the
projection's gradient, which ours writes directly.
"""

import dataclasses
import functools
import json
import math
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (create_block_mask,
                                               flex_attention)

from common import call_times_ms, check_known, peer_parser, serve, summary
from masks import document_begins, parse_mask

PRECISIONS = {"FP32": torch.float32, "BF16": torch.bfloat16,
              "FP16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Cell:
    variant: str
    precision: str
    mask: str
    batch: int
    heads: int
    length: int
    head_dim: int

    def __post_init__(self):
        check_known((self.variant, VARIANTS), (self.precision, PRECISIONS))
        parse_mask(self.mask)

    @property
    def limits(self):
        return parse_mask(self.mask)

    def begins(self):
        """For each sequence, the first token of each of its documents."""
        return [document_begins(self.limits, self.length, sequence)
                for sequence in range(self.batch)]


class PackedDocuments:
    """All documents of all sequences in a row, for functions that take them in
    one [tokens, heads, head dim]; of a mask without documents, the
    sequences."""

    def __init__(self, cell, device):
        bounds = [sequence * cell.length + begin
                  for sequence, begins in enumerate(cell.begins())
                  for begin in begins] + [cell.batch * cell.length]
        self.longest = max(b - a for a, b in zip(bounds, bounds[1:]))
        self.bounds = torch.tensor(bounds, dtype=torch.int32, device=device)
        self._length = cell.length

    def call(self, attend, *qkv_bhsd):
        """attend() of the packed operands, as [B, H, S, D]."""
        out = attend(*(x.transpose(1, 2).flatten(0, 1) for x in qkv_bhsd))
        return out.unflatten(0, (-1, self._length)).transpose(1, 2)


def document_of_tokens(cell, device):
    """[B, S]: the first token of each token's document."""
    documents = torch.zeros(cell.batch, cell.length, dtype=torch.int32)
    for row, begins in zip(documents, cell.begins()):
        for begin in begins:
            row[begin:] = begin
    return documents.to(device)


def is_visible(cell, device):
    """The mask as a function of (sequence, head, query, key), which broadcasts
    tensors; the `mask_mod` of flex_attention."""
    if not cell.limits.causal:
        return lambda b, h, query, key: (query >= 0) & (key >= 0)
    if cell.limits.window:
        window = cell.limits.window
        return lambda b, h, query, key: (query >= key) & (
            query - key < window)
    if cell.limits.plain:
        return lambda b, h, query, key: query >= key
    documents = document_of_tokens(cell, device)
    return lambda b, h, query, key: (query >= key) & (
        documents[b, query] == documents[b, key])


def visible_pairs(cell, device):
    """The mask as booleans that broadcast to [B, H, S, S]."""
    sequence = torch.arange(cell.batch, device=device)[:, None, None, None]
    token = torch.arange(cell.length, device=device)
    return is_visible(cell, device)(sequence, None, token[:, None], token)


def naive(q_bhsd, k_bhsd, v_bhsd, causal, visible=None):
    scores = q_bhsd @ k_bhsd.transpose(-1, -2) / math.sqrt(q_bhsd.shape[-1])
    if causal:
        length = scores.shape[-1]
        visible = torch.ones(length, length, dtype=torch.bool,
                             device=scores.device).tril()
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v_bhsd


def written_out(function, cell, device):
    if cell.limits.plain:
        return functools.partial(function, causal=cell.limits.causal)
    return functools.partial(function, causal=False,
                             visible=visible_pairs(cell, device))


def library(kernel, cell, device):
    if not cell.limits.plain:
        raise NotImplementedError("not supported: needs the mask as a tensor")
    return functools.partial(sdpa, kernel, is_causal=cell.limits.causal)


def sdpa(kernel, *qkv_bhsd, **options):
    with sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(*qkv_bhsd, **options)


def sdpa_mask(cell, device):
    return functools.partial(sdpa, SDPBackend.EFFICIENT_ATTENTION,
                             attn_mask=visible_pairs(cell, device))


def flash_attention_2(cell, device):
    if cell.limits.plain:
        return library(SDPBackend.FLASH_ATTENTION, cell, device)
    from torch.nn.attention.varlen import varlen_attn
    packed = PackedDocuments(cell, device)
    attend = functools.partial(
        varlen_attn, cu_seq_q=packed.bounds, cu_seq_k=packed.bounds,
        max_q=packed.longest, max_k=packed.longest,
        window_size=(cell.limits.window - 1, 0))  # (-1, 0) is causal
    return functools.partial(packed.call, attend)


def flash_attention_4(cell, device):
    from flash_attn.cute.interface import (flash_attn_func,
                                           flash_attn_varlen_func)

    def output(function, *qkv, **options):
        result = function(*qkv, causal=cell.limits.causal, **options)
        return result[0] if isinstance(result, tuple) else result

    window = (cell.limits.window - 1, 0) if cell.limits.window else (None, None)
    if cell.limits.plain or cell.limits.window:
        return lambda *qkv_bhsd: output(
            flash_attn_func, *(x.transpose(1, 2) for x in qkv_bhsd),
            window_size=window).transpose(1, 2)
    packed = PackedDocuments(cell, device)
    attend = functools.partial(
        output, flash_attn_varlen_func,
        cu_seqlens_q=packed.bounds, cu_seqlens_k=packed.bounds,
        max_seqlen_q=packed.longest, max_seqlen_k=packed.longest)
    return functools.partial(packed.call, attend)


def flex(cell, device):
    if not cell.limits.causal:
        return COMPILED_FLEX
    batch = cell.batch if cell.limits.mean_document else None
    block_mask = create_block_mask(is_visible(cell, device), batch, None,
                                   cell.length, cell.length, device=device)
    return functools.partial(COMPILED_FLEX, block_mask=block_mask)


COMPILED_FLEX = torch.compile(flex_attention, dynamic=False)

# name -> function of a cell and a device that makes what the mask needs and
# returns a function of Q, K and V.
VARIANTS = {
    "cudnn": functools.partial(library, SDPBackend.CUDNN_ATTENTION),
    "flash": flash_attention_2,
    "efficient": functools.partial(library, SDPBackend.EFFICIENT_ATTENTION),
    "sdpa_mask": sdpa_mask,
    "flex": flex,
    "fa4": flash_attention_4,
    "naive": functools.partial(written_out, naive),
    "compiled": functools.partial(written_out,
                                  torch.compile(naive, dynamic=False)),
    "compiled_as_written": functools.partial(
        written_out, torch.compile(naive, dynamic=False,
                                   options={"pattern_matcher": False})),
}


def allocated(device):
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def measure_memory(forward, backward, operand_bytes, device):
    """The memory of one forward and backward, after a first one has allocated
    what libraries keep, as in
    bench/attention_backends/attention_measurement.cc."""
    backward(forward())
    if device != "cuda":
        return {"saved_mib": 0.0, "peak_mib": 0.0}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = allocated(device)
    output = forward()
    saved = allocated(device) - before
    gradients = backward(output)
    peak = torch.cuda.max_memory_allocated() - before + operand_bytes
    del output, gradients
    return {"saved_mib": saved / 2**20, "peak_mib": peak / 2**20}


def make_operands(cell, device):
    """Q, K and V, slices of one projection, and the output's gradient, all
    [B, H, S, D]."""
    torch.manual_seed(0)
    make = functools.partial(torch.randn, dtype=PRECISIONS[cell.precision],
                             device=device)
    qkv = make(cell.batch, cell.length, 3 * cell.heads, cell.head_dim)
    d_output = make(cell.batch, cell.length, cell.heads, cell.head_dim)
    return ([part.transpose(1, 2) for part in qkv.split(cell.heads, dim=2)],
            d_output.transpose(1, 2))


def make_attend(cell, device):
    """The variant's function of Q, K and V, and what its mask cost."""
    prepare = functools.partial(VARIANTS[cell.variant], cell, device)
    times = call_times_ms(prepare, device, warm_up=1, measured=3)
    before = allocated(device)
    attend = prepare()
    return attend, {"mask_ms": summary(times)["median"],
                    "mask_mib": (allocated(device) - before) / 2**20}


def measure(cell, device):
    """The cell's figures; raises an exception if PyTorch cannot run it."""
    inputs, d_output_bhsd = make_operands(cell, device)
    inputs = [part.requires_grad_() for part in inputs]
    attend, mask = make_attend(cell, device)

    def forward():
        return attend(*inputs)

    def backward(output):
        return torch.autograd.grad(output, inputs, d_output_bhsd)

    operand_bytes = (4 * d_output_bhsd.nbytes
                     + round(mask["mask_mib"] * 2**20))
    memory = measure_memory(forward, backward, operand_bytes, device)
    return {
        "forward_ms": summary(call_times_ms(forward, device, measured=30)),
        "backward_ms": summary(call_times_ms(backward, device, measured=30,
                                             prepare=forward)),
        **memory,
        **mask,
    }


def answer(figures_of, cell, device):
    """One record: the cell, its status and, if that is OK,
    figures_of(cell, device)."""
    record = dataclasses.asdict(cell)
    try:
        return dict(record, status="OK", **figures_of(cell, device))
    except torch.OutOfMemoryError:
        return dict(record, status="OOM")
    except ImportError as error:
        return dict(record, status=str(error))
    except (RuntimeError, AssertionError, ValueError) as error:
        text = str(error) or type(error).__name__
        return dict(record, status=text.splitlines()[0].split(". ")[0])


def results(attend, inputs, d_output_bhsd, device):
    """The output and, on a GPU, the gradients, in FP32. Some variants have no
    backward on a CPU."""
    if device != "cuda":
        return [attend(*inputs).float()]
    inputs = [part.detach().requires_grad_() for part in inputs]
    output = attend(*inputs)
    return [x.float() for x in (output, *torch.autograd.grad(
        output, inputs, d_output_bhsd))]


def errors(cell, device):
    """{"errors": ...}: of each result, the largest difference from naive in
    FP32, over the largest value."""
    inputs, d_output_bhsd = make_operands(cell, device)
    actual = results(VARIANTS[cell.variant](cell, device), inputs,
                     d_output_bhsd, device)
    expected = results(VARIANTS["naive"](cell, device),
                       [x.float() for x in inputs], d_output_bhsd.float(),
                       device)
    return {"errors": [((a - b).abs().max() / b.abs().max()).item()
                       for a, b in zip(actual, expected)]}


def check(device):
    """Prints the errors of every variant; whether all are small or the variant
    does not run."""
    good = True
    for variant in VARIANTS:
        for mask in ("causal", "full", "window_16", "documents_48"):
            record = answer(errors, Cell(variant, "BF16", mask, 2, 2, 384, 64),
                            device)
            # A NaN is not below.
            good &= all(error < 0.03 for error in record.get("errors", []))
            print(json.dumps(record), flush=True)
    return good


def main():
    parser = peer_parser(__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    device = arguments.device
    # Keeps a compiled function for each shape; these hold no tensors.
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    if arguments.check:
        sys.exit(0 if check(device) else "an error is not below 0.03")
    serve(device, lambda **cell: answer(measure, Cell(**cell), device),
          keep_compiled=True)


if __name__ == "__main__":
    main()
