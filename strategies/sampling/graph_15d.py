"""The graph in 1.5D: block rows, each on c ranks, and sparsity-aware products of selections with A (Algorithm 2).

P(i, j) has block row A_i. The c ranks of grid row i draw the same samples together. In a grid column, a rank requests
only the needed rows of A, each once, from the owners of its share of the block rows, so each row of a selection is on
one rank of a grid row. Sampled rows, masses and extracted columns are assembled over the grid row after sampling and
extraction, when they are smaller than rows of A.

In a replay, the sizes of calls follow from the whole graph. The axis row contains the ranks of a grid column, and the
axis col the ranks of a grid row.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.base.device import upload
from harness.base.ranges import split_evenly
from harness.kernels import Csr, from_coo, row_indices
from harness.kernels.parts import expected_distinct, select_rows, vstack
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.strategies.sampling.bulk import Bulk, BulkGraph, SampledLayer, SumMasses
from harness.strategies.sampling.graph_placement import (
    BlockLayout,
    GlobalReplay,
    PartitionedGraph,
    Rank,
    WordCount,
)
from harness.strategies.sampling.matrices import BatchStack, draw_rows, one_batch
from harness.strategies.sampling.sampler import DrawKey, DrawRows, GraphView
from harness.strategy import require_entries
from harness.strategy.parallel.row_requests import (
    count_by_owner,
    fetch_matrix_rows,
    find_owners,
    invert_permutation,
    is_in_block,
    request_rows,
    resolve_in_replay,
    sum_parts,
)

ROW, COL = AxisName.ROW, AxisName.COL


class PartitionedGraph15D(PartitionedGraph):
    """Block rows of the graph, each replicated on a grid row, whose ranks sample together."""

    def create_view(self, rank: Rank) -> GraphView:
        A_NK = self.sampling_block(rank)
        reason = "the words depend on the rows that are drawn"
        require_entries(A_NK, "Sampling a partitioned graph", reason, "use graph = replicated")
        return (ReplayedGraph15D if rank.ctx.blocks.replay_reader() else BlockRowGraph15D)(A_NK, rank)

    def add_words(self, count: WordCount) -> None:
        """Add the words of all bulks, by drawing their samples and counting vertices and entries."""
        bulk, product = _bulk(count.global_replay), _Product(count)
        for first in range(count.steps.start, count.steps.stop, bulk.steps_per_bulk):
            steps = range(first, min(first + bulk.steps_per_bulk, count.steps.stop))
            drawn = layers_of_rows(count.global_replay, count.layout, steps)
            for hop in range(len(bulk.algorithm.sizes)):
                product.add_column([layers[-1 - hop].outputs for layers in drawn])
                product.add_row(drawn[count.at[ROW]][-1 - hop], layer_wise=bulk.algorithm.layer_wise)

    def bulk_counts(self, layout: BlockLayout, A: Csr, batches: int, frontier: int) -> tuple[int, int, int]:
        """Count the batches of all ranks of a grid row, and this rank's share of the fetched rows."""
        together = batches * layout.copies
        rows = expected_distinct(A.rows, together * frontier) // layout.copies
        return together, rows, A.nnz * rows // max(A.rows, 1)


def layers_of_rows(
    global_replay: GlobalReplay, layout: BlockLayout, steps: range
) -> list[list[SampledLayer]]:
    """Return the bulks that all grid rows draw in some steps."""
    rows = map(layout.groups_of_block, range(len(layout.blocks)))
    return [_bulk(global_replay).draw(steps, groups, global_replay.targets) for groups in rows]


def _bulk(global_replay: GlobalReplay) -> Bulk:
    assert isinstance(global_replay.prepared_sampler, Bulk), "a graph in 1.5D is sampled in bulks"
    return global_replay.prepared_sampler


class _Product:
    """The words of one rank in a product with the graph.

    In the grid column, they are the requests for rows that grid row i does not own, and the lengths, columns and values
    of these rows. In the grid row, they are the samples and the masses of LADIES.
    """

    def __init__(self, count: WordCount) -> None:
        self.count, self.layout, self.at = count, count.layout, count.at
        self.A, self.stages = (
            count.global_replay.graph.A,
            split_evenly(len(self.layout.blocks), self.layout.copies),
        )

    def add_column(self, needed: Sequence[BatchStack]) -> None:
        """Add the words in the grid column, from the selections of all grid rows."""
        blocks, own, member = self.layout.blocks, self.layout.rows(self.at), self.at[ROW]
        served = [blocks[q] for q in self.stages[self.at[COL]]]
        rows = [set(stack.vertices.tolist()) for stack in needed]
        wanted = [v for v in rows[member] if v not in own and any(v in block for block in served)]
        asked = sum(len(rows[row] & set(own)) for row in range(len(rows)) if row != member and own in served)
        entries = int(self.A.rowptr.diff()[wanted].sum())
        self.count.add(Op.ALL_TO_ALL, ROW, TensorName.COUNT, len(blocks) + len(wanted))
        self.count.add(Op.ALL_TO_ALL, ROW, TensorName.INDEX, asked + entries)
        self.count.add(Op.ALL_TO_ALL, ROW, TensorName.A, entries)

    def add_row(self, layer: SampledLayer, *, layer_wise: bool) -> None:
        """Add the words of the rows that the ranks of this grid row assemble."""
        outputs, sampled, masses = layer.outputs, layer.A.nnz, 0
        lengths = len(outputs.vertices)
        if layer_wise:
            masses = sum(
                self._count_masses(outputs.batch_vertices(batch)) for batch in range(outputs.batches)
            )
            lengths += outputs.batches * self.layout.copies
        self.count.add(Op.ALL_GATHER, COL, TensorName.COUNT, lengths)
        self.count.add(Op.ALL_GATHER, COL, TensorName.INDEX, sampled + masses)
        self.count.add(Op.ALL_GATHER, COL, TensorName.A, sampled)
        self.count.add(Op.ALL_GATHER, COL, TensorName.CHANCE, masses)

    def _count_masses(self, vertices: Tensor) -> int:
        """Count the neighbours of a batch, once for each rank of the grid row that reaches them from its rows."""
        blocks, A, total = self.layout.blocks, self.A, 0
        for stages in self.stages:
            rows = [v for v in vertices.tolist() if any(v in blocks[q] for q in stages)]
            total += len({c for v in rows for c in A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist()})
        return total


class BlockRowGraph15D(BulkGraph):
    """The block row of one rank, and products with the whole graph."""

    def __init__(self, A_NK: Csr, rank: Rank) -> None:
        self.row, self.col = rank.ctx.grid[ROW], rank.ctx.grid[COL]
        super().__init__(A_NK, self.row.ledger, rank.layout.groups_of_block(self.row.index), self.row.device)
        self.layout, self.blocks, self.global_replay = rank.layout, rank.layout.blocks, rank.global_replay
        self.own = self.blocks[self.row.index]
        self.start = self.own.start
        self.stages = split_evenly(self.row.size, self.col.size)

    def sample_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        raise NotImplementedError("a graph in 1.5D is sampled in bulks")

    def draw(self, stack: BatchStack, fanout: int, keys: Tensor) -> Csr:
        with self.ledger.in_phase(Phase.DISTRIBUTE):
            A, rows = self._fetch_needed(stack)
        S = draw_rows(A, BatchStack(rows, stack.starts), fanout, keys, own=stack)
        return self.assemble_rows(S, stack)

    def select_rows(self, stack: BatchStack) -> Csr:
        return select_rows(*self._fetch_needed(stack))

    def popularity(self, sum_masses: SumMasses) -> Csr:
        """Sum each block row, then all-reduce over the grid column, which has all block rows."""
        if self._popularity is None:
            P = sum_masses(self.A, one_batch(range(len(self.own)), self.A.val.device))
            total = P.val.new_zeros(P.cols)
            total[P.col.long()] = P.val
            total = self.row.all_reduce(total.to(self.row.device), tensor=TensorName.CHANCE).to(P.val.device)
            col = total.nonzero()[:, 0]
            self._popularity = from_coo(torch.zeros_like(col), col, total[col], (1, P.cols))
        return self._popularity

    def sum_shares(self, R: Csr, stack: BatchStack, sum_masses: SumMasses) -> Csr:
        """Sum the masses of each rank's share of the rows, then over the grid row."""
        own, members = sum_masses(self._own_share(R, stack), stack), self.col.size
        if members == 1:
            return own

        def replayed() -> Csr:
            return vstack([sum_masses(self._share(R, stack, member), stack) for member in range(members)])

        shares = self._gather_rows(own, [own.rows] * members, TensorName.CHANCE, replayed)
        row = row_indices(shares) % max(own.rows, 1)
        return from_coo(row, shares.col.long(), shares.val, own.shape, sum_duplicates=True)

    def assemble_rows(self, A: Csr, stack: BatchStack) -> Csr:
        """Gather the rows of all ranks of the grid row, in the order of the stack."""
        if self.col.size == 1:
            return A
        member = self._member(stack.vertices)
        ascending, order = member.sort(stable=True)
        rows = count_by_owner(ascending, self.col.size)
        own = select_rows(A, order.split(rows)[self.col.index])
        all_rows = self._gather_rows(own, rows, TensorName.A, lambda: select_rows(A, order))
        return select_rows(all_rows, invert_permutation(order))

    def _gather_rows(self, own: Csr, rows: list[int], values: TensorName, replayed: Callable[[], Csr]) -> Csr:
        """Gather the rows of all ranks of the grid row, in rank order; `rows` has the number of rows of each."""
        known, here = cache(replayed), own.val.device

        def gather(x: Tensor, sizes: list[int], tensor: TensorName, known_x: Callable[[], Tensor]) -> Tensor:
            arrived = self.col.all_gather(x.to(self.col.device), sizes=sizes, tensor=tensor)
            return resolve_in_replay(arrived, known_x, self.col.ledger).to(here)

        lengths = gather(own.rowptr.diff(), rows, TensorName.COUNT, lambda: torch.diff(known().rowptr))
        sizes = sum_parts(lengths, rows)
        cols = gather(own.col, sizes, TensorName.INDEX, lambda: known().col)
        vals = gather(own.val, sizes, values, lambda: known().val)
        return Csr(pad(lengths.cumsum(0), (1, 0)), cols, vals, own.cols)

    def _member(self, vertices: Tensor) -> Tensor:
        """Return the rank of the grid row that holds the rows of each vertex."""
        stops = upload(torch.tensor([stage.stop for stage in self.stages]), vertices.device)
        return torch.bucketize(find_owners(vertices, self.blocks), stops, right=True)

    def _own_share(self, R: Csr, stack: BatchStack) -> Csr:
        """Return the rows of a selection that this rank holds; all other rows are empty."""
        return R

    def _share(self, R: Csr, stack: BatchStack, member: int) -> Csr:
        """Return the rows of a selection that a rank of the grid row holds; all other rows are empty."""
        shared = self._member(stack.vertices) == member
        return select_rows(
            _append_empty_row(R), torch.where(shared, torch.arange(R.rows, device=shared.device), R.rows)
        )

    def _fetch_needed(self, stack: BatchStack) -> tuple[Csr, Tensor]:
        """Fetch the rows of A that this rank multiplies by, and return them with the row of each vertex of the stack.

        Vertices in the share of another rank of the grid row have an empty row.
        """
        shared = self._member(stack.vertices) == self.col.index
        named = stack.vertices[shared].unique()
        A = self._fetch_rows(named)
        rows = torch.searchsorted(named, stack.vertices).masked_fill_(~shared, len(named))
        return _append_empty_row(A), rows

    def _fetch_rows(self, named: Tensor) -> Csr:
        """Fetch A[named] from the owners, in ascending order: the lengths of the rows, their columns and values."""
        counts = count_by_owner(find_owners(named, self.blocks), self.row.size)
        requests = request_rows(
            self.row, self.blocks, named.to(self.row.device), counts, self._replayed_requests
        )
        own = named.split(counts)[self.row.index] - self.start
        leaving, own_rows = select_rows(self.A, requests.requested), select_rows(self.A, own)
        return fetch_matrix_rows(
            requests, leaving, own_rows, lambda: select_rows(self.global_replay.graph.A, named)
        )

    def _replayed_requests(self) -> list[Tensor]:
        """Return the rows of this rank that each rank of the grid column requests; called only in a replay."""
        raise AssertionError("in a run, other ranks send their requests")


class ReplayedGraph15D(BlockRowGraph15D):
    """The block row in a replay, where the rank computes all rows of a selection for its whole grid row."""

    def start_bulk(self, steps: range) -> None:
        with self.ledger.simulating_peers():
            layers = layers_of_rows(self.global_replay, self.layout, steps)
        hops = reversed(range(len(layers[0])))
        self._selections = iter([[each[hop].outputs for each in layers] for hop in hops])

    def _own_share(self, R: Csr, stack: BatchStack) -> Csr:
        return self._share(R, stack, self.col.index)

    def _fetch_needed(self, stack: BatchStack) -> tuple[Csr, Tensor]:
        super()._fetch_needed(stack)
        return self.global_replay.graph.A, stack.vertices

    def _replayed_requests(self) -> list[Tensor]:
        served = self.row.index in self.stages[self.col.index]
        needed = [
            stack.vertices.unique() if served else stack.vertices[:0] for stack in next(self._selections)
        ]
        return [vertices[is_in_block(vertices, self.own)] for vertices in needed]


def _append_empty_row(A: Csr) -> Csr:
    """Return A with an empty row appended."""
    return A._replace(rowptr=torch.cat([A.rowptr, A.rowptr[-1:]]))
