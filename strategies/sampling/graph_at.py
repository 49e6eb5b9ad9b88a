"""Placements of the graph: the rows of A that a rank has, and the way to all others.

A placement answers for its rank (`on`: the graph that a sampler draws from), for its words and for its bytes. With
block rows, a vertex whose neighbours are needed is named to its owner, who draws them: what is drawn of a vertex is a
function of group, step, layer and vertex, so the owner draws what the group would have drawn from the whole graph. A
vertex is named once a layer, and only what was drawn travels.

In a replay no other rank can be asked. There, as in the formulas of words, the mini-batches of all ranks are drawn from
the graph that nobody holds (`Foreseen`). The 1.5D placement is in `graph_15d`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr
from harness.kernels.parts import below, select_rows
from harness.ledger import AxisName, Direction, Ledger, Op, TensorName
from harness.parallel.halo import Boundary
from harness.parallel.row_requests import ask, by_owner, inside, inverse, rows_from_owners
from harness.strategy import Context, Coordinates, Counts, Facts, MiniBatch, Piece, Words, require_entries
from strategies.sampling.bulk import Summed
from strategies.sampling.matrices import Stack, draw_rows, one_batch
from strategies.sampling.sampler import At, DrawRows, Graph, Sampler


class Layout(NamedTuple):
    """The block rows of the vertices: over one axis, or all on every rank; copied along the other axis of the grid."""

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

    def peers(self, at: Coordinates) -> list[int]:
        """The groups of the ranks that have all block rows between them, the rank at `at` one of them."""
        column = at[self.copied] if self.copied else 0
        return [self.together(member)[column] for member in range(len(self.blocks))]

    def together(self, member: int) -> list[int]:
        """The groups of the ranks that have the same block row."""
        return [member * self.copies + copy for copy in range(self.copies)]

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """The rows that every block row needs of every other, counted."""
        return Boundary(counts, self.blocks, self.member(at), range(len(self.blocks)))


class WholeGraph:
    """The graph on one rank, or a square part of it on the diagonal: nothing is asked of anybody."""

    def __init__(
        self, A: Csr, ledger: Ledger | None = None, together: Sequence[int] = (), start: int = 0
    ) -> None:
        self.A, self.start, self.together = A, start, together
        self.ledger = ledger or Ledger(recording=False)
        self._popularity: Csr | None = None

    def drawn(self, draw: DrawRows, vertices: Tensor, at: At) -> Csr:
        return draw(self.A, vertices, vertices, at)

    # Products of bulks (`bulk.BulkGraph`).

    def begin(self, steps: range) -> None: ...

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        return draw_rows(self.A, stack, fanout, keys)

    def rows(self, stack: Stack) -> Csr:
        return select_rows(self.A, stack.vertices)

    def popularity(self, summed: Summed) -> Csr:
        if self._popularity is None:
            self._popularity = summed(self.A, one_batch(range(self.A.rows)))
        return self._popularity

    def sum(self, R: Csr, stack: Stack, summed: Summed) -> Csr:
        return summed(R, stack)

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        return A


class Foreseen:
    """The mini-batches of all groups, drawn from the whole graph: for formulas, and for replays."""

    def __init__(self, sampler: Sampler, read: Callable[[], Csr], targets: Tensor) -> None:
        """`read` gives all of A, once anything is to be drawn from it."""
        self._plain, self._read, self.targets = sampler, read, targets
        self._step, self._drawn = -1, dict[int, MiniBatch]()

    @cached_property
    def graph(self) -> WholeGraph:
        return WholeGraph(self._read())

    @cached_property
    def sampler(self) -> Sampler:
        return self._plain.on(self.graph)

    def batch(self, step: int, group: int) -> MiniBatch:
        """The mini-batch of a group; those of one step are kept."""
        if step != self._step:
            self._step, self._drawn = step, {}
        if group not in self._drawn:
            self._drawn[group] = self.sampler.mini_batch(step, group, self.graph, self.targets)
        return self._drawn[group]


class Rank(NamedTuple):
    """One rank as the parts of a strategy see it."""

    ctx: Context
    layout: Layout
    group: int
    sampler: Sampler
    targets: Tensor
    foreseen: Foreseen | None
    """None in a run, where other ranks answer."""

    @property
    def holders(self) -> Axis:
        """The ranks that have all block rows between them."""
        return self.ctx.grid.axis((self.layout.over,) if self.layout.over else ())

    @property
    def foresight(self) -> Foreseen:
        assert self.foreseen is not None, "in a run other ranks answer"
        return self.foreseen


class Tally(NamedTuple):
    """The words of one rank in some steps, to which every part of a strategy adds its own."""

    words: Words
    layout: Layout
    at: Coordinates
    facts: Facts
    steps: range
    foreseen: Foreseen

    def put(self, op: Op, axis: AxisName | None, tensor: TensorName, number: int) -> None:
        """Adds words of the forward pass, outside of layers."""
        assert axis is not None, "words go over an axis"
        self.words.put(Direction.FORWARD, -1, op, axis, tensor, number)


class GraphAt(ABC):
    """A placement of the graph; by default the whole graph on every rank."""

    def piece(self, layout: Layout, at: Coordinates) -> Piece:
        """The rows and columns of A that the rank at `at` has."""
        return Piece(layout.vertices, layout.vertices)

    def own(self, rank: Rank) -> Csr:
        """A at that piece, to draw from."""
        return rank.ctx.blocks.sampling_matrix(*self.piece(rank.layout, rank.ctx.at))

    @abstractmethod
    def on(self, rank: Rank) -> Graph:
        """The graph that the sampler of a rank draws from."""

    def add_words(self, tally: Tally) -> None:
        """Adds the words of sampling; none, where nobody is asked."""
        return

    def samples(self, layout: Layout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """How many batches are drawn at once for a rank, and rows and entries of A that are fetched for them.

        A frontier has so many vertices.
        """
        return batches, 0, 0


class Everyone(GraphAt):
    """The whole graph on every rank."""

    def on(self, rank: Rank) -> WholeGraph:
        return WholeGraph(self.own(rank), rank.ctx.ledger, [rank.group])


class OwnPart(GraphAt):
    """The part of the graph between a rank's own vertices; edges to others are on no rank."""

    def piece(self, layout: Layout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.rows(at))

    def on(self, rank: Rank) -> WholeGraph:
        start = rank.layout.rows(rank.ctx.at).start
        return WholeGraph(self.own(rank), rank.ctx.ledger, [rank.group], start)


class BlockRows(GraphAt):
    """Block rows of the graph, one a rank; neighbours are drawn by their owners."""

    def piece(self, layout: Layout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.vertices)

    def on(self, rank: Rank) -> "OwnedRows":
        A_NK = self.own(rank)
        require_entries(
            A_NK,
            "Sampling a partitioned graph",
            "what is sent hangs on the neighbours that are drawn",
            "take graphsage, which has the graph on every rank",
        )
        return OwnedRows(A_NK, rank)

    def add_words(self, tally: Tally) -> None:
        """Layer by layer which rows are asked for; how long those are that come, their columns and values."""
        layout, at = tally.layout, tally.at
        own, here, over = layout.rows(at), layout.member(at), layout.over
        for step in tally.steps:
            batches = [tally.foreseen.batch(step, group) for group in layout.peers(at)]
            for layer in range(len(batches[here].A)):
                asked = [inside(batch.vertices[layer + 1], own) for batch in batches]
                absent = ~asked[here]
                entries = int(batches[here].A[layer].rowptr.diff()[absent].sum())
                others = sum(int(mine.sum()) for group, mine in enumerate(asked) if group != here)
                tally.put(Op.ALL_TO_ALL, over, TensorName.COUNT, len(layout.blocks) + int(absent.sum()))
                tally.put(Op.ALL_TO_ALL, over, TensorName.INDEX, others + entries)
                tally.put(Op.ALL_TO_ALL, over, TensorName.A, entries)


class OwnedRows:
    """One rank's block row of the graph, and the way to the others'."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.A, self.blocks, self.over, self.rank = A_NK, rank.layout.blocks, rank.holders, rank
        self.start = self.blocks[self.over.index].start

    def drawn(self, draw: DrawRows, vertices: Tensor, at: At) -> Csr:
        order, counts = by_owner(vertices, self.blocks)
        named, here = vertices[order], self.blocks[self.over.index]

        def asked_by_others() -> list[Tensor]:
            """Those of this rank's vertices that are in the frontiers of the others."""
            batches = (self.rank.foresight.batch(at.step, group) for group in range(self.over.size))
            frontiers = (batch.vertices[at.layer + 1] for batch in batches)
            return [frontier[inside(frontier, here)] for frontier in frontiers]

        def foreseen() -> Csr:
            return draw(self.rank.foresight.graph.A, named, named, at)

        def of_mine(rows: Tensor, group: int) -> Csr:
            return draw(self.A, rows, rows + self.start, at._replace(group=group))

        requests = ask(self.over, self.blocks, named.to(self.over.device), counts, asked_by_others)
        coming = requests.coming.cpu().split(requests.asked)
        leaving = below([of_mine(rows, group) for group, rows in enumerate(coming)])
        own = named[requests.before :][: counts[self.over.index]]
        mine = of_mine(own - self.start, self.over.index)
        return select_rows(rows_from_owners(requests, leaving, mine, foreseen), inverse(order))
