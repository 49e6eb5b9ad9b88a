"""Partition-parallel strategies send the expected words, equal dense training by their recurrences, and learn."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.batches import find_multiplier
from harness.conformance.case import Case, RankResult, train_rank
from harness.conformance.reference import train_densely
from harness.experiment.requests import make_spec
from harness.graph.model import Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.random import Purpose, integers
from harness.ledger import Ledger, Op
from harness.prediction.replay import replay
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Training
from harness.strategy import BlockCounts, Promise
from tests.cases import DOUBLE, in_parts, make_case

PARTS, HEADS = 3, 2
TRAINING = {"optimizer": "sgd", "lr": 0.5, "warmup": 0}


def make_halo_case(
    name: str,
    order: str = "aggregate_first",
    directed: bool = False,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **params: Any,
) -> Case:
    return make_case(
        name,
        {"p": PARTS},
        params,
        dataset=in_parts(PARTS * params.get("clusters", 1)),
        model={"layers": 3, "hidden": 10, "order": order, **(model or {})},
        training={**TRAINING, **(training or {})},
        directed=directed,
        **DOUBLE,
    )


@dataclass(frozen=True)
class Communities(Case):
    """The kit's graph, with edges and labels from communities, which a model can learn."""

    def graph(self) -> Graph:
        graph, vertices = super().graph(), torch.arange(self.vertices)
        labels = vertices % graph.classes
        ends = integers(1, Purpose.TEST, range(60 * self.vertices), high=self.vertices).view(2, -1)
        alike = labels[ends[0]] == labels[ends[1]]
        seldom = torch.arange(len(alike)) % 28 == 0
        source, target = ends[:, alike | seldom].numpy()
        A, counts = normalise_adjacency(RawGraph(self.vertices, source, target), self.directed)
        X = graph.X + 0.3 * torch.nn.functional.one_hot(labels, graph.X.shape[1])
        return replace(graph, A=A, counts=counts, X=X, y=labels)


def exchanged(results: Sequence[RankResult]) -> list[Counter[tuple[str, int]]]:
    """Return the words of boundary rows on every rank, by direction and layer."""
    by_rank = []
    for result in results:
        words: Counter[tuple[str, int]] = Counter()
        for key, sent in result.sent.items():
            if key.op is Op.ALL_TO_ALL:
                words[key.direction, key.layer] += int(sent.words)
        by_rank.append(words)
    return by_rank


@pytest.mark.parametrize("order", ["aggregate_first", "combine_first"])
def test_full_boundary_equals_the_words_of_sparsity_aware_cagnet(ranks, order: str) -> None:
    """Forward, the words of every rank are equal. Backward, CAGNET sends G over A^T and BNS-GCN returns gradients to
    the owners: on an undirected graph the same number of rows in all, and of one width where W comes first."""
    bns = exchanged(ranks(PARTS, train_rank, make_halo_case("bns-gcn", order, precompute=False), 1))
    cagnet = exchanged(ranks(PARTS, train_rank, make_halo_case("cagnet-sa-1d", order), 1))
    for mine, other in zip(bns, cagnet, strict=True):
        assert {key: words for key, words in mine.items() if key[0] == "forward"} == {
            key: words for key, words in other.items() if key[0] == "forward"
        }
    if order == "combine_first":
        assert sum(bns, Counter()) == sum(cagnet, Counter())
    assert sum(bns, Counter()).total() > 0


def formula_of(case: Case) -> list[Counter[tuple[str, int, str]]]:
    """Return the words of an epoch on every rank, by direction, layer and tensor."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    by_rank = []
    for rank in range(PARTS):
        words: Counter[tuple[str, int, str]] = Counter()
        for key, sent in strategy.words(strategy.coordinates(rank), counts).items():
            if key.op is not Op.SEND:
                words[key.direction, key.layer, key.tensor] += int(sent)
        by_rank.append(words)
    return by_rank


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("name", ["bns-gcn", "pipegcn"])
def test_words_received_in_an_epoch_equal_g3(name: str, kind: str) -> None:
    """All three fetch the first layer's remote rows before training, and exchange the same rows of later layers."""
    once, g3 = (formula_of(make_halo_case(each, model={"kind": kind})) for each in (name, "g3"))
    assert once == g3
    every_epoch = formula_of(make_halo_case(name, model={"kind": kind}, precompute=False))
    first = [{key for key in words if key[1:] == (0, "H")} for words in every_epoch]
    assert all(first) and all(
        {key: words[key] for key in words.keys() - layer} == other
        for words, layer, other in zip(every_epoch, first, once, strict=True)
    )


def chosen(case: Case) -> str:
    """Return the first layer's entry in a rank's record."""
    strategy = case.strategy()
    return Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store()).ctx.measured.chosen[
        "first layer"
    ]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        *(
            (name, changes, reason)
            for name in ("bns-gcn", "pipegcn")
            for changes, reason in (
                ({}, None),
                ({"precompute": False}, "precompute is off"),
                ({"order": "combine_first"}, "it combines first"),
                ({"model": {"projection": True}}, "a trained projection"),
                ({"training": {"features": True}}, "features are trained"),
            )
        ),
        ("bns-gcn", {"model": {"kind": "gat"}}, "attention"),
    ],
    ids=str,
)
def test_record_says_when_the_first_layer_is_aggregated(
    ranks, name: str, changes: dict[str, Any], reason: str | None
) -> None:
    """The formula has words for the first layer in every epoch exactly if the record says so."""
    case = make_halo_case(name, **changes)
    lines = ranks(PARTS, chosen, case)
    assert len(lines) == PARTS and len(set(lines)) == 1
    assert lines[0] == "aggregated once, before training" if reason is None else reason in lines[0]
    for words in formula_of(case):
        assert (words["forward", 0, "H"] > 0) is (reason is not None)


@pytest.mark.parametrize("name", ["bns-gcn", "pipegcn"])
def test_one_precomputed_layer_is_exact(name: str) -> None:
    rate = {"p": 0.1} if name == "bns-gcn" else {}
    assert make_halo_case(name, model={"layers": 1}, **rate).strategy().effective_promise is Promise.EXACT
    every_epoch = make_halo_case(name, model={"layers": 1}, precompute=False, **rate)
    assert every_epoch.strategy().effective_promise is not Promise.EXACT


def received(name: str, grid: dict[str, int], dataset: str, **params: Any) -> float:
    """Return the words received in an epoch by all ranks."""
    ranks, order = prod(grid.values()), {"name": dataset}
    if len(grid) == 1:
        order |= {"partition": "metis", "parts": ranks}
    request = {"strategy": {"name": name, "params": params}, "dataset": order, "ranks": ranks, "grid": grid}
    strategy, blocks = open_run(find_root(), make_spec(find_root(), request, "test"))
    entries = [replay(strategy, rank, blocks).entries.values() for rank in range(ranks)]
    return sum(amounts.elements_received for each in entries for amounts in each)


@pytest.mark.parametrize("dataset", ["tiny-lattice", "tiny-sbm"])
def test_on_graphs_with_locality_fewer_words_arrive_than_with_full_blocks(
    dataset: str,
) -> None:
    replicating = [
        received("cagnet-1d", {"p": 4}, dataset),
        received("cagnet-1d", {"p": 4}, dataset, moves="all_gather"),
        received("cagnet-1.5d", {"row": 4, "col": 1}, dataset),
        received("cagnet-1.5d", {"row": 2, "col": 2}, dataset),
    ]
    assert 0 < received("bns-gcn", {"p": 4}, dataset) < min(replicating)


@pytest.mark.parametrize(
    ("p", "promise"), [(1.0, Promise.EXACT), (0.1, Promise.ESTIMATOR), (0.0, Promise.APPROXIMATE)]
)
def test_promise_depends_on_the_sampling_rate(p: float, promise: Promise) -> None:
    assert make_halo_case("bns-gcn", p=p).strategy().effective_promise is promise


@pytest.mark.parametrize("directed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("kind", "order", "p", "options"),
    [
        ("gcn", "aggregate_first", 0.5, {"precompute": False}),
        ("sage", "aggregate_first", 0.5, {}),
        ("sage", "aggregate_first", 0.5, {"precompute": False}),
        ("gat", "aggregate_first", 0.5, {}),
        ("gat", "combine_first", 0.0, {}),
        ("gat", "combine_first", 1.0, {"overlap": True}),
        ("gat", "aggregate_first", 1.0, {"overlap": True}),
    ],
)
def test_training_on_a_sample_equals_serial_training_on_the_same_sample(
    ranks, kind: str, order: str, p: float, options: dict[str, bool], directed: bool
) -> None:
    case = make_halo_case("bns-gcn", order, directed, {"kind": kind}, p=p, **options)
    serial = train_densely(case.strategy(), MemoryStore(case.graph()), 4, find_multiplier(case))
    for result in ranks(PARTS, train_rank, case, 4):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)


def elements_by_epoch(case: Case, epochs: int) -> list[tuple[float, float]]:
    """Return the boundary words of every epoch: sent, and by the formula."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    grid = Grid.build(strategy.grid, Ledger())
    trainer, words = Trainer(strategy, grid, case.store()), []
    for epoch in range(epochs):
        sent = trainer.epoch().entries.items()
        formula = strategy.words_of_epoch(grid.coordinates, counts, epoch)
        words.append(
            (
                sum(amounts.elements_payload for key, amounts in sent if key.op is Op.ALL_TO_ALL),
                sum(count for key, count in formula.items() if key.op is Op.ALL_TO_ALL),
            )
        )
    return words


def test_each_epoch_sends_the_words_of_its_sample(ranks) -> None:
    by_rank = ranks(PARTS, elements_by_epoch, make_halo_case("bns-gcn", p=0.13), 12)
    for epochs in by_rank:
        assert [sent for sent, _ in epochs] == [formula for _, formula in epochs]
    assert any(len({sent for sent, _ in epochs}) > 1 for epochs in by_rank)


def learned(ranks: Callable[..., list[Any]], case: Case) -> float:
    """Return the test accuracy after training on communities."""
    batch = 35 if case.spec.strategy.name == "cluster-gcn" else 0
    spec = case.spec.model_copy(update={"training": Training(optimizer="adam", lr=0.02, batch=batch)})
    learnable = Communities(case.name, spec, case.vertices, directed=False)
    hits = ranks(PARTS, train_rank, learnable, 60)[0].hits["test"]
    return hits.correct / hits.total


@pytest.fixture(scope="module")
def exact(ranks) -> float:
    return learned(ranks, make_halo_case("bns-gcn"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "params", "lost"),
    [
        ("pipegcn", {}, 0.05),
        ("pipegcn", {"features": 0.5, "gradients": 0.5}, 0.05),
        ("sancus", {"stale": 3}, 0.05),
        ("distgnn", {"delay": 3}, 0.35),
        ("distgnn", {"delay": 3, "gradients": "delayed"}, 0.05),
        ("distgnn", {"aggregates": "none"}, 0.35),
        ("bns-gcn", {"p": 0.5}, 0.05),
        ("bns-gcn", {"p": 0.0}, 0.35),
        ("cluster-gcn", {"clusters": 1}, 0.35),
        ("cluster-gcn", {"clusters": 4}, 0.35),
    ],
    ids=str,
)
def test_approximate_strategies_reach_nearly_exact_accuracy(
    ranks, exact: float, name: str, params: dict[str, Any], lost: float
) -> None:
    """Most neighbours have a vertex's class. A strategy that drops no edge permanently is as accurate as exact ones.

    With delayed aggregates DistGNN drops edges in the backward pass, unless gradients are delayed too.
    """
    assert exact > 0.9
    assert learned(ranks, make_halo_case(name, **params)) > exact - lost
