"""The graph in 1.5D: block rows, each on c ranks, and products of selections with it by need (Algorithm 2).

P(i, j) has block row A_i. What grid row i samples, its c ranks know alike. In a grid column the owners of its share of
the block rows are asked, for the rows that are needed and no others, each once; so of a selection's rows each is on one
rank of a grid row. Sampled rows, masses and extracted columns are put together over the grid row, any c of it: after
sampling and extraction and not before, since these are smaller than rows of A.

In a replay calls go out in the sizes that the whole graph foresees. The axis row joins the ranks of a grid column, the
axis col those of a grid row.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels import Csr, from_coo
from harness.kernels.parts import below, expected, select_rows
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.parallel.row_requests import ask, inside, inverse, learned, owners, rows_from_owners, sums
from harness.ranges import balanced
from harness.strategy import Coordinates, Piece, require_entries
from strategies.sampling.bulk import Bulks, Layer, Summed
from strategies.sampling.graph_at import Foreseen, GraphAt, Layout, Rank, Tally
from strategies.sampling.matrices import Stack, draw_rows, one_batch
from strategies.sampling.sampler import At, DrawRows

ROW, COL = AxisName.ROW, AxisName.COL


class BlockRows15D(GraphAt):
    """Block rows of the graph, each on the ranks of a grid row, who sample together."""

    def piece(self, layout: Layout, at: Coordinates) -> Piece:
        return Piece(layout.rows(at), layout.vertices)

    def on(self, rank: Rank) -> "PartitionedGraph":
        A_NK = self.own(rank)
        reason = "what is sent hangs on the rows that are drawn"
        require_entries(A_NK, "Sampling a partitioned graph", reason, "use graph = replicated")
        return (PartitionedGraph if rank.foreseen is None else ReplayedGraph)(A_NK, rank)

    def add_words(self, tally: Tally) -> None:
        """The words of all bulks: samples are drawn again, their vertices and entries are counted."""
        bulk, product = _bulks(tally.foreseen).bulk, _Product(tally)
        for first in range(tally.steps.start, tally.steps.stop, bulk.at_once):
            steps = range(first, min(first + bulk.at_once, tally.steps.stop))
            drawn = layers_of_rows(tally.foreseen, tally.layout, steps)
            for hop in range(len(bulk.how.sizes)):
                product.add_column([layers[-1 - hop].outputs for layers in drawn])
                product.add_row(drawn[tally.at[ROW]][-1 - hop], layer_wise=bulk.how.layer_wise)

    def samples(self, layout: Layout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """A grid row draws the batches of all its ranks, each of which fetches its share of the rows."""
        together = batches * layout.copies
        rows = expected(A.rows, together * frontier) // layout.copies
        return together, rows, A.nnz * rows // max(A.rows, 1)


def layers_of_rows(foreseen: Foreseen, layout: Layout, steps: range) -> list[list[Layer]]:
    """The bulks that all grid rows draw in some steps."""
    rows = map(layout.together, range(len(layout.blocks)))
    return [_bulks(foreseen).draw(steps, groups, foreseen.graph, foreseen.targets) for groups in rows]


def _bulks(foreseen: Foreseen) -> Bulks:
    assert isinstance(foreseen.sampler, Bulks), "a graph in 1.5D is sampled in bulks"
    return foreseen.sampler


class _Product:
    """The words of one rank in a product with the graph.

    In the grid column: how many rows, which, how long, their columns and values, of the rows that grid row i needs of
    this column's block rows and that are not its own. In the grid row: what was sampled, and LADIES' masses.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally, self.layout, self.at = tally, tally.layout, tally.at
        self.A, self.stages = tally.foreseen.graph.A, balanced(len(self.layout.blocks), self.layout.copies)

    def add_column(self, needed: Sequence[Stack]) -> None:
        """The words in the grid column, by what every grid row needs."""
        blocks, own, here = self.layout.blocks, self.layout.rows(self.at), self.at[ROW]
        served = [blocks[q] for q in self.stages[self.at[COL]]]
        rows = [set(stack.vertices.tolist()) for stack in needed]
        wanted = [v for v in rows[here] if v not in own and any(v in block for block in served)]
        asked = sum(len(rows[row] & set(own)) for row in range(len(rows)) if row != here and own in served)
        entries = int(self.A.rowptr.diff()[wanted].sum())
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.COUNT, len(blocks) + len(wanted))
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.INDEX, asked + entries)
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.A, entries)

    def add_row(self, layer: Layer, *, layer_wise: bool) -> None:
        """The words of what the ranks of this grid row put together."""
        outputs, sampled, masses = layer.outputs, layer.A.nnz, 0
        lengths = len(outputs.vertices)
        if layer_wise:
            masses = sum(self._reached(outputs.of(batch)) for batch in range(outputs.batches))
            lengths += outputs.batches * self.layout.copies
        self.tally.put(Op.ALL_GATHER, COL, TensorName.COUNT, lengths)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.INDEX, sampled + masses)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.A, sampled)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.CHANCE, masses)

    def _reached(self, vertices: Tensor) -> int:
        """Neighbours of a batch, once for every rank of the grid row that has some of its rows."""
        blocks, A, total = self.layout.blocks, self.A, 0
        for stages in self.stages:
            here = [v for v in vertices.tolist() if any(v in blocks[q] for q in stages)]
            total += len({c for v in here for c in A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist()})
        return total


class PartitionedGraph:
    """One rank's block row of the graph (`bulk.BulkGraph`)."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.A, self.rank, self.blocks = A_NK, rank, rank.layout.blocks
        self.row, self.col = rank.ctx.grid[ROW], rank.ctx.grid[COL]
        self.ledger = self.row.ledger
        self.here = self.blocks[self.row.index]
        self.start = self.here.start
        self.together = rank.layout.together(self.row.index)
        self.stages = balanced(self.row.size, self.col.size)
        self._popularity: Csr | None = None

    def drawn(self, draw: DrawRows, vertices: Tensor, at: At) -> Csr:
        raise NotImplementedError("a graph in 1.5D is sampled in bulks")

    def begin(self, steps: range) -> None: ...

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        with self.ledger.turn_to(Phase.DISTRIBUTE):
            A, at = self._needed(stack)
        S = draw_rows(A, Stack(at, stack.starts), fanout, keys, own=stack)
        return self.put_together(S, stack)

    def rows(self, stack: Stack) -> Csr:
        return select_rows(*self._needed(stack))

    def popularity(self, summed: Summed) -> Csr:
        """Every block row has its sums, and a grid column has all block rows."""
        if self._popularity is None:
            P = summed(self.A, one_batch(range(len(self.here))))
            everywhere = torch.zeros(P.cols, dtype=torch.int64)
            everywhere[P.col.long()] = P.val
            everywhere = self.row.all_reduce(everywhere.to(self.row.device), tensor=TensorName.CHANCE).cpu()
            col = everywhere.nonzero()[:, 0]
            self._popularity = from_coo(torch.zeros_like(col), col, everywhere[col], (1, P.cols))
        return self._popularity

    def sum(self, R: Csr, stack: Stack, summed: Summed) -> Csr:
        """What every rank of the grid row has of each row, added up."""
        mine, members = summed(self._mine(R, stack), stack), self.col.size
        if members == 1:
            return mine

        def foreseen() -> Csr:
            return below([summed(self._share(R, stack, member), stack) for member in range(members)])

        shares = self._gathered(mine, [mine.rows] * members, TensorName.CHANCE, foreseen)
        row = torch.arange(mine.rows).repeat(members).repeat_interleave(shares.rowptr.diff())
        return from_coo(row, shares.col.long(), shares.val, mine.shape, sum_duplicates=True)

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        """The rows that every rank of the grid row has, in the order of the stack."""
        if self.col.size == 1:
            return A
        member = self._member(stack.vertices)
        order, rows = member.sort(stable=True).indices, member.bincount(minlength=self.col.size).tolist()
        mine = select_rows(A, order[sum(rows[: self.col.index]) :][: rows[self.col.index]])
        everyones = self._gathered(mine, rows, TensorName.A, lambda: select_rows(A, order))
        return select_rows(everyones, inverse(order))

    def _gathered(self, mine: Csr, rows: list[int], values: TensorName, foreseen: Callable[[], Csr]) -> Csr:
        """The rows of all ranks of the grid row, so many of each, one below the other, on the host."""
        known = cache(foreseen)

        def gather(x: Tensor, sizes: list[int], tensor: TensorName, known_x: Callable[[], Tensor]) -> Tensor:
            return learned(
                self.col.all_gather(x.to(self.col.device), sizes=sizes, tensor=tensor), known_x
            ).cpu()

        lengths = gather(mine.rowptr.diff(), rows, TensorName.COUNT, lambda: torch.diff(known().rowptr))
        sizes = sums(lengths, rows)
        cols = gather(mine.col, sizes, TensorName.INDEX, lambda: known().col)
        vals = gather(mine.val, sizes, values, lambda: known().val)
        return Csr(pad(lengths.cumsum(0), (1, 0)), cols, vals, mine.cols)

    def _member(self, vertices: Tensor) -> Tensor:
        """The rank of the grid row that gets the rows of these vertices."""
        stops = torch.tensor([stage.stop for stage in self.stages])
        return torch.bucketize(owners(vertices, self.blocks), stops, right=True)

    def _mine(self, R: Csr, stack: Stack) -> Csr:
        """Those of the rows of a selection that this rank gets, the others empty."""
        return R

    def _share(self, R: Csr, stack: Stack, member: int) -> Csr:
        """Those that a rank of the grid row gets."""
        here = self._member(stack.vertices) == member
        return select_rows(_with_empty_row(R), torch.where(here, torch.arange(R.rows), R.rows))

    def _needed(self, stack: Stack) -> tuple[Csr, Tensor]:
        """Rows of A that this rank multiplies by, and where those of the stack are among them: others are empty."""
        here = self._member(stack.vertices) == self.col.index
        named = stack.vertices[here].unique()
        A = self._fetched(named)
        at = torch.full_like(stack.vertices, len(named))
        at[here] = torch.searchsorted(named, stack.vertices[here])
        return _with_empty_row(A), at

    def _fetched(self, named: Tensor) -> Csr:
        """A[named], ascending, from their owners: how long they are, their columns, their values."""
        counts = owners(named, self.blocks).bincount(minlength=self.row.size).tolist()
        requests = ask(self.row, self.blocks, named.to(self.row.device), counts, self._asked_by_others)
        own = named[requests.before :][: counts[self.row.index]] - self.start
        leaving, mine = select_rows(self.A, requests.coming.cpu()), select_rows(self.A, own)
        return rows_from_owners(
            requests, leaving, mine, lambda: select_rows(self.rank.foresight.graph.A, named)
        )

    def _asked_by_others(self) -> list[Tensor]:
        """Those of this rank's rows that the others in the grid column need, where they cannot say so."""
        raise AssertionError("in a run other ranks ask for themselves")


class ReplayedGraph(PartitionedGraph):
    """The same in a replay: every rank of a grid row is foreseen, so this one works on all rows of a selection."""

    def begin(self, steps: range) -> None:
        layers = layers_of_rows(self.rank.foresight, self.rank.layout, steps)
        hops = reversed(range(len(layers[0])))
        self._products = iter([[each[hop].outputs for each in layers] for hop in hops])

    def _mine(self, R: Csr, stack: Stack) -> Csr:
        return self._share(R, stack, self.col.index)

    def _needed(self, stack: Stack) -> tuple[Csr, Tensor]:
        super()._needed(stack)
        return self.rank.foresight.graph.A, stack.vertices

    def _asked_by_others(self) -> list[Tensor]:
        served = self.row.index in self.stages[self.col.index]
        needed = [stack.vertices.unique() if served else stack.vertices[:0] for stack in next(self._products)]
        return [vertices[inside(vertices, self.here)] for vertices in needed]


def _with_empty_row(A: Csr) -> Csr:
    """A, and below it a row of nothing."""
    return A._replace(rowptr=torch.cat([A.rowptr, A.rowptr[-1:]]))
