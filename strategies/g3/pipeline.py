"""The pipelines of G3: the forward and backward passes bin by bin (SIGMOD'23, sections 5.3 and 6).

Legend: N this rank's vertices, K the vertices of others that it needs, B the vertices of a bin, M of a message; F
features in, H features out; G = dL/dZ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd import Function

from harness.comm.call import Pending
from harness.ledger import Op, Phase, TensorName
from harness.strategies.g3.layers import BinLayer, Inputs, MakeLayer
from harness.strategies.g3.messages import BACKWARD, FORWARD, Channels, Messages
from harness.strategies.g3.schedule import Address, Schedule
from harness.strategy import Context
from harness.strategy.parallel.prefetch import BackgroundThread


class PipelinedLayers(Function):
    """All layers as one autograd function of their weights, layer by layer."""

    @staticmethod
    def forward(saved: Any, pipeline: "Pipeline", *weights: Tensor) -> Tensor:
        saved.pipeline = pipeline
        saved.layers, Z_NC = pipeline.forward(weights)
        return Z_NC

    @staticmethod
    def backward(saved: Any, G_NC: Tensor) -> tuple[Tensor | None, ...]:
        return None, *saved.pipeline.backward(saved.layers, G_NC)


class Pipeline:
    """The layers of one rank, computed bin by bin.

    If the channels send immediately, layers overlap: rows leave bin by bin, and a bin waits only for the rows that it
    needs. With `prefetch`, work within a layer overlaps: a bin's inputs are gathered while the previous bin computes.
    """

    def __init__(
        self,
        ctx: Context,
        X: Tensor,
        plan: Schedule,
        make_layer: MakeLayer,
        channels: Channels,
        *,
        prefetch: bool,
    ) -> None:
        self.ledger, self.plan, self.make_layer, self.channels = ctx.ledger, plan, make_layer, channels
        self.thread = BackgroundThread(ctx.device, ctx.ledger) if prefetch else None
        self.X, self.X_K = X, ctx.memory.hold_zeros(TensorName.X, plan.halo, X.shape[1])
        self._fetch_features()

    def forward(self, weights: Sequence[Tensor]) -> tuple[list[BinLayer], Tensor]:
        """Return the layers, and the output of the last."""
        layers: list[BinLayer] = []
        messages, widths = self.channels.open_pass(FORWARD), self.channels.widths
        layer_count = len(widths) - 1
        weights_per_layer = len(weights) // layer_count
        H_NF, H_KF = self.X, self.X_K
        for number in range(layer_count):
            with self.ledger.phase(Phase.CONVOLVE, number):
                if number:
                    H_KF = H_NF.new_empty((self.plan.halo, widths[number]))
                layer_weights = weights[number * weights_per_layer :][:weights_per_layer]
                layer = self.make_layer(number, H_NF, H_KF, layer_weights)
                H_NF = self._run_forward(layer, messages.get(number), messages.get(number + 1))
                layers.append(layer)
        self.channels.wait_for_sends()
        return layers, H_NF

    def backward(self, layers: Sequence[BinLayer], G_NH: Tensor) -> list[Tensor]:
        """Return the weights' gradients. Those of a layer are summed over ranks while lower layers are computed."""
        sums: list[Pending[Tensor]] = []
        messages, over = self.channels.open_pass(BACKWARD), self.channels.over
        for layer in reversed(layers):
            with self.ledger.phase(Phase.CONVOLVE, layer.number):
                self._run_backward(layer, G_NH, messages.get(layer.number))
                all_reduce = partial(over.all_reduce.later, tensor=TensorName.DW)
                sums = [*map(all_reduce, layer.weight_gradients()), *sums]
                if layer.number:
                    G_NH = self._compute_input_gradient(layer, messages[layer.number])
        self.channels.wait_for_sends()
        return [pending.wait() for pending in sums]

    # Forward.

    def _run_forward(self, layer: BinLayer, incoming: Messages | None, outgoing: Messages | None) -> Tensor:
        """Compute H_NH of a layer bin by bin, and send the rows that other ranks need in the next layer."""
        bins, order = self.plan.bins, self.plan.order.in_layer(layer.number)
        H_NH = layer.H_NF.new_empty((len(layer.H_NF), self.channels.widths[layer.number + 1]))
        waiting = dict.fromkeys(self.plan.messages if incoming else ())

        def receive(addresses: Iterable[Address]) -> None:
            for address in addresses if waiting else ():
                if incoming and address in waiting:
                    del waiting[address]
                    layer.use_rows(self._receive_rows(address, incoming, layer.H_KF))

        # 1. Wait for all rows; or, in a pipeline between layers, multiply this rank's own rows while others arrive.
        if not self.channels.at_once:
            receive(list(waiting))
        elif incoming:
            for number, inputs in self._gather_for_bins(order, layer.gather_for_own_rows, TensorName.H):
                layer.multiply_own_rows(number, inputs)
        # 2. Complete each bin when its rows have arrived, and send the rows that others need.
        gathered = self._gather_for_bins(order, layer.gather_for_output, TensorName.H)
        for turn, (number, inputs) in enumerate(gathered):
            Z_BH = layer.compute_output(number, inputs, partial(receive, bins[number].needs))
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
                H_NH.index_copy_(0, bins[number].rows, Z_BH.relu_() if outgoing else Z_BH)
            if outgoing:
                self._send_rows(outgoing, turn, number, H_NH)
        if outgoing:
            outgoing.finish()
        return H_NH

    def _send_rows(self, outgoing: Messages, turn: int, number: int, H_NF: Tensor) -> None:
        """Send to each peer the rows of a bin that it needs."""
        with self.ledger.phase(Phase.CONVOLVE, outgoing.channel.layer):
            rows = {}
            for peer, needed in self.plan.bins[number].sends.items():
                with self.ledger.op(Op.COPY, tensor=TensorName.H):
                    rows[peer, number] = H_NF.index_select(0, needed)
            outgoing.send(turn, rows)

    def _receive_rows(self, address: Address, incoming: Messages, H_KF: Tensor) -> range:
        """Wait for a message, copy its rows to their slots in H_K, and return the slots."""
        slots, H_MF = self.plan.messages[address].slots, incoming.receive(address)
        with self.ledger.op(Op.COPY, tensor=TensorName.H):
            H_KF[slots.start : slots.stop] = H_MF
        return slots

    def _fetch_features(self) -> None:
        """Fetch X at K, once before training."""
        messages = self.channels.open(FORWARD, 0)
        for turn, number in enumerate(self.plan.order.in_layer(0)):
            self._send_rows(messages, turn, number, self.X)
        messages.finish()
        for address in self.plan.messages:
            self._receive_rows(address, messages, self.X_K)
        self.channels.wait_for_sends()

    # Backward.

    def _run_backward(self, layer: BinLayer, G_NH: Tensor, outgoing: Messages | None) -> None:
        """Run the bins in reverse order, and send the gradients of other ranks' rows as soon as they are complete."""
        layer.begin_backward(G_NH)
        numbers = reversed(range(len(self.plan.bins)))
        gathered = self._gather_for_bins(numbers, layer.gather_for_backward, TensorName.G)
        for turn, (number, inputs) in enumerate(gathered):
            layer.backward(number, inputs)
            if outgoing:
                complete = self.plan.bins[number].completes
                rows = {each: layer.compute_message_gradient(self.plan.messages[each]) for each in complete}
                outgoing.send(turn, rows)
        if outgoing:
            outgoing.finish()

    def _compute_input_gradient(self, layer: BinLayer, incoming: Messages) -> Tensor:
        """Return G of the layer below: each bin's dH plus the dH that others return, in rank order, where H > 0."""
        G_NF, bins = layer.H_NF.new_empty(layer.H_NF.shape), self.plan.bins
        received: dict[Address, Tensor] = {}
        if not self.channels.at_once:
            received = {address: incoming.receive(address) for address in incoming.incoming}
        gathered = self._gather_for_bins(range(len(bins)), layer.gather_for_gradient, TensorName.G)
        for number, inputs in gathered:
            dH_BF = layer.compute_gradient(number, inputs)
            with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                G_NF.index_copy_(0, bins[number].rows, dH_BF)
        for number in reversed(range(len(bins))):
            for peer, rows in bins[number].sends.items():
                address = peer, number
                dH_MF = received[address] if address in received else incoming.receive(address)
                with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                    G_NF.index_add_(0, rows, dH_MF)
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.G):
            return G_NF.mul_(layer.H_NF > 0)

    def _gather_for_bins(
        self, numbers: Iterable[int], gather: Callable[[int], Inputs], makes: TensorName
    ) -> Iterator[tuple[int, Inputs]]:
        """Yield each bin's number and the inputs of a step; with prefetch, gathered while the previous bin computes."""
        if self.thread:
            pending = self.thread.prefetch_each(numbers, gather)
        else:
            pending = ((number, partial(gather, number)) for number in numbers)
        for number, wait in pending:
            with self.ledger.op(Op.COPY, tensor=makes):
                inputs = wait()
            yield number, inputs
