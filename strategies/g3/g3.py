"""G3: rows computed bin by bin, and sent to those who need them as soon as they are there (SIGMOD'23, section 5).

A rank has a part of the graph. In every layer it computes its bins one after the other, those first that wait for
nobody, and sends each bin's rows peer to peer; no collective stands between layers. Backward, bins go the other way
round, and so do gradients. Nothing can lock up: receives are posted before anything is computed, sends are waited for
when all is done, and a bin waits only for rows of the layer below.

Features are fetched from the others once, before training. What is computed and sent when stands in `pipeline`, what a
layer computes in `convolution` and `attention`, who needs which rows in `schedule`.
"""

from itertools import chain
from math import ceil, prod
from typing import Literal

from pydantic import Field
from torch import Tensor

from harness.ledger import AxisName, Direction, Op, TensorName, apply
from harness.models import Weights
from harness.parallel.row_strategy import RowStrategy
from harness.strategy import (
    LONG,
    WORD,
    Context,
    Coordinates,
    Counts,
    Promise,
    Words,
    csr_bytes,
    turned_bytes,
)
from harness.validation import Frozen
from strategies.g3.attention import Attention
from strategies.g3.convolution import Convolution
from strategies.g3.pipeline import Binned, Pipeline

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class G3(RowStrategy):
    """G3, for any number of ranks up to the number of vertices."""

    name = "g3"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(Frozen):
        """Bins, and what of the pipelines is on."""

        pipeline: Literal["full", "inter", "intra", "sequential"] = "full"
        """Between layers (rows leave bin by bin, a bin waits for its own rows alone), within (bins in the order of the
        priority list), both or neither."""
        bin_nodes: int = Field(1000, ge=1, examples=[5])
        """The most vertices in a bin."""
        bin_bytes: int = Field(0, ge=0, examples=[2000])
        """The most bytes that a bin's widest rows take, too; 0 sets no such limit."""
        bins_on: Literal["device", "host"] = "device"
        """Where the matrices of bins are; those on the host come to the device bin by bin."""
        rounds: bool = False
        """Messages go in rounds that all ranks take part in, as on GPUs they always do."""

    params: Params

    @property
    def bin_size(self) -> int:
        """Vertices in a bin: at least one."""
        widest = WORD[self.spec.precision] * max(map(max, self.shapes))
        limit = self.params.bin_bytes // widest if self.params.bin_bytes else self.params.bin_nodes
        return max(min(limit, self.params.bin_nodes), 1)

    @property
    def outside(self) -> bool:
        """Whether the matrices of bins are where a device's memory is not."""
        return self.params.bins_on == "host" and self.spec.machine.device != "cpu"

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "features are fetched from other ranks once: train them with bns-gcn"
        if self.spec.model.order == "combine_first":
            return "a bin aggregates before it combines: use order aggregate_first"
        return super().refuse()

    def operators(self, ctx: Context) -> Binned:
        layer = Attention if self.spec.model.kind == "gat" else Convolution
        rounds = self.params.rounds or self.spec.machine.engine == "nccl"
        return Binned(
            ctx, self, layer, self.bin_size, self.params.pipeline, rounds=rounds, outside=self.outside
        )

    def forward(self, operators: Binned, weights: Weights) -> Tensor:
        kinds = [[W for W, _ in weights.layers], weights.roots, weights.attentions]
        of_layers = zip(*filter(None, kinds), strict=True)
        Z_NC: Tensor = apply(operators.ledger, Pipeline, operators, *chain(*of_layers))
        return Z_NC

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Rows at the boundary, at the hidden width: there and back in every layer but the first."""
        words, boundary = Words(self.grid), self.boundary(at, counts)
        arriving, leaving = sum(boundary.arriving().values()), sum(boundary.leaving().values())
        for layer, (f_in, _) in enumerate(self.shapes):
            if layer:
                words.put(FORWARD, layer, Op.RECV, P, TensorName.H, f_in * arriving)
                words.put(FORWARD, layer, Op.SEND, P, TensorName.H, f_in * leaving)
                words.put(BACKWARD, layer, Op.RECV, P, TensorName.DH, f_in * leaving)
                words.put(BACKWARD, layer, Op.SEND, P, TensorName.DH, f_in * arriving)
        for weight in self.weights:
            words.put(BACKWARD, weight.layer, Op.ALL_REDUCE, P, TensorName.DW, prod(weight.shape))
        words.put(FORWARD, -1, Op.ALL_REDUCE, P, TensorName.LOSS, 1)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Rows of A in bins, if on the device, and what turns them round; lists of rows; features of others."""
        rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
        others, outside = sum(boundary.arriving().values()), boundary.nonzeros()
        inside = [counts.nonzeros(rows, rows, transposed=side) for side in self.sides()]
        bins = ceil(len(rows) / self.bin_size)

        def in_bins(nonzeros: int) -> int:
            """A bin has one pointer more than rows."""
            return 0 if self.outside else csr_bytes(len(rows) + bins - 1, nonzeros, precision)

        if self.spec.model.kind == "gat":
            entries = inside[0] + outside
            matrices = in_bins(entries) + turned_bytes(len(rows) + others, entries)
        else:
            matrices = sum(map(in_bins, [*inside, outside])) + csr_bytes(others, outside, precision)
        held = super().memory(at, counts)
        return {
            **held,
            TensorName.A: matrices,
            TensorName.X: held[TensorName.X] + WORD[precision] * others * self.facts.features,
            TensorName.INDEX: LONG * (len(rows) + sum(boundary.leaving().values())),
        }
