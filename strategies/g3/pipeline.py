"""The pipelines of G3: layers bin by bin, there and back, and what is sent when (SIGMOD'23, sections 5.3 and 6).

Legend: N this rank's vertices, K those that it needs of others, B those of a bin, M those of a message; F features in,
H features out; G = dL/dZ.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import ceil
from typing import Any, TypeVar

from torch import Tensor
from torch.autograd import Function

from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.parallel.prefetch import BackgroundThread
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.strategy import Context
from strategies.g3.crossing import Address
from strategies.g3.layer import Here, Layer
from strategies.g3.messages import BACKWARD, FORWARD, Coming, Flow, Free, Held, Rounds, Way
from strategies.g3.schedule import schedule

P = AxisName.P
T = TypeVar("T")


class Pipeline(Function):
    """All layers, forward and backward."""

    @staticmethod
    def forward(saved: Any, ops: "Binned", *weights: Tensor) -> Tensor:
        """`weights` are those of the first layer, then those of the next."""
        saved.ops, saved.layers, each = ops, [], len(weights) // ops.layers
        flows = ops.flows(FORWARD)
        H_NF, H_KF = ops.X, ops.X_K
        for number in range(ops.layers):
            with ops.ledger.phase(Phase.CONVOLVE, number):
                if number:
                    H_KF = H_NF.new_empty((ops.plan.halo, ops.widths[number]))
                layer = ops.layer(ops.here, number, H_NF, H_KF, weights[number * each :][:each])
                H_NF = ops.there(layer, flows.get(number), flows.get(number + 1))
                saved.layers.append(layer)
        ops.finish()
        return H_NF

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, ...]:
        ops, gradients = saved.ops, []
        flows = ops.flows(BACKWARD)
        for layer in reversed(saved.layers):
            with ops.ledger.phase(Phase.CONVOLVE, layer.number):
                ops.back(layer, G_NH, flows.get(layer.number))
                sums = [ops.over.all_reduce.later(dW, tensor=TensorName.DW) for dW in layer.gradients()]
                gradients = sums + gradients
                if layer.number:
                    G_NH = ops.into_rows(layer, flows[layer.number])
        ops.finish()
        return None, *(pending.wait() for pending in gradients)


class Binned(RowOperators):
    """One rank's bins."""

    def __init__(
        self,
        ctx: Context,
        strategy: RowStrategy,
        layer: type[Layer],
        size: int,
        pipeline: str,
        *,
        rounds: bool,
        outside: bool,
    ) -> None:
        super().__init__(ctx, strategy, over=(P,))
        blocks = strategy.blocks()
        self.at_once, priority = pipeline in ("full", "inter"), pipeline in ("full", "intra")
        self.aside = BackgroundThread(ctx.device) if priority else None
        self.layer, self.layers = layer, ctx.spec.model.layers
        self.widths = [*(f_in for f_in, _ in strategy.shapes), ctx.facts.classes]
        self.plan, A_NK = schedule(ctx, blocks, ctx.at[P], size, priority=priority, at_once=self.at_once)
        keep = ctx.memory.kept_on_host if outside else ctx.memory.hold_matrix
        matrices = layer.hold(ctx, self.plan, self.rows, A_NK, keep)
        self.here = Here(self.kernels, ctx.device, self.layers, self.model.heads, self.plan, matrices)
        self.flow, self.most_bins = Rounds if rounds else Free, max(ceil(len(rows) / size) for rows in blocks)
        self.leaving: list[Coming] = []
        self.X_K = ctx.memory.buffer(TensorName.X, self.plan.halo, ctx.facts.features)
        self._fetch_features()

    def _fetch_features(self) -> None:
        features = self._flow(FORWARD, 0)
        for turn, number in enumerate(self.plan.listed.order(0)):
            self.send_rows(features, turn, number, self.X)
        features.end()
        for address in self.plan.messages:
            self.land(address, features, self.X_K)
        self.finish()

    def flows(self, direction: Direction) -> dict[int, Flow]:
        """Of every layer whose rows travel in an epoch: the first layer's input is there."""
        return {layer: self._flow(direction, layer) for layer in range(1, self.layers)}

    def _flow(self, direction: Direction, layer: int) -> Flow:
        width, dtype = self.widths[layer], self.X.dtype
        way = Way(self.over, direction, layer, width, dtype, self.most_bins, self.leaving)
        flow = self.flow(way, self.plan.due(direction, layer))
        return flow if self.at_once else Held(flow)

    def finish(self) -> None:
        """Waits until everything that was sent has left."""
        for pending in self.leaving:
            pending.wait()
        self.leaving.clear()

    def staged(
        self, numbers: Iterable[int], stage: Callable[[int], T], makes: TensorName
    ) -> Iterator[tuple[int, T]]:
        """Bins, each with what the layer wants of it: where layers have a pipeline, made while the last is computed."""
        each = self.aside.each(numbers, stage) if self.aside else ((i, partial(stage, i)) for i in numbers)
        for number, made in each:
            with self.ledger.op(Op.COPY, tensor=makes):
                at_hand = made()
            yield number, at_hand

    # There.

    def there(self, layer: Layer, coming: Flow | None, leaving: Flow | None) -> Tensor:
        """Every bin's output, and its rows to whoever needs them in the next layer."""
        bins, order = self.plan.bins, self.plan.listed.order(layer.number)
        H_NH = layer.H_NF.new_empty((len(layer.H_NF), self.widths[layer.number + 1]))
        waiting = dict.fromkeys(self.plan.messages if coming else ())

        def land(addresses: Iterable[Address]) -> None:
            for address in addresses:
                if coming and address in waiting:
                    del waiting[address]
                    layer.arrived(self.land(address, coming, layer.H_KF))

        if not self.at_once:
            land(list(waiting))
        elif coming:
            for number, at_hand in self.staged(order, layer.stage_begin, TensorName.H):
                layer.begin(number, at_hand)
        staged = self.staged(order, layer.stage_output, TensorName.H)
        for turn, (number, at_hand) in enumerate(staged):
            Z_BH = layer.output(number, at_hand, partial(land, bins[number].needs))
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
                H_NH.index_copy_(0, bins[number].rows, Z_BH.relu_() if leaving else Z_BH)
            if leaving:
                self.send_rows(leaving, turn, number, H_NH)
        if leaving:
            leaving.end()
        return H_NH

    def send_rows(self, leaving: Flow, turn: int, number: int, H_NF: Tensor) -> None:
        """The rows of a bin that others need."""
        with self.ledger.phase(Phase.CONVOLVE, leaving.way.layer):
            rows = {}
            for peer, needed in self.plan.bins[number].sends.items():
                with self.ledger.op(Op.COPY, tensor=TensorName.H):
                    rows[peer, number] = H_NF.index_select(0, needed)
            leaving.leave(turn, rows)

    def land(self, address: Address, coming: Flow, H_KF: Tensor) -> range:
        """Waits for a message, and puts its rows in place."""
        slots, H_MF = self.plan.messages[address].slots, coming.take(address)
        with self.ledger.op(Op.COPY, tensor=TensorName.H):
            H_KF[slots.start : slots.stop] = H_MF
        return slots

    # Back.

    def back(self, layer: Layer, G_NH: Tensor, leaving: Flow | None) -> None:
        """Every bin, the last first; and gradients of rows of others, each message to the owner of its rows."""
        layer.turn(G_NH)
        backwards = reversed(range(len(self.plan.bins)))
        staged = self.staged(backwards, layer.stage_from_output, TensorName.G)
        for turn, (number, at_hand) in enumerate(staged):
            layer.from_output(number, at_hand)
            if leaving:
                complete = self.plan.bins[number].completes
                leaving.leave(turn, {at: layer.of_message(self.plan.messages[at]) for at in complete})
        if leaving:
            leaving.end()

    def into_rows(self, layer: Layer, coming: Flow) -> Tensor:
        """Every bin's dH, and what others send of it, in rank order; G = dH where H > 0."""
        G_NF, bins = layer.H_NF.new_empty(layer.H_NF.shape), self.plan.bins
        arrived = {} if self.at_once else {at: coming.take(at) for at in coming.due}
        for number, at_hand in self.staged(range(len(bins)), layer.stage_of_bin, TensorName.G):
            dH_BF = layer.of_bin(number, at_hand)
            with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                G_NF.index_copy_(0, bins[number].rows, dH_BF)
        for number in reversed(range(len(bins))):
            for peer, rows in bins[number].sends.items():
                at = peer, number
                dH_MF = arrived[at] if at in arrived else coming.take(at)
                with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                    G_NF.index_add_(0, rows, dH_MF)
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.G):
            return G_NF.mul_(layer.H_NF > 0)
