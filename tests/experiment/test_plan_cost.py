"""The cost of a plan: predicted times, each graph counted once, stores as large as they are built."""

from pathlib import Path
from typing import Any

import pytest

from harness.experiment.known_graph import facts_of_card
from harness.experiment.plan_cost import HOUR, add_costs, estimate_store_bytes, predict_costs
from harness.experiment.requests import make_spec
from harness.graph.cards.catalog import load_card
from harness.graph.store.building import build_store
from harness.prediction.epoch import predict
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Ready, admit

ROOT = find_root()


def spec_of(**changes: Any) -> Spec:
    asked = {"strategy": "plexus", "dataset": "ogbn-products", "ranks": 64, "machine": "perlmutter"}
    return make_spec(ROOT, asked | changes, "here")


def test_a_run_costs_its_epochs_on_its_nodes() -> None:
    asked = spec_of(training={"epochs": 20, "warmup": 5, "evaluate_every": 10})
    facts = facts_of_card(load_card(ROOT, "ogbn-products"))
    ready = Ready(admit(load_strategy("plexus"), asked, facts))
    epoch = predict(ready, load_machine_card(ROOT, "perlmutter"), ranks=[0]).seconds
    (cost,) = predict_costs(ROOT, [asked]).values()
    assert cost.nodes == 64 // 4
    assert (cost.seconds, cost.most) == pytest.approx((27 * epoch.value, 27 * epoch.high))
    runs = [
        asked,
        asked.model_copy(update={"seed": 1}),
        spec_of(strategy="massivegnn", training={"batch": 9}),
    ]
    known = predict_costs(ROOT, runs)
    whole = add_costs(ROOT, runs, known)
    assert set(known) == {run.run_id for run in runs[:2]}, (
        "caches depend on the graph: no prediction by a card"
    )
    assert whole.node_hours == pytest.approx(2 * cost.nodes * cost.seconds / HOUR)
    assert whole.disk_bytes == estimate_store_bytes(ROOT, asked.dataset)


def test_machine_without_nodes_has_no_time() -> None:
    runs = [spec_of(machine="local", ranks=4, dataset="tiny-sbm")]
    assert not predict_costs(ROOT, runs)
    assert "node-hours" not in str(add_costs(ROOT, runs, {}))


@pytest.mark.parametrize("order", [{}, {"permutation": "double"}, {"partition": "random", "parts": 4}])
def test_store_has_the_predicted_size(
    order: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))
    choice = DatasetChoice(name="sbm-4096", **order)
    folder = build_store(ROOT, choice)
    built = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert estimate_store_bytes(ROOT, choice) == pytest.approx(built, rel=0.05)
