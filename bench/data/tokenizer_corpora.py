"""Makes texts and tokenizers for bench/compare_tokenizers.py in a folder.

    python3 bench/data/tokenizer_corpora.py --out=FOLDER --code=FOLDER2

Needs `tokenizers` and Django (pip install 'tokenizers==0.23.*' Django==5.2.*).

- code.txt: 8 MB of the C++ headers below --code, such as LibTorch's.
- english.txt: 8 MB of the documentation below --english.
- SCRIPT.txt: 2 MB in another script: the messages of Django's translations,
  drawn with replacement, because there are only 10 to 150 kB of them. Their
  words repeat more than in other text.
- PATTERN.json: tokenizers of 50,000 tokens that were learned from all of these.
"""

import argparse
import ast
import pathlib
import random
import re

LANGUAGES = {
    "arabic": ["ar", "fa"], "armenian": ["hy"], "bengali": ["bn"],
    "burmese": ["my"], "chinese": ["zh_Hans", "zh_Hant"],
    "cyrillic": ["ru", "uk", "bg"], "devanagari": ["hi", "mr", "ne"],
    "georgian": ["ka"], "greek": ["el"], "gurmukhi": ["pa"], "hebrew": ["he"],
    "japanese": ["ja"], "kannada": ["kn"], "khmer": ["km"], "korean": ["ko"],
    "latin": ["fr", "de", "pl", "tr", "vi"], "malayalam": ["ml"],
    "mongolian": ["mn"], "tamil": ["ta"], "telugu": ["te"], "thai": ["th"]}
STRINGS = re.compile(r'msgstr(?:\[\d\])? ((?:"(?:[^"\\]|\\.)*"\s*)+)')


def translations(language):
    import django
    folder = pathlib.Path(django.__file__).parent
    messages = []
    for path in sorted(folder.glob(f"**/locale/{language}/**/*.po")):
        for match in STRINGS.finditer(path.read_text("utf-8")):
            parts = re.findall(r'"(?:[^"\\]|\\.)*"', match[1])
            message = "".join(ast.literal_eval(part) for part in parts)
            if message and "Content-Type" not in message:
                messages += filter(None, message.split("\n"))
    return messages


def drawn(messages, size):
    """Messages, one per line, until they have `size` bytes."""
    rng, lines = random.Random(1), []
    while size > 0:
        lines.append(rng.choice(messages))
        size -= len(lines[-1].encode()) + 1
    return "\n".join(lines)


def files_of(folder, patterns, size):
    """The text of the files below the folder, until it has `size` bytes."""
    text = []
    for path in sorted(p for pattern in patterns for p in folder.glob(pattern)):
        if size <= 0:
            break
        try:
            text.append(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        size -= len(text[-1].encode())
    return "".join(text)


def tokenizer(name, texts):
    from tokenizers import (Regex, Tokenizer, decoders, models, normalizers,
                            pre_tokenizers, trainers)
    digits = {"llama3": r"\p{N}{1,3}", "qwen2": r"\p{N}"}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name != "gpt2":
        split = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" +
                digits[name] + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
                r"\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False,
                                     use_regex=False)])
    result = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    result.pre_tokenizer = split
    result.decoder = decoders.ByteLevel()
    if name == "qwen2":
        result.normalizer = normalizers.NFC()
    result.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=50000, min_frequency=2, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--code", required=True, type=pathlib.Path)
    parser.add_argument("--english", type=pathlib.Path,
                        default=pathlib.Path("/usr/share"))
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    texts = {name: drawn(sum(map(translations, languages), []), 2_000_000)
             for name, languages in LANGUAGES.items()}
    texts["code"] = files_of(options.code, ["**/*.h"], 8_000_000)
    texts["english"] = files_of(options.english, ["**/*.pod", "**/*.txt"],
                                8_000_000)
    for name, text in texts.items():
        (options.out / f"{name}.txt").write_text(text, "utf-8", newline="")
    for name in ("gpt2", "llama3", "qwen2"):
        path = options.out / f"{name}.json"
        tokenizer(name, texts.values()).save(str(path))
        print(path, flush=True)


if __name__ == "__main__":
    main()
