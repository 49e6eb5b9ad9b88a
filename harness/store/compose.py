"""Follows a card: reads or draws the edges, normalises them, and adds features, labels and split."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.features import gaussian_features, row_normalised, uniform_features
from harness.graph.labels import degree_labels, uniform_labels
from harness.graph.model import NO_LABEL, TRAIN, Graph, RawGraph, StageCounts
from harness.graph.normalise import normalise
from harness.graph.split import all_train, labelled_only, random_split
from harness.kernels.csr import Csr
from harness.sources import Rest
from harness.sources.generator import Generator
from harness.sources.table import read_column, read_table
from harness.store import recipes
from harness.store.card import DatasetCard

VERSION = 1
"""Changes with every change of normalisation, readers or recipes that gives another graph for the same card."""


def compose(card: DatasetCard, folder: Path) -> Graph:
    """The graph of a card. Paths in the card are relative to `folder`."""
    which = card.split.index if isinstance(card.split, recipes.FileSplit) else 0
    raw = card.source.graph(Rest(folder, card.seed, card.classes, which))
    if raw.n < 1:
        raise UserError(f"dataset {card.name} has no vertex; a graph needs at least one.")
    A, counts = normalise(raw, card.directed)
    check_counts(card, raw.n, counts)
    y = _labels(card, raw, A, folder)
    split = _split(card, raw, y, folder)
    if not bool((split == TRAIN).any()):
        raise UserError(f"dataset {card.name} has no training vertex: its split and its labels leave none.")
    return Graph(A, _features(card, raw, y, folder), y, split, card.classes, card.directed, counts)


def generator_of(card: DatasetCard) -> Generator | None:
    """The generator a card names, or None if it names files."""
    return card.source.generator(card.seed, card.classes)


def versions(card: DatasetCard) -> dict[str, int]:
    """The versions of all code that the data of this card depends on."""
    generator = generator_of(card)
    return {"recipes": VERSION} | ({"generator": generator.version} if generator else {})


def source_files(card: DatasetCard, folder: Path) -> dict[str, Path]:
    """Every file the card reads, by the name the card has for it."""
    names = [getattr(recipe, "path", None) for recipe in (card.features, card.labels, card.split)]
    return {name: folder / name for name in [*card.source.files(), *names] if name is not None}


def check_counts(card: DatasetCard, n: int, counts: StageCounts) -> None:
    """Refuses a graph that is not the one its card promises."""
    found = {"n": n, **asdict(counts)}
    wrong = [
        f"{key} is {found[key]:,}, expected {value:,}"
        for key, value in card.expected
        if value is not None and value != found[key]
    ]
    if wrong:
        raise UserError(
            f"dataset {card.name} is not the graph its card expects: {'; '.join(wrong)}. Either the file is another "
            "version of the data, or the counts under `expected` are wrong."
        )


def _labels(card: DatasetCard, raw: RawGraph, A: Csr, folder: Path) -> Tensor:
    match card.labels:
        case recipes.PlantedLabels():
            return card.source.planted_labels(range(raw.n), card.classes)
        case recipes.DegreeLabels():
            return degree_labels(A, card.classes)
        case recipes.UniformLabels():
            return uniform_labels(range(raw.n), card.classes, card.seed)
        case recipes.FileLabels(path=path):
            y = raw.y if path is None else read_column(folder / path, raw.n)
            return _in_classes(card, torch.from_numpy(_given(card, "labels", y)))


def _in_classes(card: DatasetCard, y: Tensor) -> Tensor:
    if len(y) and not (int(y.min()) >= NO_LABEL and int(y.max()) < card.classes):
        raise UserError(
            f"dataset {card.name} has labels from {int(y.min())} to {int(y.max())}, but its card says classes = "
            f"{card.classes}: labels are 0 .. {card.classes - 1}, or {NO_LABEL} for none."
        )
    return y


def _features(card: DatasetCard, raw: RawGraph, y: Tensor, folder: Path) -> Tensor:
    vertices = range(raw.n)
    match card.features:
        case recipes.GaussianFeatures(width=width, separation=separation):
            return gaussian_features(y, vertices, card.classes, width, separation, card.seed)
        case recipes.UniformFeatures(width=width, normalise=normalised):
            X = uniform_features(vertices, width, card.seed)
        case recipes.FileFeatures(path=path, normalise=normalised):
            table = raw.X if path is None else read_table(folder / path, raw.n)
            X = torch.from_numpy(_given(card, "features", table)).float()
    return row_normalised(X) if normalised else X


def _split(card: DatasetCard, raw: RawGraph, y: Tensor, folder: Path) -> Tensor:
    match card.split:
        case recipes.RandomSplit(train=train, valid=valid):
            return random_split(y, 0, train, valid, card.seed)
        case recipes.AllTrain():
            return all_train(y)
        case recipes.FileSplit(path=path):
            split = raw.split if path is None else read_column(folder / path, raw.n)
            parts = torch.from_numpy(_given(card, "split", split))
            if not bool(torch.isin(parts, torch.arange(4)).all()):
                raise UserError(
                    f"dataset {card.name}: a split holds 0 (none), 1 train, 2 valid, 3 test only."
                )
            return labelled_only(parts, y)


def _given(card: DatasetCard, what: str, found: Any) -> Any:
    """What a source had to bring along, if it did."""
    if found is None:
        raise UserError(
            f"dataset {card.name}: {what} of kind file, but its source ({card.source.kind}) brings none. Name a "
            f"file by path, or choose another kind of {what}."
        )
    return found
