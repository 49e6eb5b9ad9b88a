"""NeutronStar-style training (Wang et al., SIGMOD'22): rows of other parts are either fetched or recomputed locally.

For every layer and every vertex at its boundary, a part compares two costs: fetching the row in every epoch, or
computing it together with all rows below it, down to the features, which are copied once. Both are exact. A replicated
row is differentiated on each rank for that rank's loss, and the gradients are summed. This is not the authors' code:
costs are counted in flops and words, where the authors measure them on the machine.

Legend as in `partition_parallel`, except that N are this rank's own vertices and then its replicas of other ranks'
vertices. A layer has rows of H at N and computes rows at N', the first of N.
"""

from collections.abc import Sequence
from copy import copy
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.base.errors import UserError
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
    Words,
    compute_every_time,
    csr_bytes,
    transposed_index_bytes,
)
from harness.strategy.models import Part as WeightPart
from harness.strategy.parallel.halo import Boundary, Halo
from harness.strategy.parallel.row_attention import Edges, build_edges
from harness.strategy.parallel.row_requests import is_in_block

# The vertices of other parts that a part computes itself, with all rows that they depend on.
#
# A vertex at height k has been computed through k layers, which takes its neighbours at height k - 1, and so on down to
# the features at height 0. Every vertex is its own neighbour, so a vertex at one height is at all lower heights.
# Neighbours of a block are raised from height to height, at each height those with the shortest rows first. A vertex is
# raised only if the rows that this adds cost less than the vertex saves, as in NeutronStar's greedy algorithm. Tested
# in tests/kernels/test_closure.py against sets.


class Prices(NamedTuple):
    """Savings and costs by height, all in one unit."""

    worth: Sequence[float]
    """What a vertex at that height saves, because its row is not fetched."""
    vertex: Sequence[float]
    """The cost of raising a vertex from height 0 to that height."""
    entry: Sequence[float]
    """The additional cost for each entry of the vertex's row."""


def compute_heights(A: Csr, own: range, prices: Prices, room: int, wanted: Tensor | None = None) -> Tensor:
    """Return the height (int8) of each vertex on the rank that owns a block.

    It is -1 if the vertex is absent, and above all layers for the rank's own vertices. `room` is the largest number of
    vertices of other parts that the rank may replicate. `wanted` is the boundary of the block, if it is known.
    """
    rows = A.rowptr.numpy(), A.col.numpy()
    vertex, entry = (np.array([0.0, *each]) for each in (prices.vertex, prices.entry))
    height = np.full(A.cols, -1, np.int8)
    height[own.start : own.stop] = len(prices.worth)
    wanted = find_boundary(A, own) if wanted is None else wanted
    lengths = take(A.rowptr, wanted + 1) - take(A.rowptr, wanted)
    shortest_first = wanted[lengths.argsort(stable=True)].numpy()
    for level, worth in enumerate(prices.worth):
        room -= raise_vertices(rows, (vertex, entry), height, shortest_first, level, (float(worth), room))
    return torch.from_numpy(height)


def find_boundary(A: Csr, own: range) -> Tensor:
    """Return the vertices outside a block at which its rows have entries, in ascending order."""
    cols = nonempty_columns(extract_block(A, own, range(A.cols)))
    return cols[(cols < own.start) | (cols >= own.stop)]


# The compiled loops. Heights decrease along the search, so it reaches a vertex at most once, and can be undone.

Rows = tuple[Any, Any]
"""Row pointers and columns."""
Costs = tuple[Any, Any]
"""The costs of a vertex, and of an entry of its row, up to each height. The first element is for height -1."""
Limits = tuple[float, int]
"""The cost that raising a vertex must stay below, and the number of absent vertices that may become present."""


@compiled()
def raise_vertices(A: Rows, costs: Costs, height: Any, wanted: Any, level: int, limits: Limits) -> int:
    """Raise vertices to a level one by one, where this pays off, and return the number of new vertices."""
    log = np.empty(height.size, np.int64), np.empty(height.size, np.int8)
    worth, room = limits
    for v in wanted:
        if height[v] < level:
            room -= _raise_vertex(A, costs, height, log, v, level, (worth, room))
    return limits[1] - room


@compiled()
def _raise_vertex(
    A: Rows, costs: Costs, height: Any, log: tuple[Any, Any], first: int, level: int, limits: Limits
) -> int:
    """Raise a vertex and all vertices below it, or none of them, and return the number of new vertices."""
    rowptr, col = A
    reached, before = log
    worth, room = limits
    reached[0], before[0] = first, height[first]
    cost, added = _compute_cost(rowptr, costs, first, height[first], level), int(height[first] < 0)
    height[first] = level
    head, tail = 0, 1
    while head < tail and cost < worth and added <= room:
        v = reached[head]
        head += 1
        for e in range(rowptr[v], rowptr[v + 1]):
            u, below = col[e], height[v] - 1
            if height[u] < below:
                reached[tail], before[tail] = u, height[u]
                cost += _compute_cost(rowptr, costs, u, height[u], below)
                added += height[u] < 0
                height[u] = below
                tail += 1
    if cost < worth and added <= room:
        return added
    for place in range(tail):
        height[reached[place]] = before[place]
    return 0


@compiled()
def _compute_cost(rowptr: Any, costs: Costs, v: int, low: int, high: int) -> Any:
    """Return the cost of raising a vertex from one height to another."""
    vertex, entry = costs
    entries = rowptr[v + 1] - rowptr[v]
    return vertex[high + 1] - vertex[low + 1] + entries * (entry[high + 1] - entry[low + 1])


class Choice(NamedTuple):
    """The vertices that a part replicates, and the vertices that it fetches."""

    replicas: Tensor
    """Vertices of other parts whose rows, or at least features, this part has, in descending order of height."""
    sizes: list[int]
    """The number of replicas at the input of each layer, and 0 at the output of the last."""
    fetched: list[Tensor]
    """The vertices whose rows the part fetches for each layer, in ascending order."""

    def replicas_at(self, layer: int) -> Tensor:
        """Return the replicas whose rows are at the input of a layer."""
        return self.replicas[: self.sizes[layer]]

    def to_tensors(self) -> list[Tensor]:
        """Return the choice as a list of tensors, to share it between replayed ranks."""
        return [self.replicas, torch.tensor(self.sizes), *self.fetched]

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor]) -> "Choice":
        """Return the choice that these tensors hold."""
        replicas, sizes, *fetched = tensors
        return cls(replicas, sizes.tolist(), fetched)


def choose_for_parts(A: Csr, blocks: Sequence[range], prices: Prices, share: float | None) -> list[Choice]:
    """Choose the replicas of each part, at most `share` of its own vertices; None for no limit."""
    if A.col.is_meta:
        raise UserError(
            "Which rows to recompute depends on the edges of the graph, which are unknown before the dataset is "
            "built: build it (harness data build)."
        )
    return [
        _choose_for_part(A, own, prices, A.rows if share is None else int(share * len(own))) for own in blocks
    ]


def _choose_for_part(A: Csr, own: range, prices: Prices, room: int) -> Choice:
    layers, needed = len(prices.worth), find_boundary(A, own)
    height = compute_heights(A, own, prices, room, needed)
    of_others = ((height >= 0) & (height < layers)).nonzero()[:, 0]
    replicas = of_others[height[of_others].argsort(descending=True, stable=True)]
    sizes = [int((height[replicas] >= layer).sum()) for layer in range(layers + 1)]
    return Choice(replicas, sizes, [needed[height[needed] < layer] for layer in range(layers)])


def find_leaving_rows(choices: Sequence[Choice], layer: int, own: range) -> list[Tensor]:
    """Return the vertices of `own` that each part fetches for a layer, in ascending order and relative to `own`."""
    return [
        fetched[is_in_block(fetched, own)] - own.start
        for fetched in (choice.fetched[layer] for choice in choices)
    ]


def count_arriving(choice: Choice, layer: int, blocks: Sequence[range]) -> list[int]:
    """Return the number of rows that arrive from each part."""
    stops = torch.tensor([block.stop for block in blocks])
    before = torch.searchsorted(choice.fetched[layer], stops)
    return before.diff(prepend=before.new_zeros(1)).tolist()


class NeutronStar(PartitionParallel):
    """Fetches or computes rows, whichever costs less, for any number of parts up to the number of vertices."""

    name = "neutronstar"
    paper = "NeutronStar (SIGMOD 2022)"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(MessageParams):
        """The price of communication, and the limits of replication."""

        flops_per_word: float = Field(100.0, ge=0, examples=[0.0, 30.0, 1e9])
        """The flops that a rank computes while one word arrives; with 0, all rows are fetched."""
        replicas: float | None = Field(None, ge=0, examples=[0.4])
        """The most replicas on a rank, as a share of its own vertices; None for no limit."""
        overlap: bool = False
        """A rank multiplies by its own rows and replicas while fetched rows are in flight."""

    params: Params
    orders: tuple[bool, ...] | None = None
    """With `order=best`, whether each layer multiplies by W before A; None until the edges are known."""

    def is_owner_computes(self) -> bool:
        """Return False: ranks compute rows of other ranks, whose features are copied before training."""
        return False

    def combines_first(self, layer: int) -> bool:
        """Return whether a layer multiplies by W before A. With `order=best`, this follows from the edges."""
        if self.spec.model.order != "best":
            return super().combines_first(layer)
        assert self.orders is not None, "the best orders follow from the edges: choose_orders reads them"
        return self.orders[layer]

    def operators(self, ctx: Context) -> PartOperators:
        graph, exchange = HybridGraph(ctx, self), Exchange(overlap=self.params.overlap)
        return PartOperators(ctx, self, graph.build_layers(), exchange, replicas=graph.choice.replicas)

    def choose_replicas(self, A: Csr, once: Once = compute_every_time) -> list[Choice]:
        """Choose the replicas of each part; none if features are trained, because copies would be outdated."""
        if self.spec.model.order == "best" and self.orders is None:
            self.orders = self.choose_orders(A, once)
        share = 0.0 if self.spec.training.features else self.params.replicas
        blocks, prices = self.blocks(), self.compute_prices()
        key = "choices", tuple(blocks), *(tuple(each) for each in prices), share
        size = len(prices.worth) + 2

        def choose() -> list[Tensor]:
            return [x for each in choose_for_parts(A, blocks, prices, share) for x in each.to_tensors()]

        tensors = once(key, choose)
        return [Choice.from_tensors(tensors[first : first + size]) for first in range(0, len(tensors), size)]

    def choose_orders(self, A: Csr, once: Once) -> tuple[bool, ...]:
        """Choose whether each layer multiplies by W before A, at the lowest price of an epoch that is found.

        The search starts from the cheaper of the two orders for all layers. Then, kind by kind, layers of the same
        shape and cost change their order if this lowers the price.
        """
        layers = range(len(self.shapes))
        kinds = [
            (self.shapes[layer], self.needs_dH(layer), layer in self.recomputed_layers) for layer in layers
        ]

        @cache
        def price(orders: tuple[bool, ...]) -> float:
            ordered = copy(self)
            ordered.orders = orders
            return ordered.price_epoch(ordered.choose_replicas(A, once), A)

        best = min(((combines,) * len(layers) for combines in (False, True)), key=price)
        for changed in dict.fromkeys(kinds):
            other = tuple(best[layer] != (kinds[layer] == changed) for layer in layers)
            best = min(best, other, key=price)
        return best

    def price_epoch(self, choices: Sequence[Choice], A: Csr) -> float:
        """Return the flops of an epoch's products on all ranks, plus `flops_per_word` for each element received."""
        lengths = A.rowptr.diff()
        return sum(
            self.price_layer(layer, choice, own, lengths)
            for own, choice in zip(self.blocks(), choices, strict=True)
            for layer in range(len(self.shapes))
        )

    def price_layer(self, layer: int, choice: Choice, own: range, lengths: Tensor) -> float:
        """Return the price of a layer on one rank. `lengths` are the entries of each row of A.

        It counts products with A, with the matrix that adds returned gradients, and with W, also for the weight
        gradient. The scores of attention are left out.
        """
        (f_in, f_out), width = self.shapes[layer], self.aggregated_width(layer)
        combines, needs_dH, kind = self.combines_first(layer), self.needs_dH(layer), self.spec.model.kind
        forward, backward = 1 + (layer in self.recomputed_layers), combines or needs_dH
        present, computed = (len(own) + size for size in choice.sizes[layer : layer + 2])
        fetched, replicas = len(choice.fetched[layer]), choice.replicas_at(layer + 1)
        entries = int(lengths[own.start : own.stop].sum()) + int(lengths[replicas].sum())
        columns, rows = (forward + backward) * width, present if combines else computed
        if kind == "gat":  # it aggregates rows of H W in both orders
            columns, rows = (forward + 2) * f_out, present if combines else present + fetched
        if kind == "sage":
            rows += present
        sparse = 2 * columns * entries + 2 * backward * width * fetched
        dense = 2 * (forward + 1 + needs_dH) * f_in * f_out * rows
        return sparse + dense + self.params.flops_per_word * (forward + backward) * width * fetched

    def compute_prices(self) -> Prices:
        """Return the prices in flops of the forward pass. The backward pass is about proportional."""
        layers = range(len(self.shapes))
        sent = [self.aggregated_width(layer) for layer in layers]
        taken = [f_out for _, f_out in self.shapes] if self.spec.model.kind == "gat" else sent
        return Prices(
            worth=[self.params.flops_per_word * width for width in sent],
            vertex=[2.0 * self._trained_below(layer) for layer in layers],
            entry=[2.0 * sum(taken[:layer]) for layer in layers],
        )

    def _trained_below(self, layer: int) -> int:
        """Return the number of elements of all weights that a row is multiplied by before a layer aggregates it."""
        last = layer if self.combines_first(layer) else layer - 1
        below = [each for each in self.weights if each.layer <= last and each.part is not WeightPart.HEAD]
        return sum(rows * cols for _, _, (rows, cols) in below)

    def exchanged_rows(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        choices, own = self.choose_replicas(boundary.counts.adjacency()), boundary.blocks[boundary.own]
        return [
            (len(fetched), sum(map(len, find_leaving_rows(choices, layer, own))))
            for layer, fetched in enumerate(choices[boundary.own].fetched)
        ]

    def reference_words(self, at: Coordinates, entries: Tensor) -> Words:
        """Count the words of fetched rows by sets, which share no code with the choice of a run."""
        blocks, fetched = self.blocks(), [find_fetched(self, entries, own) for own in self.blocks()]
        leaving = [
            sum(len(rows & {*blocks[at[P]]}) for rows in of_parts) for of_parts in zip(*fetched, strict=True)
        ]
        return self.words_of_rows([*zip(map(len, fetched[at[P]]), leaving, strict=True)])

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held; layers with the same replicas share their matrices, and each has its indices and S."""
        A, rows, precision = counts.adjacency(), self.rows(at), self.spec.precision
        choice, lengths = self.choose_replicas(A)[at[P]], A.rowptr.diff()
        own = int(lengths[rows.start : rows.stop].sum())
        held, matrices = super().memory(at, counts), {}
        held[TensorName.X] += WORD[precision] * len(choice.replicas) * self.facts.features
        held[TensorName.INDEX] = LONG * len(choice.replicas)
        for layer, (come, leave) in enumerate(self.exchanged_rows(self.boundary(at, counts), 0)):
            present, made = (len(rows) + size for size in choice.sizes[layer : layer + 2])
            nonzeros = own + int(lengths[choice.replicas_at(layer + 1)].sum())
            if self.spec.model.kind == "gat":
                sizes = [
                    csr_bytes(made, nonzeros, precision),
                    transposed_index_bytes(present + come, nonzeros),
                ]
            else:
                sides = [(made, nonzeros), (made, 0), (present, nonzeros), (come, 0)]
                sizes = [csr_bytes(*side, precision) for side in sides]
            matrices[present, made] = sum(sizes)
            held[TensorName.INDEX] += LONG * leave + csr_bytes(present, leave, precision)
        return {**held, TensorName.A: sum(matrices.values())}


def find_fetched(strategy: NeutronStar, entries: Tensor, own: range) -> list[set[int]]:
    """Return the rows that a part fetches for each layer: the boundary vertices that are not raised to its height."""
    share = 0.0 if strategy.spec.training.features else strategy.params.replicas
    room = len(entries) if share is None else int(share * len(own))
    prices = strategy.compute_prices()
    raised = find_raised([row.nonzero()[:, 0].tolist() for row in entries], own, prices, room)
    boundary = {*entries[own.start : own.stop].any(dim=0).nonzero()[:, 0].tolist()} - {*own}
    return [{v for v in boundary if (v, layer) not in raised} for layer in range(len(prices.worth))]


def find_raised(rows: Sequence[Sequence[int]], own: range, prices: Prices, room: int) -> set[tuple[int, int]]:
    """Apply the rule of `compute_heights` with a set of (vertex, height), finding the needs of a vertex each time."""
    raised: set[tuple[int, int]] = set()

    def needs(v: int, height: int) -> set[tuple[int, int]]:
        if v in own:
            return set()
        return {(v, height)}.union(*(needs(u, height - 1) for u in rows[v] if height))

    def price(v: int, height: int) -> float:
        vertex, entry = (each[height] - (each[height - 1] if height else 0) for each in prices[1:])
        return vertex + len(rows[v]) * entry

    wanted = {u for v in own for u in rows[v]} - {*own}
    for height, worth in enumerate(prices.worth):
        for v in sorted(wanted, key=lambda v: (len(rows[v]), v)):
            new = needs(v, height) - raised
            absent = sum(low == 0 for _, low in new)
            if sum(price(*each) for each in new) < worth and absent <= room:
                raised |= new
                room -= absent
    return raised


class HybridGraph:
    """The graph of one rank, cut by its choice. A and the other ranks' choices are used only to cut it."""

    def __init__(self, ctx: Context, strategy: NeutronStar) -> None:
        self.ctx, self.blocks = ctx, strategy.blocks()
        self.own = self.blocks[ctx.at[P]]
        self.A = ctx.blocks.counts.adjacency()
        self.choices = strategy.choose_replicas(self.A, ctx.compute_once)
        self.choice = self.choices[ctx.at[P]]

    def build_layers(self) -> list[LayerPart]:
        """Return the part of each layer; layers with the same replicas share their matrices."""
        ends = list(pairwise(self.choice.sizes))
        matrices = {each: self.build_matrices(ends.index(each)) for each in dict.fromkeys(ends)}
        replicas = self.ctx.memory.hold(TensorName.INDEX, self.choice.replicas)
        return [
            LayerPart(matrices[each], *self.build_halo(layer), replicas[: each[1]], self.has_exchange(layer))
            for layer, each in enumerate(ends)
        ]

    def build_matrices(self, layer: int) -> PartMatrices | Edges:
        """Return A of the rows that a layer computes, at the rows that are present and at those that are fetched."""
        A, keep = select_rows(self.A, self.vertices_at(layer + 1)), self.ctx.memory.hold_matrix
        A_NN, A_NK = (
            select_columns(A, cols) for cols in (self.vertices_at(layer), self.choice.fetched[layer])
        )
        if self.ctx.spec.model.kind == "gat":
            return build_edges(hstack([A_NN, A_NK]), keep)
        return PartMatrices(keep(A_NN), keep(transpose(A_NN)), keep(A_NK), keep(transpose(A_NK)))

    def build_halo(self, layer: int) -> tuple[Halo, Csr]:
        """Return the halo of a layer, and S, which sums the returned gradients."""
        sent = find_leaving_rows(self.choices, layer, self.own)
        indices = self.ctx.memory.hold(TensorName.INDEX, torch.cat(sent))
        halo = Halo(indices, list(map(len, sent)), count_arriving(self.choice, layer, self.blocks))
        S_NM = build_scatter_matrix(halo.send_rows, len(self.vertices_at(layer)), self.ctx.dtype)
        return halo, self.ctx.memory.hold_matrix(S_NM, TensorName.INDEX)

    def has_exchange(self, layer: int) -> bool:
        """Return whether any rank fetches a row for a layer."""
        return any(len(choice.fetched[layer]) for choice in self.choices)

    def vertices_at(self, layer: int) -> Tensor:
        """Return the vertices whose rows are present at the input of a layer."""
        return torch.cat([torch.arange(self.own.start, self.own.stop), self.choice.replicas_at(layer)])
