"""Writes torch_adamw_golden.h: parameters after 100 steps of torch.optim.AdamW.

usage: torch_adamw.py > tests/framework/optim/torch_adamw_golden.h

Needs PyTorch; adamw_test.cc takes the same steps with Tessera's AdamW. Initial
values and gradients are multiples of 2^-24, so both start from the same bits.
"""

import torch

SIZES = {"q.weight": 7 * 13, "k.weight": 3 * 13, "norm.gain": 13,
         "one.gain": 1, "ffn.weight": 129}
STEPS = 100


def values(step, first, count):
    """In [-0.5, 0.5): Knuth's multiplicative hash; step -1 is the start."""
    keys = [(1000003 * (step + 1) + first + i) * 2654435761 % 2**32
            for i in range(count)]
    return torch.tensor([(key >> 8) / 2**24 - 0.5 for key in keys],
                        dtype=torch.float32)


def main():
    parameters, first = {}, {}
    total = 0
    for name, size in SIZES.items():
        first[name] = total
        parameters[name] = values(-1, total, size).requires_grad_()
        total += size
    gains = [p for name, p in parameters.items() if name.endswith("gain")]
    weights = [p for name, p in parameters.items() if name.endswith("weight")]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1},
         {"params": gains, "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8)
    for step in range(STEPS):
        rate = 2**-10 * (1 + step % 7)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.param_groups[1]["lr"] = 0.5 * rate
        for name, parameter in parameters.items():
            parameter.grad = values(step, first[name], SIZES[name])
        optimizer.step()
    guard = "TESTS_FRAMEWORK_OPTIM_TORCH_ADAMW_GOLDEN_H_"
    print(f"#ifndef {guard}\n#define {guard}\n")
    print(f"// By torch_adamw.py with PyTorch {torch.__version__}.\n")
    print("namespace tessera {\n\ninline constexpr float kTorchAdamW[] = {")
    for name, parameter in parameters.items():
        print(f"    // {name}")
        for value in parameter.detach().tolist():
            print(f"    {value:.9g}f,")
    print(f"}};\n\n}}  // namespace tessera\n\n#endif  // {guard}")


if __name__ == "__main__":
    main()
