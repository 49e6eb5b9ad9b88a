"""Predictions: finite, repeatable, of parts that add up, for every strategy and every grid."""

from pathlib import Path
from typing import Any

import pytest

from harness.check.case import check_graph
from harness.errors import UserError
from harness.ledger import AxisName
from harness.predict.advice import Option, advise, turned_by
from harness.predict.prediction import Prediction, RankEpoch, predict, priced
from harness.predict.pricing import constants
from harness.registry import load_strategy, registered
from harness.replay import replay
from harness.spec.machine_card import MachineCard, list_machines, load_machine_card
from harness.spec.spec import Spec
from harness.store.memory_store import MemoryStore
from harness.strategy import Candidate, Facts, Ready, Strategy, admit, facts_of

ROOT = Path(__file__).parents[2]
STORE = MemoryStore(check_graph(211))
PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)
PERLMUTTER = load_machine_card(ROOT, "perlmutter")
NAMES = sorted(point.name for point in registered() if point.name != "pyg")
"""pyg samples by a library that is not among the packages."""


def ready(name: str, grid: dict[Any, int], facts: Facts | None = None, **training: Any) -> Strategy:
    strategy, ranks = load_strategy(name), 1
    for size in grid.values():
        ranks *= size
    spec = {
        "strategy": {"name": name},
        "dataset": "any",
        "ranks": ranks,
        "grid": grid,
        "model": {"layers": 3, "hidden": 16},
        "training": {"batch": 40 if strategy.mini_batches else 0, **training},
        "machine": {"name": "any"},
    }
    return admit(strategy, Spec.model_validate(spec), facts or facts_of(STORE))


def first_grid(name: str) -> dict[AxisName, int]:
    strategy = load_strategy(name)
    return next(strategy.grids(ranks)[0] for ranks in (4, 2, 1) if strategy.grids(ranks))


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_predicted_with_all_ranks(name: str) -> None:
    """The parts add up, the words are those of the formula, and the same prediction twice is equal to the bit."""
    strategy = ready(name, first_grid(name))
    predicted = predict(Ready(strategy, STORE), PERLMUTTER)
    assert predicted == predict(Ready(strategy, STORE), PERLMUTTER)
    seconds = predicted.seconds
    assert 0 < seconds.low <= seconds.value <= seconds.high < 10
    assert sum(predicted.entries.values()) == pytest.approx(seconds.value)
    assert 0 <= predicted.waiting <= seconds.value
    assert sum(predicted.shares.values()) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if not load_strategy(name).mini_batches])
def test_predicted_words_are_those_of_the_whole_replay(name: str) -> None:
    strategy = ready(name, first_grid(name))
    predicted = predict(Ready(strategy, STORE), PERLMUTTER)
    whole = replay(strategy, predicted.rank, STORE)
    assert predicted.words_received == sum(each.words_received for each in whole.entries.values())


def test_steps_that_are_not_replayed_are_as_the_last() -> None:
    """ScaleGNN's steps are alike: of three, and of all."""
    strategy = ready("scalegnn", {"d": 1, "x": 2, "y": 1, "z": 1}, batch=20)
    assert strategy.steps > 5
    few = predict(Ready(strategy, STORE), PERLMUTTER)
    ranks = frozenset(range(2))
    every = [RankEpoch(strategy, replay(strategy, rank, STORE), ranks) for rank in ranks]
    assert few.seconds.value == pytest.approx(priced(every, PERLMUTTER, None).seconds.value, rel=0.02)


@pytest.mark.parametrize("name", list_machines(ROOT))
@pytest.mark.parametrize("grid", [(64, 1, 1), (1, 1, 64), (4, 4, 4)])
def test_the_cards_predict_times_for_tall_grids_of_large_graphs(name: str, grid: tuple[int, ...]) -> None:
    card = load_machine_card(ROOT, name)
    strategy = ready("plexus", dict(zip("xyz", grid, strict=True)), PRODUCTS)
    if not (card.rates and card.links):
        with pytest.raises(UserError, match=f"{name}.yaml has no rates and no links"):
            predict(Ready(strategy), card)
        return
    predicted = predict(Ready(strategy), card)
    assert 1e-4 < predicted.seconds.low < predicted.seconds.high < 1e4


def better(card: MachineCard, section: str, key: str, factor: float) -> MachineCard:
    constant = getattr(getattr(card, section), key)
    changed = constant.model_copy(update={"value": factor * constant.value})
    return card.model_copy(update={section: getattr(card, section).model_copy(update={key: changed})})


@pytest.mark.parametrize(
    ("section", "key", "factor"),
    [
        ("rates", "memory_gbs", 1.01),
        ("rates", "tflops", 1.01),
        ("rates", "launch_us", 1 / 1.01),
        ("links", "node_gbs", 1.01),
        ("links", "intra_gbs", 1.01),
        ("links", "latency_us", 1 / 1.01),
    ],
)
def test_a_share_is_what_a_better_constant_saves(section: str, key: str, factor: float) -> None:
    strategy = ready("plexus", {"x": 4, "y": 2, "z": 2}, PRODUCTS)
    before = predict(Ready(strategy), PERLMUTTER)
    after = predict(Ready(strategy), better(PERLMUTTER, section, key, factor))
    saved = 1 - after.seconds.value / before.seconds.value
    assert saved == pytest.approx(before.shares[f"{section}.{key}"] * (1 - 1 / 1.01), abs=2e-4)


def test_the_interval_is_wider_where_constants_are() -> None:
    strategy = ready("plexus", {"x": 2, "y": 2, "z": 2}, PRODUCTS)
    assert PERLMUTTER.rates
    loose = PERLMUTTER.rates.spmm.model_copy(update={"within": 3.0})
    wide = predict(
        Ready(strategy),
        PERLMUTTER.model_copy(update={"rates": PERLMUTTER.rates.model_copy(update={"spmm": loose})}),
    )
    narrow = predict(Ready(strategy), PERLMUTTER)
    assert wide.seconds.value == narrow.seconds.value
    assert wide.seconds.high > narrow.seconds.high
    assert wide.seconds.value / wide.seconds.low == pytest.approx(wide.seconds.high / wide.seconds.value)


def test_advice_ranks_what_fits_and_names_what_does_not() -> None:
    candidates = [
        Candidate(
            "plexus", [Ready(ready("plexus", {"x": x, "y": 4 // x, "z": 1}, PRODUCTS)) for x in (1, 2, 4)], ""
        ),
        Candidate("cagnet-1d", [Ready(ready("cagnet-1d", {"p": 4}, PRODUCTS))], ""),
        Candidate("graphsage", [], "it has no grid"),
    ]
    advice = advise(candidates, PERLMUTTER)
    costs = [choice.cost for choice in advice.full_graph]
    assert costs == sorted(costs) and len(costs) == 3
    assert [refusal.strategy for refusal in advice.refused] == ["graphsage"]
    small = PERLMUTTER.model_copy(update={"memory_gb": 0.01})
    none = advise(candidates, small)
    assert not none.full_graph
    assert {choice.strategy.name for choice in none.too_large} == {"plexus", "cagnet-1d"}


def made_up(seconds: float, spmm: float, node: float) -> Option:
    strategy = ready("cagnet-1d", {"p": 4}, PRODUCTS)
    shares = dict.fromkeys(constants(PERLMUTTER), 0.0) | {"rates.spmm": spmm, "links.node_gbs": node}
    interval = predict(Ready(strategy), PERLMUTTER, ranks=[0]).seconds.__class__(seconds, seconds, seconds)
    return Option(Ready(strategy), Prediction(0, interval, {}, 0.0, 0.0, 0, shares))


def test_choices_that_hang_on_the_same_constants_do_not_tie() -> None:
    alike = turned_by(made_up(1.0, 0.5, 0.5), made_up(1.3, 0.5, 0.5), PERLMUTTER)
    other = turned_by(made_up(1.0, 1.0, 0.0), made_up(1.2, 0.0, 1.0), PERLMUTTER)
    assert alike == (False, [])
    assert other == (True, ["rates.spmm", "links.node_gbs"])
