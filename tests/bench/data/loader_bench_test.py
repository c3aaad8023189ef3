"""Runs loader_bench on the files of token_files.py."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

LOADER_BENCH = pathlib.Path("bench/data/loader_bench").resolve()
PREPARE_DATA = pathlib.Path("trainers/prepare_data").resolve()
TOKEN_FILES = pathlib.Path("bench/data/token_files.py").resolve()
DOCUMENTS = 50
END = 256  # of the byte tokenizer


def run(*command):
    return subprocess.run([str(word) for word in command], check=False,
                          capture_output=True, universal_newlines=True)


class LoaderBenchTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tokens = pathlib.Path(scratch.name, "tokens")
        self.files = pathlib.Path(scratch.name, "files")
        text = pathlib.Path(scratch.name, "text")
        text.write_text("|".join("word " * i for i in range(1, DOCUMENTS + 1)))
        done = run(PREPARE_DATA, text, "--separator=|", "--tokenizer=bytes",
                   "--validation_fraction=0", f"--out={self.tokens}")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(sys.executable, TOKEN_FILES, self.tokens, self.files,
                   f"--end={END}")
        self.assertEqual(done.returncode, 0, done.stderr)

    def lines(self, *arguments):
        done = run(LOADER_BENCH, "--context_length=16", "--batch_size=2",
                   "--batches=3", "--vocab_size=257", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_times_every_format(self):
        lines = self.lines(self.tokens, self.files / "llmc.bin",
                           self.files / "megatron.bin")
        lines += self.lines("--separate", self.tokens,
                            self.files / "megatron.bin")
        self.assertEqual([line["documents"] for line in lines],
                         3 * ["JOINED"] + 2 * ["SEPARATE"])
        for line in lines:
            self.assertGreater(line["mtokens_per_s"], 0)
            self.assertEqual(line["batches"], 3)

    def test_megatron_has_the_documents_of_the_folder(self):
        index = (self.files / "megatron.idx").read_bytes()
        _, _, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
        self.assertEqual((sequences, entries), (DOCUMENTS, DOCUMENTS + 1))
        lengths = struct.unpack_from(f"<{DOCUMENTS}i", index, 34)
        self.assertEqual(lengths, tuple(5 * i + 1
                                        for i in range(1, DOCUMENTS + 1)))

    def test_says_what_is_missing(self):
        done = run(LOADER_BENCH)
        self.assertEqual(done.returncode, 2)
        self.assertIn("token files are required", done.stderr)
        (self.tokens / "train.tok").write_bytes(bytes(100))
        done = run(sys.executable, TOKEN_FILES, self.tokens, self.files)
        self.assertEqual(done.returncode, 1)
        self.assertIn("train.tok is not", done.stderr)


if __name__ == "__main__":
    unittest.main()
