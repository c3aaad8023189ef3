"""Tests of bench/peers/depth.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path("bench/peers").resolve()))
from depth import find_depth  # noqa: E402


class FindDepthTest(unittest.TestCase):

    def find(self, deepest, first, within=1):
        self.tried = []

        def trial(layers):
            self.tried.append(layers)
            return {"layers": layers,
                    "status": "OK" if layers <= deepest else "OOM"}

        best, too_many = find_depth(first, within, trial)
        return best and best["layers"], too_many

    def test_finds_the_deepest_from_any_start(self):
        for first in (1, 7, 32, 100, 1000):
            for deepest in (1, 31, 32, 33, 100):
                self.assertEqual(self.find(deepest, first),
                                 (deepest, deepest + 1))
                self.assertEqual(len(self.tried), len(set(self.tried)))

    def test_doubles_and_bisects(self):
        self.find(deepest=100, first=32, within=8)
        self.assertEqual(self.tried, [32, 64, 128, 96, 112, 104])

    def test_none_if_not_even_one_fits(self):
        self.assertEqual(self.find(deepest=0, first=8), (None, 1))


if __name__ == "__main__":
    unittest.main()
