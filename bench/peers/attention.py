"""PyTorch's attention, timed.

usage: attention.py [--device=cuda|cpu]

Reads cells from standard input, a JSON object per line,

  {"variant": "cudnn", "precision": "BF16", "mask": "causal", "batch": 4,
   "heads": 16, "length": 4096, "head_dim": 128}

and answers each with one line of JSON; the first line describes the machine.

variant    cudnn, flash (FlashAttention-2) or efficient: that kernel of
           F.scaled_dot_product_attention only
           fa4       FlashAttention-4 (the package flash-attn-4)
           naive     softmax(Q K^T) V written out
           compiled  naive under torch.compile, which in half precision
                     recognises it and calls a flash kernel instead
           compiled_as_written
                     compiled without the pattern matcher, so that the
                     products and the softmax are compiled as written
precision  FP32 (without TF32), BF16, FP16

Q, K and V are slices of one fused projection, as in a model. Their gradients
stay where autograd puts them: PyTorch is not charged for copying them into the
projection's gradient, which ours writes directly.
"""

import argparse
import dataclasses
import functools
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import check_known, serve, time_call

PRECISIONS = {"FP32": torch.float32, "BF16": torch.bfloat16,
              "FP16": torch.float16}
MASKS = ("causal", "full")


def naive(q_bhsd, k_bhsd, v_bhsd, causal):
    scores = q_bhsd @ k_bhsd.transpose(-1, -2) / math.sqrt(q_bhsd.shape[-1])
    if causal:
        length = scores.shape[-1]
        visible = torch.ones(length, length, dtype=torch.bool,
                             device=scores.device).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v_bhsd


def library(kernel, q_bhsd, k_bhsd, v_bhsd, causal):
    with sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(q_bhsd, k_bhsd, v_bhsd,
                                              is_causal=causal)


def flash_attention_4(q_bhsd, k_bhsd, v_bhsd, causal):
    from flash_attn.cute.interface import flash_attn_func
    result = flash_attn_func(*(x.transpose(1, 2)
                               for x in (q_bhsd, k_bhsd, v_bhsd)),
                             causal=causal)
    output_bshd = result[0] if isinstance(result, tuple) else result
    return output_bshd.transpose(1, 2)


VARIANTS = {
    "cudnn": functools.partial(library, SDPBackend.CUDNN_ATTENTION),
    "flash": functools.partial(library, SDPBackend.FLASH_ATTENTION),
    "efficient": functools.partial(library, SDPBackend.EFFICIENT_ATTENTION),
    "fa4": flash_attention_4,
    "naive": naive,
    "compiled": torch.compile(naive, dynamic=False),
    "compiled_as_written": torch.compile(naive, dynamic=False,
                                         options={"pattern_matcher": False}),
}


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
        check_known((self.variant, VARIANTS), (self.precision, PRECISIONS),
                    (self.mask, MASKS))


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


def measure(cell, device):
    """The cell's figures; raises RuntimeError if PyTorch cannot run it."""
    torch.manual_seed(0)
    attend, causal = VARIANTS[cell.variant], cell.mask == "causal"
    shape = (cell.batch, cell.length, cell.heads, cell.head_dim)
    make = functools.partial(torch.randn, dtype=PRECISIONS[cell.precision],
                             device=device)
    qkv = make(cell.batch, cell.length, 3 * cell.heads, cell.head_dim)
    inputs = [part.transpose(1, 2).requires_grad_()
              for part in qkv.split(cell.heads, dim=2)]
    d_output_bhsd = make(shape).transpose(1, 2)

    def forward():
        return attend(*inputs, causal)

    def backward(output):
        return torch.autograd.grad(output, inputs, d_output_bhsd)

    memory = measure_memory(forward, backward,
                            qkv.nbytes + d_output_bhsd.nbytes, device)
    return {
        "forward_ms": dataclasses.asdict(
            time_call(forward, device, measured=30)),
        "backward_ms": dataclasses.asdict(
            time_call(backward, device, measured=30, prepare=forward)),
        **memory,
    }


def run(cell, device):
    """One record: the cell, its status and, if that is OK, its figures."""
    record = dataclasses.asdict(cell)
    try:
        return dict(record, status="OK", **measure(cell, device))
    except torch.OutOfMemoryError:
        return dict(record, status="OOM")
    except ImportError as error:
        return dict(record, status=str(error))
    except RuntimeError as error:
        first_sentence = str(error).splitlines()[0].split(". ")[0]
        return dict(record, status=first_sentence)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    # Keeps a compiled function for each shape; these hold no tensors.
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    serve(device, lambda **cell: run(Cell(**cell), device), keep_compiled=True)


if __name__ == "__main__":
    main()
