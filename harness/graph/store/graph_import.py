"""Imports a user's graph: writes a card for its files, so that the graph has a name like any other dataset."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from harness.base.errors import UserError
from harness.base.files import DATASETS, explain_os_errors, replace_files
from harness.base.validation import CLASSES, VERTICES, Frozen, Name, unknown_name_error, validate
from harness.graph.builders.resources import BuildResources
from harness.graph.cards.catalog import load_card
from harness.graph.cards.class_names import find_class_names, format_class_names, get_class_names_file
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import LabelTask, RawGraph, Weighting
from harness.graph.sources import ReadOptions, make_source
from harness.graph.sources.label_files import infer_classes
from harness.graph.sources.ogb import Ogb, read_ogb_table
from harness.graph.sources.read_errors import CARD_HINTS
from harness.graph.sources.source import Source
from harness.graph.sources.vertex_files import EXPECTED, format_vertex
from harness.graph.store.building import build_store, remove_store_on_error
from harness.graph.store.contents import open_contents
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder, find_imported_folder, list_dataset_cards

KIND_OF_SUFFIX = {
    ".mtx": "mtx",
    ".npz": "npz",
    ".parquet": "parquet",
    ".graph": "metis",
    ".pt": "pyg",
}
ORIGINS = "suitesparse:GROUP/NAME (a matrix of https://sparse.tamu.edu) or ogb:NAME (such as ogb:ogbn-arxiv)"
TEXT_SUFFIXES = (".txt", ".tsv", ".csv", ".edges", ".el", ".triples", "")
WIDTH, CLASSES_BY_DEGREE = 128, 32
"""The width of generated features, and the number of generated classes."""
OPTION_HINTS = {
    "n": "set --vertices",
    "base": "set --base",
    "header": "set --header",
    "names": "set --names",
    "classes": "set --classes",
    "directed": "set --directed",
    "weights": "set --weights raw",
}
"""What to do on the command line instead of the hints for cards (`CARD_HINTS`), by the key of the card."""


class ImportRequest(Frozen):
    """The options of `harness data import`."""

    name: Name
    edges: Path | None = None
    origin: str | None = Field(None, max_length=200, validate_default=True)
    """A published graph instead of an edge file: suitesparse:GROUP/NAME or ogb:NAME."""
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
    def _check_one_graph(cls, origin: str | None, known: ValidationInfo) -> str | None:
        if (origin is None) == (known.data.get("edges") is None):
            raise ValueError(
                "an import needs one graph: a file (--edges FILE) or a published graph (--from ORIGIN)"
            )
        if origin is not None and not re.fullmatch(r"suitesparse:[^/]+/[^/]+|ogb:[^/]+", origin):
            raise ValueError(f"expected {ORIGINS}")
        return origin


def make_import_card(request: ImportRequest) -> DatasetCard:
    """Return the card of the graph, whose published files must be fetched before the import."""
    return validate(DatasetCard, {**_make_card_fields(request), "name": request.name}, "harness data import")


def import_graph(
    root: Path, request: ImportRequest, choice: DatasetChoice, resources: BuildResources
) -> Path:
    """Build the store, then write the card imported/NAME.yaml. A failure leaves nothing behind."""
    try:
        fields = _make_card_fields(request)
        card = validate(DatasetCard, {**fields, "name": request.name}, "harness data import")
        path = find_imported_folder(root) / f"{request.name}.yaml"
        known = [each for each in list_dataset_cards(root) if each.stem == request.name]
        if known and (known != [path] or load_card(root, request.name) != card):
            raise UserError(
                f"another dataset has the name {request.name}. Choose another, or remove {known[0]}."
            )
        with remove_store_on_error(root, card, choice, may_be_older=bool(known)):
            with _name_vertices_in_errors(card, root):
                folder = build_store(root, choice, resources=resources, card=card)
            files = {path: yaml.safe_dump(fields, sort_keys=False).encode()}
            if names_file := get_names_file(root, card):
                names = open_contents(card, find_data_folder(root)).stream.names
                files[names_file] = b"".join(name + b"\n" for name in names.to_pylist())
            classes_file = get_class_names_file(root, card)
            if class_names := find_class_names(root, card):
                files[classes_file] = format_class_names(class_names).encode()
            with explain_os_errors(path, DATASETS):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_files(files)
                if not class_names:
                    classes_file.unlink(missing_ok=True)  # of a removed card of this name
    except UserError as error:
        raise UserError(_translate_hints(str(error), request)) from error
    return folder


def get_names_file(root: Path, card: DatasetCard) -> Path | None:
    """Return the file that lists the vertex names of an imported graph; line 1 is vertex 0. None without names."""
    return find_imported_folder(root) / f"{card.name}.names.txt" if card.has_vertex_names else None


def describe_ogb_metric(source: Source) -> str | None:
    """Return a note for a dataset that OGB evaluates by a metric other than accuracy, or None."""
    if not isinstance(source, Ogb) or source.properties["eval metric"] == "acc":
        return None
    return (
        "OGB evaluates this dataset by ROC-AUC. Runs record the ROC-AUC of OGB's Evaluator as their accuracies; where "
        "the package ogb is not installed, micro-averaged F1"
    )


@contextmanager
def _name_vertices_in_errors(card: DatasetCard, root: Path) -> Iterator[None]:
    """Replace vertex numbers by names in the error for asymmetric weights, if vertices have names."""
    try:
        yield
    except UserError as error:
        ends = re.search(r"edge from vertex (\d[\d,]*) to vertex (\d[\d,]*) has", str(error))
        if not ends or not card.has_vertex_names:
            raise
        names = open_contents(card, find_data_folder(root)).stream.names
        source, target = (format_vertex(int(end.replace(",", "")), names) for end in ends.groups())
        named = f"edge from vertex {source} to vertex {target} has"
        raise UserError(str(error).replace(ends[0], named)) from error


def _translate_hints(message: str, request: ImportRequest) -> str:
    """Return an error message that names command-line options instead of the keys and paths of the card."""
    for option in ("features", "labels", "split", "edges"):
        if (path := getattr(request, option)) is not None:
            message = message.replace(str(path.resolve()), f"--{option} {path}")
    for key, hint in CARD_HINTS.items():
        message = message.replace(hint, OPTION_HINTS[key])
    return message


def _make_card_fields(request: ImportRequest) -> dict[str, Any]:
    source = _make_source_fields(request)
    graph = _read_file_with_vertex_data(source)
    labels = request.labels and Path(_resolve_file(request.labels))
    task, classes = _infer_task(labels, graph.y if graph else None, named=request.names)
    if source["kind"] == "ogb":
        given = _describe_ogb_dataset(source["name"])
        if labels is None:
            task, classes = given.task, given.classes
        with_features, with_labels, with_split = given.has_features, True, True
    else:
        parts = (graph.X, graph.y, graph.split) if graph else (None, None, None)
        with_features, with_labels, with_split = (part is not None for part in parts)
    generated = {"kind": "uniform", "width": WIDTH, "normalise": True}
    return {
        "description": f"Imported from {request.edges.name if request.edges else request.origin}",
        "source": source,
        "directed": request.directed,
        **({"weights": request.weights} if request.weights else {}),
        "task": task,
        "classes": request.classes or classes,
        "features": _make_recipe(request.features, with_features, generated),
        "labels": _make_recipe(request.labels, with_labels, {"kind": "degree"}),
        "split": _make_recipe(request.split, with_split, {"kind": "random", "train": 0.6, "valid": 0.2}),
    }


def _make_recipe(path: Path | None, in_source: bool, generated: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe for some vertex data: from a separate file, from the source of the edges, or generated."""
    if path is not None:
        return {"kind": "file", "path": _resolve_file(path)}
    return {"kind": "file"} if in_source else generated


class _OgbDescription(NamedTuple):
    """What OGB's table says about a dataset. All datasets have labels and a split."""

    has_features: bool
    task: LabelTask
    classes: int


def _describe_ogb_dataset(name: str) -> _OgbDescription:
    if name not in (known := read_ogb_table()):
        raise unknown_name_error(
            "OGB dataset", name, list(known), "Heterogeneous OGB datasets are not supported."
        )
    properties = known[name]
    has_features, tasks = properties["has_node_attr"] == "True", int(properties["num tasks"])
    if tasks > 1:
        return _OgbDescription(has_features, "multi-label", tasks)
    return _OgbDescription(has_features, "single-label", int(properties["num classes"]))


def _parse_origin(origin: str) -> dict[str, Any]:
    kind, _, name = origin.partition(":")
    if kind == "ogb":
        return {"kind": "ogb", "name": name}
    group, _, name = name.partition("/")
    return {"kind": "suitesparse", "group": group, "name": name}


def _make_source_fields(request: ImportRequest) -> dict[str, Any]:
    if request.edges is None:
        assert request.origin is not None
        if request.names or request.vertices is not None:
            raise UserError(f"{request.origin} numbers its vertices: leave out --names and --vertices.")
        return _parse_origin(request.origin)
    suffix = Path(request.edges.name.removesuffix(".gz")).suffix
    kind = KIND_OF_SUFFIX.get(suffix) or ("edges" if suffix in TEXT_SUFFIXES else None)
    suffixes = ", ".join([*KIND_OF_SUFFIX, *TEXT_SUFFIXES[:-1]])
    accepted = f"Edge files end with {suffixes}; text files may also end with .gz."
    if kind is None:
        raise UserError(f"{request.edges} has an unknown suffix. {accepted}")
    source: dict[str, Any] = {"kind": kind, "path": _resolve_file(request.edges, accepted)}
    if kind == "edges":
        source |= {"base": request.base, "header": request.header}
    if kind in ("edges", "parquet") and request.vertices is not None:
        source["n"] = request.vertices
    if request.names:
        if kind not in ("edges", "parquet"):
            raise UserError(
                f"{request.edges}: only text and parquet files have vertex names. Leave out --names."
            )
        source["names"] = True
    return source


def _read_file_with_vertex_data(source: dict[str, Any]) -> RawGraph | None:
    """Read a file whose format may hold vertex data; None for the other formats."""
    if source["kind"] not in ("npz", "pyg"):
        return None
    return make_source(source).read_graph(ReadOptions(Path(), 0, 1, 0))


def _infer_task(labels: Path | None, y: NDArray[Any] | None, *, named: bool) -> tuple[LabelTask, int]:
    """Return the task and the number of classes, from the label file or the edge file."""
    if labels is not None:
        return infer_classes(labels, named=named)
    if y is None:
        return "single-label", CLASSES_BY_DEGREE
    return ("multi-label", y.shape[1]) if y.ndim > 1 else ("single-label", max(int(y.max(initial=0)), 0) + 1)


def _resolve_file(path: Path, accepted: str = f"Expected {EXPECTED}.") -> str:
    """Return the absolute path of a file, or raise an error that names the accepted formats."""
    if not path.is_file():
        raise UserError(f"There is no file {path}. {accepted}")
    return str(path.resolve())
