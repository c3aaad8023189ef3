"""Writes the training tokens of a prepared folder in other programs' formats.

    python3 bench/data/token_files.py FOLDER OUT

FOLDER comes from prepare_data, with at most 65,536 tokens in its vocabulary.
OUT/llmc.bin is a file of llm.c, OUT/megatron.bin and .idx a Megatron dataset
with a document for each of FOLDER's: for bench/data:loader_bench. --end is the
id of the token that ends a document.
"""

import argparse
import array
import pathlib
import struct

HEADER_BYTES = 64  # framework/data/read/token_file.h


def read_tokens(path):
    data = path.read_bytes()
    magic, version, token_bytes = struct.unpack_from("<8sII", data)
    if magic != b"TESSTOK\0" or version != 1 or token_bytes != 2:
        raise SystemExit(f"{path} is not a train.tok of 2 bytes per token")
    return array.array("H", data[HEADER_BYTES:])


def document_ends(tokens, end):
    ends, place = [], 0
    while place < len(tokens):
        try:
            place = tokens.index(end, place) + 1
        except ValueError:
            place = len(tokens)
        ends.append(place)
    return ends


def write_llmc(path, tokens):
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def write_megatron(prefix, tokens, ends):
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    begins = [0] + ends[:-1]
    lengths = array.array("i", [e - b for b, e in zip(begins, ends)])
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(ends), len(ends) + 1) +
        lengths.tobytes() + array.array("q", [2 * b for b in begins]).tobytes() +
        array.array("q", range(len(ends) + 1)).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--end", type=int, default=0)
    options = parser.parse_args()
    tokens = read_tokens(options.folder / "train.tok")
    options.out.mkdir(parents=True)
    write_llmc(options.out / "llmc.bin", tokens)
    write_megatron(options.out / "megatron", tokens,
                   document_ends(tokens, options.end))


if __name__ == "__main__":
    main()
