"""G3: rows are computed bin by bin and sent to the ranks that need them as soon as they exist (SIGMOD'23, section 5).

A rank has a part of the graph. In every layer it computes its bins in turn, those first that wait for no other rank,
and sends each bin's rows peer to peer; no collective stands between layers. Backward, bins run in reverse order and
gradients travel in the reverse direction. No deadlock is possible: receives are posted before anything is computed,
sends are waited for at the end of a pass, and a bin waits only for rows of the layer below.

Features of other ranks are fetched once, before training. The parts are composed here: the partition is the dataset's,
the bins are in `bins` and `schedule`, the channel (eager, deferred, lock step) in `messages`, the kind of layer
(convolution, attention) in `layers`, and the order of computation in `pipeline`.
"""

from itertools import chain
from math import ceil
from typing import Literal

from pydantic import Field
from torch import Tensor

from harness.ledger import AxisName, Direction, Op, TensorName, apply
from harness.models import Operators, Weights
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.strategies.g3.layers import attentions, convolutions
from harness.strategies.g3.messages import Channels
from harness.strategies.g3.pipeline import Pipeline, PipelinedLayers
from harness.strategies.g3.schedule import schedule
from harness.strategy import (
    LONG,
    WORD,
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Promise,
    Words,
    csr_bytes,
    turned_bytes,
)

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class BinOperators(RowOperators):
    """Input, loss and evaluation of whole rows; the pipeline computes the layers."""

    def __init__(self, ctx: Context, strategy: "G3") -> None:
        super().__init__(ctx, strategy, over=(P,))
        params, blocks, size = strategy.params, strategy.blocks(), strategy.bin_size
        at_once, priority = params.pipeline in ("full", "inter"), params.pipeline in ("full", "intra")
        lockstep = params.rounds or ctx.spec.machine.engine == "nccl"
        plan, A_NK = schedule(ctx, blocks, ctx.at[P], size, priority=priority, at_once=at_once)
        layers = attentions if ctx.spec.model.kind == "gat" else convolutions
        inputs = [f_in for f_in, _ in strategy.shapes]
        make_layer = layers(ctx, plan, self.rows, A_NK, inputs, outside=strategy.outside)
        if params.bins_on == "host":
            alone = "on the device: a CPU has no memory but the host's"
            ctx.measured.chosen["bins"] = "on the host" if strategy.outside else alone
        widths = [*inputs, ctx.facts.classes]
        most_bins = max(ceil(len(rows) / size) for rows in blocks)
        channels = Channels(
            self.over, plan, widths, self.X.dtype, most_bins, at_once=at_once, lockstep=lockstep
        )
        self.pipeline = Pipeline(ctx, self.X, plan, make_layer, channels, prefetch=priority)


class G3(RowStrategy):
    """G3, for any number of ranks up to the number of vertices."""

    name = "g3"
    paper = "G3 (SIGMOD 2023)"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(MessageParams):
        """The bins, the pipelines and the channel."""

        pipeline: Literal["full", "inter", "intra", "sequential"] = "full"
        """Between layers (rows leave bin by bin, a bin waits for its own rows alone), within (bins in the order of the
        priority list), both or neither."""
        bin_nodes: int = Field(1000, ge=1, examples=[5])
        """The most vertices in a bin."""
        bin_bytes: int = Field(0, ge=0, examples=[2000])
        """The most bytes that a bin's widest rows take; 0 sets no such limit."""
        bins_on: Literal["device", "host"] = "device"
        """The memory of the matrices of bins, and of the rows that a bin's next step needs: T, or the weights of edges.
        Those on the host are copied to the device bin by bin. A CPU has one memory, and the record says so."""
        rounds: bool = False
        """Messages go in rounds in which all ranks take part (lock step), as they always do on GPUs."""

    params: Params

    def is_owner_computes(self) -> bool:
        return True

    @property
    def bin_size(self) -> int:
        """The number of vertices in a bin: at least one."""
        widest = WORD[self.spec.precision] * max(map(max, self.shapes))
        limit = self.params.bin_bytes // widest if self.params.bin_bytes else self.params.bin_nodes
        return max(min(limit, self.params.bin_nodes), 1)

    @property
    def outside(self) -> bool:
        """True if the matrices and the embeddings of bins that wait are kept outside the device's memory."""
        return self.params.bins_on == "host" and self.spec.machine.device != "cpu"

    @property
    def can_be_captured(self) -> bool:
        """False with bins on the host: every step copies them through pinned memory of its own."""
        return super().can_be_captured and not self.outside

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "features are fetched from other ranks once: train them with bns-gcn"
        if self.spec.model.order == "combine_first":
            return "a bin aggregates before it combines: use order aggregate_first"
        return super().refuse()

    def operators(self, ctx: Context) -> BinOperators:
        return BinOperators(ctx, self)

    def forward(self, operators: Operators, weights: Weights) -> Tensor:
        assert isinstance(operators, BinOperators)
        kinds = [[W for W, _ in weights.layers], weights.roots, weights.attentions]
        of_layers = zip(*filter(None, kinds), strict=True)
        Z_NC: Tensor = apply(operators.ledger, PipelinedLayers, operators.pipeline, *chain(*of_layers))
        return Z_NC

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Rows at the boundary, at the hidden width: forward and backward in every layer but the first."""
        words, boundary = Words(self.grid), self.boundary(at, counts)
        arriving, leaving = sum(boundary.incoming_rows().values()), sum(boundary.outgoing_rows().values())
        for layer, (f_in, _) in enumerate(self.shapes):
            if layer:
                words.put(FORWARD, layer, Op.RECV, P, TensorName.H, f_in * arriving)
                words.put(FORWARD, layer, Op.SEND, P, TensorName.H, f_in * leaving)
                words.put(BACKWARD, layer, Op.RECV, P, TensorName.DH, f_in * leaving)
                words.put(BACKWARD, layer, Op.SEND, P, TensorName.DH, f_in * arriving)
        self.add_reductions(words, P)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Rows of A in bins, if on the device, and the transpose; lists of rows; features of others."""
        rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
        others, outside = sum(boundary.incoming_rows().values()), boundary.nonzeros()
        inside = [counts.nonzeros(rows, rows, transposed=side) for side in self.transposed_options()]
        bins = ceil(len(rows) / self.bin_size)

        def in_bins(nonzeros: int) -> int:
            """The bytes of all bins, each with one row pointer more than rows."""
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
            TensorName.INDEX: LONG * (len(rows) + sum(boundary.outgoing_rows().values())),
        }
