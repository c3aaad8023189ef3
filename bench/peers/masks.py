"""The masks that a race of attention names. Needs no PyTorch.

causal, full
window_512     causal, and only the 512 latest keys, the query's own included
documents_512  sequences packed of documents of 512 tokens on average; causal
               within each document
"""

import dataclasses
import itertools

_BITS = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class Mask:
    causal: bool = True
    window: int = 0         # the latest keys that a query sees; 0 for all
    mean_document: int = 0  # tokens; 0 if each sequence is one document

    @property
    def plain(self):
        """Whether the mask is causal or full, without further limits."""
        return not self.window and not self.mean_document


def parse_mask(name):
    """The Mask of that name; raises ValueError for other names."""
    kind, _, tokens = name.partition("_")
    if name in ("causal", "full"):
        return Mask(causal=name == "causal")
    if kind in ("window", "documents") and tokens.isdecimal() and int(tokens):
        field = "window" if kind == "window" else "mean_document"
        return Mask(**{field: int(tokens)})
    raise ValueError(f"mask is '{name}'; it must be causal, full, window_512"
                     " or documents_512")


def _split_mix_64(state):
    """The random numbers of SplitMix64 (Steele, Lea and Flood, 2014)."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _BITS
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _BITS
        yield z ^ z >> 31


def document_lengths(mean, length, sequence):
    """The lengths of the documents of one sequence, which add up to `length`.
    They are uniform in [1, 2 mean - 1], drawn with the index `sequence` as the
    seed; the last one is cut. bench/measure/attention_case.cc has the same
    rule."""
    lengths, left = [], length
    for number in _split_mix_64(sequence):
        lengths.append(min(left, 1 + number % (2 * mean - 1)))
        left -= lengths[-1]
        if not left:
            return lengths


def document_begins(mask, length, sequence):
    """The first token of each document of a sequence."""
    if not mask.mean_document:
        return [0]
    lengths = document_lengths(mask.mean_document, length, sequence)
    return [0, *itertools.accumulate(lengths[:-1])]


def visible_tiles(mask, length, batch, tile=128):
    """The number of tiles of tile x tile queries and keys in which a query sees
    a key, in one head of all sequences of a causal mask. A tile's first query
    sees the earliest key, and its queries see every key from there to the
    diagonal."""
    tiles = 0
    for sequence in range(batch):
        begins = document_begins(mask, length, sequence)
        document = 0
        for query in range(0, length, tile):
            while document + 1 < len(begins) and begins[document + 1] <= query:
                document += 1
            first_key = begins[document]
            if mask.window:
                first_key = max(first_key, query - mask.window + 1)
            tiles += query // tile - first_key // tile + 1
    return tiles
