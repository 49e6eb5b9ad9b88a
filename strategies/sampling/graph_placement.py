"""Placements of the graph: the rows of A on a rank, and the way to all other rows.

A placement answers for its rank (`on`: the graph that a sampler draws from), for its words and for its bytes. In a
partitioned graph, a rank names the vertices of its frontier to their owners, and the owners draw their neighbours. What
is drawn of a vertex is a function of group, step, layer and vertex, so the owner draws exactly what the rank would have
drawn from the whole graph. A vertex is named once a layer, and only the drawn entries travel.

In a replay no other rank can be asked. Replays, and the formulas of words, draw the mini-batches of all ranks from the
whole graph instead, which no rank holds (`Foresight`). The 1.5D placement is in `graph_15d`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr
from harness.kernels.csr import index_dtype
from harness.kernels.parts import extract_block, select_rows, vstack
from harness.ledger import AxisName, Direction, Ledger, Op, TensorName
from harness.parallel.halo import Boundary
from harness.parallel.row_requests import (
    fetch_matrix_rows,
    invert_permutation,
    is_in_block,
    request_rows,
    sort_by_owner,
)
from harness.strategies.sampling.sampler import DrawKey, DrawRows, GraphView, Sampler
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    Facts,
    MiniBatch,
    Once,
    Piece,
    Words,
    every_time,
    require_entries,
)


class BlockLayout(NamedTuple):
    """The vertices in block rows, one for each rank of an axis or a single one for all ranks; and its copies.

    Ranks along the other axis of the grid have copies of the same block row.
    """

    grid: Mapping[AxisName, int]
    blocks: Sequence[range]
    over: AxisName | None
    copied: AxisName | None = None

    @property
    def vertices(self) -> range:
        return range(self.blocks[-1].stop)

    @property
    def copies(self) -> int:
        return self.grid[self.copied] if self.copied else 1

    def member(self, at: Coordinates) -> int:
        """The number of the block row of the rank at `at`."""
        return at[self.over] if self.over else 0

    def rows(self, at: Coordinates) -> range:
        """The vertices of the block row of the rank at `at`."""
        return self.blocks[self.member(at)]

    def groups_of(self, member: int) -> list[int]:
        """The groups of the ranks with the same block row."""
        return [member * self.copies + copy for copy in range(self.copies)]

    def peer_groups(self, at: Coordinates) -> list[int]:
        """The groups of the rank at `at` and its peers, which have all block rows between them."""
        column = at[self.copied] if self.copied else 0
        return [self.groups_of(member)[column] for member in range(len(self.blocks))]

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """The number of rows that every block row needs of every other."""
        return Boundary(counts, self.blocks, self.member(at), range(len(self.blocks)))


class WholeGraph:
    """The graph on one rank, or a square part of it on the diagonal; a sampler needs no other rank."""

    def __init__(
        self,
        A: Csr,
        ledger: Ledger | None = None,
        groups: Sequence[int] = (),
        start: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """`groups` are those that this rank draws for, and `device` is that of the rank, by default that of A."""
        self.A, self.start, self.groups, self.device = A, start, groups, device or A.val.device
        self.ledger = ledger or Ledger(recording=False)

    def sampled_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        return draw(self.A, vertices, vertices, key)


class Foresight:
    """The mini-batches of all groups, drawn from the whole graph: for formulas, and for replays."""

    def __init__(
        self, sampler: Sampler, read: Callable[[], Csr] | None, targets: Tensor, once: Once = every_time
    ) -> None:
        """`read` returns all of A when it is first needed; None in a run, where other ranks draw for themselves."""
        self.sampler, self.targets, self._read, self._once = sampler, targets, read, once
        self._step, self._batches = -1, dict[int, MiniBatch]()
        self._inputs: dict[int, Sequence[Tensor]] = {}

    def read_ahead(self) -> None:
        """In a replay, reads all of A before the first epoch, in whose memory it has no part."""
        if self._read:
            _ = self.prepared

    @cached_property
    def graph(self) -> WholeGraph:
        assert self._read is not None, "in a run other ranks answer"
        return WholeGraph(self._read())

    def reader(self, read: Callable[[range], Csr]) -> Callable[[range], Csr]:
        """Returns a function that reads rows of A: views of the whole graph in a replay, `read` itself in a run."""
        return (
            (lambda rows: extract_block(self.graph.A, rows, range(self.graph.A.cols))) if self._read else read
        )

    @cached_property
    def prepared(self) -> Sampler:
        """The sampler on the whole graph."""
        return self.sampler.on(self.graph)

    def once(self, key: Hashable, compute: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Tensors that all ranks compute alike from the graph and the mini-batches of this sampler."""
        return self._once((self.sampler.identity, key), compute)

    def vertices(self, step: int, group: int) -> Sequence[Tensor]:
        """The vertices of every layer of a mini-batch; those of one step are kept.

        The input of a layer begins with its output, so the input of the first layer is all that is kept.
        """

        def draw() -> Sequence[Tensor]:
            layers = self.prepared.mini_batch(step, group, self.graph, self.targets).vertices
            if layers[0].is_meta:
                return layers
            assert all(torch.equal(each, layers[0][: len(each)]) for each in layers)
            return [layers[0].to(index_dtype(self.graph.A.cols)), torch.tensor(list(map(len, layers)))]

        if step != self._step:
            self._step, self._batches, self._inputs = step, {}, {}
        if group not in self._inputs:
            self._inputs[group] = self.once(("vertices", step, group), draw)
        if self._inputs[group][0].is_meta:
            return self._inputs[group]
        inputs, sizes = self._inputs[group]
        inputs = inputs.long()
        return [inputs[:size] for size in sizes.tolist()]

    def batch(self, step: int, group: int) -> MiniBatch:
        """The mini-batch of a group; those of one step are kept."""
        if step != self._step:
            self._step, self._batches, self._inputs = step, {}, {}
        if group not in self._batches:
            self._batches[group] = self.prepared.mini_batch(step, group, self.graph, self.targets)
        return self._batches[group]


class Rank(NamedTuple):
    """One rank as the parts of a strategy see it."""

    ctx: Context
    layout: BlockLayout
    group: int
    foresight: Foresight

    @property
    def holders(self) -> Axis:
        """The axis of the ranks that have all block rows between them."""
        return self.ctx.grid.axis((self.layout.over,) if self.layout.over else ())


class Tally(NamedTuple):
    """The words of one rank in some steps, to which every part of a strategy adds its own."""

    words: Words
    layout: BlockLayout
    at: Coordinates
    facts: Facts
    steps: range
    foresight: Foresight

    def put(self, op: Op, axis: AxisName | None, tensor: TensorName, number: int) -> None:
        """Adds words of the forward pass, outside of layers."""
        assert axis is not None, "words go over an axis"
        self.words.put(Direction.FORWARD, -1, op, axis, tensor, number)


class GraphPlacement(ABC):
    """A placement of the graph; by default every rank has the whole graph."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        """The rows and columns of A that the rank at `at` has."""
        return Piece(layout.vertices, layout.vertices)

    def own(self, rank: Rank) -> Csr:
        """A at that piece, to draw from."""
        return rank.ctx.blocks.sampling_matrix(*self.piece(rank.layout, rank.ctx.at))

    @abstractmethod
    def on(self, rank: Rank) -> GraphView:
        """The graph that the sampler of a rank draws from."""

    def add_words(self, tally: Tally) -> None:
        """Adds the words of sampling; by default none, as no rank asks another."""
        return

    def bulk_counts(self, layout: BlockLayout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """The numbers of batches that a rank draws at once, and of rows and entries of A that it fetches for the draw.

        The rank trains on `batches` of them, and a batch has a frontier of `frontier` vertices.
        """
        return batches, 0, 0


class ReplicatedGraph(GraphPlacement):
    """The whole graph on every rank."""

    def on(self, rank: Rank) -> WholeGraph:
        return WholeGraph(self.own(rank), rank.ctx.ledger, [rank.group], device=rank.ctx.device)


class OwnSubgraph(GraphPlacement):
    """The subgraph on a rank's own vertices; edges between the vertices of two ranks are on neither."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.rows(at))

    def on(self, rank: Rank) -> WholeGraph:
        start = rank.layout.rows(rank.ctx.at).start
        return WholeGraph(self.own(rank), rank.ctx.ledger, [rank.group], start)


class PartitionedGraph(GraphPlacement):
    """Block rows of the graph, one for each rank; the owner of a vertex draws its neighbours."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.vertices)

    def on(self, rank: Rank) -> GraphView:
        A_NK = self.own(rank)
        require_entries(
            A_NK,
            "Sampling a partitioned graph",
            "the words depend on the neighbours that are drawn",
            "take graphsage, which has the graph on every rank",
        )
        return BlockRowGraph(A_NK, rank)

    def add_words(self, tally: Tally) -> None:
        """Adds, layer by layer, the vertices that are requested, and the lengths, columns and values of their rows."""
        layout, at = tally.layout, tally.at
        own, member, over = layout.rows(at), layout.member(at), layout.over
        for step in tally.steps:
            batches = [tally.foresight.batch(step, group) for group in layout.peer_groups(at)]
            for layer in range(len(batches[member].A)):
                owned = [is_in_block(batch.vertices[layer + 1], own) for batch in batches]
                absent = ~owned[member]
                entries = int(batches[member].A[layer].rowptr.diff()[absent].sum())
                requests = sum(int(each.sum()) for peer, each in enumerate(owned) if peer != member)
                tally.put(Op.ALL_TO_ALL, over, TensorName.COUNT, len(layout.blocks) + int(absent.sum()))
                tally.put(Op.ALL_TO_ALL, over, TensorName.INDEX, requests + entries)
                tally.put(Op.ALL_TO_ALL, over, TensorName.A, entries)


class BlockRowGraph:
    """The block row of one rank, and the way to the block rows of the others."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.A, self.blocks, self.over, self.foresight = (
            A_NK,
            rank.layout.blocks,
            rank.holders,
            rank.foresight,
        )
        self.own = self.blocks[self.over.index]
        self.start = self.own.start
        self.foresight.read_ahead()

    def sampled_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        """Every owner draws from its rows with the key of the group that asks."""
        order, counts = sort_by_owner(vertices, self.blocks)
        named = vertices[order]

        def foreseen_requests() -> list[Tensor]:
            """The vertices of this rank in the frontier of every group."""
            groups = range(self.over.size)
            frontiers = (self.foresight.vertices(key.step, group)[key.layer + 1] for group in groups)
            return [frontier[is_in_block(frontier, self.own)] for frontier in frontiers]

        def foreseen_sample() -> Csr:
            return draw(self.foresight.graph.A, named, named, key)

        def draw_for(group: int, rows: Tensor) -> Csr:
            return draw(self.A, rows, rows + self.start, key._replace(group=group))

        requests = request_rows(self.over, self.blocks, named.to(self.over.device), counts, foreseen_requests)
        by_group = requests.requested.split(requests.send_counts)
        leaving = vstack([draw_for(group, rows) for group, rows in enumerate(by_group)])
        own = draw_for(self.over.index, named.split(counts)[self.over.index] - self.start)
        return select_rows(
            fetch_matrix_rows(requests, leaving, own, foreseen_sample), invert_permutation(order)
        )
