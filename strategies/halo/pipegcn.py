"""PipeGCN-style staleness (Wan et al., ICLR'22): a layer uses boundary rows of the previous epoch.

A layer multiplies by its neighbours' rows of the previous epoch and adds gradients of the previous epoch; the rows that
it sends now are used in the next epoch, so no rank waits for a message that it has just requested. The first epoch uses
zeros. The first layer is never stale: A X is computed once, before training (`precompute`). The result is approximate,
and this is not the authors' code. Evaluation exchanges the current rows.

Legend as in `partition_parallel`.
"""

import torch
from pydantic import Field
from torch import Tensor

from harness.comm.call import Call, CompletedCall, Pending
from harness.ledger import Direction, Op, TensorName
from harness.strategies.halo.partition_parallel import (
    BACKWARD,
    FORWARD,
    Exchange,
    LocalGraph,
    PartitionParallel,
    PartOperators,
)
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    DenseGraph,
    MessageParams,
    Promise,
    Recurrence,
)
from harness.strategy.parallel.halo import Halo

NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}


class StaleBoundary(Recurrence):
    """Rows of other parts, and the gradients that return for them, are averages over the epochs before (section 3)."""

    def __init__(self, strategy: "Pipe", graph: DenseGraph) -> None:
        super().__init__(strategy, graph)
        self.rows, self.gradients = dict[int, Tensor](), dict[int, Tensor]()
        self.seen = dict[int, tuple[Tensor, Tensor]]()

    def see(self, step: int, layer: int, H_nF: Tensor) -> Tensor:
        changes = self.strategy.needs_dH(layer) or self.strategy.combines_first(layer)
        if self.params.precompute and not changes and self.strategy.spec.model.kind != "gat":
            return super().see(step, layer, H_nF)  # A X is computed once
        m, past = self.params.features, self.rows.get(layer, torch.zeros_like(H_nF))
        self.rows[layer] = m * past + (1 - m) * H_nF.detach()
        late = past.expand(self.ranks, *past.shape).clone().requires_grad_()
        self.seen[layer] = H_nF, late
        return torch.where(self.own, H_nF, late)

    def backward(self, loss: Tensor) -> None:
        for layer, gradient in self.gradients.items():
            loss = loss + (self.seen[layer][0] * gradient).sum()
        super().backward(loss)
        m = self.params.gradients
        for layer, (_, late) in self.seen.items():
            assert late.grad is not None
            arrived = torch.where(self.own, 0, late.grad).sum(dim=0)
            past = self.gradients.get(layer, torch.zeros_like(arrived))
            self.gradients[layer] = m * past + (1 - m) * arrived


class Pipe(PartitionParallel):
    """Training with a stale boundary, for any number of parts up to the number of vertices."""

    name = "pipegcn"
    paper = "PipeGCN (ICLR 2022)"
    promise = Promise.APPROXIMATE
    stale_order_reason = (
        "boundary rows of the previous epoch are rows of H, as in the paper, and rows of H W would also depend "
        "on old weights"
    )
    can_recompute = False  # received rows are used only once, in the next epoch

    class Params(MessageParams):
        """Precomputation, and smoothing by moving averages, m times the average plus 1 - m times the received rows."""

        precompute: bool = True
        """A X is computed once, before training, if features never change: the authors' --use-pp."""

        features: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """The m of rows of H."""
        gradients: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """The m of the gradients of these rows."""

    params: Params
    recurrence = StaleBoundary

    @property
    def precompute(self) -> bool:
        return self.params.precompute

    @property
    def effective_promise(self) -> Promise:
        """Exact if no layer exchanges rows, because then no row is stale."""
        return Promise.APPROXIMATE if self.exchanging_layers else Promise.EXACT

    def operators(self, ctx: Context) -> PartOperators:
        graph = LocalGraph(ctx, self.blocks())
        return PartOperators(ctx, self, graph.build_layers(), StaleExchange(ctx, self, graph.halo))

    def widths(self) -> list[tuple[Direction, int, int]]:
        """Return the direction, layer and row width of each exchange in an epoch."""
        forward = [(FORWARD, layer, self.aggregated_width(layer)) for layer in self.exchanging_layers]
        backward = [
            (BACKWARD, layer, width)
            for _, layer, width in forward
            if self.combines_first(layer) or self.needs_dH(layer)
        ]
        return forward + backward

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held, including the moving averages of all exchanges."""
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
    """Issues the calls of an epoch, and returns the results of the previous epoch's calls."""

    def __init__(self, ctx: Context, strategy: Pipe, halo: Halo) -> None:
        super().__init__()
        self.ledger, smoothing = ctx.ledger, strategy.params
        rows = {FORWARD: sum(halo.receive), BACKWARD: len(halo.send_rows)}
        self.smoothing = {FORWARD: smoothing.features, BACKWARD: smoothing.gradients}
        self.average = {
            (direction, layer): ctx.memory.hold_zeros(NAMES[direction], rows[direction], width)
            for direction, layer, width in strategy.widths()
        }
        self.in_flight: dict[tuple[Direction, int], Pending[Tensor]] = {}

    def issue(
        self, call: Call[Tensor], direction: Direction, layer: int, step: int | None
    ) -> Pending[Tensor]:
        """Update the average with what was requested in the previous epoch, issue the call, and return the average."""
        if step is None:
            return super().issue(call, direction, layer, step)
        key, m = (direction, layer), self.smoothing[direction]
        if last := self.in_flight.pop(key, None):
            arrived = last.wait()
            with self.ledger.op(Op.COPY, tensor=NAMES[direction]):
                self.average[key].mul_(m).add_(arrived, alpha=1 - m)
        self.in_flight[key] = call.later()
        return CompletedCall(self.average[key])
