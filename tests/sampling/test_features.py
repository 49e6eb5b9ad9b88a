"""Feature stores return the rows of any vertices, and only rows that a rank does not hold are sent."""

from typing import Any

import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.ledger import AxisName, Ledger, Op, TensorName
from harness.strategies.sampling.composition import SampledOperators, SampledStrategy
from harness.strategies.sampling.features import FetchingStore, LocalFeatures
from harness.strategy import Context
from tests.cases import make_case

N, RANKS = 211, 3
P = AxisName.P


def make_cached_case(name: str, **params: Any) -> Case:
    return make_case(name, {P: RANKS}, {"fanouts": [3]} | params, training={"batch": 13}, vertices=N)


def wanted(rank: int, step: int) -> torch.Tensor:
    """Return distinct vertices in random order; in the last step one rank needs all and another none."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(10 * rank + step))
    return order[: (N, 40, 0 if step == 3 else 7)[rank]]


def fetched(case: Case, later: bool) -> list[tuple[bool, float, int]]:
    """For each step of a rank, return whether the rows equal X, and the numbers of received and of missing rows."""
    ledger, store = Ledger(), case.store()
    strategy = case.strategy()
    assert isinstance(strategy, SampledStrategy)
    grid = Grid.build(strategy.grid, ledger)
    operators = strategy.operators(Context(case.spec, strategy.facts, grid, store))
    assert isinstance(operators, SampledOperators)
    features, found = operators.source.store, []
    assert isinstance(features, FetchingStore)
    X, own = store.feature_block(range(N), range(store.features)), strategy.rows(grid.coordinates)
    for step in range(4):
        vertices = wanted(grid.rank, step)
        kept = {*own, *features.cache.vertices.tolist()}
        ledger.start()
        rows = features.start_fetch(step, vertices, later=later).wait()
        came = sum(
            amounts.elements_received
            for key, amounts in ledger.stop().items()
            if (key.op, key.tensor) == (Op.ALL_TO_ALL, TensorName.X)
        )
        lacked = [vertex for vertex in vertices.tolist() if vertex not in kept]
        found.append((torch.equal(rows, X[vertices]), came / store.features, len(lacked)))
    return found


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "case", [make_cached_case("distdgl"), make_cached_case("quiver", share=0.4)], ids=lambda case: case.name
)
def test_requested_rows_arrive_and_only_missing_rows_are_sent(case: Case, later: bool, pool: Any) -> None:
    for steps in pool.run(RANKS, fetched, case, later):
        for right, came, lacked in steps:
            assert right
            assert came == lacked
    assert any(lacked for steps in pool.run(RANKS, fetched, case, later) for *_, lacked in steps)


def test_local_features_hold_and_send_no_remote_rows() -> None:
    everything: Any = None
    assert LocalFeatures().held_sizes(everything, {}, everything) == (0, 0, 0, False)
