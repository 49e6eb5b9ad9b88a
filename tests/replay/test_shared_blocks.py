"""Replays that share a graph find what replays of the graph itself find: the same blocks, lists and predictions."""

from collections.abc import Sequence

import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.graph.blocks import Blocks
from harness.graph.model import Graph
from harness.graph.shared_blocks import SharedBlocks
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.csr import Csr, from_coo, to_scipy
from harness.kernels.parts import (
    compact_columns,
    drop_empty_columns,
    extract_block,
    hstack,
    nonempty_columns,
    nonempty_columns_by_block,
)
from harness.prediction.epoch import RankEpoch, predict, price_epochs
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Ready, admit, facts_of

CARD = load_machine_card(find_root(), "perlmutter")
CUTS = [
    [range(0, 3), range(3, 9), range(9, 10)],
    [range(0, 1), range(6, 10)],
    [range(2, 2), range(2, 3)],
    [range(0, 10)],
    [],
]
"""Uneven blocks; with a gap between them; an empty one; one; none."""


def matrix(entries: int, seed: int) -> Csr:
    """A rectangular matrix, 10 by 10, with empty rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    row, col = (torch.randint(10, (entries,), generator=generator) for _ in range(2))
    keys = (row * 10 + col).unique()
    return from_coo(keys // 10, keys % 10, torch.rand(len(keys), generator=generator), (10, 10))


@pytest.mark.parametrize("entries", [0, 4, 30, 300])
@pytest.mark.parametrize("cut", CUTS)
def test_columns_of_several_blocks_are_those_of_each_block(entries: int, cut: Sequence[range]) -> None:
    A = matrix(entries, len(cut))
    pieces = [drop_empty_columns(extract_block(A, range(10), cols)) for cols in cut or [range(0)]]
    joined, counts = compact_columns(A, cut)
    assert counts == ([piece.cols for piece in pieces] if cut else [])
    expected = hstack(pieces)
    assert (joined.col.dtype, joined.rowptr.dtype) == (expected.col.dtype, expected.rowptr.dtype)
    assert joined.shape == expected.shape
    assert (to_scipy(joined) != to_scipy(expected)).nnz == 0


@pytest.mark.parametrize("entries", [0, 4, 30, 300])
@pytest.mark.parametrize("heights", [[3, 6, 1], [0, 10], [10], [5, 0, 5]])
def test_columns_of_blocks_of_rows_are_those_of_each_block(entries: int, heights: list[int]) -> None:
    A, first = matrix(entries, len(heights)), 0
    expected = list[torch.Tensor]()
    for height in heights:
        expected.append(nonempty_columns(extract_block(A, range(first, first + height), range(10))))
        first += height
    columns, counts = nonempty_columns_by_block(A, heights)
    assert counts == list(map(len, expected))
    assert columns.tolist() == torch.cat(expected).tolist()


def same(one: Csr, other: Csr) -> bool:
    pairs = zip(one[:3], other[:3], strict=True)
    return one.cols == other.cols and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


RECTANGLES = [
    (range(211), range(211)),
    (range(0, 50), range(211)),
    (range(211), range(70, 71)),
    (range(60, 200), range(3, 180)),
    (range(5, 5), range(211)),
]


@pytest.mark.parametrize("permutation", ["none", "single", "double"])
@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
def test_blocks_in_memory_are_the_blocks_and_belong_to_the_caller(permutation, most_bytes: int) -> None:
    blocks = MemoryStore(make_check_graph(211), permutation)
    kept = SharedBlocks(blocks, most_bytes)
    for order in (0, 1):
        for rows, cols in RECTANGLES:
            A = kept.adjacency(rows, cols, order)
            assert same(A, blocks.adjacency(rows, cols, order))
            for x in A[:3]:
                x.zero_()
            assert same(kept.adjacency(rows, cols, order), blocks.adjacency(rows, cols, order))


def test_results_beyond_the_memory_are_not_kept() -> None:
    kept = SharedBlocks(MemoryStore(make_check_graph(11)), 100)
    kept.add_result("small", "kept", 60)
    kept.add_result("large", "refused", 60)
    kept.add_result(["no hash"], "refused", 1)
    assert kept.get_result("small") == "kept"
    assert kept.get_result("large") is None
    assert kept.get_result(["no hash"]) is None


GRAPHS: dict[str, Graph] = {
    "undirected": make_check_graph(211, directed=False),
    "directed": make_check_graph(211),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("distdgl", {}),
        ("quiver", {}),
        ("salient", {}),
        ("massivegnn", {"every": 1}),
        ("neutronstar", {"replicas": 0.5}),
        ("cagnet-sa-1d", {}),
        ("bns-gcn", {}),
    ],
)
def test_ranks_that_share_a_graph_are_predicted_as_ranks_by_themselves(
    name: str, params: dict[str, object], graph: str
) -> None:
    """Three ranks, 211 vertices: blocks are uneven. Each rank by itself reads the blocks without sharing."""
    blocks: Blocks = MemoryStore(GRAPHS[graph])
    kind = load_strategy(name)
    spec = {
        "strategy": {"name": name, "params": params},
        "dataset": "any",
        "ranks": 3,
        "grid": kind.grids(3)[0],
        "model": {"layers": 2, "hidden": 8},
        "training": {"batch": 20 if kind.mini_batches else 0},
        "machine": {"name": "any"},
    }
    strategy = admit(kind, Spec.model_validate(spec), facts_of(blocks))
    alone = [replay(strategy, rank, blocks, steps=3, skip_transient=True) for rank in range(3)]
    epochs = [
        RankEpoch(strategy, each, frozenset(range(3)), strategy.steps - len(each.first_of_step))
        for each in alone
    ]
    assert CARD.rates
    shared = SharedBlocks(blocks)
    for _ in range(2):  # the second time, everything that ranks share is known
        assert predict(Ready(strategy, shared), CARD) == price_epochs(epochs, CARD, CARD.rates.cores_per_node)
