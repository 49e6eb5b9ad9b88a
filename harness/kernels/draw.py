"""So many different numbers out of a range, each set of them as likely as any other, without writing the range down.

A keyed permutation of 0 .. below - 1 (a Feistel network over a rectangle that just holds the range; numbers that fall
outside walk on) gives its first values: the work is that of the draw, whatever the range. Two implementations, equal
bit for bit: a compiled loop on a CPU, tensor operations elsewhere.
Verifier (tests/kernels/test_draw.py): the definition in Python, and the laws of drawing without replacement.
"""

from math import isqrt

import torch
from torch import Tensor

from harness.kernels.random import Purpose, Seed, bits_by_tensors, key_of

ROUNDS = 8
"""Each half is moved by the other so many times in all."""


def distinct(seed: Seed, below: int, size: int, device: torch.device | None = None) -> Tensor:
    """`size` of the numbers 0 .. below - 1, ascending, int64."""
    assert 0 <= size <= below < 1 << 48, (size, below)
    if below == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    tall = isqrt(below - 1) + 1
    shape = tall, -(-below // tall)
    key = key_of(seed, Purpose.SAMPLE)
    if device is None or device.type == "cpu":
        import numpy as np

        from harness.kernels.draw_compiled import first_of_permutation

        return torch.from_numpy(np.sort(first_of_permutation(size, below, shape, ROUNDS, key)))
    return by_tensors(size, below, shape, key, device).sort().values


def by_tensors(
    size: int, below: int, shape: tuple[int, int], key: tuple[int, int], device: torch.device
) -> Tensor:
    """The first values of the permutation, in its order."""
    drawn = _permuted(torch.arange(size, device=device), shape, key)
    while len(outside := (drawn >= below).nonzero()[:, 0]):
        drawn[outside] = _permuted(drawn[outside], shape, key)
    return drawn


def _permuted(place: Tensor, shape: tuple[int, int], key: tuple[int, int]) -> Tensor:
    """Of a rectangle of this shape, numbered row by row."""
    halves = [place // shape[1], place % shape[1]]
    for turn in range(ROUNDS):
        moved, by = turn % 2, 1 - turn % 2
        drawn = (bits_by_tensors((turn << 40) + halves[by], *key) >> 32) & ((1 << 32) - 1)
        halves[moved] = (halves[moved] + (drawn * shape[moved] >> 32)) % shape[moved]
    return halves[0] * shape[1] + halves[1]
