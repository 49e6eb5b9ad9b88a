"""The shapes of generated graphs, which their cards and their generators share: communities, degrees, lattices."""

from math import isqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.base.validation import Frozen

SLOTS = 3
"""Possible edges at each vertex: right, down, diagonal."""
Nature = Literal["power", "clusters", "lattice"]

MIN_COMMUNITY = 16
"""The fewest vertices of a community."""
ROOM = 1.5
"""The fewest vertices of a community, compared with the mean number of neighbours that its vertices have inside."""


class CommunityLaw(Frozen):
    """The communities and the degrees of a graph of any size."""

    across: float = Field(ge=0, le=0.5)
    """The fraction of edges between the two halves of the graph."""
    growth: float = Field(gt=0, le=2)
    """The fraction of edges between the halves of all communities, over that of the communities twice as large."""
    skew: float = Field(2.0, ge=1, le=8, multiple_of=0.25)
    """The first x n ranks have x^(1 / skew) of the ends of edges."""
    divisions: int = Field(8, ge=0, le=32)
    """How often communities are divided if there is room: 8 times gives 256 communities."""

    def compute_cuts(self, n: int, degree: float) -> NDArray[np.float64]:
        """Return the fraction of edges between communities after each division, for a mean number of neighbours.

        The last division is the last that leaves room for the edges inside. No cut exceeds the cut of random vertices.
        """
        cuts: list[float] = []
        cut, share, deepest = 0.0, self.across, 0
        for division in range(1, self.divisions + 1):
            cut, share = max(cut, min(cut + share, 1 - 0.5**division)), share * self.growth
            cuts.append(cut)
            if n >> division >= max(MIN_COMMUNITY, ROOM * degree * (1 - cut)):
                deepest = division
        return np.array(cuts[:deepest])


def count_max_edges(nature: Nature, n: int, *, directed: bool) -> int:
    """Return the largest number of edges that a twin of this nature can have."""
    return sum(count_lattice_edges(n)) if nature == "lattice" else n * (n - 1) // (1 if directed else 2)


def count_lattice_edges(n: int) -> tuple[int, int]:
    """Return the number of edges in a lattice of n vertices with rows of isqrt(n): horizontal and vertical."""
    width = isqrt(n)
    return n - -(-n // width), n - width
