"""Twins of published graphs: NAME@SCALE, such as ogbn-products@1/16, has 1/16 of the vertices and edges.

A twin has the width, the classes and the split of its card, generated anew, and a similar degree distribution;
NAME@1/16w256 has 256 features. If a cut of the graph is published, the twin has communities with the same cut. A twin
is built only if its nonzeros are the published number times the scale, within 1 %. All measurements on it carry its
name, so none can be mistaken for one of the published graph.
"""

import re
from bisect import bisect_left
from fractions import Fraction

from harness.base.errors import UserError
from harness.base.validation import clip_line, validate
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.generators.shapes import count_max_edges

TOLERANCE = 0.01
"""The accepted relative error of the nonzeros of a twin."""
SCALE = re.compile(r"(?P<of>[1-9]\d*)([/-](?P<parts>[1-9]\d*))?(w(?P<width>[1-9]\d*))?")


def make_twin_card(card: DatasetCard, scale: str) -> DatasetCard:
    """Return the card of a twin. The card of the published graph must have all keys that this needs."""
    n, edges = card.expected.n, card.edges
    width = getattr(card.features, "width", None) or card.expected.features
    known = {"nature": card.nature, "expected.n": n, "expected.nnz_adj": edges, "expected.features": width}
    if missing := [key for key, value in known.items() if value is None]:
        raise UserError(f"{card.name} has no twins: its card does not say {', '.join(missing)}.")
    assert n is not None and edges is not None and card.nature is not None
    fraction, own_width = _parse_scale(card.name, scale)
    vertices, its_edges = _scale_size(n, edges, fraction)
    _check_density(card, scale, fraction, n, edges)
    nonzeros = (1 if card.directed else 2) * its_edges + vertices
    kind = f"nature: {card.nature}" if card.communities is None else "with communities by its published cut"
    description = (
        f"Twin of {card.name}, {fraction} of its size, {kind}; {nonzeros:,} nonzeros as published, "
        f"within {TOLERANCE:.0%}"
    )
    random_split = {"kind": "random", "train": 0.6, "valid": 0.2}
    return validate(
        DatasetCard,
        {
            "name": f"{card.name}@{scale.replace('/', '-')}",
            "description": description,
            "source": _make_source(card, vertices, its_edges),
            "directed": card.directed,
            "classes": min(card.classes, vertices),
            "features": {"kind": "uniform", "width": own_width or width},
            "task": card.task,
            "labels": {"kind": "degree" if card.task == "single-label" else "uniform"},
            "split": {"kind": "all"} if card.split.kind == "all" else random_split,
            "seed": card.seed,
            "expected": {"n": vertices, "nnz_adj": nonzeros, "tolerance": TOLERANCE},
        },
        f"the twin {card.name}@{clip_line(scale, 60)}",
    )


def _make_source(card: DatasetCard, vertices: int, edges: int) -> dict[str, object]:
    size = {"n": vertices, "edges": edges, "directed": card.directed}
    if card.communities is None:
        return {"kind": "twin", "nature": card.nature, **size}
    return {"kind": "communities", "law": card.communities.law.model_dump(), **size}


def _scale_size(n: int, edges: int, fraction: Fraction) -> tuple[int, int]:
    """Return the number of vertices and of edges of a twin."""
    return max(round(n * fraction), 2), round(edges * fraction)


def _check_density(card: DatasetCard, scale: str, fraction: Fraction, n: int, edges: int) -> None:
    """Raise an error if the scaled number of vertices cannot have the scaled number of edges."""
    nature = card.nature
    assert nature is not None

    def is_too_dense(fraction: Fraction) -> bool:
        vertices, its_edges = _scale_size(n, edges, fraction)
        return its_edges > count_max_edges(nature, vertices, directed=card.directed)

    if not is_too_dense(fraction):
        return
    parts = bisect_left(range(1, n + 1), True, key=lambda parts: is_too_dense(Fraction(1, parts)))
    vertices, its_edges = _scale_size(n, edges, fraction)
    hint = (
        f"The smallest twin is about @1/{parts}." if parts else "The published graph is not of this nature."
    )
    raise UserError(
        f"{card.name}@{scale}: {vertices:,} vertices cannot have {its_edges:,} edges of nature {nature}. {hint}"
    )


def _parse_scale(name: str, scale: str) -> tuple[Fraction, int | None]:
    """Return the scale, and the width of the features if the text gives one."""
    match = SCALE.fullmatch(scale)
    fraction = Fraction(int(match["of"]), int(match["parts"] or 1)) if match else Fraction(0)
    if not match or not 0 < fraction <= 1:
        raise UserError(
            f"{name}@{scale}: expected a scale of at most 1, optionally with a width of the features: @1, @1/16, "
            "@1/16w256."
        )
    return fraction, int(match["width"]) if match["width"] else None
