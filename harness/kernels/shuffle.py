"""A permutation of 0 .. n - 1 that looks drawn, and of which nothing is kept: any part of it is computed, both ways.

A Feistel network over rectangles: a number is a row and a column of the smallest square, or nearly, that holds all n;
in turn each is moved on by a random function of the other, which can be taken back. What falls beyond n is sent through
again until it does not (cycle walking). Of many numbers one takes twelve nanoseconds; a table of 10^8 would take half a
gigabyte.
Verifier (tests/kernels/test_shuffle.py): Python's integers, and the statistics of permutations.
"""

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.random import Index, Purpose, bits

ROUNDS, ROUNDS_OF_FEW = 4, 16
"""Four make a network of random functions look random (Luby and Rackoff, 1988) if these have many values."""
FEW = 1 << 20
LARGEST = 1 << 61


class Shuffle(NamedTuple):
    """One of the permutations of a seed."""

    n: int
    keys: Tensor
    """One a round, int64."""

    def at(self, places: Index) -> Tensor:
        """Who stands at these places."""
        return self._through(places, back=False)

    def places(self, numbers: Index) -> Tensor:
        """Where these stand."""
        return self._through(numbers, back=True)

    def _through(self, index: Index, *, back: bool) -> Tensor:
        if isinstance(index, range):
            index = torch.arange(index.start, index.stop, index.step)
        height = max(isqrt(max(self.n, 1) - 1) + 1, 1)
        sides = height, max(-(-self.n // height), 1)
        from harness.kernels.shuffle_compiled import by_loop

        return torch.from_numpy(by_loop(index.numpy(), self.n, sides, self.keys.numpy(), back))


def shuffle(seed: int, purpose: Purpose, n: int, number: int = 0) -> Shuffle:
    """The permutation of n with this number."""
    assert 0 <= n < LARGEST, n
    rounds = ROUNDS_OF_FEW if n < FEW else ROUNDS
    return Shuffle(n, bits(seed, purpose, range(rounds * number, rounds * (number + 1))))
