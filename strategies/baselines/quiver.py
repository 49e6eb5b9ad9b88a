"""Quiver-style training (Tan et al., 2023): the graph on every rank, the features of popular vertices too.

Sampling says nothing. A vertex is as popular as it has listeners, the order in which Quiver fills the memory of GPUs.
It is not Quiver, which samples on GPUs, shares features over NVLink within a machine, and leaves those of no GPU in the
host's memory; ranks are all alike here.

Legend as in `scheme`.
"""

from torch import Tensor

from harness.parallel.inclusion import Stripe, listeners
from strategies.baselines.keeping import KeepingScheme


class Quiver(KeepingScheme):
    """A replicated graph, and a cache by popularity."""

    name = "quiver"

    @property
    def replicated(self) -> bool:
        return True

    def worth(self, group: int, graph: Stripe, targets: Tensor) -> Tensor:
        return listeners(graph, self.blocks(), self.facts.vertices)
