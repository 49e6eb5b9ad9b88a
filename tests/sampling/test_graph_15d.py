"""Samples of a graph in block rows are bitwise equal to samples of the full graph, on any grid."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.base.ranges import ranges_between, split_range
from harness.comm.grid import Grid
from harness.conformance.case import make_check_graph
from harness.kernels.parts import extract_block
from harness.ledger import AxisName, Key, Ledger, Op, Phase, TensorName
from harness.strategies.sampling.bulk import Algorithm1, BulkGraph, SampledLayer
from harness.strategies.sampling.graph_15d import BlockRowGraph15D
from harness.strategies.sampling.graph_placement import BlockLayout, Rank
from harness.strategies.sampling.matrices import PositionMap

N = 97
ROW, COL = AxisName.ROW, AxisName.COL
BULKS = [
    Algorithm1(4, "graphsage", (5, 3, 2)),
    Algorithm1(4, "ladies", (12, 30), "counts", replacement=True),
    Algorithm1(4, "ladies", (12, 30), "norms", replacement=False),
    Algorithm1(4, "fastgcn", (12, 30), "norms", replacement=True),
]


def batches_of(row: int) -> list[torch.Tensor]:
    """Return the batches of a grid row: of different sizes, with an empty batch and a batch of all vertices."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(row))
    return [order[:7], order[7:8], order[:0], order] if row % 2 else [order[:20]]


def told(layers: list[SampledLayer]) -> list[list[object]]:
    return [[part.tolist() for part in (*layer.A[:3], *layer.outputs, *layer.inputs)] for layer in layers]


def sample_rank(shape: tuple[int, int], bulk: Algorithm1, uneven: bool) -> tuple[bool, dict[Key, float]]:
    """Return whether this rank's samples equal those of the full graph, and the words that it received."""
    ledger = Ledger()
    grid = Grid.build({ROW: shape[0], COL: shape[1]}, ledger)
    A, row = make_check_graph(N).A, grid.coordinates[ROW]
    blocks = ranges_between([0, *range(1, shape[0]), N]) if uneven else split_range(N, shape[0])
    ctx: Any = SimpleNamespace(grid=grid)
    rank = Rank(ctx, BlockLayout(grid.shape, blocks, ROW, COL), grid.rank, ctx)
    graph = BlockRowGraph15D(extract_block(A, blocks[row], range(N)), rank)
    batches = batches_of(row)
    ledger.start()
    with ledger.phase(Phase.SAMPLE):
        mine = bulk.draw(graph, PositionMap(N), 2, range(len(batches)), batches)
    entries = ledger.stop()
    theirs = bulk.draw(BulkGraph(A), PositionMap(N), 2, range(len(batches)), batches)
    return told(mine) == told(theirs), {key: amounts.elements_received for key, amounts in entries.items()}


@pytest.mark.parametrize("bulk", BULKS, ids=lambda bulk: f"{bulk.kind} {bulk.distribution}")
@pytest.mark.parametrize(
    ("shape", "uneven"),
    [((1, 1), False), ((2, 1), False), ((1, 3), False), ((3, 2), True), ((2, 3), False), ((6, 1), True)],
)
def test_partitioned_and_replicated_graphs_give_the_same_samples(
    shape: tuple[int, int], uneven: bool, bulk: Algorithm1, pool
) -> None:
    """This holds for any c, also if c does not divide the number of block rows, or exceeds it."""
    found = pool.run(shape[0] * shape[1], sample_rank, shape, bulk, uneven)
    assert all(same for same, _ in found)


def test_only_needed_rows_are_received(pool) -> None:
    """Counted on the full graph for the first layer of GraphSAGE: a vertex is sent once for all its batches."""
    A, bulk, blocks = make_check_graph(N).A, Algorithm1(4, "graphsage", (5,)), split_range(N, 3)
    for rank, (_, received) in enumerate(pool.run(6, sample_rank, (3, 2), bulk, False)):
        row, col = divmod(rank, 2)
        owner = [0, 0, 1]  # which rank of a grid row asks the owner of each block row
        wanted = {
            vertex
            for batch in batches_of(row)
            for vertex in batch.tolist()
            for block_row, vertices in enumerate(blocks)
            if vertex in vertices and owner[block_row] == col and block_row != row
        }
        lengths = sum(int(A.rowptr[vertex + 1] - A.rowptr[vertex]) for vertex in wanted)
        values = sum(
            words for key, words in received.items() if key.op is Op.ALL_TO_ALL and key.tensor is TensorName.A
        )
        assert values == lengths
