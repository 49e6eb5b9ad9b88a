"""CAGNET's formulas equal counts from the authors' code."""

from collections import Counter
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.ledger import Ledger, Op
from harness.registry import load_strategy
from harness.spec.spec import Spec
from harness.strategy import Context, Facts, Strategy, admit, facts_of
from harness.strategy.models.operators import dropout_mask

FACTS = Facts(
    vertices=4096, nonzeros=63_986, features=64, classes=8, directed=False, labelled=4096, training=4096
)


class Even:
    """Counts of nonzeros that are distributed evenly over the matrix."""

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return FACTS.nonzeros * len(rows) * len(cols) // FACTS.vertices**2

    filled = nonzeros


def ready(
    name: str, grid: dict[str, int], facts: Facts = FACTS, *, model: Any = None, **params: Any
) -> Strategy:
    ranks = prod(grid.values())
    spec = {
        "strategy": {"name": name, "params": params},
        "dataset": "any",
        "ranks": ranks,
        "grid": grid,
        "model": {"layers": 2, "hidden": 16, "order": "aggregate_first", **(model or {})},
        "machine": {"name": "any"},
    }
    return admit(load_strategy(name), Spec.model_validate(spec), facts)


def payload(strategy: Strategy, rank: int = 0) -> Counter[tuple[str, Op]]:
    """Return words by direction and kind of call, without the loss."""
    sent: Counter[tuple[str, Op]] = Counter()
    for key, words in strategy.words(strategy.coordinates(rank), Even()).items():
        if key.layer >= 0:
            sent[key.direction, key.op] += int(words)
    return sent


def test_1d_words_equal_counts_from_the_authors_code() -> None:
    """Counted in their code on a graph of this size, with widths 64, 16, 8 and four ranks."""
    sent = payload(ready("cagnet-1d", {"p": 4}))
    assert sent == {
        ("forward", Op.BROADCAST): 327_680,
        ("backward", Op.BROADCAST): 98_304,
        ("backward", Op.ALL_REDUCE): 1_152,
    }


def test_15d_words_equal_counts_from_the_authors_code() -> None:
    sent = payload(ready("cagnet-1.5d", {"row": 2, "col": 2}))
    assert sent == {
        ("forward", Op.BROADCAST): 163_840,
        ("forward", Op.ALL_REDUCE): 163_840,
        ("backward", Op.BROADCAST): 49_152,
        ("backward", Op.ALL_REDUCE): 50_304,
    }


def test_2d_words_of_dense_matrices_equal_the_papers_terms() -> None:
    """n f / sqrt(P) for H, T, G, S and twice for Y; f^2 once; and the transposition, which the paper does not count."""
    n, side = FACTS.vertices, 2
    strategy = ready("cagnet-2d", {"row": side, "col": side})
    sparse = 2 * (FACTS.nonzeros // 2) + 2 * (n // side + 1)
    by_tensor: Counter[str] = Counter()
    for key, words in strategy.words(strategy.coordinates(1), Even()).items():
        by_tensor[f"{key.direction} {key.op} {key.tensor} {key.layer}"] += int(words)
    for layer, (f_in, f_out) in enumerate([(64, 16), (16, 8)]):
        by_name = {
            name: by_tensor[f"{name} {layer}"] for name in ("forward broadcast H", "forward broadcast T")
        }
        assert set(by_name.values()) == {n * f_in // side}
        assert by_tensor[f"forward broadcast A {layer}"] == by_tensor[f"backward broadcast A {layer}"]
        assert by_tensor[f"forward broadcast A {layer}"] == pytest.approx(sparse, abs=8)
        assert by_tensor[f"backward broadcast G {layer}"] == n * f_out // side
        summed = n * f_out // side * (2 if layer else 1)  # S W^T is not asked for in the first layer
        assert by_tensor[f"backward broadcast S {layer}"] == summed
        assert by_tensor[f"backward broadcast H {layer}"] == n * f_in // side
        assert by_tensor[f"backward all_gather dW {layer}"] == f_in * f_out
        assert by_tensor[f"backward recv H {layer}"] == n * f_in // side**2


@pytest.mark.parametrize("rank", range(8))
def test_3d_words_are_below_the_papers_by_the_unneeded_reduction_of_products_with_w(rank: int) -> None:
    n, side = 4096, 2
    strategy = ready("cagnet-3d", {"row": side, "col": side, "fibre": side}, weight_gradient="S")
    sent = payload(strategy, rank)
    assert sent["forward", Op.REDUCE_SCATTER] == n * (64 + 16) // side**2
    assert sent["backward", Op.REDUCE_SCATTER] == n * (16 + 8) // side**2


@pytest.mark.parametrize(
    ("name", "grid"),
    [("cagnet-2d", {"row": 3, "col": 2}), ("cagnet-3d", {"row": 2, "col": 1, "fibre": 2})],
)
def test_all_gather_sends_as_many_words_as_broadcasts(name: str, grid: dict[str, int]) -> None:
    staged, at_once = (payload(ready(name, grid, moves=moves)) for moves in ("broadcasts", "all_gather"))
    assert at_once.total() == staged.total()
    assert {op for _, op in at_once} == {op for _, op in staged} - {Op.BROADCAST}


def test_keeping_a_product_for_the_weight_gradient_sends_fewer_words() -> None:
    for name, grid in (("cagnet-1d", {"p": 4}), ("cagnet-1.5d", {"row": 2, "col": 2})):
        kept, papers = payload(ready(name, grid, weight_gradient="T")), payload(ready(name, grid))
        assert papers["backward", Op.BROADCAST] - kept["backward", Op.BROADCAST] == 4096 * 16 // len(grid)
    square = {"row": 2, "col": 2}
    by_way = [payload(ready("cagnet-2d", square, weight_gradient=way)).total() for way in ("T", "S", "summa")]
    assert by_way == sorted(by_way)


def test_replication_that_does_not_divide_the_ranks_has_no_grid() -> None:
    assert load_strategy("cagnet-1.5d").grids(6) == [
        {"row": 2, "col": 3},
        {"row": 3, "col": 2},
        {"row": 1, "col": 6},
        {"row": 6, "col": 1},
    ]
    assert len(load_strategy("cagnet-3d").grids(7)) == 3


SEED, STEP, HIDDEN, VERTICES = 7, 3, 11, 97


def kept_by_dropout(name: str, grid: dict[str, int]) -> tuple[range, range, Tensor]:
    """Return the rows and columns of this rank's piece of a hidden layer, and its dropout mask."""
    spec = Spec.model_validate(
        {
            "strategy": name,
            "dataset": "check",
            "ranks": prod(grid.values()),
            "grid": grid,
            "seed": SEED,
            "model": {"layers": 2, "hidden": HIDDEN, "dropout": 0.5},
            "machine": {"name": "test"},
        }
    )
    store = Case("test", spec, VERTICES).store()
    strategy = load_strategy(name)(spec, facts_of(store))
    ctx = Context(spec, strategy.facts, Grid.build(strategy.grid, Ledger(recording=False)), store)
    rows, cols = strategy.rows(ctx.at), strategy.columns(ctx.at, HIDDEN)  # type: ignore[attr-defined]
    operators: Any = strategy.operators(ctx).for_step(STEP)
    return rows, cols, operators.draw_mask(0, torch.empty(len(rows), len(cols)))[0]


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("cagnet-1d", {"p": 3}),
        ("cagnet-1.5d", {"row": 2, "col": 2}),
        ("cagnet-2d", {"row": 2, "col": 3}),
        ("cagnet-3d", {"row": 2, "col": 2, "fibre": 2}),
    ],
)
def test_dropout_keeps_the_same_elements_in_every_layout(ranks: Any, name: str, grid: dict[str, int]) -> None:
    """The operators of a rank know its rows and columns, so that subclasses can train with dropout."""
    whole, _ = dropout_mask((SEED, STEP, 0, 0), torch.arange(VERTICES), range(HIDDEN), 0.5)
    for rows, cols, kept in ranks(prod(grid.values()), kept_by_dropout, name, grid):
        assert torch.equal(kept, whole[rows.start : rows.stop, cols.start : cols.stop])
