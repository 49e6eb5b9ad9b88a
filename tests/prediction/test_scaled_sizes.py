"""An epoch of many equal bins is extrapolated from two smaller graphs, as its own replay predicts it."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec, nest_settings
from harness.graph.cards.catalog import load_card
from harness.prediction.epoch import predict
from harness.prediction.scaled_sizes import predict_from_scaled_sizes, scale_facts
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.strategy import Ready, Strategy, admit

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
MACHINE = load_machine_card(ROOT, "g3-cluster")


def make_strategy(name: str = "g3", **settings: object) -> Strategy:
    """Return a strategy on four ranks with the density of ogbn-products."""
    request = {"strategy.name": name, "dataset.name": "ogbn-products", "ranks": 4, "machine": "g3-cluster"}
    facts = replace(scale_facts(facts_of_card(load_card(ROOT, "ogbn-products")), 1 / 4), bounds=None)
    spec = make_spec(ROOT, nest_settings({**request, **settings}), "test")
    return admit(load_strategy(name), spec, facts)


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_extrapolation_from_fewer_bins_equals_the_replay_of_all(kind: str) -> None:
    strategy = make_strategy(**{"model.kind": kind, "model.layers": 3, "model.hidden": 16})
    assert strategy.facts.vertices > 600_000
    whole, extended = predict(Ready(strategy), MACHINE), predict_from_scaled_sizes(strategy, MACHINE, (8, 4))
    assert extended.seconds.value == pytest.approx(whole.seconds.value, rel=0.02)
    assert extended.elements_received == pytest.approx(whole.elements_received, rel=0.001)
    assert extended.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.001)
    assert sum(extended.entries.values()) == pytest.approx(extended.seconds.value)
    assert extended.shares == pytest.approx(whole.shares, abs=0.02)
    assert extended.seconds.low < whole.seconds.value < extended.seconds.high


def test_mini_batches_are_refused() -> None:
    with pytest.raises(UserError, match="whole graph"):
        predict_from_scaled_sizes(make_strategy("graphsage", **{"training.batch": 100}), MACHINE)
