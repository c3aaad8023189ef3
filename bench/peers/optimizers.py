"""The update of the same language model's weights by PyTorch's optimizers.

usage: optimizers.py [--device=cuda|cpu] [--names=muon,adamw] SIZE ...

Prints a line of JSON for each size and optimizer: the time of step(), with
random gradients, FP32 weights and state. The blocks' matrices have the optimizer
that is named; embedding, head and norms have fused AdamW. "muon" is
torch.optim.Muon, whose products are BF16; "muon_compiled" is its step under
torch.compile; "gram" is Muon of the package gram-newton-schulz, whose symmetric
products are kernels of quack-kernels, and "gram_torch" the same with PyTorch's
products. "gram" and "gram_torch" need the packages.
"""

import json

import torch

from common import (SIZES, call_times_ms, check_known, describe, free_memory,
                    peer_parser, summary)
from lm_step import TransformerLm, library_attention

NAMES = ("adamw", "muon", "muon_compiled", "gram", "gram_torch")
CONTEXT = 8  # the weights do not depend on it


def step_of(name, model):
    """A function that updates all weights."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices} if name != "adamw" else set()
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adamw = torch.optim.AdamW(rest, lr=1e-4, fused=True)
    if name == "adamw":
        return adamw.step
    if name.startswith("gram"):
        import gram_newton_schulz
        # Without a limit the matrices of one shape in all layers, and copies
        # of them, are in memory at once.
        muon = gram_newton_schulz.Muon(
            matrices, lr=1e-4, ns_max_batch_size=16,
            ns_use_kernels=name == "gram",
            gram_newton_schulz_restart_iterations=[2])
    else:
        muon = torch.optim.Muon(matrices, lr=1e-4)
    update = torch.compile(muon.step) if name == "muon_compiled" else muon.step

    def step():
        update()
        adamw.step()

    return step


def measure(name, size, device):
    free_memory(device)
    with torch.device(device):
        model = TransformerLm(SIZES[size], CONTEXT, library_attention)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    times = call_times_ms(step_of(name, model), device)
    return {"optimizer": name, "size": size, "update_ms": summary(times)}


def main():
    parser = peer_parser(__doc__)
    parser.add_argument("--names", default="muon,adamw",
                        type=lambda text: text.split(","))
    parser.add_argument("sizes", nargs="+", metavar="SIZE")
    arguments = parser.parse_args()
    try:
        check_known(*((name, NAMES) for name in arguments.names),
                    *((size, SIZES) for size in arguments.sizes))
    except ValueError as error:
        parser.error(str(error))
    machine = describe(arguments.device)
    for size in arguments.sizes:
        for name in arguments.names:
            record = measure(name, size, arguments.device)
            print(json.dumps({**record, **machine}), flush=True)


if __name__ == "__main__":
    main()
