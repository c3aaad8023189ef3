"""Compares our tokenizer with Python's `tokenizers`: speed, and whether ids match.

    bench/compare_tokenizers.py --bench=PROGRAM --tokenizer A.json... \
        --text A.txt...

PROGRAM is bench/data:tokenizer_bench. Needs `tokenizers` (pip install
'tokenizers==0.23.*'). Prints a line of JSON for each tokenizer and text, then
a table. Exits with 1 if any ids differ.

Both sides encode the whole text on one thread, with a tokenizer that has
encoded nothing yet. MB/s are by the median CPU time of --repeats. Bytes that
are not UTF-8 are different on both sides by design, so texts must be UTF-8.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def theirs(path, text, repeats):
    """(ids, MB/s) of `tokenizers`."""
    import tokenizers
    seconds = []
    for _ in range(repeats):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        begin = time.thread_time()
        encoding = tokenizer.encode(text, add_special_tokens=False)
        seconds.append(time.thread_time() - begin)
    size = len(text.encode())
    return encoding.ids, 1e-6 * size / statistics.median(seconds)


def ours(program, path, text_path, repeats):
    """(ids, MB/s) of the bench."""
    with tempfile.TemporaryDirectory() as folder:
        ids_path = pathlib.Path(folder, "ids")
        run = subprocess.run(
            [program, f"--tokenizer={path}", f"--ids={ids_path}",
             f"--repeats={repeats}", text_path],
            check=True, capture_output=True, text=True)
        ids = memoryview(ids_path.read_bytes()).cast("i").tolist()
    return ids, json.loads(run.stdout)["mb_per_s"]


def first_difference(left, right):
    """The number of equal ids at the beginning; None if all are equal."""
    if left == right:
        return None
    pairs = zip(left, right)
    return next((i for i, (a, b) in enumerate(pairs) if a != b),
                min(len(left), len(right)))


def compare(options, path, text_path):
    text = text_path.read_bytes().decode("utf-8")
    our_ids, our_speed = ours(options.bench, path, text_path, options.repeats)
    their_ids, their_speed = theirs(path, text, options.repeats)
    row = {"tokenizer": path.stem, "text": text_path.stem,
           "bytes": len(text.encode()), "tokens": len(our_ids),
           "tessera_mb_per_s": round(our_speed, 1),
           "tokenizers_mb_per_s": round(their_speed, 1),
           "ids_match": our_ids == their_ids}
    if not row["ids_match"]:
        row["first_difference"] = first_difference(our_ids, their_ids)
    return row


def table(rows):
    lines = ["| tokenizer | text | MB | tokens | Tessera MB/s | "
             "`tokenizers` MB/s | ratio | ids match |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        speeds = row["tessera_mb_per_s"], row["tokenizers_mb_per_s"]
        lines.append(
            f"| {row['tokenizer']} | {row['text']} | {row['bytes'] / 1e6:.1f} "
            f"| {row['tokens']:,} | {speeds[0]} | {speeds[1]} "
            f"| {speeds[0] / max(speeds[1], 0.1):.1f} "
            f"| {'yes' if row['ids_match'] else 'NO'} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--tokenizer", required=True, nargs="+",
                        type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--text", required=True, nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for path in options.tokenizer:
        for text_path in options.text:
            rows.append(compare(options, path, text_path))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    return 0 if all(row["ids_match"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
