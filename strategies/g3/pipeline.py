"""The pipelines of G3: layers bin by bin, there and back, and what is sent when (SIGMOD'23, sections 5.3 and 6).

Legend: N this rank's vertices, K those that it needs of others, B those of a bin, M those of a message; F features in,
H features out; G = dL/dZ.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import ceil
from typing import Any

from torch import Tensor
from torch.autograd import Function

from harness.ledger import AxisName, Op, Phase, TensorName
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import Context
from strategies.g3.crossing import Address
from strategies.g3.layer import Here, Layer
from strategies.g3.messages import BACKWARD, FORWARD, Arriving, Coming, Messages
from strategies.g3.schedule import Message, schedule

P = AxisName.P


class Pipeline(Function):
    """All layers, forward and backward."""

    @staticmethod
    def forward(saved: Any, ops: "Binned", *weights: Tensor) -> Tensor:
        """`weights` are those of the first layer, then those of the next."""
        saved.ops, saved.layers, each = ops, [], len(weights) // ops.layers
        coming = {number: ops.post_rows(number) for number in range(1, ops.layers)}
        H_NF, H_KF = ops.X, ops.X_K
        for number in range(ops.layers):
            with ops.ledger.phase(Phase.CONVOLVE, number):
                if number:
                    H_KF = H_NF.new_empty((ops.plan.halo, ops.widths[number]))
                layer = ops.layer(ops.here, number, H_NF, H_KF, weights[number * each :][:each])
                H_NF = ops.there(layer, coming.get(number, {}))
                saved.layers.append(layer)
        ops.messages.finish()
        return H_NF

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, ...]:
        ops, gradients = saved.ops, []
        coming = {number: ops.post_gradients(number) for number in range(1, ops.layers)}
        for layer in reversed(saved.layers):
            with ops.ledger.phase(Phase.CONVOLVE, layer.number):
                ops.back(layer, G_NH)
                sums = [ops.over.all_reduce.later(dW, tensor=TensorName.DW) for dW in layer.gradients()]
                gradients = sums + gradients
                if layer.number:
                    G_NH = ops.into_rows(layer, coming[layer.number])
        ops.messages.finish()
        return None, *(pending.wait() for pending in gradients)


class Binned(RowOperators):
    """One rank's bins."""

    def __init__(
        self, ctx: Context, strategy: RowStrategy, layer: type[Layer], size: int, pipeline: str
    ) -> None:
        super().__init__(ctx, strategy, over=(P,))
        blocks = strategy.blocks()
        self.at_once, priority = pipeline in ("full", "inter"), pipeline in ("full", "intra")
        self.layer, self.layers = layer, ctx.spec.model.layers
        self.widths = [*(f_in for f_in, _ in strategy.shapes), ctx.facts.classes]
        self.plan, A_NK = schedule(ctx, blocks, ctx.at[P], size, priority=priority)
        matrices = layer.hold(ctx, self.plan, self.rows, A_NK)
        self.here = Here(self.kernels, self.layers, self.model.heads, self.plan, matrices)
        self.order = self.plan.interior_first if self.at_once else list(range(len(self.plan.bins)))
        most_bins = max(ceil(len(block) / size) for block in blocks)
        self.messages = Messages(self.over, self.widths, self.X.dtype, most_bins)
        self.X_K = ctx.buffer(TensorName.X, self.plan.halo, ctx.facts.features)
        self._fetch_features()

    def _fetch_features(self) -> None:
        coming = self.post_rows(0)
        for number in range(len(self.plan.bins)):
            self.send_rows(0, number, self.X)
        for address, pending in coming.items():
            self.land(address, pending, self.X_K)
        self.messages.finish()

    # There.

    def there(self, layer: Layer, coming: Arriving) -> Tensor:
        """Every bin's output, and its rows to whoever needs them in the next layer."""
        follows, bins = layer.number + 1, self.plan.bins
        H_NH = layer.H_NF.new_empty((len(layer.H_NF), self.widths[follows]))

        def land(addresses: Iterable[Address]) -> None:
            for address in addresses:
                if address in coming:
                    layer.arrived(self.land(address, coming.pop(address), layer.H_KF))

        if not self.at_once:
            land(list(coming))
        for number in self.order:
            Z_BH = layer.output(number, partial(land, bins[number].needs))
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
                H_NH.index_copy_(0, bins[number].rows, Z_BH if follows == self.layers else Z_BH.relu_())
            if self.at_once:
                self.send_rows(follows, number, H_NH)
        if not self.at_once:
            for number in range(len(bins)):
                self.send_rows(follows, number, H_NH)
        return H_NH

    def post_rows(self, layer: int) -> Arriving:
        """What is to come of the input of a layer."""
        rows = {at: len(message.slots) for at, message in self.plan.messages.items()}
        return self.messages.post(FORWARD, layer, rows)

    def send_rows(self, layer: int, number: int, H_NF: Tensor) -> None:
        """The rows of a bin that others need in this layer, if there is such a layer."""
        if layer == self.layers:
            return
        with self.ledger.phase(Phase.CONVOLVE, layer):
            for peer, rows in self.plan.bins[number].sends.items():
                with self.ledger.op(Op.COPY, tensor=TensorName.H):
                    H_MF = H_NF.index_select(0, rows)
                self.messages.send(FORWARD, layer, (peer, number), H_MF)

    def land(self, address: Address, coming: Coming, H_KF: Tensor) -> range:
        """Waits for a message, and puts its rows in place."""
        peer, slots = address[0], self.plan.messages[address].slots
        H_MF = coming.wait()[peer]
        with self.ledger.op(Op.COPY, tensor=TensorName.H):
            H_KF[slots.start : slots.stop] = H_MF
        return slots

    # Back.

    def back(self, layer: Layer, G_NH: Tensor) -> None:
        """Every bin, the last first; and gradients of rows of others as soon as they are complete."""
        messages = self.plan.messages if layer.number else {}
        layer.turn(G_NH)
        for number in reversed(range(len(self.plan.bins))):
            layer.from_output(number)
            if self.at_once:
                ready = {at: message for at, message in messages.items() if message.ready == number}
                self.send_gradients(layer, ready)
        if not self.at_once:
            self.send_gradients(layer, messages)

    def into_rows(self, layer: Layer, coming: Arriving) -> Tensor:
        """Every bin, the last first: dH, and what others send of it, in rank order; G = dH where H > 0."""
        G_NF = layer.H_NF.new_empty(layer.H_NF.shape)
        arrived = {} if self.at_once else {at: pending.wait() for at, pending in coming.items()}
        for number in reversed(self.order):
            each, dH_BF = self.plan.bins[number], layer.of_bin(number)
            with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                G_NF.index_copy_(0, each.rows, dH_BF)
            for peer, rows in each.sends.items():
                at = peer, number
                dH_MF = (arrived[at] if at in arrived else coming[at].wait())[peer]
                with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                    G_NF.index_add_(0, rows, dH_MF)
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.G):
            return G_NF.mul_(layer.H_NF > 0)

    def post_gradients(self, layer: int) -> Arriving:
        """What is to come of the gradient of the input of a layer."""
        bins = enumerate(self.plan.bins)
        rows = {(peer, number): len(rows) for number, each in bins for peer, rows in each.sends.items()}
        return self.messages.post(BACKWARD, layer, rows)

    def send_gradients(self, layer: Layer, messages: Mapping[Address, Message]) -> None:
        """dH of rows of others, each message to the owner of its rows."""
        for address, message in messages.items():
            self.messages.send(BACKWARD, layer.number, address, layer.of_message(message))
