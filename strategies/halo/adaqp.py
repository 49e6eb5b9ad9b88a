"""AdaQP-style quantized boundaries (Wan, Zhao and Wu, MLSys'23): rows are sent as integers of 2, 4 or 8 bits.

A message is one row x of H, or of dH, with F elements. With b bits, the sender

    1. computes the zero point z = min x and the step s = (max x - min x) / (2^b - 1)       (equation 2)
    2. rounds (x - z) / s stochastically to an integer q, so that its mean is exact
    3. packs 8 / b integers into a byte, and prepends z and s;

the receiver computes z + s q, whose mean is x and whose variance is at most s^2 / 4 per element. While messages are in
flight, a rank multiplies by its own rows, which completes the vertices without neighbours on other ranks, called
central in the paper.

Gradients of weights and the rows of evaluation are sent in full precision. Legend as in `partition_parallel`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from harness.base.validation import Frozen
from harness.comm.call import Pending
from harness.kernels.csr import take
from harness.kernels.random import Purpose, random_order, uniform
from harness.ledger import Direction, Op, TensorName
from harness.strategies.halo.partition_parallel import (
    BACKWARD,
    FORWARD,
    Exchange,
    LocalGraph,
    P,
    PartitionParallel,
    PartOperators,
)
from harness.strategy import LONG, Context, Coordinates, Counts, DenseGraph, Promise, Recurrence
from harness.strategy.parallel.halo import Halo, offset_positions

WIDTHS = (2, 4, 8)
"""The bits of an integer."""
Seed = tuple[int, ...]


def quantize(x_MF: Tensor, bits: int, seed: Seed) -> Tensor:
    """Return each row as bytes: zero point and step in the type of `x_MF`, then the packed integers."""
    low_M1, high_M1 = x_MF.amin(dim=1, keepdim=True), x_MF.amax(dim=1, keepdim=True)
    step_M1 = (high_M1 - low_M1) / (2**bits - 1)
    index_MF = torch.arange(x_MF.numel(), device=x_MF.device).view(x_MF.shape)
    noise_MF = uniform(seed, Purpose.ROUNDING, index_MF, x_MF.dtype)
    scaled_MF = (x_MF - low_M1) / torch.where(step_M1 > 0, step_M1, 1)
    q_MF = (scaled_MF + noise_MF).floor().clamp(0, 2**bits - 1).to(torch.uint8)
    per_byte = 8 // bits
    q_MF = pad(q_MF, (0, -q_MF.shape[1] % per_byte)).unflatten(1, (-1, per_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=x_MF.device)
    packed = (q_MF << shifts).sum(dim=2, dtype=torch.uint8)
    return torch.cat([torch.cat([low_M1, step_M1], dim=1).view(torch.uint8), packed], dim=1)


def dequantize(message: Tensor, bits: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return the rows (M, width) that `quantize` packed."""
    head = 2 * dtype.itemsize
    low_M1, step_M1 = message[:, :head].reshape(-1).view(dtype).view(len(message), 2).split(1, dim=1)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=message.device)
    q = (message[:, head:, None] >> shifts) & (2**bits - 1)
    rows: Tensor = low_M1 + step_M1 * q.flatten(1)[:, :width].to(dtype)
    return rows


class MessageGroup(NamedTuple):
    """The messages of one bit width: their positions among sent and received rows, and their numbers by member."""

    bits: int
    leaving: Tensor
    arriving: Tensor
    send: list[int]
    receive: list[int]

    @property
    def reverse(self) -> "MessageGroup":
        """The same messages in the opposite direction."""
        return MessageGroup(self.bits, self.arriving, self.leaving, self.receive, self.send)


class QuantizedRows(Pending[Tensor]):
    """Quantized rows in flight. `wait` returns them in the order in which full rows would arrive."""

    def __init__(
        self,
        ops: "QuantizedOperators",
        rows: Tensor,
        groups: list[MessageGroup],
        layer: int,
        direction: Direction,
    ) -> None:
        """Send the rows, group by group."""
        self.ops, self.groups, self.like = ops, groups, rows
        self.tensor = TensorName.H if direction is FORWARD else TensorName.DH
        assert ops.step is not None
        seed = (ops.seed, ops.step, layer, int(direction is BACKWARD), ops.over.index)
        self.calls = [ops.send_group(rows, group, self.tensor, (*seed, group.bits)) for group in groups]

    def wait(self) -> Tensor:
        width, dtype, ledger = self.like.shape[1], self.like.dtype, self.ops.ledger
        out = self.like.new_empty(sum(len(group.arriving) for group in self.groups), width)
        for group, call in zip(self.groups, self.calls, strict=True):
            message = call.wait()
            with ledger.op(Op.ELEMENTWISE, tensor=self.tensor):
                out[group.arriving] = dequantize(message, group.bits, width, dtype)
        return out


class QuantizedOperators(PartOperators):
    """One rank's operators, which send quantized rows in training."""

    def __init__(self, ctx: Context, strategy: "AdaQP", graph: LocalGraph) -> None:
        super().__init__(ctx, strategy, graph.build_layers(), Exchange(overlap=strategy.params.overlap))
        hold = partial(ctx.memory.hold, TensorName.INDEX)
        self.groups = [
            group._replace(leaving=hold(group.leaving), arriving=hold(group.arriving))
            for group in strategy.group_messages(graph.halo, ctx.at[P])
        ]

    def fetch_rows(self, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        if self.step is None:
            return super().fetch_rows(layer, H_NF)
        leaving_MF = self.kernels.run(Op.COPY, TensorName.H, take, H_NF, self.parts[layer].halo.send_rows)
        return QuantizedRows(self, leaving_MF, self.groups, layer, FORWARD)

    def return_gradients(self, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        return QuantizedRows(self, dH_KF, [group.reverse for group in self.groups], layer, BACKWARD)

    def send_group(
        self, rows: Tensor, group: MessageGroup, tensor: TensorName, seed: Seed
    ) -> Pending[Tensor]:
        """Quantize the rows of one group and send them."""
        with self.ledger.op(Op.ELEMENTWISE, tensor=tensor):
            message = quantize(rows[group.leaving], group.bits, seed)
        sizes = {"send": group.send, "receive": group.receive}
        call = self.over.all_to_all.call(message, **sizes, tensor=tensor, words=rows.shape[1])
        return call.issue(overlap=self.exchange.overlap)


class RoundedBoundary(Recurrence):
    """Rows of other parts, and the gradients that return for them, arrive rounded (equations 2 and 3)."""

    def see(self, step: int, layer: int, H_nF: Tensor) -> Tensor:
        seen: Tensor = RoundedRows.apply(H_nF, self, step, layer)  # type: ignore[no-untyped-call]
        return seen

    def boundary(self, receiver: int, owner: int) -> Tensor:
        """Return the vertices of `owner` whose rows `receiver` multiplies by."""
        rows, columns = self.parts[receiver], self.parts[owner]
        needed: Tensor = self.graph.entries[rows, columns].any(dim=0).nonzero()[:, 0] + columns.start
        return needed

    def round_rows(self, rows: list[Tensor], ways: list[tuple[int, int]], seed: Seed) -> list[Tensor]:
        """Return the rows that one rank sends, as they arrive. `ways` are pairs of receiver and owner of the vertices.

        The messages of one bit width draw one array of random numbers, in the order of the ranks.
        """
        arrived = [each.clone() for each in rows]
        strategy = cast(AdaQP, self.strategy)
        for number, bits in enumerate(strategy.widths):
            drawn = [
                strategy.draw_widths(way, len(each))[number] for way, each in zip(ways, rows, strict=True)
            ]
            x = torch.cat([each[chosen] for each, chosen in zip(rows, drawn, strict=True)])
            index = torch.arange(x.numel()).view(x.shape)
            noise = uniform((*seed, bits), Purpose.ROUNDING, index, x.dtype)
            z, high = x.amin(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)
            s = (high - z) / (2**bits - 1)
            rounded = z + s * ((x - z) / s.where(s > 0, 1) + noise).floor()
            for each, chosen, new in zip(arrived, drawn, rounded.split(list(map(len, drawn))), strict=True):
                each[chosen] = new
        return arrived


class RoundedRows(Function):
    """The rows that each rank multiplies by: its own, and the rounded rows of others. Gradients return rounded too."""

    @staticmethod
    def forward(saved: Any, H_nF: Tensor, ops: RoundedBoundary, step: int, layer: int) -> Tensor:
        saved.ops, saved.at = ops, (step, layer)
        seen = H_nF.new_zeros(ops.ranks, *H_nF.shape)
        for own, part in enumerate(ops.parts):
            seen[own, part] = H_nF[part]
            ways = [(receiver, own) for receiver in range(ops.ranks) if receiver != own]
            rows = [H_nF[ops.boundary(*way)] for way in ways]
            arrived = ops.round_rows(rows, ways, (ops.strategy.spec.seed, step, layer, 0, own))
            for way, each in zip(ways, arrived, strict=True):
                seen[way[0], ops.boundary(*way)] = each
        return seen

    @staticmethod
    def backward(saved: Any, dSeen: Tensor) -> tuple[Tensor, None, None, None]:
        ops, (step, layer), dH = saved.ops, saved.at, torch.zeros_like(dSeen[0])
        for own, part in enumerate(ops.parts):
            dH[part] += dSeen[own, part]
            ways = [(own, owner) for owner in range(ops.ranks) if owner != own]
            rows = [dSeen[own, ops.boundary(*way)] for way in ways]
            arrived = ops.round_rows(rows, ways, (ops.strategy.spec.seed, step, layer, 1, own))
            for way, each in zip(ways, arrived, strict=True):
                dH[ops.boundary(*way)] += each
        return dH, None, None, None


class AdaQP(PartitionParallel):
    """Training with a quantized boundary, for any number of parts up to the number of vertices."""

    name = "adaqp"
    paper = "AdaQP (MLSys 2023)"
    promise = Promise.ESTIMATOR
    models = ("gcn", "sage")
    model_refusals: ClassVar[Mapping[str, str]] = {"gat": "a softmax over rounded scores is biased"}

    class Params(Frozen):
        """The bit width, and when ranks wait for messages."""

        bits: Literal[2, 4, 8, "random"] = 8
        """The bit width of all messages; or 2, 4 and 8 for a third of the messages each, drawn once."""
        overlap: bool = True
        """A rank multiplies by its own rows while the rows of others are in flight."""

    params: Params
    recurrence = RoundedBoundary

    @property
    def widths(self) -> tuple[int, ...]:
        """The bit widths of messages."""
        return WIDTHS if self.params.bits == "random" else (self.params.bits,)

    @property
    def effective_promise(self) -> Promise:
        return Promise.ESTIMATOR if self.spec.ranks > 1 else Promise.EXACT

    @property
    def rounding(self) -> float:
        """Half a step, relative to the range of a row."""
        return 0.5 / (2 ** min(self.widths) - 1) if self.spec.ranks > 1 else 0.0

    @property
    def word_bytes(self) -> float:
        return min(self.widths) / 8

    def effective_adjacency(self, graph: DenseGraph, layer: int, step: int | None) -> Tensor:
        """Return A: the rows that it multiplies equal those of serial training in the mean."""
        return graph.A

    def transmit_rows(self, x: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Quantize rows with each bit width in turn. An element has two possible values, a step apart."""
        out, bound = torch.empty_like(x), torch.empty_like(x)
        for first, bits in enumerate(self.widths):
            rows = x[first :: len(self.widths)]
            message = quantize(rows, bits, (self.spec.seed, step, bits))
            out[first :: len(self.widths)] = dequantize(message, bits, x.shape[1], x.dtype)
            steps = (rows.amax(dim=1) - rows.amin(dim=1)) / (2**bits - 1)
            bound[first :: len(self.widths)] = (steps**2 / 4)[:, None]
        return out, bound

    def group_messages(self, halo: Halo, own: int) -> list[MessageGroup]:
        """Return the messages of the rank `own` by bit width. Both ends draw the same widths, so none is sent."""
        leaving = [self.draw_widths((other, own), rows) for other, rows in enumerate(halo.send)]
        arriving = [self.draw_widths((own, owner), rows) for owner, rows in enumerate(halo.receive)]
        return [
            MessageGroup(
                bits,
                offset_positions([each[i] for each in leaving], halo.send),
                offset_positions([each[i] for each in arriving], halo.receive),
                [len(each[i]) for each in leaving],
                [len(each[i]) for each in arriving],
            )
            for i, bits in enumerate(self.widths)
        ]

    def draw_widths(self, pair: tuple[int, int], rows: int) -> list[Tensor]:
        """Draw the messages of each bit width among those from the second to the first rank of a pair."""
        if len(self.widths) == 1:
            return [torch.arange(rows)]
        drawn = random_order((self.spec.seed, *pair), Purpose.SAMPLE, range(rows))
        return [drawn[first :: len(self.widths)].sort().values for first in range(len(self.widths))]

    def operators(self, ctx: Context) -> QuantizedOperators:
        return QuantizedOperators(ctx, self, LocalGraph(ctx, self.blocks()))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held, including the positions of all messages."""
        held, boundary = super().memory(at, counts), self.boundary(at, counts)
        messages = sum(boundary.incoming_rows().values()) + sum(boundary.outgoing_rows().values())
        held[TensorName.INDEX] = held.get(TensorName.INDEX, 0) + LONG * messages
        return held
