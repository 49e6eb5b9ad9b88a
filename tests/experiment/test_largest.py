"""What is `largest` fits, activations included, and nothing larger does; the formulas say what a run holds."""

from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.graph.cards.catalog import load_card
from harness.graph.store.datasets import open_dataset
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategies.sampling.bulk import Bulk
from harness.strategies.sampling.composition import SampledStrategy
from harness.strategy import BlockCounts, ShapeBlocks, admit, facts_of

ROOT = Path(__file__).parents[2]
BULK: dict[str, Any] = {"bulk-sage": {"fanouts": [5, 3, 2]}, "bulk-ladies": {"size": 64}}
BULKS = [1, 2, 3, 5, 8, 13, 64, 1000]


def spec_of(name: str = "bulk-sage", ranks: int = 4, **changes: Any) -> Spec:
    strategy = {"name": name, "params": BULK.get(name, {}) | changes.pop("params", {})}
    asked = {"strategy": strategy, "dataset": "amazon-shape", "ranks": ranks, "training": {"batch": 64}}
    return make_spec(ROOT, asked | changes, "here")


def peak(spec: Spec) -> int:
    """The peak of an epoch by a replay, where there is one, and the batches that are drawn at once."""
    facts = facts_of_card(load_card(ROOT, spec.dataset.name))
    strategy, counts = admit(load_strategy(spec.strategy.name), spec, facts), BlockCounts(ShapeBlocks(facts))
    if spec.strategy.params.get("graph") == "partitioned":
        return sum(strategy.memory(strategy.coordinates(0), counts).values()) + strategy.sample_bytes(counts)
    return replay(strategy, steps=1).peak_bytes + strategy.sample_bytes(counts)


@pytest.mark.parametrize("name", list(BULK))
@pytest.mark.parametrize("graph", ["replicated", "partitioned"])
@pytest.mark.parametrize("megabytes", [32, 40, 64, 600])
def test_largest_choice_that_fits_is_chosen(name: str, graph: str, megabytes: int) -> None:
    budget = megabytes << 20
    found = spec_of(
        name, grid="largest", memory_gb=megabytes / 1024, params={"bulk": "largest", "graph": graph}
    )
    assert peak(found) <= budget
    for grid in load_strategy(name).grids(4):
        one = spec_of(name, grid=grid, params={"bulk": 1, "graph": graph})
        assert peak(one) > budget or grid["col"] <= found.grid["col"]
    chosen = found.strategy.params["bulk"]
    for bulk in [*BULKS, chosen + 1, chosen - 1]:
        if bulk:
            other = peak(spec_of(name, grid=found.grid, params={"bulk": bulk, "graph": graph}))
            assert other > budget if bulk > chosen and other > peak(found) else other <= peak(found)


@pytest.mark.parametrize("name", list(BULK))
def test_a_bulk_holds_what_the_formula_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a graph whose vertices are about alike, as shapes take all graphs to be."""
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))
    spec = spec_of(name, ranks=1, dataset="sbm-4096", params={"bulk": 4}, training={"batch": 32})
    store = open_dataset(ROOT, spec.dataset)
    strategy = admit(load_strategy(name), spec, facts_of(store))
    assert isinstance(strategy, SampledStrategy)
    seen, sampler = strategy.global_replay(BlockCounts(store)), strategy.composed.sampler
    assert isinstance(sampler, Bulk)
    layers = sampler.prepare_for(seen.graph).draw(range(sampler.steps_per_bulk), [0], seen.targets)
    stacks = [layers[0].inputs, *(layer.outputs for layer in layers)]
    tensors = [*(stack.vertices for stack in stacks), *(part for layer in layers for part in layer.A[:3])]
    bytes_held = sum(tensor.nbytes for tensor in tensors)
    assert strategy.sample_bytes(BlockCounts(ShapeBlocks(strategy.facts))) == pytest.approx(
        bytes_held, rel=0.2
    )


def test_more_than_there_are_steps_is_not_asked_for() -> None:
    found = spec_of(grid="2x2", memory_gb=64, params={"bulk": "largest"})
    assert found.strategy.params["bulk"] == -(-32768 // 64 // 4)


def test_a_grid_is_chosen_for_any_strategy() -> None:
    asked = {"training": {}, "name": "cagnet-1.5d", "model": {"order": "aggregate_first"}}
    assert spec_of(**asked, grid="largest", memory_gb=64).grid == {"row": 1, "col": 4}
    assert spec_of(**asked, grid="largest", memory_gb=0.0385).grid == {"row": 4, "col": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": "largest"}, ["memory_gb", "config/machines/local.yaml"]),
        ({"grid": "largest", "memory_gb": -1}, ["-1", "above 0"]),
        ({"grid": "largest", "memory_gb": "much"}, ["'much'", "above 0"]),
        ({"grid": "largest", "memory_gb": 0.001}, ["0.001", "more ranks"]),
        ({"params": {"bulk": "largest"}, "memory_gb": 0.001}, ["0.001", "more ranks"]),
        ({"grid": "2x2", "memory_gb": 1}, ["memory_gb = 1", "leave it out"]),
        ({"params": {"bulk": "large"}, "memory_gb": 1}, ["memory_gb = 1", "leave it out"]),
        ({"params": {"fanouts": "largest"}, "memory_gb": 1}, ["fanouts"]),
        ({"name": "serial", "grid": "largest", "memory_gb": 1, "ranks": 2}, ["2", "no grid"]),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        spec_of(**changes)
    assert all(word in str(refusal.value) for word in said), str(refusal.value)


def test_the_best_grid_is_the_fastest_by_the_cards() -> None:
    """A long axis of Plexus' grid is never the best; a machine without rates is refused with the way out."""
    request = {"strategy": "plexus", "dataset": "ogbn-products", "ranks": 64, "machine": "perlmutter"}
    best = make_spec(find_root(), {**request, "grid": "best", "model": {"hidden": 128}}, "test")
    assert max(best.grid.values()) < 32
    with pytest.raises(UserError, match=r"local-gpu\.yaml"):
        make_spec(find_root(), {**request, "grid": "best", "machine": "local-gpu"}, "test")
    impossible = {"strategy": "cagnet-2d", "dataset": "tiny-sbm", "ranks": 1021, "grid": "best"}
    with pytest.raises(UserError, match=r"grid = best.*cagnet-2d"):
        make_spec(find_root(), {**request, **impossible}, "test")
