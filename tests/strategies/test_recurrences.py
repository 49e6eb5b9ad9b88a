"""Training with stale, rounded or sampled rows equals dense training by the recurrence in the strategy's paper.

Each recurrence is written with dense matrices in double precision, and autograd multiplies by the transposes. Only data
is shared with the strategies: initial weights, the rounding of messages, and the sampled rows.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import cross_entropy

from harness.conformance.case import Case, train_rank
from harness.conformance.reference import dense_model_matrix, train_densely
from harness.graph.partition import order_by_part
from harness.models import Part
from harness.models.weights import init_weight
from harness.store.memory_store import MemoryStore
from harness.strategies.halo.adaqp import AdaQP, dequantize, quantize
from harness.strategies.halo.bns import draw_sample
from harness.strategy import Promise, facts_of
from tests.cases import DOUBLE, SGD, in_parts, make_case

PARTS, EPOCHS = 3, 6
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


def make_uneven_case(name: str, params: dict[str, Any], partition: str, directed: bool, kind: str) -> Case:
    return make_case(
        name,
        {"p": PARTS},
        params,
        dataset=in_parts(PARTS, partition),
        model={"layers": 3, "hidden": 10, "kind": kind, "order": "aggregate_first"},
        training={**SGD, "warmup": 0},
        directed=directed,
        case=UnevenCase,
        **DOUBLE,
    )


class Recurrence:
    """The convolutions of a training run. `inside` are the diagonal blocks of A, and `outside` is the rest."""

    def __init__(self, case: Case) -> None:
        store = case.store()
        self.params, self.seed = case.spec.strategy.params, case.spec.seed
        self.A = dense_model_matrix(case.spec.model.kind, store)
        self.parts = [slice(rows.start, rows.stop) for rows in facts_of(store).blocks(PARTS)]
        self.inside = torch.zeros_like(self.A)
        for part in self.parts:
            self.inside[part, part] = self.A[part, part]
        self.outside = self.A - self.inside

    def convolve(self, epoch: int, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Return A H W as the strategy computes it."""
        raise NotImplementedError

    def late(self) -> Tensor:
        """Return a term of the loss whose gradients are those that arrive late."""
        return torch.zeros(())

    def end_epoch(self) -> None:
        """Store the gradients for the next epoch."""

    def boundary(self, receiver: int, owner: int) -> Tensor:
        """Return the vertices of `owner` whose rows `receiver` multiplies by, in ascending order."""
        block = self.A[self.parts[receiver], self.parts[owner]]
        return (block != 0).any(dim=0).nonzero()[:, 0] + self.parts[owner].start


class PipeGcn(Recurrence):
    """Rows of other parts, and gradients for them, are averages over the epochs before (PipeGCN, section 3)."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rows: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.products: dict[int, tuple[Tensor, Tensor]] = {}

    def convolve(self, epoch: int, layer: int, H: Tensor, W: Tensor) -> Tensor:
        if layer == 0 and self.params.get("precompute", True):
            return self.A @ H @ W
        past, m = self.rows.get(layer, torch.zeros_like(H)), self.params.get("features", 0.0)
        self.rows[layer] = m * past + (1 - m) * H.detach()
        T = self.inside @ H + self.outside @ past
        if H.requires_grad:
            T.retain_grad()
            self.products[layer] = H, T
        return T @ W

    def late(self) -> Tensor:
        terms = [
            (self.outside @ self.products[layer][0] * gradient).sum()
            for layer, gradient in self.gradients.items()
        ]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def end_epoch(self) -> None:
        m = self.params.get("gradients", 0.0)
        for layer, (_, T) in self.products.items():
            assert T.grad is not None
            past = self.gradients.get(layer, torch.zeros_like(T))
            self.gradients[layer] = m * past + (1 - m) * T.grad


class SancusRecurrence(Recurrence):
    """Other ranks see the rows of epoch 0, then of the last turn; gradients are by current rows (SANCUS, section 4)."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.sent: dict[int, Tensor] = {}

    def convolve(self, epoch: int, layer: int, H: Tensor, W: Tensor) -> Tensor:
        sent = self.sent.setdefault(layer, H.detach().clone())
        for j, part in enumerate(self.parts):
            if epoch and (epoch - 1 - j) % (self.params["stale"] + 1) == 0:
                sent[part] = H.detach()[part]
        T, present = (self.inside @ H + self.outside @ sent).detach(), self.A @ H
        if self.params.get("weight_gradient") == "T":
            return (present + (T - present).detach()) @ W
        Z = present @ W
        return Z + (T @ W - Z).detach()


class RoundedRows(Function):
    """The rows that each part multiplies by, (P, n, F): its own rows, and the received rows of others."""

    @staticmethod
    def forward(saved: Any, H: Tensor, ops: "AdaQpRecurrence", at: tuple[int, int]) -> Tensor:
        saved.ops, saved.at = ops, at
        seen = H.new_zeros(PARTS, *H.shape)
        for own, part in enumerate(ops.parts):
            seen[own, part] = H[part]
            ways = [(receiver, own) for receiver in range(PARTS) if receiver != own]
            rows = ops.rounded([H[ops.boundary(*way)] for way in ways], ways, (ops.seed, *at, 0, own))
            for way, arrived in zip(ways, rows, strict=True):
                seen[way[0], ops.boundary(*way)] = arrived
        return seen

    @staticmethod
    def backward(saved: Any, dSeen: Tensor) -> tuple[Tensor, None, None]:
        ops, dH = saved.ops, torch.zeros_like(dSeen[0])
        for own, part in enumerate(ops.parts):
            dH[part] += dSeen[own, part]
            ways = [(own, owner) for owner in range(PARTS) if owner != own]
            rows = [dSeen[own, ops.boundary(*way)] for way in ways]
            for way, arrived in zip(
                ways, ops.rounded(rows, ways, (ops.seed, *saved.at, 1, own)), strict=True
            ):
                dH[ops.boundary(*way)] += arrived
        return dH, None, None


class AdaQpRecurrence(Recurrence):
    """Rows, and the gradients that return for them, are rounded to integers of few bits (AdaQP, equations 2 and 3)."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        strategy = case.strategy()
        assert isinstance(strategy, AdaQP)
        self.widths, self.draw_widths = strategy.widths, strategy.draw_widths

    def convolve(self, epoch: int, layer: int, H: Tensor, W: Tensor) -> Tensor:
        seen = RoundedRows.apply(H, self, (epoch, layer))
        return torch.cat([self.A[part] @ seen[own] for own, part in enumerate(self.parts)]) @ W

    def rounded(
        self, rows: list[Tensor], ways: list[tuple[int, int]], seed: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        """Return the rows that one rank sends, as they arrive. `ways` are pairs of receiver and owner."""
        counts = [len(each) for each in rows]
        whole, first = torch.cat(rows), [sum(counts[:number]) for number in range(len(counts))]
        arrived = torch.full_like(whole, torch.nan)
        for number, bits in enumerate(self.widths):
            places = [self.draw_widths(way, count)[number] for way, count in zip(ways, counts, strict=True)]
            chosen = torch.cat([start + each for start, each in zip(first, places, strict=True)])
            message = quantize(whole[chosen], bits, (*seed, bits))
            arrived[chosen] = dequantize(message, bits, whole.shape[1], whole.dtype)
        return arrived.split(counts)


class BnsRecurrence(Recurrence):
    """A part multiplies by a share p of the rows that it needs of each other part, over p (BNS-GCN, section 3.2)."""

    def convolve(self, epoch: int, layer: int, H: Tensor, W: Tensor) -> Tensor:
        p, A = self.params["p"], self.A
        if p < 1 and not (layer == 0 and self.params.get("precompute", True)):
            A = self.inside.clone()
            for i, j in product(range(PARTS), repeat=2):
                if i != j and p:
                    needed = self.boundary(i, j)
                    drawn = needed[draw_sample(self.seed, epoch, (i, j), len(needed), p)]
                    A[self.parts[i], drawn] = self.A[self.parts[i], drawn] / p
        return A @ H @ W


RECURRENCES = {
    "pipegcn": PipeGcn,
    "sancus": SancusRecurrence,
    "adaqp": AdaQpRecurrence,
    "bns-gcn": BnsRecurrence,
}


def dense_losses(case: Case, epochs: int) -> list[float]:
    """Return the losses of dense training by the recurrence."""
    store, spec, recurrence = case.store(), case.spec, RECURRENCES[case.spec.strategy.name](case)
    everyone, named = range(store.n), case.strategy().weights
    X = store.feature_block(everyone, range(store.features)).double()
    labels, trains = store.labels(everyone), store.split(everyone) == 1
    trains &= labels >= 0
    weights = [
        init_weight(spec.seed, number, weight, *map(range, weight.shape)).requires_grad_()
        for number, weight in enumerate(named)
    ]
    layers: list[dict[Part, Tensor]] = [{} for _ in range(spec.model.layers)]
    for weight, W in zip(named, weights, strict=True):
        layers[weight.layer][weight.part] = W
    optimizer, losses = torch.optim.SGD(weights, lr=0.5), []
    for epoch in range(epochs):
        H = X
        for layer, of_layer in enumerate(layers):
            Z = recurrence.convolve(epoch, layer, H, of_layer[Part.CONVOLUTION])
            Z = Z + H @ of_layer[Part.ROOT] if Part.ROOT in of_layer else Z
            H = Z.relu() if layer + 1 < len(layers) else Z
        loss = cross_entropy(H[trains], labels[trains])
        optimizer.zero_grad()
        (loss + recurrence.late()).backward()
        recurrence.end_epoch()
        optimizer.step()
        losses.append(loss.item())
    return losses


GRAPHS = list(product(["block", "random", "metis", FILE], [False, True], ["gcn", "sage"]))
TRIED: list[tuple[str, dict[str, Any], list[tuple[str, bool, str]]]] = [
    ("pipegcn", {}, [("metis", True, "gcn"), (FILE, False, "sage")]),
    ("pipegcn", {"precompute": False}, [("block", True, "sage"), ("metis", False, "gcn")]),
    ("pipegcn", {"precompute": False, "features": 0.5, "gradients": 0.25}, [("random", True, "gcn")]),
    ("sancus", {"stale": 1}, [("metis", True, "gcn"), (FILE, True, "sage")]),
    ("sancus", {"stale": 2, "weight_gradient": "T", "overlap": True}, [("block", True, "gcn")]),
    ("sancus", {"stale": 5}, [("random", False, "sage")]),
    ("adaqp", {"bits": 2}, [("metis", True, "gcn"), ("block", False, "sage")]),
    ("adaqp", {"bits": 8, "overlap": False}, [(FILE, True, "sage")]),
    ("adaqp", {"bits": "random"}, [("random", True, "gcn"), (FILE, False, "gcn")]),
    ("bns-gcn", {"p": 1.0}, [("block", True, "sage"), (FILE, True, "gcn")]),
    ("bns-gcn", {"p": 0.5}, [("metis", True, "gcn"), ("random", False, "sage")]),
    ("bns-gcn", {"p": 0.2, "precompute": False, "overlap": True}, [(FILE, True, "gcn")]),
    ("bns-gcn", {"p": 0.0}, [("block", False, "gcn")]),
]
"""The choices of parameters, each with the graphs on which the quick tests try it."""


@pytest.mark.parametrize(
    ("name", "params", "graph"),
    [
        pytest.param(name, params, graph, marks=[] if graph in quick else pytest.mark.slow)
        for name, params, quick in TRIED
        for graph in GRAPHS
    ],
    ids=str,
)
def test_training_equals_dense_training_by_the_papers_recurrence(
    ranks, name: str, params: dict[str, Any], graph: tuple[str, bool, str]
) -> None:
    case = make_uneven_case(name, params, *graph)
    expected = dense_losses(case, EPOCHS)
    exact = train_densely(case.strategy(), case.store(), EPOCHS).losses
    assert (expected == pytest.approx(exact, rel=1e-9)) is (
        case.strategy().effective_promise is Promise.EXACT
    )
    for result in ranks(PARTS, train_rank, case, EPOCHS):
        assert result.losses == pytest.approx(expected, rel=1e-12)
