"""The accuracies of OGB's datasets, by OGB's own Evaluator: ROC-AUC for ogbn-proteins, accuracy for the others.

After an evaluation, the ranks send the labels and predictions of all labelled vertices to rank 0, which calls the
Evaluator: 24 bytes for each vertex, or 8 bytes for each class of a vertex if the task is multi-label (16 in float64).
This is not part of any epoch, nor of `eval_seconds`.
"""

from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import FileLabels
from harness.graph.model import SPLITS
from harness.ledger import TensorName
from harness.strategy.models import Predictions
from harness.strategy.models.operators import GatheringOperators, Operators


@dataclass(frozen=True)
class OgbJudge:
    """Scores the output of a model on every split. All ranks of a world call it together."""

    world: Axis
    metric: str
    """The name of OGB's metric: acc or rocauc."""
    evaluator: Any
    """OGB's Evaluator on rank 0, and None on other ranks."""

    def __call__(self, operators: Operators, Z: Tensor) -> dict[str, float]:
        """Return OGB's score of each split, the same on every rank; NaN where it is not defined."""
        assert isinstance(operators, GatheringOperators)
        predictions = operators.gather_predictions(Z)
        scores = torch.zeros(len(SPLITS), dtype=torch.float64)
        if self.evaluator:
            scores = torch.tensor([self.score(predictions.get(name)) for name in SPLITS], dtype=torch.float64)
        total = self.world.all_reduce(scores.to(self.world.device), tensor=TensorName.COUNT)
        return dict(zip(SPLITS, total.tolist(), strict=True))

    def score(self, given: Predictions | None) -> float:
        """Return OGB's score of some vertices.

        The score is NaN if there are no vertices, if no class has both kinds of labels, or if the model diverged.
        """
        if given is None or not len(given.labels):
            return float("nan")
        labels, predicted = given.labels.cpu().numpy(), given.predicted.cpu().numpy()
        if not np.isfinite(predicted).all():
            return float("nan")
        if self.metric == "rocauc" and not ((labels == 0).any(axis=0) & (labels == 1).any(axis=0)).any():
            return float("nan")
        return float(self.evaluator.eval({"y_true": labels, "y_pred": predicted})[self.metric])


def open_judge(root: Path, dataset: str, operators: Operators, world: Axis) -> OgbJudge | None:
    """Return the judge of a dataset with OGB's labels, or None if there is none or `ogb` is not installed on rank 0.

    All ranks of a world call this function together.
    """
    card = load_card(root, dataset)
    source, labels = card.source, card.labels
    has_ogb_labels = source.kind == "ogb" and isinstance(labels, FileLabels) and labels.path is None
    if not has_ogb_labels or not isinstance(operators, GatheringOperators):
        return None
    from harness.graph.sources.ogb import Ogb, read_ogb_table

    assert isinstance(source, Ogb)
    evaluator = load_evaluator(source.name) if world.index == 0 else None
    recording, world.ledger.recording = world.ledger.recording, False
    found = torch.tensor([float(evaluator is not None)], device=world.device)
    found = world.all_reduce(found, tensor=TensorName.COUNT)
    world.ledger.recording = recording
    if not found.item():
        return None
    return OgbJudge(world, read_ogb_table()[source.name]["eval metric"], evaluator)


def load_evaluator(name: str) -> Any:
    """Return OGB's Evaluator of a dataset, or None if `ogb` cannot be loaded.

    The file that defines it is loaded by itself, because importing the package accesses the network.
    """
    package = find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        return None
    file = Path(package.submodule_search_locations[0]) / "nodeproppred" / "evaluate.py"
    spec = spec_from_file_location("harness_ogb_evaluate", file)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return module.Evaluator(name)
