"""A graph of one's own: a card is written for its files, so that it has a name like any other."""

from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError
from harness.files import DATASETS, refusals, write_text
from harness.store.build import build
from harness.store.card import DatasetCard
from harness.store.catalog import CATALOG, list_cards, load_card
from harness.store.choice import DatasetChoice
from harness.store.task import Means
from harness.validation import Frozen, validated

KINDS = {".mtx": "mtx", ".npz": "npz", ".parquet": "parquet", ".graph": "metis"}
TEXT = (".txt", ".tsv", ".csv", ".edges", ".el", "")
WIDTH, CLASSES = 128, 32
"""Of what is drawn where no file is given."""


class Brought(Frozen):
    """What somebody says of a graph."""

    name: str
    edges: Path
    features: Path | None = None
    labels: Path | None = None
    split: Path | None = None
    directed: bool = False
    vertices: int | None = None
    base: int = 0
    header: bool = False
    classes: int | None = None


def import_graph(root: Path, brought: Brought, choice: DatasetChoice, means: Means) -> Path:
    """The folder of its store. The card is datasets/catalog/NAME.yaml; if its graph is refused, it is taken back."""
    if not brought.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UserError(f"{brought.name!r} is no name: letters, digits, '-', '_' and '.' are accepted.")
    fields = _card(brought)
    card = validated(DatasetCard, {**fields, "name": brought.name}, "the options")
    path = root / CATALOG / f"{brought.name}.yaml"
    known = brought.name in list_cards(root)
    if known and load_card(root, brought.name) != card:
        raise UserError(
            f"there is another dataset {brought.name}. Choose another name, or remove {path.relative_to(root)}."
        )
    with refusals(path, DATASETS):
        write_text(path, yaml.safe_dump(fields, sort_keys=False))
    try:
        return build(root, choice, means=means)
    except UserError:
        if not known:
            path.unlink()
        raise


def _card(brought: Brought) -> dict[str, Any]:
    labels = {"kind": "file", "path": _there(brought.labels)} if brought.labels else {"kind": "degree"}
    features: dict[str, Any] = {"kind": "uniform", "width": WIDTH, "normalise": True}
    if brought.features:
        features = {"kind": "file", "path": _there(brought.features)}
    split: dict[str, Any] = {"kind": "random", "train": 0.6, "valid": 0.2}
    if brought.split:
        split = {"kind": "file", "path": _there(brought.split)}
    return {
        "description": f"Imported from {brought.edges.name}",
        "source": _source(brought),
        "directed": brought.directed,
        "classes": _classes(brought.labels) if brought.classes is None else brought.classes,
        "features": features,
        "labels": labels,
        "split": split,
    }


def _source(brought: Brought) -> dict[str, Any]:
    ending = Path(brought.edges.name.removesuffix(".gz")).suffix
    kind = KINDS.get(ending) or ("edges" if ending in TEXT else None)
    if kind is None:
        known = ", ".join([*KINDS, *TEXT[:-1]])
        raise UserError(f"{brought.edges}: files of edges end with {known}; text also with .gz.")
    source: dict[str, Any] = {"kind": kind, "path": _there(brought.edges)}
    if kind == "edges":
        source |= {"base": brought.base, "header": brought.header}
    if kind in ("edges", "parquet") and brought.vertices is not None:
        source["n"] = brought.vertices
    return source


def _classes(labels: Path | None) -> int:
    """As many as the largest label asks for."""
    if labels is None:
        return CLASSES
    from harness.sources.table import largest_label

    return largest_label(labels) + 1


def _there(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path} is no file.")
    return str(path.resolve())
