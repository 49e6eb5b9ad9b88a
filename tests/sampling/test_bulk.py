"""Bulk sampling: samples depend only on seed, epoch and batch, and only needed words are sent."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.case_list import make_case as kit_case
from harness.conformance.checks import (
    check_memory,
    check_replay,
    check_serial,
    check_words,
)
from harness.conformance.reference import train_densely
from harness.graph.model import TRAIN, has_label
from harness.kernels.parts import select_rows
from harness.ledger import MOVING, SAMPLING, AxisName, Ledger, Phase
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec, StrategyChoice
from harness.strategies.sampling.bulk import Bulk
from harness.strategies.sampling.composition import SampledStrategy
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.systems import BulkLadies, BulkSage
from harness.strategy import Facts, MiniBatch, Promise, ShapeBlocks, admit
from tests.cases import make_case

ROOT = Path(__file__).parents[2]
ROW, COL = AxisName.ROW, AxisName.COL
NAMES = ["bulk-sage", "bulk-ladies"]
FEW = {"bulk-sage": {"fanouts": [4, 2]}, "bulk-ladies": {"size": 20}}


def make_bulk_case(name: str, grid: str, batch: int = 8, **params: Any) -> Case:
    sizes = dict(zip((ROW, COL), map(int, grid.split("x")), strict=True))
    return make_case(name, sizes, FEW[name] | params, training={"batch": batch})


def strategy_of(case: Case) -> SampledStrategy:
    strategy = case.strategy()
    assert isinstance(strategy, SampledStrategy)
    return strategy


def sampler_of(strategy: SampledStrategy) -> Bulk:
    sampler = strategy.composed.sampler
    assert isinstance(sampler, Bulk)
    return sampler


def same(one: MiniBatch, other: MiniBatch) -> bool:
    return all(map(torch.equal, one.vertices, other.vertices)) and all(
        torch.equal(a, b)
        for A, B in zip(one.A, other.A, strict=True)
        for a, b in zip(A[:3], B[:3], strict=True)
    )


def graph_of(case: Case) -> tuple[Any, torch.Tensor]:
    store, strategy = case.store(), strategy_of(case)
    everyone = range(store.n)
    targets = torch.arange(sampler_of(strategy).schedule.targets) * 2
    return store.adjacency(everyone, everyone), targets


@pytest.mark.parametrize("name", NAMES)
def test_sample_of_a_batch_does_not_depend_on_grid_or_bulk(name: str) -> None:
    """Batch b of an epoch is the same on any grid and in any bulk."""
    alone = strategy_of(make_bulk_case(name, "1x1"))
    A, targets = graph_of(make_bulk_case(name, "1x1"))
    for grid, at_once in (("2x2", 1), ("3x1", 2), ("1x4", 0)):
        case = make_bulk_case(name, grid, bulk=at_once)
        strategy = strategy_of(case)
        for group in range(strategy.groups):
            graph = WholeGraph(A, groups=[group])
            bulk = sampler_of(strategy)
            drawn = bulk.prepare_for(graph)
            for step in range(2 * strategy.steps):
                epoch, number = bulk.schedule.locate_batch(step, group)
                if number < sampler_of(alone).schedule.count:
                    theirs = alone.mini_batch(epoch * alone.steps + number, 0, A, targets)
                    assert same(drawn.mini_batch(step, group, graph, targets), theirs)
                else:
                    assert len(drawn.mini_batch(step, group, graph, targets).vertices[-1]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_epochs_have_different_samples(name: str) -> None:
    case = make_bulk_case(name, "1x1")
    strategy, (A, targets) = strategy_of(case), graph_of(case)
    drawn = [strategy.mini_batch(step, 0, A, targets) for step in range(2 * strategy.steps)]
    assert not any(same(a, b) for a, b in pairwise(drawn))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid", ["4x1", "2x2", "1x4"])
def test_only_missing_features_are_sent(name: str, grid: str) -> None:
    """Sampling sends no words; each vertex missing in the block row is fetched once; with c = P no words are sent."""
    case = make_bulk_case(name, grid)
    strategy, store = strategy_of(case), case.store()
    A = store.adjacency(range(store.n), range(store.n))
    counted = case.graph()
    targets = ((counted.split == TRAIN) & has_label(counted.y)).nonzero()[:, 0]
    assert len(targets) == sampler_of(strategy).schedule.targets
    for rank in range(4):
        at = strategy.coordinates(rank)
        own, needed = strategy.rows(at), 0
        for step in range(strategy.steps):
            K = set(strategy.mini_batch(step, rank, A, targets).vertices[0].tolist())
            needed += len(K - set(own))
        moved = dict.fromkeys(Phase, 0.0)
        arrived = 0.0
        for key, amounts in replay(strategy, rank, store).entries.items():
            if key.op in MOVING:
                moved[key.phase] += amounts.elements_payload
                arrived += amounts.elements_payload if key.tensor == "X" else 0
        assert not any(moved[phase] for phase in SAMPLING)
        assert arrived == needed * store.features
        assert (moved[Phase.FETCH] > 0) == (strategy.grid[ROW] > 1)


def test_fetching_takes_three_messages_per_step() -> None:
    case = make_bulk_case("bulk-sage", "4x1")
    entries = replay(strategy_of(case), 0, case.store()).entries
    fetched = [amounts for key, amounts in entries.items() if key.phase is Phase.FETCH and key.op in MOVING]
    assert sum(amounts.calls for amounts in fetched) == 3 * strategy_of(case).steps


def test_fan_out_above_the_degree_keeps_all_neighbours() -> None:
    strategy = strategy_of(make_bulk_case("bulk-sage", "1x1", fanouts=[4095]))
    A, targets = graph_of(make_bulk_case("bulk-sage", "1x1"))
    batch = strategy.mini_batch(0, 0, A, targets)
    for S, outputs in zip(batch.A, batch.vertices[1:], strict=True):
        assert S.val.sort().values.equal(select_rows(A, outputs).val.sort().values)


def test_ladies_is_an_estimator_only_with_replacement() -> None:
    assert strategy_of(make_bulk_case("bulk-ladies", "1x1")).effective_promise is Promise.ESTIMATOR
    assert (
        strategy_of(make_bulk_case("bulk-ladies", "1x1", replacement=False)).effective_promise
        is Promise.APPROXIMATE
    )


def test_last_fan_out_is_used_for_further_hops() -> None:
    case = make_bulk_case("bulk-sage", "1x1", fanouts=[4, 2])
    assert sampler_of(strategy_of(case)).algorithm.sizes == (4, 2, 2)


@pytest.mark.parametrize("strategy", [BulkSage, BulkLadies])
def test_a_thousand_ranks_are_replayed_from_facts_only(strategy: type[SampledStrategy]) -> None:
    """A frontier stops growing when it contains all vertices."""
    facts = Facts(10**6, 16 * 10**6, 64, 10, True, 10**6, 10**5)
    spec = make_bulk_case(strategy.name, "1x1").spec.model_dump(mode="json") | {
        "ranks": 1024,
        "grid": {"row": 64, "col": 16},
        "training": {"batch": 10},
    }
    ready = admit(strategy, Spec.model_validate(spec), facts)
    entries = replay(ready, 0, ShapeBlocks(facts)).entries
    assert sum(amounts.elements_payload for key, amounts in entries.items() if key.tensor == "X") > 0


@pytest.mark.parametrize("name", NAMES)
def test_training_learns(name: str) -> None:
    case = make_bulk_case(name, "1x1", batch=20)
    strategy = strategy_of(case)
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    losses = [trainer.epoch().loss.item() for _ in range(12)]
    assert losses[-1] < losses[0]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("grid", "at_once"),
    [
        ("2x2", 0),
        ("3x2", 2),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("4x1", 2), ("1x3", 1))),
    ],
)
def test_training_on_a_partitioned_graph_satisfies_every_check(
    name: str, grid: str, at_once: int, pool
) -> None:
    """The kit tries one grid per option; here c takes several values."""
    sizes = dict(zip((ROW, COL), map(int, grid.split("x")), strict=True))
    params = FEW[name] | {"graph": "partitioned", "bulk": at_once}
    case = kit_case(name, sizes, "partitioned", strategy=StrategyChoice(name=name, params=params))
    strategy = case.strategy()
    ranks = pool.run(case.spec.ranks, train_rank, case, 2)
    findings = [
        *check_serial(case, ranks, train_densely(strategy, case.store(), 2)),
        check_words(case, ranks),
        check_memory(case, ranks),
        *check_replay(case, ranks, range(len(ranks))),
    ]
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.parametrize("name", NAMES)
def test_sampling_messages_are_proportional_to_the_number_of_bulks(name: str) -> None:
    """Every bulk takes one product per layer."""
    calls = {}
    for at_once in (1, 2, 0):
        case = make_bulk_case(name, "2x2", graph="partitioned", bulk=at_once)
        entries = replay(strategy_of(case), 0, case.store()).entries
        sampled = [amounts for key, amounts in entries.items() if key.phase in SAMPLING and key.op in MOVING]
        calls[at_once] = sum(amounts.calls for amounts in sampled)
    steps = strategy_of(make_bulk_case(name, "2x2")).steps
    assert steps > 2
    assert calls[1] == steps * calls[0]
    assert calls[2] == -(-steps // 2) * calls[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid", ["4x1", "2x2"])
def test_benchmark_of_bulks_counts_all_sampling_messages(
    name: str, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a replicated graph, on which sampling sends no messages and all others are the same."""
    turn = import_module("benchmarks.measuring").turn

    def counted(**params: Any) -> Any:
        case = make_bulk_case(name, grid, **params)
        epoch = SimpleNamespace(seconds=1.0, entries=replay(strategy_of(case), 0, case.store()).entries)
        return turn(SimpleNamespace(epoch=lambda **_: epoch))

    whole = counted(graph="replicated")
    assert whole.sampling_calls == 0 < whole.calls
    for bulk in (1, 2, 0):
        partitioned = counted(graph="partitioned", bulk=bulk)
        assert partitioned.sampling_calls == partitioned.calls - whole.calls > 0


def test_messages_are_recorded_in_the_phase_that_needs_them() -> None:
    """Rows of A are sent for distributions; GraphSAGE assembles rows after sampling, LADIES after extraction."""
    moving = {}
    for name in NAMES:
        case = make_bulk_case(name, "2x2", graph="partitioned")
        entries = replay(strategy_of(case), 0, case.store()).entries
        moving[name] = {
            (key.phase, key.axis) for key in entries if key.op in MOVING and key.phase in SAMPLING
        }
    assert moving["bulk-sage"] == {(Phase.DISTRIBUTE, ROW), (Phase.SAMPLE, COL)}
    assert moving["bulk-ladies"] == {(Phase.DISTRIBUTE, ROW), (Phase.DISTRIBUTE, COL), (Phase.EXTRACT, COL)}
