"""PipeGCN-style staleness (Wan et al., ICLR'22): a layer uses the boundary of the last epoch while the next travels.

A layer multiplies by the rows of its neighbours of one epoch before and adds gradients of one epoch before; the rows
that it sends now are used in the next epoch. No rank waits for a message that it has just requested. The first epoch
uses zeros. The first layer is never stale: A X is computed once, before training (`precompute`). The result is
approximate, and this is not the authors' code. Evaluation exchanges the current rows.

Legend as in `partition_parallel`.
"""

from pydantic import Field
from torch import Tensor

from harness.comm.call import Call, CompletedCall, Pending
from harness.ledger import Direction, Op, TensorName
from harness.parallel.halo import Halo
from harness.strategies.halo.partition_parallel import (
    BACKWARD,
    FORWARD,
    Exchange,
    LocalGraph,
    PartitionParallel,
    PartOperators,
)
from harness.strategy import WORD, Context, Coordinates, Counts, MessageParams, Promise

NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}


class Pipe(PartitionParallel):
    """Training with a stale boundary, for any number of parts up to the number of vertices."""

    name = "pipegcn"
    paper = "PipeGCN (ICLR 2022)"
    promise = Promise.APPROXIMATE
    recomputes = False  # rows that arrive are used once, in the next epoch

    class Params(MessageParams):
        """Precomputation, and smoothing: m of the average so far plus 1 - m of the rows that arrived."""

        precompute: bool = True
        """A X is computed once, before training, where features never change: the authors' --use-pp."""

        features: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """The m of the rows of H."""
        gradients: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """The m of the gradients of these rows."""

    params: Params

    @property
    def precompute(self) -> bool:
        return self.params.precompute

    def promised(self) -> Promise:
        """Training is exact if nothing travels: then no row is stale."""
        return Promise.APPROXIMATE if self.exchanging else Promise.EXACT

    def operators(self, ctx: Context) -> PartOperators:
        graph = LocalGraph(ctx, self.blocks())
        return PartOperators(ctx, self, graph.layers(), StaleExchange(ctx, self, graph.halo))

    def widths(self) -> list[tuple[Direction, int, int]]:
        """Every exchange of an epoch: direction, layer, and the width of the rows."""
        forward = [(FORWARD, layer, self.width(layer)) for layer in self.exchanging]
        backward = [
            (BACKWARD, layer, width)
            for _, layer, width in forward
            if self.combine_first or self.wants_dH(layer)
        ]
        return forward + backward

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A rank holds the averages of every exchange, too."""
        held, boundary = super().memory(at, counts), self.boundary(at, counts)
        word = WORD[self.spec.precision]
        rows = {
            FORWARD: sum(boundary.incoming_rows().values()),
            BACKWARD: sum(boundary.outgoing_rows().values()),
        }
        for direction, _, width in self.widths():
            held[NAMES[direction]] = held.get(NAMES[direction], 0) + word * width * rows[direction]
        return held


class StaleExchange(Exchange):
    """The calls of one epoch are issued, and the results of the last epoch's are used."""

    def __init__(self, ctx: Context, strategy: Pipe, halo: Halo) -> None:
        super().__init__()
        self.ledger, smoothing = ctx.ledger, strategy.params
        rows = {FORWARD: sum(halo.receive), BACKWARD: len(halo.send_rows)}
        self.smoothing = {FORWARD: smoothing.features, BACKWARD: smoothing.gradients}
        self.average = {
            (direction, layer): ctx.memory.buffer(NAMES[direction], rows[direction], width)
            for direction, layer, width in strategy.widths()
        }
        self.under_way: dict[tuple[Direction, int], Pending[Tensor]] = {}

    def issue(
        self, call: Call[Tensor], direction: Direction, layer: int, step: int | None
    ) -> Pending[Tensor]:
        """average = m average + (1 - m) arrived, with the rows or gradients that were requested one epoch before."""
        if step is None:
            return super().issue(call, direction, layer, step)
        key, m = (direction, layer), self.smoothing[direction]
        if last := self.under_way.pop(key, None):
            arrived = last.wait()
            with self.ledger.op(Op.COPY, tensor=NAMES[direction]):
                self.average[key].mul_(m).add_(arrived, alpha=1 - m)
        self.under_way[key] = call.later()
        return CompletedCall(self.average[key])
