"""The plan of an experiment: a document that lists its runs. `harness plan --out` writes it for later commands."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, JsonValue

from harness.base.documents import read_json
from harness.base.errors import UserError
from harness.base.validation import Frozen, validate
from harness.spec.spec import Spec

SCHEMA = 2
SCALES = ("tiny", "laptop", "emulated", "published")
"""The scales of an experiment (`harness.experiment.scales`)."""


class PlannedRun(Frozen):
    """A run of a plan."""

    run_id: str = Field(pattern="^[0-9a-f]{16}$")
    label: str
    spec: dict[str, JsonValue]
    cost: dict[str, JsonValue] | None = None
    """The predicted cost (`harness.experiment.plan_cost`), if any."""


class Plan(BaseModel):
    """The keys of a plan that readers need."""

    experiment: str = ""
    """The name of the experiment."""
    cost: str = ""
    """The predicted cost of all runs, in words."""
    runs: list[PlannedRun]

    @property
    def runs_by_id(self) -> dict[str, dict[str, Any]]:
        """The runs as the plan has them, by run id."""
        return {run.run_id: run.model_dump(exclude_unset=True) for run in self.runs}


def make_plan(
    experiment: str, digest: str, specs: Iterable[Spec], costs: Mapping[str, Mapping[str, Any]], cost: str
) -> dict[str, Any]:
    """Return the document of a plan. `costs` holds the costs of runs by run id, and `cost` describes their sum."""
    runs = [
        {"run_id": spec.run_id, "label": spec.label, "spec": spec.model_dump(mode="json")}
        | ({"cost": dict(costs[spec.run_id])} if spec.run_id in costs else {})
        for spec in specs
    ]
    return {"schema": SCHEMA, "experiment": experiment, "hash": digest, "cost": cost, "runs": runs}


def read_plan(path: Path) -> Plan:
    """Return the plan in a file."""
    way_out = "`harness plan --experiment FILE --out FILE` writes a plan."
    try:
        document = read_json(path, f"The plan {path}")
    except UserError as error:
        raise UserError(f"{error} {way_out}") from None
    if document.get("schema") != SCHEMA:
        raise UserError(f"{path} is not a plan of schema {SCHEMA}. Delete it and try again. {way_out}")
    return validate(Plan, document, f"The plan {path}")
