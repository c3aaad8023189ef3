"""Reads a run's event file with the tensorboard package and compares it to the
run's own log, value by value.

    pip install tensorboard
    python3 tests/framework/observe/read_with_tensorboard.py RUN_FOLDER

Not a Bazel test: the package and numpy are no dependency of the build.
tensorboard_test.cc checks the format itself, byte by byte.
"""

import json
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator

# Tag of the event file: type and field of run.jsonl.
TAGS = {
    "train/loss": ("step", "loss"),
    "train/grad_norm": ("step", "grad_norm"),
    "train/lr": ("step", "lr"),
    "train/loss_scale": ("step", "loss_scale"),
    "perf/step_ms": ("step", "step_ms"),
    "perf/tokens_per_s": ("step", "tokens_per_s"),
    "perf/tflops": ("step", "tflops"),
    "perf/mfu": ("step", "mfu"),
    "perf/peak_gib": ("step", "peak_gib"),
    "eval/loss": ("eval", "loss"),
    "eval/bits_per_byte": ("eval", "bits_per_byte"),
}


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def field_of(tag):
    """(record type, path of the field in it) of a tag; None if unknown."""
    group, name = tag.split("/", 1)
    if group == "gpu":
        return "step", ["gpu", name]
    if group == "phase":
        return "step", ["phases_ms", name.removesuffix("_ms")]
    if tag in TAGS:
        kind, field = TAGS[tag]
        return kind, [field]
    return None


def value_at(record, path):
    for key in path:
        record = record.get(key) if record else None
    return record


def without_set(tag):
    """("eval/loss", "code") of eval/loss/code."""
    parts = tag.split("/", 2)
    if parts[0] != "eval" or len(parts) < 3:
        return tag, None
    return "/".join(parts[:2]), parts[2]


def logged(folder, tag):
    """(step, value) of the records that have the tag's field, as far as no
    resume superseded them."""
    tag, data_set = without_set(tag)
    kind, path = field_of(tag)
    values = []
    for line in (folder / "run.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["type"] == "resume":
            values = [value for value in values if value[0] <= record["step"]]
        value = value_at(record, path)
        if (record["type"] == kind and value is not None
                and record.get("set") == data_set):
            values.append((record["step"], as_float32(value)))
    return values


def main(folder):
    if not (folder / "run.jsonl").is_file():
        sys.exit(f"{folder}: no run.jsonl there")
    accumulator = event_accumulator.EventAccumulator(
        str(folder), size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    tags = set(accumulator.Tags()["scalars"])
    unknown = sorted(
        tag for tag in tags if field_of(without_set(tag)[0]) is None)
    if unknown:
        sys.exit(f"tags that are not compared: {unknown}")
    count = 0
    for tag in sorted(tags | set(TAGS)):
        expected = logged(folder, tag)
        known = tag in tags
        events = accumulator.Scalars(tag) if known else []
        if [(event.step, event.value) for event in events] != expected:
            sys.exit(f"{tag}: {len(events)} events differ from the log's "
                     f"{len(expected)} records")
        count += len(events)
    if count == 0:
        sys.exit(f"{folder}: nothing was logged")
    print(f"{count} values agree")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
