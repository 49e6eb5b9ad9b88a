"""Multi-label losses and F1 scores equal torch and scikit-learn, for any split of classes."""

from math import prod
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.graph.model import SPLITS, has_label
from harness.ledger import Ledger
from harness.runtime.trainer import Trainer
from harness.strategy.models import SplitAccuracy
from tests.cases import DOUBLE, make_case

GRIDS = [
    ("serial", {"p": 1}),
    ("cagnet-1d", {"p": 3}),
    ("cagnet-2d", {"row": 2, "col": 2}),
    ("plexus", {"x": 2, "y": 2, "z": 1}),
]


def make_labels_case(strategy: str, grid: dict[str, int]) -> Case:
    return make_case(strategy, grid, vertices=97, task="multi-label", **DOUBLE)


def trained(strategy: str, grid: dict[str, int]) -> tuple[float, dict[str, SplitAccuracy]]:
    case = make_labels_case(strategy, grid)
    chosen = case.strategy()
    trainer = Trainer(chosen, Grid.build(chosen.grid, Ledger()), case.store())
    return trainer.epoch().loss.item(), trainer.evaluate()[0]


def serially(epochs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train serially; return the output of the model after some epochs, the labels, and the split."""
    case = make_labels_case(*GRIDS[0])
    chosen = case.strategy()
    trainer = Trainer(chosen, Grid.build(chosen.grid, Ledger()), case.store())
    for _ in range(epochs):
        trainer.epoch()
    output = trainer.output()
    store = case.store()
    return output, store.labels(range(store.n)), store.split(range(store.n))


@pytest.mark.parametrize(("strategy", "grid"), GRIDS)
def test_loss_and_f1_equal_torch_and_sklearn(ranks: Any, strategy: str, grid: dict[str, int]) -> None:
    from sklearn.metrics import f1_score  # here, because ranks import this file

    before, labels, split = serially(0)
    counts = has_label(labels) & (split == SPLITS["train"])
    loss = binary_cross_entropy_with_logits(before[counts], labels[counts].double())
    after, *_ = serially(1)
    for trained_loss, hits in ranks(prod(grid.values()), trained, strategy, grid):
        assert trained_loss == pytest.approx(loss.item(), rel=1e-13)
        for name, value in SPLITS.items():
            counts = has_label(labels) & (split == value)
            theirs = f1_score(labels[counts], after[counts] > 0, average="micro")
            assert hits[name].correct / hits[name].total == pytest.approx(theirs, rel=1e-12)
