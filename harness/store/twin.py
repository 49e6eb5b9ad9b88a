"""Twins of published graphs: NAME@SCALE, as ogbn-products@1/16, with so many of its vertices and edges.

A twin has the width, the classes and the split of its card, drawn anew, and degrees of the same nature; NAME@1/16w256
has features 256 wide. Whatever is measured on it says so, because its name does.
"""

import re
from fractions import Fraction
from math import isqrt
from typing import Any

from harness.errors import UserError
from harness.store.card import DatasetCard

SCALE = re.compile(r"(?P<of>[1-9]\d*)([/-](?P<parts>[1-9]\d*))?(w(?P<width>[1-9]\d*))?")


def twin_of(card: DatasetCard, scale: str) -> DatasetCard:
    """The card of a twin. What the published graph's card leaves open is an error."""
    n, edges = card.expected.n, card.edges
    width = getattr(card.features, "width", None) or card.expected.features
    known = {"nature": card.nature, "expected.n": n, "expected.nnz_adj": edges, "expected.features": width}
    if missing := [key for key, value in known.items() if value is None]:
        raise UserError(f"{card.name} has no twins: its card does not say {', '.join(missing)}.")
    assert n is not None and edges is not None
    share, own_width = _asked(card.name, scale)
    vertices, draws = max(round(n * share), 2), round(edges * share)
    return DatasetCard.model_validate(
        {
            "name": f"{card.name}@{scale.replace('/', '-')}",
            "description": f"Twin of {card.name}, {share} of its size, nature: {card.nature}",
            "source": _source(str(card.nature), vertices, draws),
            "directed": card.directed,
            "classes": min(card.classes, vertices),
            "features": {"kind": "uniform", "width": own_width or width},
            "task": card.task,
            "labels": {"kind": "degree" if card.task == "single-label" else "uniform"},
            "split": {"kind": "all"}
            if card.split.kind == "all"
            else {"kind": "random", "train": 0.6, "valid": 0.2},
            "seed": card.seed,
        }
    )


def _asked(name: str, scale: str) -> tuple[Fraction, int | None]:
    """The scale, and the width of the features if it says one."""
    found = SCALE.fullmatch(scale)
    share = Fraction(int(found["of"]), int(found["parts"] or 1)) if found else Fraction(0)
    if not found or not 0 < share <= 1:
        raise UserError(
            f"{name}@{scale}: a twin is as large as its graph or smaller, with features as wide or of a width of "
            "their own: @1, @1/16, @1/16w256."
        )
    return share, int(found["width"]) if found["width"] else None


def _source(nature: str, vertices: int, edges: int) -> dict[str, Any]:
    if nature != "lattice":
        return {"kind": "twin", "nature": nature, "n": vertices, "edges": edges}
    width = isqrt(vertices)
    return {
        "kind": "lattice",
        "height": vertices // width,
        "width": width,
        "keep": min(edges / (2 * vertices), 1.0),
        "diagonal": 0.0,
        "connected": False,
    }
