"""Writes torch_muon_golden.h: matrices after 5 steps of torch.optim.Muon.

usage: torch_muon.py > tests/framework/optim/torch_muon_golden.h

Needs PyTorch 2.11; muon_test.cc takes the same steps with Tessera's Muon.
Initial values and gradients are multiples of 2^-24, so both start from the same
bits. torch.optim.Muon iterates in BF16. Here it iterates in FP32, so that the
results agree to more digits.
"""

import torch

SHAPES = {"q.weight": (7, 13), "k.weight": (3, 13), "o.weight": (13, 7)}
STEPS = 5


def values(step, first, shape):
    """In [-0.5, 0.5): Knuth's multiplicative hash; step -1 is the start."""
    count = shape[0] * shape[1]
    keys = [(1000003 * (step + 1) + first + i) * 2654435761 % 2**32
            for i in range(count)]
    flat = [(key >> 8) / 2**24 - 0.5 for key in keys]
    return torch.tensor(flat, dtype=torch.float32).view(shape)


def trained(adjust, nesterov):
    parameters, first, total = {}, {}, 0
    for name, shape in SHAPES.items():
        first[name] = total
        parameters[name] = values(-1, total, shape).requires_grad_()
        total += shape[0] * shape[1]
    optimizer = torch.optim.Muon(
        parameters.values(), weight_decay=0.1, momentum=0.9,
        nesterov=nesterov, adjust_lr_fn=adjust)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 2**-5 * (1 + step)
        for name, parameter in parameters.items():
            parameter.grad = values(step, first[name], SHAPES[name])
        optimizer.step()
    return parameters


def main():
    torch.Tensor.bfloat16 = torch.Tensor.clone
    guard = "TESTS_FRAMEWORK_OPTIM_TORCH_MUON_GOLDEN_H_"
    print(f"#ifndef {guard}\n#define {guard}\n")
    print(f"// By torch_muon.py with PyTorch {torch.__version__}.\n")
    print("namespace tessera {")
    for variant, adjust, nesterov in [("Original", "original", True),
                                      ("MatchRms", "match_rms_adamw", False)]:
        print(f"\ninline constexpr float kTorchMuon{variant}[] = {{")
        for name, parameter in trained(adjust, nesterov).items():
            print(f"    // {name}")
            for value in parameter.detach().flatten().tolist():
                print(f"    {value:.9g}f,")
        print("};")
    print(f"\n}}  // namespace tessera\n\n#endif  // {guard}")


if __name__ == "__main__":
    main()
