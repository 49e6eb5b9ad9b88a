"""In the facts of a partitioned graph the blocks are its parts, both with a store and on shapes only.

Sizes on shapes only are computed without the shapes, and equal those of the shapes.
"""

from typing import Any

import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.graph.partitions.partition import order_by_part
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.csr import cast, get_packed_format, pack, transpose
from harness.kernels.parts import drop_empty_columns, hstack, nonempty_columns
from harness.strategy import BlockCounts, Facts, facts_of
from harness.strategy.facts import ShapeBlocks
from harness.strategy.memory import DeviceMemory
from harness.strategy.rank_blocks import RankBlocks

N = 101


def test_the_parts_of_a_partition_are_the_blocks() -> None:
    graph = make_check_graph(N)
    partition = order_by_part(torch.arange(N) % 10 // 4, 3)
    facts = facts_of(MemoryStore(graph, partition=partition))
    assert facts.bounds == partition.bounds
    assert facts.blocks(3) == partition.ranges
    assert facts_of(MemoryStore(graph)).blocks(3) == [range(34), range(34, 68), range(68, N)]


def test_shapes_have_the_parts_of_their_facts() -> None:
    graph = make_check_graph(N)
    facts = facts_of(MemoryStore(graph, partition=order_by_part(torch.arange(N) // 60, 2)))
    assert ShapeBlocks(facts).bounds == (0, 60, N)
    assert ShapeBlocks(facts_of(MemoryStore(graph))).bounds is None


FACTS = Facts(1001, 20011, 8, 3, True, 1001, 500, exact=False)
BLOCKS = FACTS.blocks(7)
META = torch.device("meta")


@pytest.mark.parametrize("transposed", [False, True])
def test_sizes_on_shapes_only_are_those_of_the_shapes(transposed: bool) -> None:
    shapes, dtype = ShapeBlocks(FACTS), torch.float64
    spec: Any = None  # only features and labels need it
    blocks, counts = RankBlocks(spec, FACTS, shapes, DeviceMemory(META, dtype)), BlockCounts(shapes)

    def read(rows: range, cols: range) -> Any:
        return transpose(shapes.adjacency(cols, rows)) if transposed else shapes.adjacency(rows, cols)

    def outline(A: Any) -> Any:
        return [(x.shape, x.dtype) for x in A[:3]], A.cols

    rows, others = BLOCKS[2], [BLOCKS[0], BLOCKS[3], BLOCKS[6]]
    pieces = [read(rows, cols) for cols in others]
    assert [counts.nonzeros(rows, cols, transposed=transposed) for cols in others] == [A.nnz for A in pieces]
    filled = [len(nonempty_columns(A)) for A in pieces]
    assert [counts.nonempty_columns(rows, cols, transposed=transposed) for cols in others] == filled
    compact, widths = blocks.compact_adjacency(rows, others, transposed=transposed)
    assert widths == filled
    assert outline(compact) == outline(cast(hstack([drop_empty_columns(A) for A in pieces]), dtype))
    nothing, widths = blocks.compact_adjacency(rows, [], transposed=transposed)
    assert (outline(nothing), widths) == (outline(cast(read(rows, range(0)), dtype)), [])
    columns, sizes = blocks.needed_columns(others, rows, transposed=transposed)
    assert sizes == [len(nonempty_columns(read(each, rows))) for each in others]
    assert (columns.shape, columns.dtype) == ((sum(sizes),), torch.int64)
    buffer, form = blocks.pack_adjacency(rows, others[1], transposed=transposed)
    whole = cast(pieces[1], dtype)
    assert form == get_packed_format(whole)
    assert buffer.shape == pack(whole).shape
