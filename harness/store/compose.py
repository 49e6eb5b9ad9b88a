"""Follows a card to its edges and to the data of its vertices; `compose` makes a small graph whole, in memory."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.model import NO_LABEL, TRAIN, Graph, StageCounts, labelled
from harness.graph.normalise import normalise
from harness.graph.vertex_data import (
    all_train,
    degree_labels,
    gaussian_features,
    labelled_only,
    random_split,
    row_normalised,
    uniform_features,
    uniform_label_sets,
    uniform_labels,
)
from harness.kernels.random import Index
from harness.sources import Rest
from harness.sources.refusal import IN_CARD
from harness.sources.source import Generator
from harness.sources.stream import Stream, stream_of
from harness.sources.vertex_files import (
    called,
    check_labels,
    read_column,
    read_label_sets,
    read_split,
    read_table,
)
from harness.store.dataset_card import (
    AllTrain,
    DatasetCard,
    DegreeLabels,
    FileFeatures,
    FileLabels,
    FileSplit,
    GaussianFeatures,
    PlantedLabels,
    RandomSplit,
    UniformFeatures,
    UniformLabels,
)
from harness.validation import VERTICES

VERSION = 1
"""Changes with every change of normalisation, readers or recipes that gives another graph for the same card."""
AT_ONCE, NUMBERS_AT_ONCE = 1 << 20, 1 << 24
"""Vertices whose labels are checked together, and numbers of features that are checked together."""


class Vertices(NamedTuple):
    """The label and the split of every vertex, in the graph's own order."""

    y: Tensor
    split: Tensor


@dataclass(frozen=True)
class Contents:
    """A card and the stream of its edges. Labels, split and features are made on request."""

    card: DatasetCard
    folder: Path
    """The folder to which the paths of the card are relative."""
    stream: Stream

    @property
    def n(self) -> int:
        return self.stream.n

    @property
    def width(self) -> int:
        """The columns of the features."""
        drawn = getattr(self.card.features, "width", None)
        return int(self._table.shape[1] if drawn is None else drawn)

    @property
    def most_entries(self) -> int:
        """The most nonzeros of the graph, repetitions and loops included."""
        return self.stream.entries * (1 if self.card.directed else 2) + self.n

    def vertices(self, degrees: Tensor) -> Vertices:
        """The labels and the split of a graph; `degrees` holds the nonzeros of each row."""
        y = self._labels(degrees)
        split = self._split(y)
        if not bool((split == TRAIN).any()):
            raise UserError(
                f"dataset {self.card.name} has no training vertex: its split and its labels leave none."
            )
        counted = {"labelled": labelled(y), "training": split == TRAIN}
        _compare(self.card, {name: int(chosen.sum()) for name, chosen in counted.items()})
        return Vertices(y, split)

    def features(self, vertices: Index, y: Tensor) -> Tensor:
        """The features of some vertices, (len(vertices), width) float32; `y` has the labels of all."""
        card = self.card
        match card.features:
            case GaussianFeatures(width=width, separation=separation):
                return gaussian_features(y, vertices, card.classes, width, separation, card.seed)
            case UniformFeatures(width=width, normalise=normalised):
                X = uniform_features(vertices, width, card.seed)
            case FileFeatures(normalise=normalised):
                rows = (
                    slice(vertices.start, vertices.stop) if isinstance(vertices, range) else vertices.numpy()
                )
                X = self._finite(vertices, torch.tensor(self._table[rows], dtype=torch.float32))
        return row_normalised(X) if normalised else X

    def check(self) -> None:
        """Refuses labels, splits and features of files that no run can train on, before anything is made."""
        y = self.vertices(torch.zeros(self.n, dtype=torch.int64)).y
        if isinstance(self.card.features, FileFeatures):
            step = max(NUMBERS_AT_ONCE // max(self.width, 1), 1)
            for start in range(0, self.n, step):
                self.features(range(start, min(start + step, self.n)), y)

    def _finite(self, vertices: Index, X: Tensor) -> Tensor:
        """The features of some vertices; an error for a number that is not finite in 32 bits."""
        finite = torch.isfinite(X)
        if not bool(finite.all()):
            row, column = (~finite).nonzero()[0].tolist()
            vertex = int(vertices[row])
            raise UserError(
                f"{self._origin(self.card.features)}, row {vertex + 1:,} (vertex {vertex:,}), column {column + 1:,}: "
                f"the feature is {float(X[row, column])} as a float32. Features are finite numbers."
            )
        return X

    def _origin(self, recipe: Any) -> str:
        """The file or the source of some data of the vertices, for errors."""
        path = getattr(recipe, "path", None)
        return (
            f"{self.folder / path}" if path else f"the source ({self.card.source.kind}) of {self.card.name}"
        )

    @cached_property
    def _table(self) -> Any:
        """The features of a file, mapped where the format allows this."""
        path = self.card.features.path if isinstance(self.card.features, FileFeatures) else None
        if path is not None:
            return read_table(self.folder / path, self.n, self.stream.names)
        X = self._given("features", self.stream.X)()
        return self._one_each(X, self.card.features, X.ndim == 2 and X.dtype.kind in "biuf")

    def _labels(self, degrees: Tensor) -> Tensor:
        card, many = self.card, self.card.task == "multi-label"
        match card.labels:
            case PlantedLabels():
                planted = card.source.planted_labels(range(self.n), card.classes)
                return (
                    uniform_label_sets(range(card.classes), card.classes, card.seed)[planted]
                    if many
                    else planted
                )
            case DegreeLabels():
                return degree_labels(degrees, card.classes)
            case UniformLabels():
                drawn = uniform_label_sets if many else uniform_labels
                return drawn(range(self.n), card.classes, card.seed)
            case FileLabels(path=path):
                read = read_label_sets if many else read_column
                brought = (
                    self.stream.y if path is None else read(self.folder / path, self.n, self.stream.names)
                )
                y = self._given("labels", brought)
                where = self._origin(card.labels)
                labels = torch.from_numpy(self._one_each(y, card.labels))
                return _checked_labels(card, where, labels, self.stream.names)

    def _split(self, y: Tensor) -> Tensor:
        card = self.card
        match card.split:
            case RandomSplit(train=train, valid=valid):
                return random_split(y, 0, train, valid, card.seed)
            case AllTrain():
                return all_train(y)
            case FileSplit(path=path):
                split = self.stream.split
                if path is not None:
                    split = read_split(self.folder / path, self.n, self.stream.names)  # type: ignore[assignment]
                parts = torch.from_numpy(self._one_each(self._given("split", split), card.split))
                wrong = (~torch.isin(parts, torch.arange(4))).nonzero()
                if len(wrong):
                    raise UserError(
                        f"{self._origin(card.split)}, vertex {called(int(wrong[0]), self.stream.names)}: "
                        f"{int(parts[wrong[0]])} is no part of a split: 0 none, 1 train, 2 valid, 3 test."
                    )
                return labelled_only(parts, y)

    def _one_each(self, array: Any, recipe: Any, fits: bool = True) -> Any:
        """The same array; an error unless it has a row for each vertex."""
        if not fits or array.shape[:1] != (self.n,):
            raise UserError(
                f"{self._origin(recipe)} has {array.dtype} of the shape {array.shape} for {self.n:,} vertices. "
                "Expected a row of numbers for each."
            )
        return array

    def _given(self, what: str, array: Any) -> Any:
        """The same array; an error if the source brings none."""
        if array is None:
            raise UserError(
                f"dataset {self.card.name}: {what} of kind file, but its source ({self.card.source.kind}) brings none. "
                f"Name a file by path, or choose another kind of {what}."
            )
        return array


def contents(card: DatasetCard, folder: Path) -> Contents:
    """A card whose edges are read on request. Its paths are relative to `folder`."""
    return _checked(Contents(card, folder, card.source.stream(_rest(card, folder))))


def compose(card: DatasetCard, folder: Path) -> Graph:
    """The graph of a card, in memory."""
    raw = card.source.graph(_rest(card, folder))
    whole = _checked(Contents(card, folder, stream_of(raw)))
    A, counts = normalise(raw, card.directed, card.weights)
    check_counts(card, raw.n, whole.width, counts)
    y, split = whole.vertices(A.rowptr.diff())
    return Graph(
        A, whole.features(range(raw.n), y), y, split, card.classes, card.directed, counts, card.weights
    )


def _rest(card: DatasetCard, folder: Path) -> Rest:
    which = card.split.index if isinstance(card.split, FileSplit) else 0
    return Rest(folder, card.seed, card.classes, which, card.weights)


def _checked(contents: Contents) -> Contents:
    if not 1 <= contents.n <= VERTICES:
        raise UserError(
            f"dataset {contents.card.name} has {contents.n:,} vertices; a graph has from 1 to {VERTICES:,} of them."
        )
    return contents


def generator_of(card: DatasetCard) -> Generator | None:
    """The generator that a card names, or None for a card of files."""
    return card.source.generator(card.seed, card.classes)


def versions(card: DatasetCard) -> dict[str, int]:
    """The versions of all code that the data of this card depends on."""
    generator = generator_of(card)
    return {"recipes": VERSION} | ({"generator": generator.version} if generator else {})


def source_files(card: DatasetCard, folder: Path) -> dict[str, Path]:
    """Every file that the card reads, by its name in the card."""
    names = [getattr(recipe, "path", None) for recipe in (card.features, card.labels, card.split)]
    return {name: folder / name for name in [*card.source.files(), *names] if name is not None}


def check_counts(card: DatasetCard, n: int, features: int, counts: StageCounts) -> None:
    """Refuses a graph that is not the one its card promises."""
    _compare(card, {"n": n, "features": features, **asdict(counts)})


def _compare(card: DatasetCard, actual: dict[str, int]) -> None:
    """Refuses counts that are not those that the card expects."""
    expected = card.expected.model_dump(exclude_none=True, include=set(actual))
    wrong = [
        f"{key} is {actual[key]:,}, expected {value:,}" + (f" within {share:.3%}" if share else "")
        for key, value in expected.items()
        for share in [card.expected.tolerance if key in ("nnz_sym", "nnz_adj") else 0]
        if abs(actual[key] - value) > share * value
    ]
    if wrong:
        raise UserError(
            f"dataset {card.name} is not the graph its card expects: {'; '.join(wrong)}. Either the file is another "
            "version of the data, or the counts under `expected` are wrong."
        )


def _checked_labels(card: DatasetCard, where: str, y: Tensor, names: Any) -> Tensor:
    if y.dim() != (2 if card.task == "multi-label" else 1):
        brought = "one class a vertex" if y.dim() == 1 else "sets of classes"
        raise UserError(
            f"dataset {card.name}: its card says task = {card.task}, but its source brings {brought}."
        )
    if y.dim() == 1:
        check_labels(where, y.numpy(), card.classes, names)
        return y
    return _sets_of_classes(card, where, y)


def _sets_of_classes(card: DatasetCard, where: str, y: Tensor) -> Tensor:
    """Checks sets of classes, some rows at a time: the comparisons take more memory than the labels."""
    if y.shape[1] != card.classes:
        raise UserError(
            f"{where} has labels of {y.shape[1]} columns, and there are {card.classes} classes: {IN_CARD['classes']} "
            "to the number of columns."
        )
    for start in range(0, len(y), AT_ONCE):
        some = y[start : start + AT_ONCE]
        if not bool((((some == 0) | (some == 1)).all(dim=1) | (some == NO_LABEL).all(dim=1)).all()):
            raise UserError(
                f"{where}: labels are 0 and 1, one a class; or {NO_LABEL} in all columns of a vertex."
            )
    return y
