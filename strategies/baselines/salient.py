"""SALIENT++-style training (Kaler et al., MLSys'23): a static cache of the rows that are most likely to be needed.

How likely a vertex is in a mini-batch of a rank follows from the rank's training vertices, the fan-outs and the graph
(`harness.parallel.inclusion`); the likeliest of others are kept. The graph is on every rank as theirs is, or
partitioned, to be held against `distdgl`. It is not the authors' code, which splits features by the same chances
between a GPU's memory and the host's, and prepares several mini-batches ahead.

Legend as in `scheme`.
"""

from typing import Literal

from torch import Tensor

from harness.parallel.inclusion import Stripe, inclusion
from strategies.baselines.keeping import KeepingParams, KeepingScheme


class SalientParams(KeepingParams):
    """And where the graph is."""

    graph: Literal["replicated", "partitioned"] = "replicated"
    """On every rank, or a part's rows on the rank of the part."""


class Salient(KeepingScheme):
    """A cache by inclusion probability."""

    name = "salient"
    Params = SalientParams
    params: SalientParams

    @property
    def replicated(self) -> bool:
        return self.params.graph == "replicated"

    def worth(self, group: int, graph: Stripe, targets: Tensor) -> Tensor:
        return inclusion(graph, self.blocks(), self.chances(group, targets), self.fanouts)
