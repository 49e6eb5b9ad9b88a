"""G3: rows computed bin by bin, and sent to those who need them as soon as they are there (SIGMOD'23, section 5).

A rank has a part of the graph. In every layer it computes its bins one after the other, those first that wait for
nobody, and sends each bin's rows peer to peer; no collective stands between layers. Backward, bins go the other way
round, and so do gradients. Nothing can lock up: receives are posted before anything is computed, sends are waited for
when all is done, and a bin waits only for rows of the layer below.

Features are fetched from the others once, before training. Legend: N this rank's vertices, K those that it needs of
others, B those of a bin, F features in, H features out. T = A H, G = dL/dZ.
"""

from collections.abc import Iterable, Mapping
from math import ceil, prod
from typing import Any, Literal, NamedTuple

from pydantic import Field
from torch import Tensor
from torch.autograd import Function

from harness.comm.pending import Pending
from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.models import Weights
from harness.parallel.halo import Boundary
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import LONG, WORD, Context, Coordinates, Counts, Promise, Words, csr_bytes
from harness.validation import Frozen
from strategies.g3.schedule import Address, Bin, Message, schedule

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
LayerWeights = tuple[Tensor, Tensor | None]
"""W, and GraphSAGE's of what a vertex itself has."""
Arriving = dict[Address, Pending[dict[int, Tensor]]]


class Pipeline(Function):
    """All layers, forward and backward."""

    @staticmethod
    def forward(saved: Any, ops: "Binned", *weights: Tensor) -> Tensor:
        """`weights` are W of every layer, then, of GraphSAGE, those of what a vertex itself has."""
        weights, roots = weights[: ops.layers], weights[ops.layers :]
        saved.ops, saved.weights, saved.roots, saved.kept = ops, weights, roots, []
        coming = {layer: ops.post_rows(layer, W.shape[0]) for layer, W in enumerate(weights) if layer}
        H_NF, H_KF = ops.X, ops.X_K
        for layer, W_FH in enumerate(weights):
            with ops.ledger.phase(Phase.CONVOLVE, layer):
                if layer:
                    H_KF = H_NF.new_empty((ops.plan.halo, W_FH.shape[0]))
                Ws = W_FH, roots[layer] if roots else None
                T = ops.layer(layer, H_NF, H_KF, Ws, coming.get(layer, {}))
                saved.kept.append((H_NF, T.inputs))
                H_NF = T.output
        ops.finish_sends()
        return H_NF

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, ...]:
        ops, roots, gradients, own = saved.ops, saved.roots, [], []
        coming = {
            layer: ops.post_gradients(layer, W.shape[0]) for layer, W in enumerate(saved.weights) if layer
        }
        for layer in reversed(range(len(saved.weights))):
            W_FH, (H_NF, T) = saved.weights[layer], saved.kept[layer]
            root_FH = roots[layer] if roots else None
            with ops.ledger.phase(Phase.CONVOLVE, layer):
                dW_FH, dT_NF = ops.into_weights(layer, T, G_NH, W_FH)
                gradients.append(ops.over.all_reduce.later(dW_FH, tensor=TensorName.DW))
                dH_NF = None
                if root_FH is not None:
                    dW_FH = ops.kernels.gemm(H_NF.T, G_NH, TensorName.DW)
                    own.append(ops.over.all_reduce.later(dW_FH, tensor=TensorName.DW))
                    dH_NF = ops.kernels.gemm(G_NH, root_FH.T, TensorName.DH) if layer else None
                if layer:
                    G_NH = ops.into_rows(dT_NF, dH_NF, H_NF, coming[layer])
        ops.finish_sends()
        return None, *(pending.wait() for pending in [*reversed(gradients), *reversed(own)])


class Layer(NamedTuple):
    """What a layer leaves."""

    output: Tensor
    inputs: dict[int, Tensor]
    """T of every bin."""


class Binned(RowOperators):
    """One rank's bins, and its messages."""

    def __init__(self, ctx: Context, strategy: "G3") -> None:
        super().__init__(ctx, strategy, over=(P,))
        params = strategy.params
        self.at_once = params.pipeline in ("full", "inter")
        priority = params.pipeline in ("full", "intra")
        self.layers = ctx.spec.model.layers
        self.plan = schedule(ctx, strategy.blocks(), ctx.at[P], strategy.bin_size, priority=priority)
        self.order = self.plan.interior_first if self.at_once else list(range(len(self.plan.bins)))
        self.tags = 1 + max(ceil(len(block) / strategy.bin_size) for block in strategy.blocks())
        self.leaving: list[Pending[dict[int, Tensor]]] = []
        self.X_K = ctx.buffer(TensorName.X, self.plan.halo, ctx.facts.features)
        self._fetch_features()

    def _fetch_features(self) -> None:
        coming = self.post_rows(0, self.X.shape[1])
        for number, each in enumerate(self.plan.bins):
            self.send_rows(0, number, each, self.X)
        self.land(coming, list(coming), self.X_K)
        self.finish_sends()

    # Forward.

    def layer(self, layer: int, H_NF: Tensor, H_KF: Tensor, Ws: LayerWeights, coming: Arriving) -> Layer:
        """Every bin: T = A H, Z = T W + H W_root; and its rows to whoever needs them in the next layer."""
        W_FH, root_FH = Ws
        kernels, last = self.kernels, layer + 1 == self.layers
        inputs, output = {}, H_NF.new_empty((len(H_NF), W_FH.shape[1]))
        waiting = dict(coming)
        if not self.at_once:
            self.land(waiting, list(waiting), H_KF)
        for number in self.order:
            each = self.plan.bins[number]
            T_BF = kernels.spmm(each.A_NN, H_NF, TensorName.T)
            self.land(waiting, [address for address in each.needs if address in waiting], H_KF)
            kernels.spmm(each.A_NK, H_KF, TensorName.T, add_to=T_BF)
            Z_BH = kernels.gemm(T_BF, W_FH, TensorName.Z)
            if root_FH is not None:
                kernels.gemm(self.rows_of(each, H_NF, TensorName.H), root_FH, TensorName.Z, add_to=Z_BH)
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
                output.index_copy_(0, each.rows, Z_BH if last else Z_BH.relu_())
            inputs[number] = T_BF
            if self.at_once and not last:
                self.send_rows(layer + 1, number, each, output)
        if not (self.at_once or last):
            for number, each in enumerate(self.plan.bins):
                self.send_rows(layer + 1, number, each, output)
        return Layer(output, inputs)

    def post_rows(self, layer: int, width: int) -> Arriving:
        """All receives of a layer, before anything is computed."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            return {
                (peer, number): self.over.exchange.later(
                    {},
                    {peer: (len(message.slots), width)},
                    dtype=self.X.dtype,
                    tensor=TensorName.H,
                    tag=self.tag(FORWARD, layer, number),
                )
                for (peer, number), message in self.plan.messages.items()
            }

    def send_rows(self, layer: int, number: int, each: Bin, H_NF: Tensor) -> None:
        """The rows of a bin that others need in this layer."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            for peer, rows in each.sends.items():
                with self.ledger.op(Op.COPY, tensor=TensorName.H):
                    leaving = H_NF.index_select(0, rows)
                self.send(peer, leaving, TensorName.H, self.tag(FORWARD, layer, number))

    def land(self, waiting: Arriving, addresses: Iterable[Address], H_KF: Tensor) -> None:
        """Waits for these messages, puts their rows in place, and takes them off the list."""
        for address in addresses:
            arrived, slots = waiting.pop(address).wait(), self.plan.messages[address].slots
            with self.ledger.op(Op.COPY, tensor=TensorName.H):
                H_KF[slots.start : slots.stop] = arrived[address[0]]

    def rows_of(self, each: Bin, X_NF: Tensor, name: TensorName) -> Tensor:
        """Those of a bin."""
        with self.ledger.op(Op.COPY, tensor=name):
            return X_NF.index_select(0, each.rows)

    # Backward.

    def into_weights(
        self, layer: int, T: dict[int, Tensor], G_NH: Tensor, W_FH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every bin, the last first: dW += T^T G, dT = G W^T; and gradients of rows of others that are complete."""
        kernels, messages = self.kernels, self.plan.messages
        dW_FH = W_FH.new_zeros(W_FH.shape)
        dT_NF = G_NH.new_empty((len(G_NH), W_FH.shape[0] if layer else 0))
        for number in reversed(range(len(self.plan.bins))):
            each = self.plan.bins[number]
            G_BH = self.rows_of(each, G_NH, TensorName.G)
            kernels.gemm(T[number].T, G_BH, TensorName.DW, add_to=dW_FH)
            if layer:
                dT_BF = kernels.gemm(G_BH, W_FH.T, TensorName.DT)
                with self.ledger.op(Op.COPY, tensor=TensorName.DT):
                    dT_NF.index_copy_(0, each.rows, dT_BF)
                if self.at_once:
                    ready = {at: message for at, message in messages.items() if message.ready == number}
                    self.send_gradients(layer, ready, dT_NF)
        if layer and not self.at_once:
            self.send_gradients(layer, messages, dT_NF)
        return dW_FH, dT_NF

    def into_rows(self, dT_NF: Tensor, dH_NF: Tensor | None, H_NF: Tensor, coming: Arriving) -> Tensor:
        """Every bin, the last first: dH += A^T dT and what others send, in rank order; G = dH where H > 0."""
        G_NF = H_NF.new_empty(H_NF.shape)
        arrived = {} if self.at_once else {at: pending.wait() for at, pending in coming.items()}
        for number in reversed(self.order):
            each = self.plan.bins[number]
            dH_BF = self.kernels.spmm(each.A_T_NN, dT_NF, TensorName.DH)
            with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                G_NF.index_copy_(0, each.rows, dH_BF)
            for peer, rows in each.sends.items():
                at = peer, number
                dH_MF = (arrived[at] if at in arrived else coming[at].wait())[peer]
                with self.ledger.op(Op.COPY, tensor=TensorName.DH):
                    G_NF.index_add_(0, rows, dH_MF)
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.G):
            if dH_NF is not None:
                G_NF.add_(dH_NF)
            return G_NF.mul_(H_NF > 0)

    def post_gradients(self, layer: int, width: int) -> Arriving:
        """All receives of gradients of the input of a layer."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            return {
                (peer, number): self.over.exchange.later(
                    {},
                    {peer: (len(rows), width)},
                    dtype=self.X.dtype,
                    tensor=TensorName.DH,
                    tag=self.tag(BACKWARD, layer, number),
                )
                for number, each in enumerate(self.plan.bins)
                for peer, rows in each.sends.items()
            }

    def send_gradients(self, layer: int, messages: Mapping[Address, Message], dT_NF: Tensor) -> None:
        """dH = A^T dT of rows of others, each message to the owner of its rows."""
        for (peer, number), message in messages.items():
            dH_MF = self.kernels.spmm(self._returning(message), dT_NF, TensorName.DH)
            self.send(peer, dH_MF, TensorName.DH, self.tag(BACKWARD, layer, number))

    def _returning(self, message: Message) -> Csr:
        """The rows of A_KN of a message."""
        (slots, first, last, _), A_KN = message, self.plan.A_KN
        rowptr = A_KN.rowptr[slots.start : slots.stop + 1] - first
        return Csr(rowptr, A_KN.col[first:last], A_KN.val[first:last], A_KN.cols)

    # Messages.

    def tag(self, direction: Direction, layer: int, number: int) -> int:
        """One for every message between two ranks in an epoch."""
        return (2 * layer + (direction is BACKWARD)) * self.tags + number + 1

    def send(self, peer: int, rows: Tensor, tensor: TensorName, tag: int) -> None:
        self.leaving.append(
            self.over.exchange.later({peer: rows}, {}, dtype=rows.dtype, tensor=tensor, tag=tag)
        )

    def finish_sends(self) -> None:
        """Waits until everything that was sent has left."""
        for pending in self.leaving:
            pending.wait()
        self.leaving.clear()


class G3(RowStrategy):
    """G3, for any number of ranks up to the number of vertices."""

    name = "g3"
    promise = Promise.EXACT
    models = ("gcn", "sage")

    class Params(Frozen):
        """Bins, and what of the pipelines is on."""

        pipeline: Literal["full", "inter", "intra", "sequential"] = "full"
        """Between layers (rows leave bin by bin, a bin waits for its own rows alone), within (bins in the order of the
        priority list), both or neither."""
        bin_nodes: int = Field(1000, ge=1, examples=[5])
        """The most vertices in a bin."""
        bin_bytes: int = Field(0, ge=0, examples=[2000])
        """The most bytes that a bin's widest rows take, too; 0 sets no such limit."""

    params: Params

    @property
    def bin_size(self) -> int:
        """Vertices in a bin: at least one."""
        widest = WORD[self.spec.precision] * max(map(max, self.shapes))
        limit = self.params.bin_bytes // widest if self.params.bin_bytes else self.params.bin_nodes
        return max(min(limit, self.params.bin_nodes), 1)

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "features are fetched from other ranks once: train them with bns-gcn"
        if self.spec.model.order == "combine_first":
            return "a bin aggregates before it combines: use order aggregate_first"
        return super().refuse()

    def operators(self, ctx: Context) -> Binned:
        return Binned(ctx, self)

    def forward(self, operators: Binned, weights: Weights) -> Tensor:
        everything = [*(W for W, _ in weights.layers), *weights.roots]
        Z_NC: Tensor = apply(operators.ledger, Pipeline, operators, *everything)
        return Z_NC

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Rows at the boundary, at the hidden width: there and back in every layer but the first."""
        words, boundary = Words(self.grid), self._boundary(at, counts)
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
        """Rows of A in bins, at own vertices and at others', and A_KN; lists of rows; features of others."""
        rows, boundary, precision = self.rows(at), self._boundary(at, counts), self.spec.precision
        pointers = LONG * max(
            ceil(len(rows) / self.bin_size) - 1, 0
        )  # a bin's pointers are one more than its rows
        if not len(rows):
            pointers = -LONG
        own = [
            csr_bytes(len(rows), counts.nonzeros(rows, rows, transposed=side), precision) + pointers
            for side in self.sides()
        ]
        others, nonzeros = sum(boundary.arriving().values()), boundary.nonzeros()
        held = super().memory(at, counts)
        return {
            **held,
            TensorName.A: sum(own)
            + csr_bytes(len(rows), nonzeros, precision)
            + pointers
            + csr_bytes(others, nonzeros, precision),
            TensorName.X: held[TensorName.X] + WORD[precision] * others * self.facts.features,
            TensorName.INDEX: LONG * (len(rows) + sum(boundary.leaving().values())),
        }

    def _boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        return Boundary(counts, self.blocks(), at[P], range(self.grid[P]))
