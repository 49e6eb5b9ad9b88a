"""G3: rows are computed bin by bin and sent as soon as they exist to the ranks that need them (SIGMOD'23, section 5).

A rank has a part of the graph. In every layer it computes its bins in turn, starting with those that wait for no other
rank, and sends the rows of each bin peer to peer, without a collective between layers. In the backward pass, bins run
in reverse order and gradients travel in the opposite direction. There is no deadlock: receives are posted before
anything is computed, sends are waited for at the end of a pass, and a bin waits only for rows of the layer below.

Features of other ranks are fetched once, before training. This module combines the parts: bins (`bins`, `schedule`),
channels (eager, deferred or lock step, `messages`), the kind of layer (convolution or attention, `layers`), and the
order of computation (`pipeline`).
"""

from itertools import chain
from math import ceil
from typing import Literal

from pydantic import Field
from torch import Tensor

from harness.ledger import AxisName, Direction, Op, TensorName, apply
from harness.strategies.g3.layers import make_attentions, make_convolutions
from harness.strategies.g3.messages import Channels
from harness.strategies.g3.pipeline import Pipeline, PipelinedLayers
from harness.strategies.g3.schedule import build_schedule
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
    transposed_index_bytes,
)
from harness.strategy.models import Operators, Weights
from harness.strategy.parallel.row_strategy import RowOperators, RowStrategy

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class BinOperators(RowOperators):
    """One rank's operators; the pipeline computes the layers."""

    def __init__(self, ctx: Context, strategy: "G3") -> None:
        super().__init__(ctx, strategy, over=(P,))
        params, blocks, size = strategy.params, strategy.blocks(), strategy.bin_size
        at_once, priority = params.pipeline in ("full", "inter"), params.pipeline in ("full", "intra")
        lockstep = params.rounds or ctx.spec.machine.engine == "nccl"
        plan, set_up = build_schedule(ctx, blocks, ctx.at[P], size, priority=priority, at_once=at_once)
        make_layers = make_attentions if ctx.spec.model.kind == "gat" else make_convolutions
        inputs = [f_in for f_in, _ in strategy.shapes]
        make_layer = make_layers(ctx, plan, set_up, inputs, offload=strategy.is_offloaded)
        if params.bins_on == "host":
            on_device = "on the device: a CPU has no memory but the host's"
            ctx.measured.chosen["bins"] = "on the host" if strategy.is_offloaded else on_device
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
    combine_first_refusal = (
        "a bin aggregates rows of H and then updates them (section 2.1 of the paper), so ranks exchange rows "
        "of H"
    )
    models = ("gcn", "sage", "gat")

    class Params(MessageParams):
        """The bins, the pipelines and the channels."""

        pipeline: Literal["full", "inter", "intra", "sequential"] = "full"
        """Which work overlaps: between layers (rows leave bin by bin, a bin waits only for the rows that it needs),
        within layers (bins in the order of the priority list), both or neither."""
        bin_nodes: int = Field(1000, ge=1, examples=[5])
        """The most vertices in a bin."""
        bin_bytes: int = Field(0, ge=0, examples=[2000])
        """The most bytes of a bin's widest rows; 0 for no limit."""
        bins_on: Literal["device", "host"] = "device"
        """Where the matrices of bins are kept, and the rows that a bin's next step needs: T, or the weights of edges.
        On the host, they are copied to the device bin by bin. A CPU has only host memory, and the record says so."""
        rounds: bool = False
        """Messages are sent in rounds in which all ranks take part (lock step), as always on GPUs."""

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
    def is_offloaded(self) -> bool:
        """True if the matrices of bins, and the rows that bins keep for later, are offloaded to the host."""
        return self.params.bins_on == "host" and self.spec.machine.device != "cpu"

    @property
    def can_be_captured(self) -> bool:
        """False also with bins on the host, because every step allocates its own pinned memory to copy them."""
        return super().can_be_captured and not self.is_offloaded

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "features are fetched from other ranks once: train them with bns-gcn"
        return super().refuse()

    def operators(self, ctx: Context) -> BinOperators:
        return BinOperators(ctx, self)

    def forward(self, operators: Operators, weights: Weights) -> Tensor:
        assert isinstance(operators, BinOperators)
        kinds = [[W for W, _ in weights.layers], weights.roots, weights.attentions]
        by_layer = zip(*filter(None, kinds), strict=True)
        Z_NC: Tensor = apply(operators.ledger, PipelinedLayers, operators.pipeline, *chain(*by_layer))
        return Z_NC

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the words of rows at the boundary, forward and backward in every layer but the first."""
        words, boundary = Words(self.grid), self.boundary(at, counts)
        arriving, leaving = sum(boundary.incoming_rows().values()), sum(boundary.outgoing_rows().values())
        for layer, (f_in, _) in enumerate(self.shapes):
            if layer:
                words.add(FORWARD, layer, Op.RECV, P, TensorName.H, f_in * arriving)
                words.add(FORWARD, layer, Op.SEND, P, TensorName.H, f_in * leaving)
                words.add(BACKWARD, layer, Op.RECV, P, TensorName.DH, f_in * leaving)
                words.add(BACKWARD, layer, Op.SEND, P, TensorName.DH, f_in * arriving)
        self.add_reductions(words, P)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of A in bins, if on the device, of its transpose, of row lists and of others' features."""
        rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
        others, outside = sum(boundary.incoming_rows().values()), boundary.nonzeros()
        inside = [counts.nonzeros(rows, rows, transposed=side) for side in self.transposed_options()]
        bins = ceil(len(rows) / self.bin_size)

        def bytes_in_bins(nonzeros: int) -> int:
            """Return the bytes of a matrix in bins, each of which has one row pointer more than rows."""
            return 0 if self.is_offloaded else csr_bytes(len(rows) + bins - 1, nonzeros, precision)

        if self.spec.model.kind == "gat":
            entries = inside[0] + outside
            matrices = bytes_in_bins(entries) + transposed_index_bytes(len(rows) + others, entries)
        else:
            matrices = sum(map(bytes_in_bins, [*inside, outside])) + csr_bytes(others, outside, precision)
        held = super().memory(at, counts)
        return {
            **held,
            TensorName.A: matrices,
            TensorName.X: held[TensorName.X] + WORD[precision] * others * self.facts.features,
            TensorName.INDEX: LONG * (len(rows) + sum(boundary.outgoing_rows().values())),
        }
