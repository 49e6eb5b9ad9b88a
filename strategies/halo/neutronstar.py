"""NeutronStar-style training (Wang et al., SIGMOD'22): a row of another part is fetched, or computed as a replica.

For every layer and every vertex at its boundary a part compares two costs: to fetch the row in every epoch, or to
compute it together with all rows below it, down to features, which are copied once. Both ways are exact. A replicated
row is differentiated on each rank for that rank's losses, and the gradients add up. This is not the authors' code:
costs are counted in flops and words; the authors measure costs on the machine.

Legend as in `partition_parallel`, except that N are this rank's own vertices and then its replicas of other ranks'
vertices. A layer has rows of H at N and makes rows at N', the first of N.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.errors import UserError
from harness.kernels import Csr, transpose
from harness.kernels.csr import take
from harness.kernels.jit import compiled
from harness.kernels.parts import (
    build_scatter_matrix,
    extract_block,
    hstack,
    nonempty_columns,
    select_columns,
    select_rows,
)
from harness.ledger import TensorName
from harness.models import Part as WeightPart
from harness.parallel.halo import Boundary, Halo
from harness.parallel.row_attention import Edges, build_edges
from harness.parallel.row_requests import is_in_block
from harness.strategies.halo.partition_parallel import (
    Exchange,
    LayerPart,
    P,
    PartitionParallel,
    PartMatrices,
    PartOperators,
)
from harness.strategy import (
    LONG,
    WORD,
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Once,
    Promise,
    csr_bytes,
    every_time,
    turned_bytes,
)

# The vertices of other parts that a part computes itself, with all rows that this takes.
#
# A vertex at height k has been computed through k layers; this takes its neighbours at height k - 1, and so on down
# to the features at height 0. Every vertex is its own neighbour, so a vertex at one height is at all heights below.
# Neighbours of a block are raised from height to height, at each height those with the shortest rows first. A vertex
# is raised only if the rows that this adds cost less than the vertex is worth: the greedy choice of NeutronStar
# (SIGMOD'22). Verifier (tests/kernels/test_closure.py): sets.


class Prices(NamedTuple):
    """The prices by height, all in one unit."""

    worth: Sequence[float]
    """The saving if a vertex is at that height: its row is not fetched."""
    vertex: Sequence[float]
    """The cost of raising a vertex from the ground to that height."""
    entry: Sequence[float]
    """The additional cost for every entry of the vertex's row."""


def heights(A: Csr, own: range, prices: Prices, room: int, wanted: Tensor | None = None) -> Tensor:
    """The height of every vertex on the rank that owns a block: -1 if absent, above all layers for its own vertices.

    int8; `room` is the largest number of vertices of other parts that the rank takes. `wanted` is the boundary of the
    block, if it is known.
    """

    rows = A.rowptr.numpy(), A.col.numpy()
    vertex, entry = (np.array([0.0, *each]) for each in (prices.vertex, prices.entry))
    height = np.full(A.cols, -1, np.int8)
    height[own.start : own.stop] = len(prices.worth)
    wanted = boundary(A, own) if wanted is None else wanted
    lengths = take(A.rowptr, wanted + 1) - take(A.rowptr, wanted)
    shortest_first = wanted[lengths.argsort(stable=True)].numpy()
    for level, worth in enumerate(prices.worth):
        room -= raise_each(rows, (vertex, entry), height, shortest_first, level, (float(worth), room))
    return torch.from_numpy(height)


def boundary(A: Csr, own: range) -> Tensor:
    """The vertices outside a block at which its rows have entries, ascending."""
    cols = nonempty_columns(extract_block(A, own, range(A.cols)))
    return cols[(cols < own.start) | (cols >= own.stop)]


# The compiled loops.
#
# Heights fall along the search, so the search reaches a vertex once at most, and a vertex that was raised in vain
# can be put back.

Rows = tuple[Any, Any]
"""Row pointers and columns."""
Costs = tuple[Any, Any]
"""The costs of a vertex and of an entry of its row up to each height; the first entry is for absence, height -1."""
Limits = tuple[float, int]
"""The cost that raising a vertex must stay below, and the number of absent vertices that may become present."""


@compiled()
def raise_each(A: Rows, costs: Costs, height: Any, wanted: Any, level: int, limits: Limits) -> int:
    """Raises vertices to a level, one after the other, where this pays; returns the number of new vertices."""
    log = np.empty(height.size, np.int64), np.empty(height.size, np.int8)
    worth, room = limits
    for v in wanted:
        if height[v] < level:
            room -= _raise(A, costs, height, log, v, level, (worth, room))
    return limits[1] - room


@compiled()
def _raise(
    A: Rows, costs: Costs, height: Any, log: tuple[Any, Any], first: int, level: int, limits: Limits
) -> int:
    """Raises a vertex and all vertices below it, or none of them; returns the number of new vertices."""
    rowptr, col = A
    reached, before = log
    worth, room = limits
    reached[0], before[0] = first, height[first]
    cost, added = _cost(rowptr, costs, first, height[first], level), int(height[first] < 0)
    height[first] = level
    head, tail = 0, 1
    while head < tail and cost < worth and added <= room:
        v = reached[head]
        head += 1
        for e in range(rowptr[v], rowptr[v + 1]):
            u, below = col[e], height[v] - 1
            if height[u] < below:
                reached[tail], before[tail] = u, height[u]
                cost += _cost(rowptr, costs, u, height[u], below)
                added += height[u] < 0
                height[u] = below
                tail += 1
    if cost < worth and added <= room:
        return added
    for place in range(tail):
        height[reached[place]] = before[place]
    return 0


@compiled()
def _cost(rowptr: Any, costs: Costs, v: int, low: int, high: int) -> Any:
    """The cost of raising a vertex from one height to another."""
    vertex, entry = costs
    entries = rowptr[v + 1] - rowptr[v]
    return vertex[high + 1] - vertex[low + 1] + entries * (entry[high + 1] - entry[low + 1])


class Choice(NamedTuple):
    """The vertices that one part replicates, and those that it fetches."""

    replicas: Tensor
    """Vertices of others whose rows, or at least features, this part has: the highest come first."""
    sizes: list[int]
    """The number of replicas at the input of each layer, and at the last output, which has none."""
    fetched: list[Tensor]
    """The vertices whose rows the part fetches for each layer, ascending."""

    def at(self, layer: int) -> Tensor:
        """The replicas whose rows are at the input of a layer."""
        return self.replicas[: self.sizes[layer]]

    def packed(self) -> list[Tensor]:
        """The choice in tensors alone, to be kept for other ranks that are replayed."""
        return [self.replicas, torch.tensor(self.sizes), *self.fetched]

    @classmethod
    def unpacked(cls, tensors: Sequence[Tensor]) -> "Choice":
        """The choice that was packed into these tensors."""
        replicas, sizes, *fetched = tensors
        return cls(replicas, sizes.tolist(), fetched)


def choices(A: Csr, blocks: Sequence[range], prices: Prices, share: float | None) -> list[Choice]:
    """The choice of every part; `share` limits replicas to that share of a part's own vertices, None sets no limit."""
    if A.col.is_meta:
        raise UserError(
            "The rows worth computing twice depend on the edges of the graph, which are unknown before the dataset is "
            "built: build it (harness data build)."
        )
    return [_choice(A, own, prices, A.rows if share is None else int(share * len(own))) for own in blocks]


def _choice(A: Csr, own: range, prices: Prices, room: int) -> Choice:
    layers, needed = len(prices.worth), boundary(A, own)
    height = heights(A, own, prices, room, needed)
    of_others = ((height >= 0) & (height < layers)).nonzero()[:, 0]
    replicas = of_others[height[of_others].argsort(descending=True, stable=True)]
    sizes = [int((height[replicas] >= layer).sum()) for layer in range(layers + 1)]
    return Choice(replicas, sizes, [needed[height[needed] < layer] for layer in range(layers)])


def leaving(choices: Sequence[Choice], layer: int, own: range) -> list[Tensor]:
    """For each part, the vertices of `own` that it fetches for a layer: ascending, counted from the start of `own`."""
    return [
        fetched[is_in_block(fetched, own)] - own.start
        for fetched in (choice.fetched[layer] for choice in choices)
    ]


def arriving(choice: Choice, layer: int, blocks: Sequence[range]) -> list[int]:
    """The number of rows that arrive from each part."""
    stops = torch.tensor([block.stop for block in blocks])
    before = torch.searchsorted(choice.fetched[layer], stops)
    return before.diff(prepend=before.new_zeros(1)).tolist()


class NeutronStar(PartitionParallel):
    """Rows fetched or computed, by cost; for any number of parts up to the number of vertices."""

    name = "neutronstar"
    paper = "NeutronStar (SIGMOD 2022)"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(MessageParams):
        """The price of communication, and the limits of replication."""

        flops_per_word: float = Field(100.0, ge=0, examples=[0.0, 30.0, 1e9])
        """The flops that a rank computes while one word arrives; with 0 all rows are fetched."""
        replicas: float | None = Field(None, ge=0, examples=[0.4])
        """The most vertices of others whose features a rank keeps, as a share of its own; None for any number."""
        overlap: bool = False
        """A rank multiplies by its own rows and replicas while fetched rows are under way."""

    params: Params

    def is_owner_computes(self) -> bool:
        """Replicas compute rows of other ranks, and features are copied before training."""
        return False

    def operators(self, ctx: Context) -> PartOperators:
        graph, exchange = HybridGraph(ctx, self), Exchange(overlap=self.params.overlap)
        return PartOperators(ctx, self, graph.layers(), exchange, replicas=graph.choice.replicas)

    def choices(self, A: Csr, once: Once = every_time) -> list[Choice]:
        """The choice of every part. Trained features change in every step, so none are copied."""
        share = 0.0 if self.spec.training.features else self.params.replicas
        blocks, prices = self.blocks(), self.prices()
        key = "choices", tuple(blocks), *(tuple(each) for each in prices), share
        layers = len(prices.worth)
        kept = once(key, lambda: [x for each in choices(A, blocks, prices, share) for x in each.packed()])
        return [
            Choice.unpacked(kept[first : first + layers + 2]) for first in range(0, len(kept), layers + 2)
        ]

    def prices(self) -> Prices:
        """Prices in flops of the forward pass; the backward pass takes about as many again of both."""
        layers = range(len(self.shapes))
        sent = [self.width(layer) for layer in layers]
        taken = [f_out for _, f_out in self.shapes] if self.spec.model.kind == "gat" else sent
        return Prices(
            worth=[self.params.flops_per_word * width for width in sent],
            vertex=[2.0 * self._trained_below(layer) for layer in layers],
            entry=[2.0 * sum(taken[:layer]) for layer in layers],
        )

    def _trained_below(self, layer: int) -> int:
        """The elements of all weights that a row has been multiplied by when the layer aggregates the row."""
        last = layer if self.combine_first else layer - 1
        below = [each for each in self.weights if each.layer <= last and each.part is not WeightPart.HEAD]
        return sum(rows * cols for _, _, (rows, cols) in below)

    def travelling(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        made, own = self.choices(boundary.counts.whole()), boundary.blocks[boundary.own]
        return [
            (len(fetched), sum(map(len, leaving(made, layer, own))))
            for layer, fetched in enumerate(made[boundary.own].fetched)
        ]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Features of replicas, too; matrices, shared by layers with the same replicas; indices and S of each layer."""
        A, rows, precision = counts.whole(), self.rows(at), self.spec.precision
        choice, lengths = self.choices(A)[at[P]], A.rowptr.diff()
        own = int(lengths[rows.start : rows.stop].sum())
        held, matrices = super().memory(at, counts), {}
        held[TensorName.X] += WORD[precision] * len(choice.replicas) * self.facts.features
        held[TensorName.INDEX] = LONG * len(choice.replicas)
        for layer, (come, leave) in enumerate(self.travelling(self.boundary(at, counts), 0)):
            present, made = (len(rows) + size for size in choice.sizes[layer : layer + 2])
            nonzeros = own + int(lengths[choice.at(layer + 1)].sum())
            if self.spec.model.kind == "gat":
                sizes = [csr_bytes(made, nonzeros, precision), turned_bytes(present + come, nonzeros)]
            else:
                sides = [(made, nonzeros), (made, 0), (present, nonzeros), (come, 0)]
                sizes = [csr_bytes(*side, precision) for side in sides]
            matrices[present, made] = sum(sizes)
            held[TensorName.INDEX] += LONG * leave + csr_bytes(present, leave, precision)
        return {**held, TensorName.A: sum(matrices.values())}


class HybridGraph:
    """The graph of one rank, cut by its choice. A and the choices of the other ranks are used for the cut alone."""

    def __init__(self, ctx: Context, strategy: NeutronStar) -> None:
        self.ctx, self.blocks = ctx, strategy.blocks()
        self.own = self.blocks[ctx.at[P]]
        self.A = ctx.blocks.counts.whole()
        self.choices = strategy.choices(self.A, ctx.once)
        self.choice = self.choices[ctx.at[P]]

    def layers(self) -> list[LayerPart]:
        """Every layer's part; layers with the same replicas share their matrices."""
        ends = list(pairwise(self.choice.sizes))
        matrices = {each: self.matrices(ends.index(each)) for each in dict.fromkeys(ends)}
        replicas = self.ctx.memory.hold(TensorName.INDEX, self.choice.replicas)
        return [
            LayerPart(matrices[each], *self.halo(layer), replicas[: each[1]], self.is_exchanged(layer))
            for layer, each in enumerate(ends)
        ]

    def matrices(self, layer: int) -> PartMatrices | Edges:
        """A of the rows that a layer makes, at the rows that are present and at those that are fetched."""
        A, keep = select_rows(self.A, self.vertices_at(layer + 1)), self.ctx.memory.hold_matrix
        A_NN, A_NK = (
            select_columns(A, cols) for cols in (self.vertices_at(layer), self.choice.fetched[layer])
        )
        if self.ctx.spec.model.kind == "gat":
            return build_edges(hstack([A_NN, A_NK]), keep)
        return PartMatrices(keep(A_NN), keep(transpose(A_NN)), keep(A_NK), keep(transpose(A_NK)))

    def halo(self, layer: int) -> tuple[Halo, Csr]:
        """The exchange of a layer, and S, which adds up the gradients that return."""
        sent = leaving(self.choices, layer, self.own)
        indices = self.ctx.memory.hold(TensorName.INDEX, torch.cat(sent))
        halo = Halo(indices, list(map(len, sent)), arriving(self.choice, layer, self.blocks))
        S_NM = build_scatter_matrix(halo.send_rows, len(self.vertices_at(layer)), self.ctx.dtype)
        return halo, self.ctx.memory.hold_matrix(S_NM, TensorName.INDEX)

    def is_exchanged(self, layer: int) -> bool:
        """True if any rank fetches a row for a layer."""
        return any(len(choice.fetched[layer]) for choice in self.choices)

    def vertices_at(self, layer: int) -> Tensor:
        """The vertices whose rows are present at the input of a layer."""
        return torch.cat([torch.arange(self.own.start, self.own.stop), self.choice.at(layer)])
