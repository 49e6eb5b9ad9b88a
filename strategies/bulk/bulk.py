"""Matrix-based bulk sampling, the graph on every rank or in block rows (Tripathy, Yelick and Buluc, MLSys 2024).

Batches are dealt to P ranks, who sample theirs, many at once (Algorithm 1): without a word where each has the graph
(section 5.1), by products in 1.5D where it has block rows (section 5.2). Features are in P/c block rows, each on the c
ranks of a grid row; a batch's come in one all-to-all of the grid column (section 6). Gradients are averaged over all
batches of a step.

Legend: P(i, j) on a grid of P/c rows and c columns; N vertices of a layer's output, K of its input. The paper's k is
here the batches that P ranks draw at once, its b training.batch, its s the sizes of a layer.

What the paper leaves open is said in docs/strategies/bulk-sampling.md.
"""

from pydantic import Field

from harness.kernels.its import MOST
from harness.parallel.bulk import Bulk, Distribution
from harness.parallel.neighbourhood import FanoutParams, fanout_of
from harness.strategy import Context, Promise
from strategies.bulk.operators import Sampling
from strategies.bulk.scheme import BulkParams, BulkScheme


class BulkStrategy(BulkScheme):
    """The scheme with its operators."""

    def operators(self, ctx: Context) -> Sampling:
        return Sampling(ctx, self)


class SageParams(FanoutParams, BulkParams):
    """Of a sampler of neighbours, in bulk."""


class BulkSage(BulkStrategy):
    """GraphSAGE's neighbours: a product with every sample is unbiased."""

    name = "bulk-sage"
    promise = Promise.ESTIMATOR
    Params = SageParams
    params: SageParams

    @property
    def bulk(self) -> Bulk:
        sizes = self.params.fanouts
        return Bulk(
            self.spec.seed,
            "graphsage",
            tuple(fanout_of(sizes, hop) for hop in range(self.spec.model.layers)),
        )


class LadiesParams(BulkParams):
    size: int = Field(512, ge=1, le=MOST, examples=[9])
    """Vertices that are drawn in a layer."""
    distribution: Distribution = "counts"
    """By the squared number of neighbours in the batch (equation 1), or by the sum of squares of their weights."""
    replacement: bool = True
    """Whether a vertex may be drawn twice, which makes the products unbiased. The paper draws without."""


class BulkLadies(BulkStrategy):
    """LADIES' vertices of a layer: unbiased with replacement, and nearly so without."""

    name = "bulk-ladies"
    promise = Promise.ESTIMATOR
    Params = LadiesParams
    params: LadiesParams

    def promised(self) -> Promise:
        return self.promise if self.params.replacement else Promise.APPROXIMATE

    @property
    def bulk(self) -> Bulk:
        params = self.params
        return Bulk(
            self.spec.seed,
            "ladies",
            (params.size,) * self.spec.model.layers,
            params.distribution,
            params.replacement,
        )
