"""A sample of the boundary: which of the rows that one part needs of another travel in a step.

Both ends draw it, so nobody sends a list. The number is p b rounded up or down at random, so that its mean is p b also
where p b is below one; the rows are drawn without replacement. A row is there with probability p, whatever b is, and
1/p times what is there is unbiased.
"""

import torch
from torch import Tensor

from harness.kernels.random import Purpose, bits, uniform

Pair = tuple[int, int]
"""Who needs the rows, and who has them."""


def size_of_sample(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> int:
    """How many of so many rows travel."""
    whole = int(rate * boundary)
    last = torch.tensor([boundary])
    up = float(uniform((seed, step, *pair), Purpose.SAMPLE, last)) < rate * boundary - whole
    return min(whole + up, boundary)


def sample(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> Tensor:
    """Which of them, ascending."""
    size = size_of_sample(seed, step, pair, boundary, rate)
    drawn = bits((seed, step, *pair), Purpose.SAMPLE, range(boundary))
    return torch.argsort(drawn, stable=True)[:size].sort().values
