"""MassiveGNN-style training (Sarkar et al., CLUSTER'24): a buffer that evicts what was long not asked for.

It begins with the rows of largest degree at a part's boundary, and learns (`harness.parallel.cache.Evicting`). It is
not the authors' code, which sits in DistDGL: there a row that is missed and comes into the buffer at once is fetched
twice, and misses of a mini-batch with evictions are not counted.

Legend as in `scheme`.
"""

from pydantic import Field
from torch import Tensor

from harness.parallel.asking import inside
from harness.parallel.cache import Cache, Evicting, NoCache, top
from harness.parallel.fetching import Sizes
from harness.parallel.inclusion import Stripe, edges, listeners
from harness.strategy import Coordinates, Counts
from strategies.baselines.keeping import KeepingParams, KeepingScheme


class EvictingParams(KeepingParams):
    """Of the buffer."""

    share: float = Field(0.25, ge=0, le=1, examples=[0.0, 1.0])
    """Rows that a rank keeps, as a share of those of others at the boundary of its part."""
    alpha: float = Field(0.05, gt=0, lt=1, examples=[0.5])
    """How fast a row that is kept loses its score."""
    every: int = Field(16, ge=1, examples=[2])
    """Mini-batches between evictions."""


class MassiveGnn(KeepingScheme):
    """A cache that evicts."""

    name = "massivegnn"
    Params = EvictingParams
    params: EvictingParams

    def cache(self, group: int, member: int, graph: Stripe, targets: Tensor) -> Cache:
        if not self.kept:
            return NoCache()
        own, n = self.blocks()[member], self.facts.vertices
        reached = edges(graph(own), own)[1]
        boundary = reached[~inside(reached, own)].unique()
        degree = listeners(graph, self.blocks(), n)[boundary]
        params = self.params
        kept = top(degree, boundary, round(self.kept * len(boundary)))
        return Evicting(kept, boundary, n, params.alpha, params.every)

    def cache_sizes(self, at: Coordinates, counts: Counts) -> Sizes:
        """Two numbers a row that is kept, and two a vertex."""
        if not self.kept:
            return Sizes()
        boundary = sum(self.boundary(at, counts).arriving().values())
        rows = round(self.kept * boundary)
        return Sizes(rows, 2 * rows + 2 * self.facts.vertices)
