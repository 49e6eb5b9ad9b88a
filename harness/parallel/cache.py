"""Which rows of others a rank keeps at hand, by their numbers alone: a cache that stays as it is, and one that learns.

A rank's cache is a function of the graph and of the mini-batches so far. So whoever knows these knows what it asks for,
and nobody is told: formulas and replays follow the caches of others so.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Look(NamedTuple):
    """What a cache says of a mini-batch's vertices."""

    named: Tensor
    """The vertices whose rows are to be fetched: those that it lacks, and then those that it wants for itself."""
    lacking: Tensor
    """Where those that it lacks stand among the vertices that were asked for."""
    found: Tensor
    """Where the others stand, and in which slots their rows are."""
    slots: Tensor
    freed: Tensor
    """Slots that get other rows when these are there, and where these stand among `named`."""
    newcomers: Tensor


class Cache(Protocol):
    """Rows in slots."""

    vertices: Tensor
    """Those whose rows it has, slot by slot, when training begins."""
    learns: bool
    """Whether what it has hangs on the mini-batches so far."""

    def held(self) -> list[Tensor]:
        """What it keeps besides rows, all of eight bytes."""

    def look(self, vertices: Tensor) -> Look:
        """To be asked for every mini-batch, once and in turn."""


class NoCache:
    """Everything is fetched."""

    learns = False

    def __init__(self) -> None:
        self.vertices = torch.empty(0, dtype=torch.int64)

    def held(self) -> list[Tensor]:
        return []

    def look(self, vertices: Tensor) -> Look:
        everywhere = torch.arange(len(vertices), device=vertices.device)
        nothing = everywhere[:0]
        return Look(vertices, everywhere, nothing, nothing, nothing, nothing)


class Static:
    """The same rows all the time."""

    learns = False

    def __init__(self, vertices: Tensor, of: int) -> None:
        """`of` is the number of vertices in the graph."""
        self.vertices = vertices
        self._slot = torch.full((of,), -1)
        self._slot[vertices] = torch.arange(len(vertices))

    def held(self) -> list[Tensor]:
        return [self._slot]

    def look(self, vertices: Tensor) -> Look:
        slot = self._slot[vertices]
        lacking, found = (slot < 0).nonzero()[:, 0], (slot >= 0).nonzero()[:, 0]
        nothing = found[:0]
        return Look(vertices[lacking], lacking, found, slot[found], nothing, nothing)


class Evicting(Static):
    """MassiveGNN's: what was long not asked for makes room for what was often missed (their algorithm 2).

    A row that is kept has a score S_E, one at first; it decays by 1 - alpha with each mini-batch that does without it.
    Others at the boundary have a score S_A; it grows by one with each mini-batch that lacks them. After every so many
    mini-batches, rows whose S_E is no more than (1 - alpha)^every leave for those of largest S_A above zero, and the
    two take over each other's score.
    """

    learns = True

    def __init__(self, vertices: Tensor, boundary: Tensor, of: int, alpha: float, every: int) -> None:
        """It begins with the rows of `vertices`, and takes those of the boundary alone."""
        super().__init__(vertices.clone(), of)
        self.decay, self.every, self._seen = 1 - alpha, every, 0
        self.S_E = torch.ones(len(vertices), dtype=torch.float64)
        self.S_A = torch.full((of,), -torch.inf, dtype=torch.float64)
        self.S_A[boundary] = 0
        self.threshold = float(self.S_E.new_full((every,), self.decay).cumprod(0)[-1])

    def held(self) -> list[Tensor]:
        return [self._slot, self.vertices, self.S_E, self.S_A]

    def look(self, vertices: Tensor) -> Look:
        look = super().look(vertices)
        idle = torch.ones_like(self.S_E, dtype=torch.bool)
        idle[look.slots] = False
        self.S_E[idle] *= self.decay
        self.S_A[look.named] += 1
        self._seen += 1
        return self._swapped(look) if self._seen % self.every == 0 else look

    def _swapped(self, look: Look) -> Look:
        missed = ((self.S_A > 0) & (self._slot < 0)).nonzero()[:, 0]
        slots = (self.threshold >= self.S_E).nonzero()[:, 0][: len(missed)]
        wanted = top(self.S_A[missed], missed, len(slots))
        leaving = self.vertices[slots]
        self.S_A[leaving], self.S_E[slots] = self.S_E[slots], self.S_A[wanted]
        self._slot[leaving], self._slot[wanted] = -1, slots
        self.vertices[slots] = wanted
        named, newcomers = _with(look.named, wanted)
        return look._replace(named=named, freed=slots, newcomers=newcomers)


def _with(named: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The vertices of both lists, each once, those of the first as they stand; and the places of the second's."""
    named = torch.cat([named, wanted[~torch.isin(wanted, named)]])
    ascending, order = named.sort()
    return named, order[torch.searchsorted(ascending, wanted)]


def top(scores: Tensor, vertices: Tensor, number: int) -> Tensor:
    """So many of the vertices, those of the highest scores; of equal ones, whoever comes first."""
    return vertices[scores.sort(descending=True, stable=True).indices[:number]]


def elsewhere(own: range, of: int) -> Tensor:
    """All vertices but these."""
    return torch.cat([torch.arange(own.start), torch.arange(own.stop, of)])
