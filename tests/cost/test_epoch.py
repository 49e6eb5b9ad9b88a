"""A prediction is a finite number of seconds, 0 or more, whatever the card, the facts and the measurements of a fit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from harness.cost import fitted, predict
from harness.errors import UserError
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine_card import (
    Links,
    MachineCard,
    MeasuredLink,
    SpmmModel,
    list_machines,
    load_machine_card,
)
from harness.spec.spec import Spec
from harness.strategy import BlockCounts, Facts, ShapeBlocks, admit

ROOT = Path(__file__).parents[2]
coefficient = st.floats(0, 1e3)
rate = st.floats(1e-6, 1e6)
part = st.integers(1, 16)
cards = st.builds(
    MachineCard,
    name=st.just("any"),
    links=st.builds(
        Links,
        devices_per_node=part,
        intra_gbs=rate,
        node_gbs=rate,
        measured=st.lists(
            st.builds(MeasuredLink, before=part, size=st.integers(2, 16), gbs=rate), max_size=3
        ),
    ),
    spmm=st.builds(
        SpmmModel, flops=coefficient, forward=coefficient, backward=coefficient, intercept=coefficient
    ),
)


def ready(grid: str, vertices: int, nonzeros: int, width: int) -> Any:
    facts = Facts(
        vertices=vertices,
        nonzeros=nonzeros,
        features=width,
        task="single-label",
        classes=7,
        directed=False,
        labelled=vertices,
        training=vertices,
        exact=False,
    )
    spec = {
        "strategy": {"name": "plexus"},
        "dataset": {"name": "any"},
        "machine": {"name": "any"},
        "ranks": int(np.prod([int(size) for size in grid.split("x")])),
        "grid": dict(zip("xyz", map(int, grid.split("x")), strict=True)),
        "model": {"layers": 3, "hidden": 8},
    }
    return admit(load_strategy("plexus"), Spec.model_validate(spec), facts), BlockCounts(ShapeBlocks(facts))


@given(
    card=cards,
    grid=st.sampled_from(["1x1x1", "64x1x1", "1x1x64", "1x8x1", "2x2x2"]),
    vertices=st.integers(64, 10**9),
    degree=st.integers(1, 500),
    width=st.integers(8, 1000),
)
def test_no_card_predicts_less_than_no_time(
    card: MachineCard, grid: str, vertices: int, degree: int, width: int
) -> None:
    for seconds in predict(*_told(grid, vertices, degree, width, card)):
        assert seconds is not None
        assert 0 <= seconds < np.inf


@pytest.mark.parametrize(
    "name", [name for name in list_machines(ROOT) if load_machine_card(ROOT, name).links]
)
@pytest.mark.parametrize("grid", ["64x1x1", "1x1x64", "1x64x1"])
def test_the_cards_predict_times_for_tall_grids_of_large_graphs(name: str, grid: str) -> None:
    told = predict(*_told(grid, 111_059_956, 15, 128, load_machine_card(ROOT, name)))
    assert all(seconds is None or 0 < seconds < np.inf for seconds in told)


def _told(
    grid: str, vertices: int, degree: int, width: int, card: MachineCard
) -> tuple[Any, MachineCard, Any]:
    strategy, counts = ready(grid, vertices, vertices * (degree + 1), width)
    return strategy, card, counts


@pytest.mark.parametrize("terms", [(-1.0, 0.0, 0.0), (0.0, 0.0, np.inf), (np.nan, 0.0, 0.0)])
def test_terms_that_give_no_time_are_an_error(terms: tuple[float, float, float]) -> None:
    strategy: Any = SimpleNamespace(name="odd", grid={AxisName.P: 4}, product_terms=lambda: terms)
    card = MachineCard(name="whole", spmm=SpmmModel(flops=1, forward=1, backward=1))
    with pytest.raises(UserError, match=r"whole.yaml predicts .* s of products for odd on p4"):
        predict(strategy, card, strategy)


@pytest.mark.parametrize("intercept", [False, True])
@given(seed=st.integers(0, 10_000), scales=st.lists(st.floats(-6, 9), min_size=3, max_size=3))
def test_a_fit_is_the_best_without_negative_coefficients(
    intercept: bool, seed: int, scales: list[float]
) -> None:
    """Judge: scipy's bounded least squares."""
    rng = np.random.default_rng(seed)
    terms = rng.random((30, 3)) * 10.0 ** np.array(scales)
    milliseconds = rng.random(30) + terms @ (rng.normal(size=3) / 10.0 ** np.array(scales))
    model = fitted(terms, milliseconds, intercept=intercept)
    found = np.array([model.flops, model.forward, model.backward, model.intercept])
    columns = np.column_stack([terms / 10.0 ** np.array(scales), np.full(30, float(intercept))])
    best = lsq_linear(columns[:, : 3 + intercept], milliseconds, bounds=(0, np.inf), tol=1e-12)
    residual = np.column_stack([terms, np.ones(30)]) @ found - milliseconds
    assert (found >= 0).all()
    assert residual @ residual / 2 == pytest.approx(best.cost, rel=1e-6)
