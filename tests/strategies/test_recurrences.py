"""Training with stale, delayed, rounded or sampled rows equals dense training by the recurrence in the paper.

The kit compares the same for its own cases; here are more partitions, more epochs, and more values of parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.conformance.case import Case, train_rank
from harness.conformance.reference import make_recurrence, train_densely
from harness.graph.partitions.partition import order_by_part
from harness.graph.store.memory_store import MemoryStore
from harness.strategies.halo.bns import draw_sample
from harness.strategy import Multiply, Promise, Recurrence
from tests.cases import DOUBLE, SGD, in_parts, make_case

PARTS, EPOCHS = 3, 7
FILE = "file:uneven"


@dataclass(frozen=True)
class UnevenCase(Case):
    """A case that can have a partition from a file, with parts of about 3/4, 1/4 and 3 vertices."""

    def store(self) -> MemoryStore:
        if self.spec.dataset.partition != FILE:
            return super().store()
        vertex = torch.arange(self.vertices)
        part = torch.where(vertex % 70 == 3, 2, (vertex % 4 == 1).long())
        return MemoryStore(self.graph(), partition=order_by_part(part, PARTS))


def make_uneven_case(
    name: str, params: dict[str, Any], partition: str, directed: bool, kind: str, order: str
) -> Case:
    return make_case(
        name,
        {"p": PARTS},
        params,
        dataset=in_parts(PARTS, partition),
        model={"layers": 3, "hidden": 10, "kind": kind, "order": order},
        training={**SGD, "warmup": 0},
        directed=directed,
        case=UnevenCase,
        **DOUBLE,
    )


class SampledBoundary(Recurrence):
    """A part multiplies by a share p of the rows that it needs of each other part, over p (BNS-GCN, section 3.2).

    `effective_adjacency`, by which the kit trains, is not used.
    """

    def convolve(self, step: int, layer: int, H: Tensor, W: Tensor, multiply: Multiply) -> Tensor:
        p, A = self.params.p, self.A
        is_fixed = layer == 0 and not self.strategy.combines_first(0)
        if p < 1 and not (is_fixed and self.params.precompute):
            A = torch.zeros_like(A)
            for i, j in product(range(PARTS), repeat=2):
                receiver, owner = self.parts[i], self.parts[j]
                if i == j:
                    A[receiver, owner] = self.A[receiver, owner]
                elif p:
                    needed = self.graph.entries[receiver, owner].any(dim=0).nonzero()[:, 0] + owner.start
                    drawn = needed[draw_sample(self.strategy.spec.seed, step, (i, j), len(needed), p)]
                    A[receiver, drawn] = self.A[receiver, drawn] / p
        return A @ H @ W


def dense_losses(case: Case) -> list[float]:
    """Return the losses of dense training by the recurrence."""
    strategy, store = case.strategy(), case.store()
    if strategy.name == "bns-gcn":
        type(strategy).recurrence = SampledBoundary
    recurrence = make_recurrence(strategy, store)
    return train_densely(strategy, store, EPOCHS, recurrence=recurrence).losses


@pytest.fixture(autouse=True)
def _keep_recurrence_of_bns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.strategies.halo.bns.Bns.recurrence", None)


ORDERS = "aggregate_first", "combine_first"
Graph = tuple[str, bool, str, str]
GRAPHS: list[Graph] = list(
    product(["block", "random", "metis", FILE], [False, True], ["gcn", "sage"], ORDERS)
)
CUTS: list[Graph] = list(product(["libra", "block", "metis"], [False, True], ["gcn", "sage"], ORDERS))
ATTENTION: list[Graph] = list(product(["block", "metis"], [False, True], ["gat"], ORDERS))
A, C = ORDERS
TRIED: list[tuple[str, dict[str, Any], list[Graph], list[Graph]]] = [
    ("pipegcn", {}, GRAPHS, [("metis", True, "gcn", A), (FILE, False, "sage", C)]),
    ("pipegcn", {}, ATTENTION, [("metis", True, "gat", A)]),
    ("pipegcn", {"precompute": False}, GRAPHS, [("block", True, "sage", A), ("metis", False, "gcn", C)]),
    (
        "pipegcn",
        {"precompute": False, "features": 0.5, "gradients": 0.25},
        GRAPHS,
        [("random", True, "gcn", A)],
    ),
    ("sancus", {"stale": 1}, GRAPHS, [("metis", True, "gcn", A), (FILE, True, "sage", C)]),
    (
        "sancus",
        {"stale": 2, "weight_gradient": "T", "overlap": True},
        [graph for graph in GRAPHS if graph[-1] == A],
        [("block", True, "gcn", A)],
    ),
    ("sancus", {"stale": 5}, GRAPHS, [("random", False, "sage", A)]),
    ("adaqp", {"bits": 2}, GRAPHS, [("metis", True, "gcn", A), ("block", False, "sage", C)]),
    ("adaqp", {"bits": 8, "overlap": False}, GRAPHS, [(FILE, True, "sage", A)]),
    ("adaqp", {"bits": "random"}, GRAPHS, [("random", True, "gcn", A), (FILE, False, "gcn", A)]),
    ("bns-gcn", {"p": 0.5}, GRAPHS, [("metis", True, "gcn", A), ("random", False, "sage", A)]),
    ("bns-gcn", {"p": 0.2, "precompute": False, "overlap": True}, GRAPHS, [(FILE, True, "gcn", C)]),
    ("bns-gcn", {"p": 0.0}, GRAPHS, [("block", False, "gcn", A)]),
    ("distgnn", {"delay": 1}, CUTS, [("block", False, "gcn", A), ("libra", False, "sage", A)]),
    ("distgnn", {"delay": 3}, CUTS, [("block", False, "gcn", A), ("metis", True, "sage", A)]),
    ("distgnn", {"delay": 2, "gradients": "delayed"}, CUTS, [("libra", True, "gcn", A)]),
    ("distgnn", {"aggregates": "none"}, CUTS, [("block", False, "gcn", C), ("metis", False, "gcn", A)]),
]
"""The values of parameters, with the graphs on which all tests and the quick tests try them."""


@pytest.mark.parametrize(
    ("name", "params", "graph"),
    [
        pytest.param(name, params, graph, marks=[] if graph in quick else pytest.mark.slow)
        for name, params, graphs, quick in TRIED
        for graph in graphs
    ],
    ids=str,
)
def test_training_equals_dense_training_by_the_recurrence(
    ranks, name: str, params: dict[str, Any], graph: Graph
) -> None:
    case = make_uneven_case(name, params, *graph)
    expected = dense_losses(case)
    assert case.strategy().effective_promise is not Promise.EXACT
    exact: Sequence[float] = train_densely(case.strategy(), case.store(), EPOCHS).losses
    assert expected != pytest.approx(exact, rel=1e-9)
    for result in ranks(PARTS, train_rank, case, EPOCHS):
        assert result.losses == pytest.approx(expected, rel=1e-12)
