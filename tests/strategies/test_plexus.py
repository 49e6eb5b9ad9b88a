"""Plexus' formulas equal counts from the authors' code and claims of the paper."""

from collections import Counter
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from benchmarks.plexus_formulas import Coefficients, predict_milliseconds, terms_of_strategy
from harness.comm.grid import Grid
from harness.comm.layout import list_grids
from harness.conformance.case import make_check_graph
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import AxisName, Ledger, Op
from harness.prediction.pricing import price_rings
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.spec import Spec
from harness.strategies.plexus.plexus import FIRST, count_padded_words
from harness.strategy import (
    WORD,
    BlockCounts,
    Context,
    Facts,
    Quantity,
    ShapeBlocks,
    Strategy,
    Words,
    admit,
    facts_of,
)

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
PRODUCTS = Facts(
    vertices=2_449_029,
    nonzeros=126_167_053,
    features=100,
    classes=47,
    directed=False,
    labelled=2_449_029,
    training=196_615,
)
ROOT = Path(__file__).parents[2]
TIMED = {
    "2x8x4": 11.31,
    "4x8x2": 11.18,
    "4x4x4": 9.84,
    "8x2x4": 11.23,
    "2x16x2": 15.39,
    "16x1x4": 15.94,
    "2x4x8": 11.18,
    "4x2x8": 11.21,
    "4x16x1": 16.09,
    "1x16x4": 15.94,
    "8x4x2": 11.33,
    "8x1x8": 13.34,
    "1x8x8": 13.53,
    "16x2x2": 15.40,
    "8x8x1": 13.54,
    "32x1x2": 25.14,
    "2x32x1": 25.18,
    "1x32x2": 25.09,
    "2x2x16": 15.51,
    "1x4x16": 16.05,
    "4x1x16": 15.86,
    "1x2x32": 25.18,
    "2x1x32": 24.91,
    "16x4x1": 16.17,
    "32x2x1": 25.17,
    "1x1x64": 43.09,
    "64x1x1": 43.45,
    "1x64x1": 43.47,
}
SHAPES = [(100, 128), (128, 128), (128, 47)]


def ready(
    grid: str,
    facts: Facts = PRODUCTS,
    *,
    model: Any = None,
    dataset: Any = None,
    features: bool = True,
    **params: Any,
) -> Strategy:
    sizes = dict(zip((X, Y, Z), map(int, grid.split("x")), strict=True))
    spec = {
        "strategy": {"name": "plexus", "params": params},
        "dataset": {"name": "any", **(dataset or {})},
        "ranks": prod(sizes.values()),
        "grid": sizes,
        "model": {"layers": 3, "hidden": 128, **(model or {})},
        "training": {"features": features},
        "machine": {"name": "any"},
    }
    return admit(load_strategy("plexus"), Spec.model_validate(spec), facts)


SAGE = {"kind": "sage"}


def by_axis(words: Words) -> dict[tuple[str, str], int]:
    """Return words by kind of call and axis."""
    sent: Counter[tuple[str, str]] = Counter()
    for key, count in words.items():
        sent[key.op.value, key.axis] += int(count)
    return dict(sent)


def authors(grid: str, vertices: int, widths: list[int]) -> dict[tuple[str, str], int]:
    sizes = dict(zip((X, Y, Z), map(int, grid.split("x")), strict=True))
    shapes = list(pairwise(widths))
    return by_axis(count_padded_words(sizes, FIRST, vertices, shapes))


def test_words_equal_counts_from_the_authors_code() -> None:
    """403 vertices, widths 23, 30, 30, 9. The words of the largest logits were counted separately: 135 and 202."""
    assert authors("3x2x1", 403, [23, 30, 30, 9]) == {
        ("all_gather", "x"): 300,
        ("all_gather", "y"): 600,
        ("all_reduce", "x"): 21_793,
        ("all_reduce", "y"): 16_430 + 135,
        ("reduce_scatter", "x"): 150,
        ("reduce_scatter", "y"): 300,
    }
    assert authors("2x2x2", 403, [23, 30, 30, 9]) == {
        ("all_gather", "z"): 2_784,
        ("all_reduce", "x"): 10_984,
        ("all_reduce", "y"): 12_749 + 202,
        ("all_reduce", "z"): 7_070,
        ("reduce_scatter", "z"): 2_604,
    }


def test_padded_words_equal_the_authors_code_at_the_size_of_products() -> None:
    cube = authors("4x4x4", 2_449_029, [100, 128, 128, 47])
    assert cube["all_reduce", "x"] == 73_470_961
    assert cube["all_reduce", "y"] == 79_593_540 + 612_258
    assert cube["all_reduce", "z"] == 46_531_608
    assert (cube["all_gather", "z"], cube["reduce_scatter", "z"]) == (17_145_016, 17_144_120)
    line = authors("1x1x64", 2_449_029, [100, 128, 128, 47])
    assert line["all_reduce", "z"] == 742_055_787
    assert (line["all_gather", "z"], line["reduce_scatter", "z"]) == (313_508_480, 313_492_096)


def test_unpadded_words_at_the_size_of_products() -> None:
    """The sums over y have 612,258 words fewer than the authors', because the logit of the label is not sent."""
    strategy = ready("4x4x4")
    sent = by_axis(strategy.words(dict.fromkeys(strategy.axes, 0), BlockCounts(ShapeBlocks(PRODUCTS))))
    assert sent["all_reduce", "x"] + sent["all_reduce", "x+y"] == 69_797_413
    assert sent["all_reduce", "y"] == 80_205_798 - 612_258
    assert sent["all_reduce", "z"] == 46_531_608
    assert (sent["all_gather", "z"], sent["reduce_scatter", "z"]) == (15_308_050, 15_307_250)


@pytest.mark.parametrize("grid", ["4x4x4", "2x4x8", "1x8x8", "16x1x4", "64x1x1"])
def test_no_grid_sends_more_than_the_authors_layout(grid: str) -> None:
    (paper,) = [line for line in ready(grid).published_costs() if line.quantity is Quantity.WORDS]
    strategy = ready(grid)
    ours = strategy.words(dict.fromkeys(strategy.axes, 0), BlockCounts(ShapeBlocks(PRODUCTS)))
    assert sum(ours.values()) <= paper.value


def test_flops_per_rank_are_balanced_on_every_grid() -> None:
    """PLX-067: 2 nnz D / P per product; the loss and uneven splits add less than a thousandth."""
    widths = [100, 128, 128, 47]
    products = 2 * sum(2 * PRODUCTS.nonzeros * d for d in widths[:-1]) / 8
    dense = 3 * sum(2 * PRODUCTS.vertices * d * e for d, e in SHAPES) / 8
    for grid in list_grids(8, X, Y, Z):
        replayed = replay(ready("x".join(str(grid[axis]) for axis in (X, Y, Z))), 0)
        spmm = sum(amounts.flops for key, amounts in replayed.entries.items() if key.op is Op.SPMM)
        gemm = sum(amounts.flops for key, amounts in replayed.entries.items() if key.op is Op.GEMM)
        assert spmm == pytest.approx(products, rel=0.05)
        assert gemm == pytest.approx(dense, rel=0.05)


@pytest.mark.parametrize(
    ("layers", "permutation", "blocks"),
    [(1, "none", 1), (2, "single", 2), (3, "double", 3), (5, "none", 3), (5, "double", 5), (9, "double", 6)],
)
def test_number_of_blocks_of_a_equals_the_paper(layers: int, permutation: str, blocks: int) -> None:
    strategy = ready("2x3x4", model={"layers": layers}, dataset={"permutation": permutation})
    (paper,) = [line for line in strategy.published_costs() if line.quantity is Quantity.LAYOUT]
    assert paper.value == paper.ours == blocks


def test_y_is_the_fastest_axis_and_z_the_slowest() -> None:
    strategy = ready("2x3x4")
    assert [strategy.coordinates(rank) for rank in (1, 3, 6)] == [
        {Z: 0, X: 0, Y: 1},
        {Z: 0, X: 1, Y: 0},
        {Z: 1, X: 0, Y: 0},
    ]


def test_words_of_the_root_term_equal_a_count_by_hand() -> None:
    """24 vertices and widths of 8 on a cube of 8 ranks, counted by hand: blocks of 12 rows and 4 columns."""
    facts = Facts(24, 100, 8, 8, directed=True, labelled=24, training=9)
    counts = BlockCounts(ShapeBlocks(facts))
    sage, gcn = (
        ready("2x2x2", facts, model={"hidden": 8, **kind}, features=False).words(
            dict.fromkeys((X, Y, Z), 1), counts
        )
        for kind in (SAGE, {})
    )
    more = Counter({key: count - gcn.get(key, 0) for key, count in sage.items() if count != gcn.get(key, 0)})
    by_layer: dict[tuple[int, str, str], int] = {}
    for (_, layer, op, axis, tensor), count in more.items():
        by_layer[layer, f"{op} {tensor}", axis] = int(count)
    rows_by_columns, weights = 12 * 4, 4 * 4
    for layer, (R, S, T, plane) in enumerate(
        [("z", "x", "y", "z+x"), ("y", "z", "x", "z+y"), ("x", "y", "z", "x+y")]
    ):
        assert by_layer.pop((layer, "all_reduce Z", T)) == rows_by_columns
        assert by_layer.pop((layer, "all_to_all Z", plane)) == rows_by_columns
        assert by_layer.pop((layer, "all_to_all G", plane)) == rows_by_columns
        assert by_layer.pop((layer, "all_reduce dW", S)) == weights
        assert by_layer.pop((layer, "all_reduce dH", R), 0) == (rows_by_columns if layer else 0)
    assert not by_layer


@pytest.mark.parametrize(
    ("grid", "products", "communication"),
    [
        ("2x8x4", 23.7, 29.2),
        ("4x4x4", 22.4, 31.6),
        ("16x1x4", 26.0, 33.3),
        ("8x2x4", 23.1, 32.7),
        ("2x2x16", 25.6, 70.3),
        ("64x1x1", 55.0, 81.9),
        ("1x64x1", 64.4, 92.0),
        ("1x1x64", 55.0, 72.4),
    ],
)
def test_predicted_times_equal_the_authors_code(grid: str, products: float, communication: float) -> None:
    """Milliseconds of ogbn-products on 64 Perlmutter devices; padding and the loss change less than 3 %."""
    strategy, card = ready(grid), load_machine_card(ROOT, "perlmutter")
    assert card.plexus_model is not None
    assert card.links is not None
    coefficients = Coefficients(**card.plexus_model.model_dump(include=set(Coefficients._fields)))
    assert predict_milliseconds(terms_of_strategy(strategy), coefficients) == pytest.approx(
        products, rel=0.005
    )
    words = strategy.words(dict.fromkeys(strategy.axes, 0), BlockCounts(ShapeBlocks(PRODUCTS)))
    links = card.plexus_model.replace_bandwidths(card.links)
    seconds = price_rings(words, strategy.grid, links, WORD["float32"])
    assert 1e3 * seconds == pytest.approx(communication, rel=0.03)


def test_predicted_order_of_grids_agrees_with_the_authors_measured_kernels() -> None:
    """The authors' 28 measured times of the products of ogbn-products on 64 devices, in milliseconds."""
    card = load_machine_card(ROOT, "perlmutter")
    assert card.plexus_model is not None
    coefficients = Coefficients(**card.plexus_model.model_dump(include=set(Coefficients._fields)))
    predicted = [predict_milliseconds(terms_of_strategy(ready(grid)), coefficients) for grid in TIMED]
    assert spearmanr(predicted, list(TIMED.values())).statistic > 0.9


def test_measured_choice_of_product_is_recorded() -> None:
    """A rank that chooses how to multiply records its choice for each layer."""
    store = MemoryStore(make_check_graph(31))
    strategy = ready("1x1x1", facts_of(store), model={"hidden": 8}, weight_gradient="measured")
    ctx = Context(strategy.spec, strategy.facts, Grid.build(strategy.grid, Ledger()), store)
    strategy.operators(ctx)
    assert list(ctx.measured.chosen) == [f"weight_gradient of layer {layer}" for layer in range(3)]
    assert set(ctx.measured.chosen.values()) <= {"straight", "flipped"}
