"""Placements of the graph: which rows of A a rank has, and how it samples from all other rows.

A placement provides the graph that a rank's sampler draws from (`create_view`), its words and its bytes. In a
partitioned graph, a rank sends the vertices of its frontier to their owners, which draw their neighbours. The draw is a
function of group, step, layer and vertex, so the owner draws exactly what the rank would have drawn from the whole
graph. A vertex is requested once per layer, and only the drawn entries are sent.

In a replay no other rank can answer. Replays, and the formulas of words, instead draw the mini-batches of all ranks
from the whole graph (`GlobalReplay`). The 1.5D placement is in `graph_15d`.
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
    compute_every_time,
)
from harness.strategy.parallel.halo import Boundary
from harness.strategy.parallel.row_requests import (
    fetch_matrix_rows,
    invert_permutation,
    is_in_block,
    request_rows,
    select_owner,
    sort_by_owner,
)


class BlockLayout(NamedTuple):
    """The vertices in block rows, one for each rank of an axis, or a single one for all ranks.

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
        """Return the number of the block row of the rank at `at`."""
        return at[self.over] if self.over else 0

    def rows(self, at: Coordinates) -> range:
        """Return the vertices of the block row of the rank at `at`."""
        return self.blocks[self.member(at)]

    def groups_of_block(self, member: int) -> list[int]:
        """Return the groups of the ranks with the same block row."""
        return [member * self.copies + copy for copy in range(self.copies)]

    def peer_groups(self, at: Coordinates) -> list[int]:
        """Return the groups of the rank at `at` and its peers, which together have all block rows."""
        column = at[self.copied] if self.copied else 0
        return [self.groups_of_block(member)[column] for member in range(len(self.blocks))]

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """Return the number of rows that block rows need of each other."""
        return Boundary(counts, self.blocks, self.member(at), range(len(self.blocks)))


class WholeGraph:
    """The graph on one rank, or a square diagonal block of it. Samplers need no other rank."""

    def __init__(
        self,
        A: Csr,
        ledger: Ledger | None = None,
        groups: Sequence[int] = (),
        start: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """Wrap A for drawing the batches of `groups` on `device`, by default the device of A."""
        self.A, self.start, self.groups, self.device = A, start, groups, device or A.val.device
        self.ledger = ledger or Ledger(recording=False)

    def sample_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        return draw(self.A, vertices, vertices, key)


class GlobalReplay:
    """Draws the mini-batches of all groups from the whole graph, for formulas and replays."""

    def __init__(
        self,
        sampler: Sampler,
        read: Callable[[], Csr] | None,
        targets: Tensor,
        once: Once = compute_every_time,
    ) -> None:
        """Prepare to draw; `read` returns all of A when first needed, and is None in a run, where other ranks draw."""
        self.sampler, self.targets, self._read, self._once = sampler, targets, read, once
        self._step, self._batches = -1, dict[int, MiniBatch]()
        self._inputs: dict[int, Sequence[Tensor]] = {}

    def read_graph_in_replay(self) -> None:
        """In a replay, read all of A before the first epoch, so that it does not count as memory of the epoch."""
        if self._read:
            _ = self.prepared_sampler

    @cached_property
    def graph(self) -> WholeGraph:
        assert self._read is not None, "in a run other ranks answer"
        return WholeGraph(self._read())

    def row_reader(self, read: Callable[[range], Csr]) -> Callable[[range], Csr]:
        """Return a function that reads rows of A: views of the whole graph in a replay, `read` itself in a run."""

        def read_whole_graph(rows: range) -> Csr:
            return extract_block(self.graph.A, rows, range(self.graph.A.cols))

        return read_whole_graph if self._read else read

    @cached_property
    def prepared_sampler(self) -> Sampler:
        """The sampler, prepared for the whole graph."""
        return self.sampler.prepare_for(self.graph)

    def once(self, key: Hashable, compute: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Compute tensors once that depend only on the graph and this sampler's mini-batches."""
        return self._once((self.sampler.identity, key), compute)

    def vertices(self, step: int, group: int) -> Sequence[Tensor]:
        """Return the vertices of each layer of a mini-batch, cached for the current step.

        The input of a layer begins with its output, so only the input of the first layer is cached.
        """

        def draw() -> Sequence[Tensor]:
            layers = self.prepared_sampler.mini_batch(step, group, self.graph, self.targets).vertices
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
        """Return the mini-batch of a group. The batches of the current step are cached."""
        if step != self._step:
            self._step, self._batches, self._inputs = step, {}, {}
        if group not in self._batches:
            self._batches[group] = self.prepared_sampler.mini_batch(step, group, self.graph, self.targets)
        return self._batches[group]


class Rank(NamedTuple):
    """What the parts of a system know about their rank."""

    ctx: Context
    layout: BlockLayout
    group: int
    global_replay: GlobalReplay

    @property
    def holders(self) -> Axis:
        """The axis whose ranks together have all block rows."""
        return self.ctx.grid.axis((self.layout.over,) if self.layout.over else ())


class WordCount(NamedTuple):
    """The words of one rank in some steps, to which each part of a system adds its own."""

    words: Words
    layout: BlockLayout
    at: Coordinates
    facts: Facts
    steps: range
    global_replay: GlobalReplay

    def add(self, op: Op, axis: AxisName | None, tensor: TensorName, number: int) -> None:
        """Add words of the forward pass that belong to no layer."""
        assert axis is not None, "words go over an axis"
        self.words.add(Direction.FORWARD, -1, op, axis, tensor, number)


class GraphPlacement(ABC):
    """A placement of the graph; by default every rank has the whole graph."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        """Return the rows and columns of A that the rank at `at` has."""
        return Piece(layout.vertices, layout.vertices)

    def sampling_block(self, rank: Rank) -> Csr:
        """Return A at that piece, to sample from."""
        return rank.ctx.blocks.sampling_matrix(*self.piece(rank.layout, rank.ctx.at))

    @abstractmethod
    def create_view(self, rank: Rank) -> GraphView:
        """Return the graph that the sampler of a rank draws from."""

    def add_words(self, count: WordCount) -> None:
        """Add the words of sampling; by default none."""
        return

    def bulk_counts(self, layout: BlockLayout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """Return how many batches a rank draws together, and how many rows and entries of A it fetches for that.

        The rank trains on `batches` of them, each with a frontier of `frontier` vertices.
        """
        return batches, 0, 0


class ReplicatedGraph(GraphPlacement):
    """The whole graph on every rank."""

    def create_view(self, rank: Rank) -> WholeGraph:
        return WholeGraph(self.sampling_block(rank), rank.ctx.ledger, [rank.group], device=rank.ctx.device)


class OwnSubgraph(GraphPlacement):
    """The subgraph of a rank's own vertices, without edges to other ranks."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.rows(at))

    def create_view(self, rank: Rank) -> WholeGraph:
        start = rank.layout.rows(rank.ctx.at).start
        return WholeGraph(self.sampling_block(rank), rank.ctx.ledger, [rank.group], start)


class PartitionedGraph(GraphPlacement):
    """Block rows of the graph, one for each rank. The owner of a vertex draws its neighbours."""

    def piece(self, layout: BlockLayout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.vertices)

    def create_view(self, rank: Rank) -> GraphView:
        return BlockRowGraph(self.sampling_block(rank), rank)

    def add_words(self, count: WordCount) -> None:
        """Add, layer by layer, the vertices that are requested, and the lengths, columns and values of their rows."""
        layout, at = count.layout, count.at
        own, member, over = layout.rows(at), layout.member(at), layout.over
        for step in count.steps:
            batches = [count.global_replay.batch(step, group) for group in layout.peer_groups(at)]
            for layer in range(len(batches[member].A)):
                owned = [is_in_block(batch.vertices[layer + 1], own) for batch in batches]
                absent = ~owned[member]
                entries = int(batches[member].A[layer].rowptr.diff()[absent].sum())
                requests = sum(int(each.sum()) for peer, each in enumerate(owned) if peer != member)
                count.add(Op.ALL_TO_ALL, over, TensorName.COUNT, len(layout.blocks) + int(absent.sum()))
                count.add(Op.ALL_TO_ALL, over, TensorName.INDEX, requests + entries)
                count.add(Op.ALL_TO_ALL, over, TensorName.A, entries)


class BlockRowGraph:
    """The block row of one rank, and requests to the owners of all other block rows."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.A, self.blocks, self.over = A_NK, rank.layout.blocks, rank.holders
        self.global_replay = rank.global_replay
        self.own = self.blocks[self.over.index]
        self.start = self.own.start
        self.global_replay.read_graph_in_replay()

    def sample_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        """Request rows from their owners, each of which draws with the key of the requesting group."""
        order, counts = sort_by_owner(vertices, self.blocks)
        sorted_vertices = vertices[order]

        def replayed_requests() -> list[Tensor]:
            """Return the vertices of this rank in the frontier of each group."""
            groups = range(self.over.size)
            frontiers = (self.global_replay.vertices(key.step, group)[key.layer + 1] for group in groups)
            return [select_owner(frontier, self.blocks, self.over.index) for frontier in frontiers]

        def replayed_sample() -> Csr:
            return draw(self.global_replay.graph.A, sorted_vertices, sorted_vertices, key)

        def draw_for(group: int, rows: Tensor) -> Csr:
            return draw(self.A, rows, rows + self.start, key._replace(group=group))

        needed = sorted_vertices.to(self.over.device)
        requests = request_rows(self.over, self.blocks, needed, counts, replayed_requests)
        by_group = requests.requested.split(requests.send_counts)
        leaving = vstack([draw_for(group, rows) for group, rows in enumerate(by_group)])
        own = draw_for(self.over.index, sorted_vertices.split(counts)[self.over.index] - self.start)
        rows = fetch_matrix_rows(requests, leaving, own, replayed_sample)
        return rows if rows.val.is_meta else select_rows(rows, invert_permutation(order))
