"""A permutation of 0 .. n - 1 that looks drawn, and of which nothing is kept: any part of it is computed, both ways.

A Feistel network over rectangles: a number is a row and a column of the smallest square, or nearly, that holds all n;
in turn each is moved on by a random function of the other, which can be taken back. What falls beyond n is sent through
again until it does not (cycle walking). Of many numbers one takes five nanoseconds; a table of 10^8 would take half
a gigabyte. Two implementations, equal bit for bit: tensor operations, and for many numbers on a CPU a compiled loop.
Verifier (tests/kernels/test_shuffle.py): Python's integers, and the statistics of permutations.
"""

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.random import COMPILED_FROM, Index, Purpose, Seed, bits, mixed, shift_right, signed
from harness.kernels.splitmix import GOLDEN

ROUNDS, ROUNDS_OF_FEW = 4, 16
"""Four make a network of random functions look random (Luby and Rackoff, 1988) if these have many values."""
FEW = 1 << 20
LARGEST = 1 << 61
HIGH = 32
"""Bits of a random number that are used."""


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

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the rectangle."""
        height = max(isqrt(max(self.n, 1) - 1) + 1, 1)
        return height, max(-(-self.n // height), 1)

    def _through(self, index: Index, *, back: bool) -> Tensor:
        if isinstance(index, range):
            index = torch.arange(index.start, index.stop, index.step)
        many = index.numel() >= COMPILED_FROM and index.device.type == "cpu"
        return (by_loop if many else by_tensors)(self, index, back=back)


def shuffle(seed: Seed, purpose: Purpose, n: int, number: int = 0) -> Shuffle:
    """The permutation of n with this number."""
    assert 0 <= n < LARGEST, n
    rounds = ROUNDS_OF_FEW if n < FEW else ROUNDS
    return Shuffle(n, bits(seed, purpose, range(rounds * number, rounds * (number + 1))))


def distinct(seed: Seed, below: int, size: int, device: torch.device | None = None) -> Tensor:
    """`size` of the numbers 0 .. below - 1, ascending, each set of them as likely as any other.

    The work is that of the draw, whatever the range. Of a sample every pair's chance counts, so it takes all rounds;
    and every step draws one, so on a CPU the loop does it, however few they are.
    """
    assert 0 <= size <= below < LARGEST, (size, below)
    permutation = Shuffle(below, bits(seed, Purpose.SAMPLE, range(ROUNDS_OF_FEW)))
    index = torch.arange(size, device=device)
    way = by_loop if index.device.type == "cpu" else by_tensors
    return way(permutation, index, back=False).sort().values


def by_loop(permutation: Shuffle, index: Tensor, *, back: bool) -> Tensor:
    """With a compiled loop."""
    from harness.kernels.shuffle_compiled import walked

    n, keys = permutation
    return torch.from_numpy(walked(index.numpy(), n, permutation.sides, keys.numpy(), back))


def by_tensors(permutation: Shuffle, index: Tensor, *, back: bool) -> Tensor:
    """With tensor operations; until all are below n."""
    (n, keys), sides = permutation, permutation.sides
    found = _once(index, sides, keys, back)
    while len(outside := (found >= n).nonzero(as_tuple=True)[0]):
        found[outside] = _once(found[outside], sides, keys, back)
    return found


def _once(index: Tensor, sides: tuple[int, int], keys: Tensor, back: bool) -> Tensor:
    """Through all rounds, or back through them."""
    ends = [index // sides[1], index % sides[1]]
    for number in reversed(range(len(keys))) if back else range(len(keys)):
        moved, other = number % 2, 1 - number % 2
        step = _below(ends[other], int(keys[number]), sides[moved])
        ends[moved] = (ends[moved] + (-step if back else step)) % sides[moved]
    return ends[0] * sides[1] + ends[1]


def _below(x: Tensor, key: int, bound: int) -> Tensor:
    """A random number for each x."""
    return (shift_right(mixed(x * signed(GOLDEN) + key), HIGH) * bound) >> HIGH
