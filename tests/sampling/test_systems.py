"""Baselines share their samples, caches reduce the words, and cache hits are counted."""

import threading
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.graph.model import TRAIN, has_label
from harness.kernels import to_scipy
from harness.kernels.random import Purpose, random_bits_numba, random_order
from harness.ledger import AxisName, Ledger, TensorName
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.spec.spec import ModelChoice, StrategyChoice
from harness.strategies.sampling import sampler as sampler_module
from harness.strategies.sampling.composition import SampledOperators
from harness.strategies.sampling.sampler import Neighbours
from harness.strategy import RemoteRows
from tests.cases import make_case

P, D, ROW, COL, X, Y, Z = (AxisName(name) for name in ("p", "d", "row", "col", "x", "y", "z"))
NAMES = ["distdgl", "salient", "massivegnn", "quiver"]


def make_system_case(name: str, ranks: int = 3, batch: int = 8, **params: Any) -> Case:
    grid = {D if name in ("graphsage", "pyg") else P: ranks}
    return make_case(name, grid, params, training={"batch": batch})


def graph_of(case: Case) -> tuple[Any, torch.Tensor]:
    store, graph = case.store(), case.graph()
    targets = ((graph.split == TRAIN) & has_label(graph.y)).nonzero()[:, 0]
    return store.adjacency(range(store.n), range(store.n)), targets


@pytest.mark.parametrize("name", NAMES)
def test_all_systems_draw_the_mini_batches_of_graphsage(name: str) -> None:
    plain, other = make_system_case("graphsage", fanout=4), make_system_case(name, fanouts=[4], targets="any")
    A, targets = graph_of(plain)
    ours, theirs = other.strategy(), plain.strategy()
    assert ours.steps == theirs.steps
    for step in range(2 * ours.steps):
        for group in range(3):
            mine, graphsage = (each.mini_batch(step, group, A, targets) for each in (ours, theirs))
            assert all(map(torch.equal, mine.vertices, graphsage.vertices))
            assert all(torch.equal(M.val, G.val) for M, G in zip(mine.A, graphsage.A, strict=True))


def test_steps_of_an_epoch_share_one_order_of_the_targets() -> None:
    """The order is computed in the first step only, and differs from epoch to epoch."""
    sampler, targets = Neighbours(11, 5, (2,), layers=1, groups=2), torch.arange(40) * 3
    sampler_module.order_targets.cache_clear()
    with patch.object(sampler_module, "random_bits_numba", wraps=random_bits_numba) as ordered:
        drawn = [[sampler.targets(step, group, targets) for group in range(2)] for step in range(8)]
    assert ordered.call_count == 2
    epochs = [torch.cat([each for step in drawn[at : at + 4] for each in step]) for at in (0, 4)]
    for number, epoch in enumerate(epochs):
        order = random_order((11, number), Purpose.SAMPLE, range(40))
        assert torch.equal(epoch, targets[order])
    assert not torch.equal(*epochs)


@pytest.mark.parametrize("ranks", [1, 3, 7, 100])
def test_epoch_trains_on_every_target_of_a_ranks_range_once(ranks: int) -> None:
    """This includes more ranks than targets; the order differs from epoch to epoch."""
    case = make_system_case("distdgl", ranks, batch=5)
    A, targets = graph_of(case)
    strategy = case.strategy()
    trained: list[list[list[int]]] = []
    for epoch in range(2):
        steps = range(epoch * strategy.steps, (epoch + 1) * strategy.steps)
        batches = [
            [strategy.mini_batch(step, group, A, targets).vertices[-1] for step in steps]
            for group in range(ranks)
        ]
        assert max(len(batch) for each in batches for batch in each) <= 5
        trained.append([torch.cat(each).tolist() for each in batches])
    assert [sorted(each) for each in trained[0]] == [sorted(each) for each in trained[1]]
    assert [target for each in trained[0] for target in sorted(each)] == targets.tolist()
    assert trained[0] != trained[1] or ranks > len(targets)


def fetched_by(case: Case, rank: int) -> float:
    """Return the words of features received in an epoch."""
    entries = replay(case.strategy(), rank, case.store()).entries
    return sum(amounts.elements_payload for key, amounts in entries.items() if key.tensor is TensorName.X)


@pytest.mark.parametrize("name", ["salient", "massivegnn", "quiver"])
def test_larger_caches_fetch_fewer_features(name: str) -> None:
    """An empty cache fetches as much as the baseline without a cache; a cache of all rows fetches no rows."""
    plain = make_system_case("distdgl", batch=25, fanouts=[3])
    none, some, much = (
        make_system_case(name, batch=25, fanouts=[3], share=share) for share in (0.0, 0.2, 1.0)
    )
    assert fetched_by(none, 1) == fetched_by(plain, 1)
    assert fetched_by(much, 1) < fetched_by(some, 1) < fetched_by(none, 1)
    if name != "massivegnn":  # it caches only boundary rows
        assert fetched_by(make_system_case(name, batch=25, fanouts=[3], share=3.0), 1) == 0


def counted_by(case: Case, epochs: int) -> RemoteRows:
    """Return the other ranks' rows that a rank needed in some epochs."""
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    for _ in range(epochs):
        trainer.epoch()
    return trainer.ctx.measured.remote


def test_cache_hits_equal_a_dense_count(pool) -> None:
    """Compared with the most likely rows of others by dense probabilities. Own rows are neither hits nor misses."""
    case = make_system_case("salient", batch=13, fanouts=[3, 2], share=0.5)
    strategy, (A, targets) = case.strategy(), graph_of(case)
    edges = to_scipy(A).toarray() != 0
    np.fill_diagonal(edges, False)
    degree = np.maximum(edges.sum(axis=1), 1)
    for rank, remote in enumerate(pool.run(3, counted_by, case, 2)):
        own, p = strategy.rows({P: rank}), np.zeros(211)
        p[np.array_split(targets.numpy(), 3)[rank]] = 1 / strategy.steps
        for fanout in (3, 2, 2)[: case.spec.model.layers]:
            drawn = np.where(edges, (p * np.minimum(1, fanout / degree))[:, None], 0)
            p = 1 - (1 - p) * np.prod(1 - drawn, axis=0)
        others = [v for v in range(211) if v not in own]
        kept = set(sorted(others, key=lambda v: (-p[v], v))[: round(0.5 * 211 / 3)])
        needed = [
            set(strategy.mini_batch(step, rank, A, targets).vertices[0].tolist()) - set(own)
            for step in range(2 * strategy.steps)
        ]
        assert remote.rows == sum(map(len, needed))
        assert remote.cached == sum(len(each & kept) for each in needed) > 0


def trained_by(case: Case, epochs: int) -> tuple[list[float], list[torch.Tensor], dict[Any, float]]:
    """Return a rank's losses and weights after some epochs, and the words of the last epoch by key."""
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    done = [trainer.epoch() for _ in range(epochs)]
    words = {
        key: amounts.elements_payload for key, amounts in done[-1].entries.items() if amounts.elements_payload
    }
    return [epoch.loss.item() for epoch in done], [W.detach() for W in trainer.weights], words


@pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in NAMES), ("salient", {"graph": "partitioned"})]
)
def test_prefetching_changes_neither_results_nor_words(name: str, more: dict[str, Any], pool) -> None:
    once, ahead = (
        pool.run(3, trained_by, make_system_case(name, batch=7, fanouts=[3], prefetch=prefetch, **more), 3)
        for prefetch in (False, True)
    )
    for (losses, weights, words), (losses_ahead, weights_ahead, words_ahead) in zip(once, ahead, strict=True):
        assert losses == losses_ahead
        assert all(map(torch.equal, weights, weights_ahead))
        assert words == words_ahead


@pytest.mark.parametrize(
    ("name", "params", "threads"),
    [
        ("salient", {}, {"other"}),
        ("quiver", {}, {"other"}),
        ("salient", {"prefetch": False}, {"main"}),
        ("salient", {"graph": "partitioned"}, {"main"}),
        ("distdgl", {"prefetch": True}, {"main"}),
    ],
)
def test_thread_samples_ahead_if_sampling_sends_no_messages(
    name: str, params: dict[str, Any], threads: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mini-batch of two epochs is drawn once; at the end the thread is one mini-batch ahead."""
    draw, drawn = Neighbours.mini_batch, list[tuple[int, str]]()

    def noted(sampler: Neighbours, step: int, *rest: Any) -> Any:
        drawn.append((step, "main" if threading.current_thread() is threading.main_thread() else "other"))
        return draw(sampler, step, *rest)

    case = make_system_case(name, 1, batch=25, fanouts=[3], **params)
    strategy = case.strategy()
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store())
    monkeypatch.setattr(Neighbours, "mini_batch", noted)
    for _ in range(2):
        trainer.epoch()
    ahead = int(threads == {"other"})
    assert {thread for _, thread in drawn} == threads
    assert [step for step, _ in drawn][: 2 * strategy.steps] == list(range(2 * strategy.steps))
    assert len(drawn) <= 2 * strategy.steps + ahead


@pytest.mark.parametrize(
    ("name", "model", "transposed"),
    [
        ("graphsage", {"kind": "sage"}, [False, True, True]),
        ("graphsage", {"kind": "gcn"}, [False, True, True]),
        ("graphsage", {"kind": "gcn", "projection": True}, [True, True, True]),
        ("graphsage", {"kind": "gat"}, [True, True, True]),
        ("salient", {"kind": "sage"}, [False, True, True]),
        ("graphsaint-node", {"kind": "gcn"}, [True, True, True]),
    ],
)
def test_matrices_are_transposed_only_for_layers_whose_input_has_a_gradient(
    name: str, model: dict[str, Any], transposed: list[bool]
) -> None:
    """Features have none, but their products with weights do; GraphSAINT's layers share a matrix."""
    grid, model = {P if name == "salient" else D: 1}, {"layers": 3} | model
    case = make_case(name, grid, training={"batch": 9}, model=model)
    strategy = case.strategy()
    operators = Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store()).operators
    assert isinstance(operators, SampledOperators)
    pairs = operators.source.take_step(0).A
    assert [A_T is not None for _, A_T in pairs] == transposed
    for A, A_T in pairs:
        if A_T is not None and model["kind"] != "gat":
            assert np.array_equal(to_scipy(A_T).toarray(), to_scipy(A).toarray().T)


@pytest.mark.parametrize("name", ["distdgl", "graphsage", "cluster-gcn", "bulk-sage"])
def test_attention_on_samples_is_approximate(name: str) -> None:
    """`cluster-gcn` is approximate with any model, the others only with attention."""
    of_model = [ModelChoice(kind=kind) for kind in ("gcn", "sage", "gat")]
    axes = {"graphsage": {D: 1}, "bulk-sage": {ROW: 1, COL: 1}}
    promises = []
    for model in of_model:
        spec = make_system_case("distdgl", 1).spec.model_copy(
            update={"strategy": StrategyChoice(name=name), "grid": axes.get(name, {P: 1}), "model": model}
        )
        promises.append(Case(name, spec, vertices=211).strategy().effective_promise.value)
    assert promises == ["approximate" if name == "cluster-gcn" else "estimator"] * 2 + ["approximate"]
