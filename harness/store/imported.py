"""Imports a graph of the user: writes a card for its files, so that the graph has a name like any other dataset."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from harness.errors import UserError
from harness.files import DATASETS, explain_os_errors, replace_files
from harness.graph.model import LabelTask, RawGraph, Weighting
from harness.sources import Rest
from harness.sources.npz import Npz
from harness.sources.ogb import Ogb, benchmarks
from harness.sources.pyg_file import PygFile
from harness.sources.refusal import IN_CARD
from harness.sources.source import Source
from harness.sources.vertex_files import EXPECTED, called, classes_in
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder, find_imported_folder, list_dataset_cards
from harness.store.build import build, removed_on_error
from harness.store.catalog import load_card
from harness.store.compose import contents
from harness.store.dataset_card import DatasetCard
from harness.store.task import Means
from harness.validation import CLASSES, VERTICES, Frozen, Name, unknown_name_error, validate

KINDS = {
    ".mtx": "mtx",
    ".npz": "npz",
    ".parquet": "parquet",
    ".graph": "metis",
    ".pt": "pyg",
    ".triples": "triples",
    ".bin": "combblas",
}
ORIGINS = (
    "suitesparse:GROUP/NAME (a matrix of https://sparse.tamu.edu) and ogb:NAME (a set of OGB, as ogbn-arxiv)"
)
TEXT = (".txt", ".tsv", ".csv", ".edges", ".el", "")
WIDTH, CLASSES_BY_DEGREE = 128, 32
"""The features and the classes that are drawn without a file."""
OPTIONS = {
    "n": "set --vertices",
    "base": "set --base",
    "header": "set --header",
    "classes": "set --classes",
    "directed": "set --directed",
    "weights": "set --weights raw",
}
"""The options of the command line, by the key of the card that each sets."""


class ImportRequest(Frozen):
    """The options of `harness data import`."""

    name: Name
    edges: Path | None = None
    origin: str | None = Field(None, max_length=200, validate_default=True)
    """A published graph in place of a file of edges: suitesparse:GROUP/NAME or ogb:NAME."""
    features: Path | None = None
    labels: Path | None = None
    split: Path | None = None
    directed: bool = False
    weights: Weighting | None = None
    names: bool = False
    vertices: int | None = Field(None, ge=1, le=VERTICES)
    base: Literal[0, 1] = 0
    header: bool = False
    classes: int | None = Field(None, ge=1, le=CLASSES)

    @field_validator("origin")
    @classmethod
    def _one_of_both(cls, origin: str | None, known: ValidationInfo) -> str | None:
        if (origin is None) == (known.data.get("edges") is None):
            raise ValueError(
                "an import takes the graph: a file (--edges FILE) or a published graph (--from ORIGIN)"
            )
        if origin is not None and not re.fullmatch(r"suitesparse:[^/]+/[^/]+|ogb:[^/]+", origin):
            raise ValueError(f"accepted are {ORIGINS}")
        return origin


def card_of(request: ImportRequest) -> DatasetCard:
    """The card of the graph, whose published files are fetched before an import."""
    return validate(DatasetCard, {**_card(request), "name": request.name}, "harness data import")


def import_graph(root: Path, request: ImportRequest, choice: DatasetChoice, means: Means) -> Path:
    """Builds the store and writes the card imported/NAME.yaml with the data last, so that a failure leaves nothing."""
    try:
        fields = _card(request)
        card = validate(DatasetCard, {**fields, "name": request.name}, "harness data import")
        path = find_imported_folder(root) / f"{request.name}.yaml"
        known = [each for each in list_dataset_cards(root) if each.stem == request.name]
        if known and (known != [path] or load_card(root, request.name) != card):
            raise UserError(
                f"another dataset has the name {request.name}. Choose another, or remove {known[0]}."
            )
        with removed_on_error(root, card, choice, unless=bool(known)):
            with _called_by_name(card, root):
                folder = build(root, choice, means=means, card=card)
            files = {path: yaml.safe_dump(fields, sort_keys=False).encode()}
            if listing := names_file(root, card):
                names = contents(card, find_data_folder(root)).stream.names
                files[listing] = b"".join(name + b"\n" for name in names.to_pylist())
            with explain_os_errors(path, DATASETS):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_files(files)
    except UserError as error:
        raise UserError(_as_typed(str(error), request)) from error
    return folder


def names_file(root: Path, card: DatasetCard) -> Path | None:
    """The names of the vertices of an imported graph, one a line: line 1 is vertex 0. None if these have no names."""
    return find_imported_folder(root) / f"{card.name}.names.txt" if _has_names(card) else None


def foreign_metric(source: Source) -> str | None:
    """A line for a set that OGB judges by another number than the accuracy of the harness, or None."""
    if not isinstance(source, Ogb) or source.properties["eval metric"] == "acc":
        return None
    return (
        "OGB judges this set by ROC-AUC, which is not computed here: accuracies are micro-averaged F1, and cannot be "
        "compared with OGB's leaderboard"
    )


def _has_names(card: DatasetCard) -> bool:
    return card.source.kind == "triples" or getattr(card.source, "names", False)


@contextmanager
def _called_by_name(card: DatasetCard, root: Path) -> Iterator[None]:
    """The error about an edge that weighs something else on its way back names its ends, if vertices have names."""
    try:
        yield
    except UserError as error:
        ends = re.search(r"edge from vertex (\d[\d,]*) to vertex (\d[\d,]*) weighs", str(error))
        if not ends or not _has_names(card):
            raise
        names = contents(card, find_data_folder(root)).stream.names
        source, target = (called(int(end.replace(",", "")), names) for end in ends.groups())
        told = f"edge from vertex {source} to vertex {target} weighs"
        raise UserError(str(error).replace(ends[0], told)) from error


def _as_typed(message: str, request: ImportRequest) -> str:
    """An error that names the options of the command line instead of the keys and paths of the card."""
    for option in ("features", "labels", "split", "edges"):
        if (path := getattr(request, option)) is not None:
            message = message.replace(str(path.resolve()), f"--{option} {path}")
    for key, way_out in IN_CARD.items():
        message = message.replace(way_out, OPTIONS[key])
    return message


def _card(request: ImportRequest) -> dict[str, Any]:
    source = _source(request)
    inside = _inside(source)
    X, y, split = (inside.X, inside.y, inside.split) if inside else (None, None, None)
    named = request.names or source["kind"] == "triples"
    task, classes = _classes(request.labels and Path(_existing(request.labels)), y, named=named)
    if source["kind"] == "ogb":
        X, y, split, task, classes = _of_the_benchmark(source["name"], request, task, classes)
    return {
        "description": f"Imported from {request.edges.name if request.edges else request.origin}",
        "source": source,
        "directed": request.directed,
        **({"weights": request.weights} if request.weights else {}),
        "task": task,
        "classes": request.classes or classes,
        "features": _recipe(request.features, X, {"kind": "uniform", "width": WIDTH, "normalise": True}),
        "labels": _recipe(request.labels, y, {"kind": "degree"}),
        "split": _recipe(request.split, split, {"kind": "random", "train": 0.6, "valid": 0.2}),
    }


def _recipe(path: Path | None, inside: object, drawn: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a card: a file of its own, the file of the edges, or else drawn."""
    if path is not None:
        return {"kind": "file", "path": _existing(path)}
    return drawn if inside is None else {"kind": "file"}


def _of_the_benchmark(
    name: str, request: ImportRequest, task: LabelTask, classes: int
) -> tuple[Any, Any, Any, LabelTask, int]:
    """What a dataset of OGB brings: features or none, labels and a split; the task and the classes of its labels."""
    if name not in (known := benchmarks()):
        raise unknown_name_error(
            "OGB set", name, list(known), "Sets of OGB with several kinds of vertices are not read."
        )
    told = known[name]
    features = told["has_node_attr"] == "True" or None
    if request.labels is not None:
        return features, None, True, task, classes
    tasks = int(told["num tasks"])
    if tasks > 1:
        return features, True, True, "multi-label", tasks
    return features, True, True, "single-label", int(told["num classes"])


def _published(origin: str) -> dict[str, Any]:
    kind, _, name = origin.partition(":")
    if kind == "ogb":
        return {"kind": "ogb", "name": name}
    group, _, name = name.partition("/")
    return {"kind": "suitesparse", "group": group, "name": name}


def _source(request: ImportRequest) -> dict[str, Any]:
    if request.edges is None:
        assert request.origin is not None
        if request.names or request.vertices is not None:
            raise UserError(
                f"{request.origin} gives its vertices by number: leave out --names and --vertices."
            )
        return _published(request.origin)
    ending = Path(request.edges.name.removesuffix(".gz")).suffix
    kind = KINDS.get(ending) or ("edges" if ending in TEXT else None)
    known = f"Files of edges end with {', '.join([*KINDS, *TEXT[:-1]])}; text also with .gz."
    if kind is None:
        raise UserError(f"{request.edges} has the ending of no format that is read. {known}")
    source: dict[str, Any] = {"kind": kind, "path": _existing(request.edges, known)}
    if kind == "edges":
        source |= {"base": request.base, "header": request.header}
    if kind in ("edges", "parquet") and request.vertices is not None:
        source["n"] = request.vertices
    if request.names and kind != "triples":
        if kind not in ("edges", "parquet"):
            raise UserError(
                f"{request.edges}: vertices have names in text and in parquet alone. Leave out --names."
            )
        source["names"] = True
    return source


def _inside(source: dict[str, Any]) -> RawGraph | None:
    """The graph of a format that may hold more than edges; None for the other formats."""
    kinds = {"npz": Npz, "pyg": PygFile}
    kind = kinds.get(source["kind"])
    return kind(**source).graph(Rest(Path(), 0, 1, 0)) if kind else None


def _classes(labels: Path | None, y: NDArray[Any] | None, *, named: bool) -> tuple[LabelTask, int]:
    """The task and the classes, by the file of labels or of edges. One column has classes up to its largest label."""
    if labels is not None:
        return classes_in(labels, named=named)
    if y is None:
        return "single-label", CLASSES_BY_DEGREE
    return ("multi-label", y.shape[1]) if y.ndim > 1 else ("single-label", max(int(y.max(initial=0)), 0) + 1)


def _existing(path: Path, accepted: str = f"Expected {EXPECTED}.") -> str:
    """The absolute path of a file; a path that is no file is refused with the accepted formats."""
    if not path.is_file():
        raise UserError(f"There is no file {path}. {accepted}")
    return str(path.resolve())
