#!/usr/bin/env python3
"""How much Newton-Schulz steps err in 16 bits, on a CPU with numpy.

usage: errors.py

Prints, for matrices of several shapes and singular values, the largest error
of five steps against FP64 as a ratio to that of the iteration as written in
BF16. Products are summed in FP32 and rounded once.

  fp16       as written, in FP16
  gram       steps on the small matrix, restarted after two (newton_schulz.h),
             in FP16, of whose symmetric results one half is computed
  both       the same, but both halves are computed, as A B
  both_abt   as A B^T
  gram_bf16  "gram" in BF16
  no_restart "gram" without the restart
"""

import numpy

A, B, C = 3.4445, -4.7750, 2.0315  # muon_math.h
STEPS = 5


def bf16(x):
    bits = numpy.ascontiguousarray(x, numpy.float32).view(numpy.uint32)
    wide = bits.astype(numpy.uint64)
    rounded = (wide + (wide >> 16 & 1) + 0x7fff) >> 16 << 16
    return rounded.astype(numpy.uint32).view(numpy.float32)


def fp16(x):
    return x.astype(numpy.float16).astype(numpy.float32)


def plain(x, rounded):
    x = rounded(x)
    for _ in range(STEPS):
        a = rounded(x @ x.T)
        x = rounded(A * x + rounded(B * a + C * (a @ a)) @ x)
    return x


def one_half(a, b):
    d = a @ b.T
    return numpy.tril(d) + numpy.tril(d, -1).T


def gram(x, rounded, product=one_half, restart=2):
    # A power of two, so that FP16 holds small elements.
    scale = numpy.float32(2.0**numpy.floor(numpy.log2(x.size) / 2))
    identity = numpy.eye(len(x), dtype=numpy.float32)
    x = rounded(x * scale)
    for begin, end in ((0, restart), (restart, STEPS)):
        a = rounded(x @ x.T / scale**2)
        q = identity
        for step in range(begin, end):
            z = rounded(A * identity + B * a + C * (a @ a.T))
            if step + 1 < end:
                a = rounded(product(z, rounded(product(a, z))))
            q = z if step == begin else rounded(product(q, z))
        x = rounded(q @ x)
    return x / scale


def matrix(rows, cols, kind, random):
    if kind == "normal":
        x = random.standard_normal((rows, cols))
    else:
        u = numpy.linalg.qr(random.standard_normal((rows, rows)))[0]
        v = numpy.linalg.qr(random.standard_normal((cols, rows)))[0]
        values = {"even": numpy.ones(rows),
                  "power": 1 / numpy.arange(1, rows + 1),
                  "steep": numpy.logspace(0, -4, rows),
                  "few": numpy.r_[numpy.ones(8), numpy.full(rows - 8, 1e-3)]}
        x = u * values[kind] @ v.T
    return bf16(x / numpy.linalg.norm(x))


def main():
    random = numpy.random.default_rng(0)
    ways = {
        "fp16": lambda x: plain(x, fp16),
        "gram": lambda x: gram(x, fp16),
        "both": lambda x: gram(x, fp16, lambda a, b: a @ b),
        "both_abt": lambda x: gram(x, fp16, lambda a, b: a @ b.T),
        "gram_bf16": lambda x: gram(x, bf16),
        "no_restart": lambda x: gram(x, fp16, restart=0),
    }
    print(f"{'':20}" + "".join(f"{name:>11}" for name in ways))
    for rows, cols in ((128, 128), (128, 256), (128, 512), (512, 2048)):
        for kind in ("normal", "even", "power", "steep", "few"):
            x = matrix(rows, cols, kind, random)
            oracle = plain(x.astype(numpy.float64), lambda y: y)
            unit = numpy.abs(plain(x, bf16) - oracle).max()
            errors = [numpy.abs(way(x) - oracle).max() / unit
                      for way in ways.values()]
            print(f"{rows:>4} x {cols:<5}{kind:8}"
                  + "".join(f"{error:11.2f}" for error in errors))


if __name__ == "__main__":
    main()
