"""Facts about a graph and sizes of a model: what formulas, layouts and grids are computed from."""

from dataclasses import dataclass

from harness.spec.spec import ModelChoice


@dataclass(frozen=True)
class Facts:
    """What is known of a graph before any of its blocks is read."""

    vertices: int
    nonzeros: int
    features: int
    classes: int
    directed: bool


def widths(model: ModelChoice, facts: Facts) -> list[int]:
    """f_0 (the input features), the hidden widths, f_L (the classes)."""
    return [facts.features, *[model.hidden] * (model.layers - 1), facts.classes]
