"""Reads what the attention benches write, for bench/plot_attention.py."""

import collections
import json
import re
import statistics

import compare

# FLASH_CUDA/forward/d64/n1024/causal/iterations:1/manual_time  0.228 ms ...
_CELL = re.compile(r"(?P<backend>\w+)/(?P<phase>forward|backward)"
                   r"/d(?P<head_dim>\d+)/n(?P<length>\d+)"
                   r"/(?P<mask>causal|full)(?:/\S*)?\s")
_COUNTER = re.compile(r"(\S+)=([-+.\de]+)([numkMGT]?)(?=\s|$)")
_SCALE = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6,
          "G": 1e9, "T": 1e12}

Cell = collections.namedtuple("Cell",
                              "backend phase head_dim length mask")


def read_bench(lines):
    """{Cell: {counter: value}} of attention_bench's console output.

    Cells that report an error have no counters and are left out. If a cell was
    measured twice, the later line counts.
    """
    cells = {}
    for line in lines:
        name = _CELL.match(line)
        if not name:
            continue
        counters = {key: float(number) * _SCALE[unit]
                    for key, number, unit in _COUNTER.findall(line)}
        if "TFLOP/s" not in counters:
            continue
        cells[Cell(name["backend"], name["phase"], int(name["head_dim"]),
                   int(name["length"]), name["mask"])] = counters
    return cells


def gemm_tflops(cells):
    """The measured rate that %GEMM refers to; None if no cell has %GEMM."""
    rates = [100 * c["TFLOP/s"] / c["%GEMM"] for c in cells.values()
             if c.get("%GEMM")]
    return statistics.median(rates) if rates else None


def cudnn_tflops(counters):
    """cuDNN's rate in this cell, from the ratio of the two times."""
    ratio = counters.get("cudnn/ours")
    return counters["TFLOP/s"] / ratio if ratio else None


def read_jsonl(lines):
    """The objects among the lines; programs may print other lines."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def by_side(records):
    """{(precision, head_dim): {side: {length: [record of each round]}}}."""
    grid = {}
    for record in records:
        sides = grid.setdefault((record["precision"], record["head_dim"]), {})
        rounds = sides.setdefault(record["side"], {})
        rounds.setdefault(record["length"], []).append(record)
    return grid


def finished(records):
    return [record for record in records if record["status"] == "OK"]


def ratios(ours, peer, phase):
    """{length: median over the rounds of ours / peer}, as in a race's table."""
    by_length = {length: compare.ratios(records, peer.get(length, ()), phase)
                 for length, records in ours.items()}
    return {length: statistics.median(rounds)
            for length, rounds in by_length.items() if rounds}


def most(records_by_length, key):
    """{length: the maximum of `key` over the rounds}."""
    return {length: max(r[key] for r in finished(records))
            for length, records in records_by_length.items()
            if finished(records)}


def out_of_memory(records_by_length):
    """The lengths at which no round had enough memory."""
    return [length for length, records in records_by_length.items()
            if all(r["status"] == "OOM" for r in records)]
