"""Counts how often a process's first cosines are wrong. Needs only PyTorch.

usage: first_calls.py [--processes=2000] [--threads=8] [--at_once=8]

Starts processes that compute RoPE's table of 512 positions and 64 frequencies
in FP64, with several threads, and compares the bits with those of one thread.
Once as ATen does it, and once after one cosine on one thread.
"""

import argparse
import multiprocessing
import os
import time

import torch


def angles():
    exponent = torch.arange(0, 128, 2, dtype=torch.float64) / -128
    return torch.arange(512, dtype=torch.float64).unsqueeze(1) * 1e4**exponent


def first_cosine(threads, warm_up):
    """The table of a process that has computed no cosine before."""
    torch.set_num_threads(threads)
    if warm_up:
        torch.zeros(1, dtype=torch.float64).cos()
    return angles().cos()


def differences(settings):
    """Each child's largest difference from `expected`. Starts `number`
    children, one after the other."""
    number, threads, warm_up, expected = settings
    found = []
    for _ in range(number):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            largest = (first_cosine(threads, warm_up) - expected).abs().max()
            os.write(writer, f"{largest.item():e}".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as text:
            found.append(float(text.read()))
        os.waitpid(child, 0)
    return found


def expected_table():
    """Computed by another process: children of this one, which has computed no
    cosine, compute their first."""
    with multiprocessing.Pool(1) as pool:
        return pool.apply(first_cosine, (1, False))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--at_once", type=int, default=8)
    options = parser.parse_args()
    each = -(-options.processes // options.at_once)
    expected = expected_table()
    for warm_up in (False, True):
        start = time.monotonic()
        with multiprocessing.Pool(options.at_once) as pool:
            lists = pool.map(
                differences,
                [(each, options.threads, warm_up, expected)] * options.at_once)
        found = [x for of_worker in lists for x in of_worker]
        wrong = [x for x in found if x]
        print(f"{'after one cosine' if warm_up else 'at once'}: "
              f"{len(wrong)} of {len(found)} tables are wrong, "
              f"by up to {max(wrong, default=0):.1e} "
              f"({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
