"""Compares our tokenizer with Python's `tokenizers`, where that is installed.

To run the tests that need it:

    python3 -m venv venv && venv/bin/pip install 'tokenizers==0.23.*'
    bazel test --test_env=TOKENIZERS_PYTHON=$PWD/venv/bin/python \
        //tests/bench:compare_tokenizers_test
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

COMPARE = pathlib.Path("bench/compare_tokenizers.py").resolve()
BENCH = pathlib.Path("bench/data/tokenizer_bench").resolve()
FIXTURES = pathlib.Path("tests/framework/data/tokenize/fixtures").resolve()
TOKENIZERS = sorted(set(FIXTURES.glob("*.json")) -
                    {FIXTURES / "expected.json"})
PYTHON = os.environ.get("TOKENIZERS_PYTHON", sys.executable)
HAS_TOKENIZERS = subprocess.run(
    [PYTHON, "-c", "import tokenizers"], check=False,
    capture_output=True).returncode == 0


def random_text(seed):
    """Neighbouring characters of all scripts, and what tokenizers look for."""
    rng = random.Random(seed)
    # Unicode 3.2 is the same in every Python. PCRE2 knows Unicode 14.
    known = [chr(c) for c in range(0x110000)
             if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")]
    common = list(" \n\r\t'sStTlLvVeErRdDmM0123456789.,;<|>_a🚀é\u0301가각漢が")
    special = ["<|endoftext|>", "<|im_start|>", "<tool_call>", "<tool>", "café"]
    parts = []
    for _ in range(10000):
        start = rng.randrange(len(known))
        parts += rng.choices(known[start:start + 30], k=rng.randrange(5))
        parts += rng.choices(common, k=rng.randrange(5))
        if rng.random() < 0.05:
            parts.append(rng.choice(special))
    return "".join(parts)


class CompareTokenizersTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def text(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8", newline="")
        return path

    def compare(self, bench, tokenizers, texts):
        return subprocess.run(
            [PYTHON, COMPARE, f"--bench={bench}", "--repeats=1",
             "--tokenizer", *tokenizers, "--text", *texts],
            check=False, capture_output=True, text=True)

    @unittest.skipUnless(HAS_TOKENIZERS, f"{PYTHON} has no `tokenizers`")
    def test_ids_match_on_the_fixtures_and_on_random_text(self):
        texts = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
        paths = [self.text("fixtures.txt", "\n".join(texts["texts"].values()))]
        paths += [self.text(f"random{seed}.txt", random_text(seed))
                  for seed in range(3)]
        done = self.compare(BENCH, TOKENIZERS, paths)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("| yes |"), 4 * len(TOKENIZERS))

    @unittest.skipUnless(HAS_TOKENIZERS, f"{PYTHON} has no `tokenizers`")
    def test_says_where_ids_differ(self):
        wrong = self.text("bench.py", f"""#!{sys.executable}
import array, sys
ids = next(a for a in sys.argv if a.startswith("--ids=")).removeprefix("--ids=")
array.array("i", [65, 0, 67]).tofile(open(ids, "wb"))
print('{{"mb_per_s": 1}}')
""")
        wrong.chmod(0o755)
        done = self.compare(wrong, [FIXTURES / "gpt2.json"],
                            [self.text("a.txt", "`abc")])
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('"ids_match": false, "first_difference": 0', done.stdout)
        self.assertIn("| NO |", done.stdout)

    def test_the_bench_names_what_is_wrong(self):
        for tokenizer, text, message in (
                (FIXTURES / "expected.json", "a.txt", "the file has the field"),
                (self.folder / "none.json", "a.txt", "none.json"),
                (FIXTURES / "gpt2.json", "none.txt", "none.txt")):
            self.text("a.txt", "text")
            done = subprocess.run(
                [BENCH, f"--tokenizer={tokenizer}", self.folder / text],
                check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
