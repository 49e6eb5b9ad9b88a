"""The cards of all datasets, by name: those of the project's catalog, and those of imported graphs."""

import re
from bisect import bisect_left
from fractions import Fraction
from pathlib import Path

from harness.documents import read_yaml
from harness.errors import UserError
from harness.sources.twin import most_edges
from harness.spec.root import MARKER, find_imported_folder, list_dataset_cards
from harness.store.dataset_card import DatasetCard
from harness.validation import clip_line, unknown_name_error, validate

# Twins of published graphs: NAME@SCALE, as ogbn-products@1/16, with so many of its vertices and edges.
#
# A twin has the width, the classes and the split of its card, drawn anew, and degrees of the same nature;
# NAME@1/16w256 has features 256 wide. A twin is built only if its nonzeros are those of the published graph times the
# scale, within 1 %. Its name marks every measurement on it as one of a twin.

TOLERANCE = 0.01
"""The relative error that the nonzeros of a twin may have."""
SCALE = re.compile(r"(?P<of>[1-9]\d*)([/-](?P<parts>[1-9]\d*))?(w(?P<width>[1-9]\d*))?")


def twin_of(card: DatasetCard, scale: str) -> DatasetCard:
    """The card of a twin. A key that the published graph's card lacks is an error."""
    n, edges = card.expected.n, card.edges
    width = getattr(card.features, "width", None) or card.expected.features
    known = {"nature": card.nature, "expected.n": n, "expected.nnz_adj": edges, "expected.features": width}
    if missing := [key for key, value in known.items() if value is None]:
        raise UserError(f"{card.name} has no twins: its card does not say {', '.join(missing)}.")
    assert n is not None and edges is not None and card.nature is not None
    share, own_width = _asked(card.name, scale)
    vertices, its_edges = _size(n, edges, share)
    _check_room(card, scale, n, edges)
    nonzeros = (1 if card.directed else 2) * its_edges + vertices
    return validate(
        DatasetCard,
        {
            "name": f"{card.name}@{scale.replace('/', '-')}",
            "description": f"Twin of {card.name}, {share} of its size, nature: {card.nature}; {nonzeros:,} nonzeros as "
            f"published, within {TOLERANCE:.0%}",
            "source": {
                "kind": "twin",
                "nature": card.nature,
                "n": vertices,
                "edges": its_edges,
                "directed": card.directed,
            },
            "directed": card.directed,
            "classes": min(card.classes, vertices),
            "features": {"kind": "uniform", "width": own_width or width},
            "task": card.task,
            "labels": {"kind": "degree" if card.task == "single-label" else "uniform"},
            "split": {"kind": "all"}
            if card.split.kind == "all"
            else {"kind": "random", "train": 0.6, "valid": 0.2},
            "seed": card.seed,
            "expected": {"n": vertices, "nnz_adj": nonzeros, "tolerance": TOLERANCE},
        },
        f"the twin {card.name}@{clip_line(scale, 60)}",
    )


def _size(n: int, edges: int, share: Fraction) -> tuple[int, int]:
    """Vertices and edges of a twin."""
    return max(round(n * share), 2), round(edges * share)


def _check_room(card: DatasetCard, scale: str, n: int, edges: int) -> None:
    """Refuses a scale at which so few vertices have no room for so many edges."""
    nature = card.nature
    assert nature is not None

    def lacking(share: Fraction) -> bool:
        vertices, its_edges = _size(n, edges, share)
        return its_edges > most_edges(nature, vertices, directed=card.directed)

    share, _ = _asked(card.name, scale)
    if not lacking(share):
        return
    parts = bisect_left(range(1, n + 1), True, key=lambda parts: lacking(Fraction(1, parts)))
    vertices, its_edges = _size(n, edges, share)
    raise UserError(
        f"{card.name}@{scale}: {vertices:,} vertices have no room for {its_edges:,} edges of nature {nature}. "
        + (
            f"The smallest twin is about @1/{parts}."
            if parts
            else "The published graph is not of this nature."
        )
    )


def _asked(name: str, scale: str) -> tuple[Fraction, int | None]:
    """The scale, and the width of the features if the text has one."""
    match = SCALE.fullmatch(scale)
    share = Fraction(int(match["of"]), int(match["parts"] or 1)) if match else Fraction(0)
    if not match or not 0 < share <= 1:
        raise UserError(
            f"{name}@{scale}: a twin is as large as its graph or smaller, with features as wide or of a width of "
            "their own: @1, @1/16, @1/16w256."
        )
    return share, int(match["width"]) if match["width"] else None


def list_cards(root: Path) -> list[str]:
    """The names of all datasets."""
    return sorted({path.stem for path in list_dataset_cards(root)})


def load_card(root: Path, name: str) -> DatasetCard:
    """The card of a dataset, of the project or imported; for NAME@SCALE, the card of a twin."""
    name, at, scale = name.partition("@")
    card = _read(root, name)
    return twin_of(card, scale) if at else card


def _read(root: Path, name: str) -> DatasetCard:
    paths = [path for path in list_dataset_cards(root) if path.stem == name]
    if not paths:
        places = f"Cards are in {MARKER}/, those of imported graphs in {find_imported_folder(root)}/."
        raise unknown_name_error("dataset", name, list_cards(root), places)
    if len(paths) > 1:
        raise UserError(
            f"two datasets have the name {name}: {' and '.join(map(str, paths))}. Rename or remove one of the files."
        )
    (path,) = paths
    where = str(path.relative_to(root) if path.is_relative_to(root) else path)
    fields = read_yaml(path, where)
    if fields.get("name", name) != name:
        raise UserError(
            f"{where}: name = {fields['name']!r}, but a card is named by its file; leave the key out."
        )
    return validate(DatasetCard, {**fields, "name": name}, where)
