"""The graph in 1.5D: block rows, each on c ranks, and products of selections with the graph by need (Algorithm 2).

P(i, j) has block row A_i. The c ranks of grid row i draw the same samples together. In a grid column, a rank requests
rows of A from the owners of its share of the block rows: the rows that are needed, each once, and no others. So each
row of a selection is on one rank of a grid row. Sampled rows, masses and extracted columns are assembled over the grid
row, for any c: after sampling and extraction and not before, since these are smaller than rows of A.

In a replay, calls have the sizes that follow from the whole graph. The axis row joins the ranks of a grid column, and
the axis col joins the ranks of a grid row.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.device import upload
from harness.kernels import Csr, from_coo, row_indices
from harness.kernels.parts import expected_distinct, select_rows, vstack
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.parallel.row_requests import (
    count_by_owner,
    fetch_matrix_rows,
    find_owners,
    invert_permutation,
    is_in_block,
    request_rows,
    resolve_in_replay,
    sum_parts,
)
from harness.ranges import split_evenly
from harness.strategies.sampling.bulk import Bulk, BulkGraph, SampledLayer, SumMasses
from harness.strategies.sampling.graph_placement import BlockLayout, Foresight, PartitionedGraph, Rank, Tally
from harness.strategies.sampling.matrices import BatchStack, draw_rows, one_batch
from harness.strategies.sampling.sampler import DrawKey, DrawRows, GraphView
from harness.strategy import require_entries

ROW, COL = AxisName.ROW, AxisName.COL


class PartitionedGraph15D(PartitionedGraph):
    """Block rows of the graph, each on the ranks of a grid row, which sample together."""

    def on(self, rank: Rank) -> GraphView:
        A_NK = self.own(rank)
        reason = "the words depend on the rows that are drawn"
        require_entries(A_NK, "Sampling a partitioned graph", reason, "use graph = replicated")
        return (ReplayedGraph15D if rank.ctx.blocks.replay_graph() else BlockRowGraph15D)(A_NK, rank)

    def add_words(self, tally: Tally) -> None:
        """Adds the words of all bulks, by drawing the samples again and counting vertices and entries."""
        bulk, product = _bulk(tally.foresight), _Product(tally)
        for first in range(tally.steps.start, tally.steps.stop, bulk.at_once):
            steps = range(first, min(first + bulk.at_once, tally.steps.stop))
            drawn = layers_of_rows(tally.foresight, tally.layout, steps)
            for hop in range(len(bulk.algorithm.sizes)):
                product.add_column([layers[-1 - hop].outputs for layers in drawn])
                product.add_row(drawn[tally.at[ROW]][-1 - hop], layer_wise=bulk.algorithm.layer_wise)

    def bulk_counts(self, layout: BlockLayout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """A grid row draws the batches of all its ranks, and each rank fetches its share of the rows."""
        together = batches * layout.copies
        rows = expected_distinct(A.rows, together * frontier) // layout.copies
        return together, rows, A.nnz * rows // max(A.rows, 1)


def layers_of_rows(foresight: Foresight, layout: BlockLayout, steps: range) -> list[list[SampledLayer]]:
    """The bulks that all grid rows draw in some steps."""
    rows = map(layout.groups_of, range(len(layout.blocks)))
    return [_bulk(foresight).draw(steps, groups, foresight.targets) for groups in rows]


def _bulk(foresight: Foresight) -> Bulk:
    assert isinstance(foresight.prepared, Bulk), "a graph in 1.5D is sampled in bulks"
    return foresight.prepared


class _Product:
    """The words of one rank in a product with the graph.

    In the grid column: the numbers of requested rows, the rows, their lengths, columns and values, for the rows that
    grid row i needs of this column's block rows and does not own. In the grid row: the samples, and LADIES' masses.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally, self.layout, self.at = tally, tally.layout, tally.at
        self.A, self.stages = (
            tally.foresight.graph.A,
            split_evenly(len(self.layout.blocks), self.layout.copies),
        )

    def add_column(self, needed: Sequence[BatchStack]) -> None:
        """Adds the words in the grid column, by the selections of all grid rows."""
        blocks, own, member = self.layout.blocks, self.layout.rows(self.at), self.at[ROW]
        served = [blocks[q] for q in self.stages[self.at[COL]]]
        rows = [set(stack.vertices.tolist()) for stack in needed]
        wanted = [v for v in rows[member] if v not in own and any(v in block for block in served)]
        asked = sum(len(rows[row] & set(own)) for row in range(len(rows)) if row != member and own in served)
        entries = int(self.A.rowptr.diff()[wanted].sum())
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.COUNT, len(blocks) + len(wanted))
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.INDEX, asked + entries)
        self.tally.put(Op.ALL_TO_ALL, ROW, TensorName.A, entries)

    def add_row(self, layer: SampledLayer, *, layer_wise: bool) -> None:
        """Adds the words of the rows that the ranks of this grid row assemble."""
        outputs, sampled, masses = layer.outputs, layer.A.nnz, 0
        lengths = len(outputs.vertices)
        if layer_wise:
            masses = sum(self._masses(outputs.of(batch)) for batch in range(outputs.batches))
            lengths += outputs.batches * self.layout.copies
        self.tally.put(Op.ALL_GATHER, COL, TensorName.COUNT, lengths)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.INDEX, sampled + masses)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.A, sampled)
        self.tally.put(Op.ALL_GATHER, COL, TensorName.CHANCE, masses)

    def _masses(self, vertices: Tensor) -> int:
        """The neighbours of a batch, each counted once for every rank of the grid row that reaches it from its rows."""
        blocks, A, total = self.layout.blocks, self.A, 0
        for stages in self.stages:
            rows = [v for v in vertices.tolist() if any(v in blocks[q] for q in stages)]
            total += len({c for v in rows for c in A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist()})
        return total


class BlockRowGraph15D(BulkGraph):
    """The block row of one rank, and products with the whole graph."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.row, self.col = rank.ctx.grid[ROW], rank.ctx.grid[COL]
        super().__init__(A_NK, self.row.ledger, rank.layout.groups_of(self.row.index), self.row.device)
        self.layout, self.blocks, self.foresight = rank.layout, rank.layout.blocks, rank.foresight
        self.own = self.blocks[self.row.index]
        self.start = self.own.start
        self.stages = split_evenly(self.row.size, self.col.size)

    def sampled_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        raise NotImplementedError("a graph in 1.5D is sampled in bulks")

    def draw(self, stack: BatchStack, fanout: int, keys: Tensor) -> Csr:
        with self.ledger.in_phase(Phase.DISTRIBUTE):
            A, rows = self._needed(stack)
        S = draw_rows(A, BatchStack(rows, stack.starts), fanout, keys, own=stack)
        return self.assemble(S, stack)

    def rows(self, stack: BatchStack) -> Csr:
        return select_rows(*self._needed(stack))

    def popularity(self, sum_masses: SumMasses) -> Csr:
        """Sums each block row by itself, and then over the grid column, which has all block rows."""
        if self._popularity is None:
            P = sum_masses(self.A, one_batch(range(len(self.own)), self.A.val.device))
            total = P.val.new_zeros(P.cols)
            total[P.col.long()] = P.val
            total = self.row.all_reduce(total.to(self.row.device), tensor=TensorName.CHANCE).to(P.val.device)
            col = total.nonzero()[:, 0]
            self._popularity = from_coo(torch.zeros_like(col), col, total[col], (1, P.cols))
        return self._popularity

    def sum(self, R: Csr, stack: BatchStack, sum_masses: SumMasses) -> Csr:
        """Sums the masses of each rank's share of the rows, and adds up the sums over the grid row."""
        own, members = sum_masses(self._own_share(R, stack), stack), self.col.size
        if members == 1:
            return own

        def foreseen() -> Csr:
            return vstack([sum_masses(self._share(R, stack, member), stack) for member in range(members)])

        shares = self._gathered(own, [own.rows] * members, TensorName.CHANCE, foreseen)
        row = row_indices(shares) % max(own.rows, 1)
        return from_coo(row, shares.col.long(), shares.val, own.shape, sum_duplicates=True)

    def assemble(self, A: Csr, stack: BatchStack) -> Csr:
        """The rows of all ranks of the grid row, in the order of the stack."""
        if self.col.size == 1:
            return A
        member = self._member(stack.vertices)
        ascending, order = member.sort(stable=True)
        rows = count_by_owner(ascending, self.col.size)
        own = select_rows(A, order.split(rows)[self.col.index])
        all_rows = self._gathered(own, rows, TensorName.A, lambda: select_rows(A, order))
        return select_rows(all_rows, invert_permutation(order))

    def _gathered(self, own: Csr, rows: list[int], values: TensorName, foreseen: Callable[[], Csr]) -> Csr:
        """The rows of all ranks of the grid row, one rank below the other, beside its own; `rows` has their numbers."""
        known, here = cache(foreseen), own.val.device

        def gather(x: Tensor, sizes: list[int], tensor: TensorName, known_x: Callable[[], Tensor]) -> Tensor:
            arrived = self.col.all_gather(x.to(self.col.device), sizes=sizes, tensor=tensor)
            return resolve_in_replay(arrived, known_x, self.col.ledger).to(here)

        lengths = gather(own.rowptr.diff(), rows, TensorName.COUNT, lambda: torch.diff(known().rowptr))
        sizes = sum_parts(lengths, rows)
        cols = gather(own.col, sizes, TensorName.INDEX, lambda: known().col)
        vals = gather(own.val, sizes, values, lambda: known().val)
        return Csr(pad(lengths.cumsum(0), (1, 0)), cols, vals, own.cols)

    def _member(self, vertices: Tensor) -> Tensor:
        """The rank of the grid row that gets the rows of these vertices."""
        stops = upload(torch.tensor([stage.stop for stage in self.stages]), vertices.device)
        return torch.bucketize(find_owners(vertices, self.blocks), stops, right=True)

    def _own_share(self, R: Csr, stack: BatchStack) -> Csr:
        """The rows of a selection that this rank gets; all other rows are empty."""
        return R

    def _share(self, R: Csr, stack: BatchStack, member: int) -> Csr:
        """The rows of a selection that a rank of the grid row gets; all other rows are empty."""
        shared = self._member(stack.vertices) == member
        return select_rows(
            _with_empty_row(R), torch.where(shared, torch.arange(R.rows, device=shared.device), R.rows)
        )

    def _needed(self, stack: BatchStack) -> tuple[Csr, Tensor]:
        """The rows of A that this rank multiplies by, and the row of every vertex of the stack; an empty one for most.

        Vertices in the share of another rank of the grid row have the empty row.
        """
        shared = self._member(stack.vertices) == self.col.index
        named = stack.vertices[shared].unique()
        A = self._fetched(named)
        rows = torch.searchsorted(named, stack.vertices).masked_fill_(~shared, len(named))
        return _with_empty_row(A), rows

    def _fetched(self, named: Tensor) -> Csr:
        """A[named], ascending, from the owners: the lengths of the rows, their columns, their values."""
        counts = count_by_owner(find_owners(named, self.blocks), self.row.size)
        requests = request_rows(
            self.row, self.blocks, named.to(self.row.device), counts, self._foreseen_requests
        )
        own = named.split(counts)[self.row.index] - self.start
        leaving, own_rows = select_rows(self.A, requests.requested), select_rows(self.A, own)
        return fetch_matrix_rows(
            requests, leaving, own_rows, lambda: select_rows(self.foresight.graph.A, named)
        )

    def _foreseen_requests(self) -> list[Tensor]:
        """The rows of this rank that every rank of the grid column requests; asked for in a replay alone."""
        raise AssertionError("in a run other ranks ask for themselves")


class ReplayedGraph15D(BlockRowGraph15D):
    """The block row in a replay: the rank works on all rows of a selection, so that it foresees its whole grid row."""

    def begin(self, steps: range) -> None:
        with self.ledger.simulating_peers():
            layers = layers_of_rows(self.foresight, self.layout, steps)
        hops = reversed(range(len(layers[0])))
        self._selections = iter([[each[hop].outputs for each in layers] for hop in hops])

    def _own_share(self, R: Csr, stack: BatchStack) -> Csr:
        return self._share(R, stack, self.col.index)

    def _needed(self, stack: BatchStack) -> tuple[Csr, Tensor]:
        super()._needed(stack)
        return self.foresight.graph.A, stack.vertices

    def _foreseen_requests(self) -> list[Tensor]:
        served = self.row.index in self.stages[self.col.index]
        needed = [
            stack.vertices.unique() if served else stack.vertices[:0] for stack in next(self._selections)
        ]
        return [vertices[is_in_block(vertices, self.own)] for vertices in needed]


def _with_empty_row(A: Csr) -> Csr:
    """A with an empty row below."""
    return A._replace(rowptr=torch.cat([A.rowptr, A.rowptr[-1:]]))
