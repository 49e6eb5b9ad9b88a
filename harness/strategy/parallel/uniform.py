"""Uniform vertex sampling: every rank computes the whole sample and takes its part.

A sample is a function of seed, group and step, so the ranks of a group compute the same sample without communication,
and different groups have different samples (ScaleGNN, section III-D).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.device import upload
from harness.kernels import Csr
from harness.kernels.induced import induced_pair, induced_submatrix
from harness.kernels.shuffle import sample_distinct
from harness.strategy import MiniBatch


@dataclass(frozen=True)
class UniformSampler:
    """Samples `size` vertices of the graph without replacement."""

    seed: int
    vertices: int
    size: int

    def sample(self, step: int, group: int) -> Tensor:
        """Return the sample of a step, ascending."""
        return sample_distinct((self.seed, group, step), self.vertices, self.size)

    @property
    def inclusion_probability(self) -> float:
        """The probability that a vertex is in a sample, given another vertex of the sample (equation 23)."""
        return (self.size - 1) / (self.vertices - 1) if self.size > 1 else 1.0

    def mini_batch(self, step: int, group: int, A: Csr, layers: int) -> MiniBatch:
        """Return the sample and its rescaled subgraph, the same in all layers."""
        S = self.sample(step, group)
        A_S = induced_submatrix(A, S, S, 0, self.inclusion_probability)
        return MiniBatch([S] * (layers + 1), [A_S] * layers)


def find_places(S: Tensor, block: range) -> range:
    """Return the range of positions in an ascending sample whose vertices are in a block, by binary search."""
    first, last = torch.searchsorted(S, torch.tensor([block.start, block.stop], device=S.device)).tolist()
    return range(first, last)


class BlockSampler:
    """Samples a rank's part of every step's subgraph from its block of A."""

    def __init__(self, A: Csr, rows: range, cols: range) -> None:
        """`A` is the block A[rows, cols]."""
        self._A, self._rows, self._cols = A, rows, cols
        # A replay needs the values of the sample, so it samples on the host.
        self._device = torch.device("cpu") if A.val.is_meta else A.val.device

    def sample(self, S: Tensor, probability: float) -> tuple[Csr, Csr]:
        """Return this rank's part of the subgraph induced by S, and its transpose (the four phases of Algorithm 2).

        Off-diagonal entries are divided by `probability`. S is on the host, so that no device is synchronized for
        positions; the subgraph is on the device of A.
        """
        rows, cols = (
            upload(S[_slice(find_places(S, part))] - part.start, self._device)
            for part in (self._rows, self._cols)
        )
        return induced_pair(self._A, rows, cols, self._rows.start - self._cols.start, probability)


def _slice(places: range) -> slice:
    return slice(places.start, places.stop)
