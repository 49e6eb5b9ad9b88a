"""The plan of an experiment: all its runs in one document, by `harness plan --out` for `collect` and workflows."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, JsonValue

from harness.documents import read_json
from harness.errors import UserError
from harness.spec.spec import Spec
from harness.validation import Frozen, validate

SCHEMA = 2
SCALES = ("tiny", "laptop", "emulated", "published")
"""The scales of an experiment (`harness.experiment.scales`)."""


class Run(Frozen):
    """A run of a plan."""

    run_id: str = Field(pattern="^[0-9a-f]{16}$")
    label: str
    spec: dict[str, JsonValue]
    cost: dict[str, JsonValue] | None = None
    """The predicted cost (`harness.experiment.plan_cost`), if any."""


class Plan(BaseModel):
    """The keys of a plan that readers need."""

    runs: list[Run]


def plan_of(
    experiment: str, digest: str, specs: Iterable[Spec], costs: Mapping[str, Mapping[str, Any]], cost: str
) -> dict[str, Any]:
    """The document of a plan; `costs` are those of runs, by run id, and `cost` is that of all in words."""
    runs = [
        {"run_id": spec.run_id, "label": spec.label, "spec": spec.model_dump(mode="json")}
        | ({"cost": dict(costs[spec.run_id])} if spec.run_id in costs else {})
        for spec in specs
    ]
    return {"schema": SCHEMA, "experiment": experiment, "hash": digest, "cost": cost, "runs": runs}


def read_plan(path: Path) -> dict[str, dict[str, Any]]:
    """The runs of a plan, by run id."""
    way_out = "`harness plan --experiment FILE --out FILE` writes one."
    try:
        document = read_json(path, f"The plan {path}")
    except UserError as error:
        raise UserError(f"{error} {way_out}") from None
    if document.get("schema") != SCHEMA:
        raise UserError(f"{path} is no plan of schema {SCHEMA}. {way_out}")
    plan = validate(Plan, document, f"The plan {path}")
    return {run.run_id: run.model_dump() for run in plan.runs}
