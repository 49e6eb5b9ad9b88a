"""In the facts of a partitioned graph the blocks are its parts, both with a store and on shapes only."""

import torch

from harness.conformance.case import make_check_graph
from harness.graph.partition import order_by_part
from harness.store.memory_store import MemoryStore
from harness.strategy import facts_of
from harness.strategy.facts import ShapeBlocks

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
