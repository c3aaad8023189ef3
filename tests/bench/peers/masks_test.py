"""Tests of bench/peers/masks.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path("bench/peers").resolve()))
from masks import (Mask, document_begins, document_lengths,  # noqa: E402
                   parse_mask, visible_tiles)


class MasksTest(unittest.TestCase):

    def test_names(self):
        self.assertEqual(parse_mask("causal"), Mask())
        self.assertEqual(parse_mask("full"), Mask(causal=False))
        self.assertEqual(parse_mask("window_512"), Mask(window=512))
        self.assertEqual(parse_mask("documents_9"), Mask(mean_document=9))
        for name in ("", "some", "window_", "window_0", "documents_-1",
                     "window_x", "full_2"):
            with self.assertRaisesRegex(ValueError, f"mask is '{name}'"):
                parse_mask(name)

    # //tests/bench/measure:attention_case_test expects the same lengths.
    def test_lengths_are_those_of_our_benches(self):
        self.assertEqual(document_lengths(512, 4096, 0),
                         [761, 88, 530, 191, 470, 676, 729, 651])
        self.assertEqual(document_lengths(512, 4096, 1),
                         [21, 86, 826, 228, 613, 684, 892, 499, 247])
        self.assertEqual(document_lengths(3, 16, 1), [1, 5, 1, 1, 2, 4, 1, 1])
        self.assertEqual(document_lengths(1, 3, 0), [1, 1, 1])

    def test_visible_tiles_are_those_with_a_visible_pair(self):
        tile, batch = 16, 3
        for name in ("causal", "window_1", "window_16", "window_17",
                     "documents_1", "documents_9", "documents_40"):
            mask = parse_mask(name)
            for length in (1, 63, 64, 100):
                seen = set()
                for sequence in range(batch):
                    begins = document_begins(mask, length, sequence)
                    for query in range(length):
                        first = max(b for b in begins if b <= query)
                        if mask.window:
                            first = max(first, query - mask.window + 1)
                        seen |= {(sequence, query // tile, key // tile)
                                 for key in range(first, query + 1)}
                self.assertEqual(visible_tiles(mask, length, batch, tile),
                                 len(seen), (name, length))


if __name__ == "__main__":
    unittest.main()
