"""Writes folders of runs as a GPU would leave them, for tests of the report."""

import json
import math
import pathlib

BLOCKS = 6
PHASES = {"forward": 21.0, "backward": 43.5, "reduce": 0.4, "clip": 1.1,
          "optimizer": 8.6}


def _step(number, speed):
    wave = 1 + 0.004 * math.sin(number)
    phases = {}
    for phase, ms in PHASES.items():
        phases[phase] = ms * wave / speed
        for block in range(BLOCKS if phase in ("forward", "backward") else 0):
            path = f"{phase}/block_{block}"
            share = ms * wave / speed / (BLOCKS + 1)
            phases[path] = share
            phases[path + "/attention"] = 0.4 * share
            phases[path + "/ffn"] = 0.55 * share
    step_ms = 76 * wave / speed
    return {
        "type": "step", "time": 1.7e9 + number, "step": number,
        "loss": 3 + 6 * math.exp(-number / 300) + 0.05 * math.sin(number * 7),
        "grad_norm": 0.8 + 0.3 * math.cos(number), "lr": 3e-4,
        "step_ms": step_ms, "tokens_per_s": 2048 / step_ms * 1e3,
        "tflops": 410 * speed / wave, "mfu": 0.415 * speed / wave,
        "peak_gib": 51.6, "phases_ms": phases,
        "gpu": {"sm_mhz": 1700 + 40 * math.sin(number / 9), "memory_mhz": 3201,
                "celsius": 61, "power_w": 640 + 30 * math.cos(number / 9),
                "joules_per_step": 49.0 / speed, "joules_per_token": 0.024,
                "sm_percent": 96.0, "tensor_percent": 61 * speed,
                "dram_percent": 38.0, "mfu_at_clock": 0.45 * speed,
                "throttle_reasons": ["power_cap"]}}


def _breakdown(activations, **more):
    """Bytes by category that add up to the allocator's figures."""
    held = {"parameters": 13 << 30, "shadow": 6 << 30, "gradients": 6 << 30,
            "optimizer": 26 << 30, "activations": activations,
            "activation_gradients": 0, "workspace": 32 << 20,
            "communication": 0, "other": 1 << 20}
    allocated = sum(held.values()) + 4096
    return {**more, "allocated": allocated, "reserved": 55 << 30, **held,
            "slack": 4096, "fragmentation": (55 << 30) - allocated}


def _memory(step, name, speed):
    saved = {f"block_{i}": {"attention/sdpa": 20 << 20,
                            "ffn/w13" + name: int(speed * (80 << 20))}
             for i in range(BLOCKS)}
    saved["head"] = {"lm_head": 100 << 20}
    size = sum(sum(ops.values()) for ops in saved.values())
    peak = _breakdown(size, **{"in": "backward/block_5/ffn/w13" + name})
    record = {
        "type": "memory", "time": 1.7e9 + step, "step": step,
        "phases": {phase: {"allocated": peak["allocated"] - (i << 28),
                           "peak": peak["allocated"] - (i << 27),
                           "reserved": peak["reserved"]}
                   for i, phase in enumerate(PHASES)},
        "peak": peak, "end": _breakdown(0),
        "saved": {"bytes": size, "of": saved},
        "largest": [{"bytes": 80 << 20, "category": "activations",
                     "from": "forward/block_0/ffn/w13" + name,
                     "to": "backward/block_0/ffn/w13", "ms": 60.5},
                    {"bytes": 8 << 20, "category": "workspace",
                     "from": "clip", "to": "", "ms": 0}]}
    if step == 10:
        columns = ["us"] + [key for key in peak
                            if key not in ("in", "allocated", "reserved",
                                           "slack", "fragmentation")]
        points = []
        for i in range(2000):  # up in forward, down in backward
            part = _breakdown(int(size * min(i / 700, (1999 - i) / 1299)))
            points.append([i // 2 * 76] + [part[key] for key in columns[1:]])
        record["timeline"] = {"columns": columns, "points": points}
    return record


def records(name="", speed=1.0, steps=1000, traced=True):
    header = {"time": 1.7e9, "config": f'name: "{name}"\nsteps: {steps}\n',
              "config_hash": "0", "build": {"tessera": "0.1.0",
                                            "libtorch": "2.11.0"},
              "device": {"name": "NVIDIA H200" + name, "world_size": 1}}
    yield {"type": "run", **header}
    yield {"type": "saved", "time": 1.7e9, "step": 1, "bytes": 9 << 30}
    for number in range(10, steps + 1, 10):
        step = _step(number, speed)
        if traced:  # 19 to 22, warm-up included
            step["traced_steps"] = {20: 2, 30: 2}.get(number, 0)
        yield step
        if number % 100 == 0 or number == 10:
            yield _memory(number, name, speed)
        if number % 100 == 0:
            yield {"type": "eval", "time": 1.7e9, "step": number,
                   "loss": 3.1 + 6 * math.exp(-number / 300)}


def _ops():
    shapes = {  # FLOPs, bytes, ms per block
        "attention/qkv": ("linear", 8.1e10, 1.3e8, 0.14),
        "attention/sdpa": ("attention", 2.1e10, 8.4e7, 0.11),
        "ffn/w13": ("linear", 2.1e11, 2.2e8, 0.33),
        "ffn/swiglu": ("swiglu", 1.6e8, 2.5e8, 0.07),
        "norm": ("rms_norm", 4.2e7, 4.2e7, 0.02)}
    for phase, factor in (("forward", 1), ("backward", 2)):
        for block in range(BLOCKS):
            for path, (kind, flops, size, ms) in shapes.items():
                part, _, op = path.rpartition("/")
                bound = max(flops / 989e9, size / 4.8e9) * factor
                yield {"phase": phase,
                       "part": f"block_{block}" + ("/" + part if part else ""),
                       "op": op, "kind": kind, "ms": ms * factor,
                       "share": ms * factor / 75, "activities": 1,
                       "flops": flops * factor, "bytes": size * factor,
                       "roofline_ms": bound}
    yield {"phase": "optimizer", "part": "", "op": "weights", "kind": "adamw",
           "ms": 8.6, "share": 0.115, "activities": 1, "flops": 5e10,
           "bytes": 3.4e10, "roofline_ms": 7.1}


def profile(name="", fused=False):
    kernels = [
        {"name": f"nvjet_sm90_tst_{128 << i % 2}x{64 * (1 + i % 4)}_64x{i}"
                 f"_2x1_v_bz_coopB_TNT{name}", "symbol": f"k{i}",
         "class": "GEMM", "instances": 12 + i, "ms": 14 * 0.8 ** i,
         "share": 14 * 0.8 ** i / 75, "mean_us": 14e3 * 0.8 ** i / (12 + i),
         "flops": 9e12 * 0.8 ** i, "bytes": None, "tflop_per_s": 643.0,
         "gb_per_s": None, "roofline_share": 0.65}
        for i in range(24)]
    kernels.append({"name": "fused_add" if fused else "vectorized_add<float>",
                    "symbol": "e", "class": "elementwise", "instances": 4,
                    "ms": 0.9, "share": 0.012, "mean_us": 225})
    total = lambda title, ms: {"name": title, "ms": ms, "share": ms / 75,
                               "activities": 40}
    idle = {"host_wait_ms": 2.5, "kernel_wait_ms": 4.0, "other_ms": 1.5}
    return {
        "device": "NVIDIA H200",
        "step": {
            "steps": 3, "wall_ms": 77.1, "busy_ms": 74.4, "total_ms": 75.0,
            "activities": 831, "dropped": 0, "gemm_share": 0.62,
            "rates": {"product_tflop_per_s": 989.0,
                      "vector_tflop_per_s": 67.0, "gb_per_s": 4800.0},
            "classes": [total("GEMM", 46.5), total("attention", 11.0),
                        total("norm", 3.1), total("elementwise", 4.9),
                        total("optimizer", 8.6), total("copy", 0.9)],
            "phases": [total(*item) for item in PHASES.items()],
            "blocks": [total(f"block_{i}", 9.4 + 0.1 * i)
                       for i in range(BLOCKS)] + [total("outside", 16.0)],
            "attention": [
                {"phase": "forward", "scores_ms": 1.1, "softmax_ms": 0.9,
                 "values_ms": 1.2, "other_ms": 0.1},
                {"phase": "backward", "scores_ms": 0, "softmax_ms": 0,
                 "values_ms": 0, "other_ms": 7.7}],
            "kernels": kernels, "ops": list(_ops())},
        "idle": {
            "summary": "98.9 % GPU-bound, 1.1 % CPU-bound, "
                       "0.0 % communication-bound",
            "device": {"span_ms": 231, "compute_ms": 223,
                       "communication_ms": 0, **idle},
            "streams": [{"device": 0, "stream": 7, "busy_ms": 223, **idle}],
            "longest_gaps": [
                {"us": 410.5, "class": "host wait", "ended_by": "adamw<bf16>",
                 "path": "optimizer/weights"}],
            "launches": {"count": 2493, "shorter_than_launch": 120,
                         "mean_delay_us": 2100.0, "max_delay_us": 9000.0,
                         "min_queue": 0, "mean_queue": 211.5,
                         "max_queue": 700}},
        "critical_path": {"steps": 3, "ms": 77.1, "times": [
            {"kind": "kernel", "name": kernels[0]["name"], "ms": 14.0,
             "pieces": 36},
            {"kind": "launch", "name": "", "ms": 1.2, "pieces": 3}]}}


def write(folder, name="", speed=1.0, traced=True):
    """A run of 1,000 steps; `name` stands in everything that can have one."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    with open(folder / "run.jsonl", "w", encoding="utf-8") as log:
        for record in records(name, speed, traced=traced):
            log.write(json.dumps(record) + "\n")
    if traced:
        trace = folder / "trace" / "steps_20-22"
        trace.mkdir(parents=True)
        (trace / "profile.json").write_text(
            json.dumps(profile(name, fused=speed != 1.0)))
