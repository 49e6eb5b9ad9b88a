"""Cases on the graph of the conformance kit, for the tests of strategies: a test states what it changes."""

from math import prod
from typing import Any

from harness.conformance.case import Case
from harness.graph.model import LabelTask
from harness.spec.spec import Spec

DOUBLE = {"precision": "float64"}
SGD = {"optimizer": "sgd", "lr": 0.5}


def make_case(
    name: str,
    grid: dict[Any, int],
    params: dict[str, Any] | None = None,
    *,
    vertices: int = 211,
    directed: bool = True,
    task: LabelTask = "single-label",
    case: type[Case] = Case,
    **settings: Any,
) -> Case:
    """Return a case of a strategy with these parameters on a grid. `settings` are further keys of its spec."""
    spec = {
        "strategy": {"name": name, "params": params or {}},
        "dataset": "check",
        "ranks": prod(grid.values()),
        "grid": grid,
        "machine": {"name": "test"},
        **settings,
    }
    return case("test", Spec.model_validate(spec), vertices, directed, task)


def in_parts(parts: int, partition: str = "metis") -> dict[str, Any]:
    """Return the dataset of a spec: the graph in the order of a partition, or as it is if that is `block`."""
    return {"name": "check"} | ({"partition": partition, "parts": parts} if partition != "block" else {})
