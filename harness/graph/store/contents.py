"""Resolves a card to its edges and to the data of its vertices. `load_graph` makes a small graph in memory."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.host_memory import find_available_bytes
from harness.base.validation import VERTICES
from harness.graph.builders.resources import SHARED_BYTES_PER_VERTEX
from harness.graph.cards.dataset_card import (
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
from harness.graph.model import NO_LABEL, TRAIN, Graph, has_label
from harness.graph.normalise import normalise_adjacency
from harness.graph.sources import ReadOptions
from harness.graph.sources.read_errors import CARD_HINTS
from harness.graph.sources.source import Generator
from harness.graph.sources.stream import EdgeStream, stream_graph
from harness.graph.vertex_data import (
    draw_gaussian_features,
    draw_label_sets,
    draw_random_split,
    draw_uniform_features,
    draw_uniform_labels,
    label_by_degree,
    make_train_split,
    mask_unlabelled,
    normalise_rows,
)
from harness.kernels.random import Index

CHUNK_VERTICES, CHUNK_FEATURES = 1 << 20, 1 << 24
"""The vertices whose labels, and the feature values, that are checked at a time."""


class VertexData(NamedTuple):
    """The label and the split of every vertex, in the graph's original order."""

    y: Tensor
    split: Tensor


@dataclass(frozen=True)
class DatasetContents:
    """A card and the stream of its edges. Labels, split and features are made on request."""

    card: DatasetCard
    folder: Path
    """The folder that paths in the card are relative to."""
    stream: EdgeStream

    @property
    def n(self) -> int:
        """The number of vertices."""
        return self.stream.n

    @property
    def width(self) -> int:
        """The number of feature columns."""
        drawn = getattr(self.card.features, "width", None)
        return int(self._table.shape[1] if drawn is None else drawn)

    @property
    def max_entries(self) -> int:
        """An upper bound on the entries of the adjacency, duplicates and loops included."""
        return self.stream.entries * (1 if self.card.directed else 2) + self.n

    def make_vertex_data(self, degrees: Tensor) -> VertexData:
        """Return the labels and the split. `degrees` holds the nonzeros of each row of A."""
        y = self._make_labels(degrees)
        split = self._make_split(y)
        if not bool((split == TRAIN).any()):
            raise UserError(
                f"dataset {self.card.name} has no training vertex: its split and its labels leave none."
            )
        masks = {"labelled": has_label(y), "training": split == TRAIN}
        self.card.check_counts({name: int(mask.sum()) for name, mask in masks.items()})
        return VertexData(y, split)

    def make_features(self, vertices: Index, y: Tensor) -> Tensor:
        """Return the features of some vertices, (len(vertices), width) float32. `y` holds the labels of all."""
        card = self.card
        match card.features:
            case GaussianFeatures(width=width, separation=separation):
                return draw_gaussian_features(y, vertices, card.classes, width, separation, card.seed)
            case UniformFeatures(width=width, normalise=normalised):
                X = draw_uniform_features(vertices, width, card.seed)
            case FileFeatures(normalise=normalised):
                rows = (
                    slice(vertices.start, vertices.stop) if isinstance(vertices, range) else vertices.numpy()
                )
                X = torch.tensor(self._table[rows], dtype=torch.float32)
                self._check_finite(vertices, X)
        return normalise_rows(X) if normalised else X

    def check_vertex_data(self) -> None:
        """Raise an error if labels, split or features from files cannot be trained on."""
        y = self.make_vertex_data(torch.zeros(self.n, dtype=torch.int64)).y
        if isinstance(self.card.features, FileFeatures):
            step = max(CHUNK_FEATURES // max(self.width, 1), 1)
            for start in range(0, self.n, step):
                self.make_features(range(start, min(start + step, self.n)), y)

    def _check_finite(self, vertices: Index, X: Tensor) -> None:
        is_finite = torch.isfinite(X)
        if not bool(is_finite.all()):
            row, column = (~is_finite).nonzero()[0].tolist()
            vertex = int(vertices[row])
            raise UserError(
                f"{self._name_origin(self.card.features)}, row {vertex + 1:,} (vertex {vertex:,}), column "
                f"{column + 1:,}: the feature is {float(X[row, column])} as a float32. Features must be finite."
            )

    def _name_origin(self, recipe: Any) -> str:
        """Return the file or the source that vertex data comes from, for error messages."""
        path = getattr(recipe, "path", None)
        return (
            f"{self.folder / path}" if path else f"the source ({self.card.source.kind}) of {self.card.name}"
        )

    @cached_property
    def _table(self) -> Any:
        """The features of a file, memory-mapped if the format allows it."""
        path = self.card.features.path if isinstance(self.card.features, FileFeatures) else None
        if path is not None:
            from harness.graph.sources.vertex_files import read_table

            return read_table(self.folder / path, self.n, self.stream.names)
        X = self._require_given("features", self.stream.X)()
        self._check_rows(X, self.card.features, X.ndim == 2 and X.dtype.kind in "biuf")
        return X

    @property
    def _base(self) -> int:
        """The id of the first vertex in text."""
        return getattr(self.card.source, "base", 0)

    def _make_labels(self, degrees: Tensor) -> Tensor:
        card, is_multi_label = self.card, self.card.task == "multi-label"
        match card.labels:
            case PlantedLabels():
                planted = card.source.get_planted_labels(range(self.n), card.classes)
                if not is_multi_label:
                    return planted
                return draw_label_sets(range(card.classes), card.classes, card.seed)[planted]
            case DegreeLabels():
                return label_by_degree(degrees, card.classes)
            case UniformLabels():
                draw = draw_label_sets if is_multi_label else draw_uniform_labels
                return draw(range(self.n), card.classes, card.seed)
            case FileLabels(path=path):
                given = self.stream.y
                if path is not None:
                    from harness.graph.sources.label_files import read_label_sets, read_labels

                    read = read_label_sets if is_multi_label else read_labels
                    given = read(self.folder / path, self.n, self.stream.names, self._base)
                y = self._require_given("labels", given)
                self._check_rows(y, card.labels)
                labels = torch.from_numpy(y)
                _check_file_labels(card, self._name_origin(card.labels), labels, self.stream.names)
                return labels

    def _make_split(self, y: Tensor) -> Tensor:
        card = self.card
        match card.split:
            case RandomSplit(train=train, valid=valid):
                return draw_random_split(y, 0, train, valid, card.seed)
            case AllTrain():
                return make_train_split(y)
            case FileSplit(path=path):
                given = self.stream.split
                if path is not None:
                    from harness.graph.sources.label_files import read_split

                    given = read_split(self.folder / path, self.n, self.stream.names, self._base)  # type: ignore[assignment]
                array = self._require_given("split", given)
                self._check_rows(array, card.split)
                split = torch.from_numpy(array)
                wrong = (~torch.isin(split, torch.arange(4))).nonzero()
                if len(wrong):
                    from harness.graph.sources.vertex_files import format_vertex

                    raise UserError(
                        f"{self._name_origin(card.split)}, vertex {format_vertex(int(wrong[0]), self.stream.names)}: "
                        f"{int(split[wrong[0]])} is out of range. A split holds 0 none, 1 train, 2 valid, 3 test."
                    )
                return mask_unlabelled(split, y)

    def _check_rows(self, array: Any, recipe: Any, has_valid_type: bool = True) -> None:
        """Raise an error unless the array has one row per vertex."""
        if not has_valid_type or array.shape[:1] != (self.n,):
            raise UserError(
                f"{self._name_origin(recipe)} has {array.dtype} of shape {array.shape} for {self.n:,} vertices. "
                "Expected a row of numbers for each vertex."
            )

    def _require_given(self, what: str, array: Any) -> Any:
        """Return the array, or raise an error if the source does not have it."""
        if array is None:
            raise UserError(
                f"dataset {self.card.name}: {what} of kind file, but its source ({self.card.source.kind}) has none. "
                f"Name a file by path, or choose another kind of {what}."
            )
        return array


def open_contents(card: DatasetCard, folder: Path) -> DatasetContents:
    """Open the edge stream of a card, whose paths are relative to `folder`."""
    contents = DatasetContents(card, folder, card.source.open_stream(_get_read_options(card, folder)))
    _check_vertex_count(contents)
    return contents


def load_graph(card: DatasetCard, folder: Path) -> Graph:
    """Load the graph of a card into memory."""
    raw = card.source.read_graph(_get_read_options(card, folder))
    contents = DatasetContents(card, folder, stream_graph(raw))
    _check_vertex_count(contents)
    A, counts = normalise_adjacency(raw, card.directed, card.weights)
    card.check_graph(raw.n, contents.width, counts)
    y, split = contents.make_vertex_data(A.rowptr.diff())
    X = contents.make_features(range(raw.n), y)
    return Graph(A, X, y, split, card.classes, card.directed, counts, card.weights)


def _get_read_options(card: DatasetCard, folder: Path) -> ReadOptions:
    split = card.split.index if isinstance(card.split, FileSplit) else 0
    return ReadOptions(folder, card.seed, card.classes, split, card.weights)


def _check_vertex_count(contents: DatasetContents) -> None:
    if not 1 <= contents.n <= VERTICES:
        raise UserError(
            f"dataset {contents.card.name} has {contents.n:,} vertices; expected 1 to {VERTICES:,}."
        )
    needs = SHARED_BYTES_PER_VERTEX * contents.n
    if needs > (free := find_available_bytes()):
        raise UserError(
            f"dataset {contents.card.name} has {contents.n:,} vertices, which need {needs:,} bytes of memory, and "
            f"{free:,} are free. If its files name too many vertices, mend them."
        )


def get_generator(card: DatasetCard) -> Generator | None:
    """Return the generator of a card, or None if the graph is read from files."""
    return card.source.make_generator(card.seed, card.classes)


def _check_file_labels(card: DatasetCard, where: str, y: Tensor, names: Any) -> None:
    if y.dim() != (2 if card.task == "multi-label" else 1):
        found = "one class per vertex" if y.dim() == 1 else "sets of classes"
        raise UserError(f"dataset {card.name}: its card says task = {card.task}, but its source has {found}.")
    if y.dim() == 1:
        from harness.graph.sources.label_files import check_labels

        check_labels(where, y.numpy(), card.classes, names)
    else:
        _check_label_sets(card, where, y)


def _check_label_sets(card: DatasetCard, where: str, y: Tensor) -> None:
    """Check sets of classes, some rows at a time: the comparisons take more memory than the labels."""
    if y.shape[1] != card.classes:
        raise UserError(
            f"{where} has {y.shape[1]} label columns, but there are {card.classes} classes: {CARD_HINTS['classes']} "
            "to the number of columns."
        )
    for start in range(0, len(y), CHUNK_VERTICES):
        rows = y[start : start + CHUNK_VERTICES]
        if not bool((((rows == 0) | (rows == 1)).all(dim=1) | (rows == NO_LABEL).all(dim=1)).all()):
            raise UserError(
                f"{where}: labels must be 0 or 1 for each class, or {NO_LABEL} in all columns of a vertex."
            )
