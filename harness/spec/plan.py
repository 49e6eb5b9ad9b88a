"""The plan of an experiment: all its runs, as `harness plan --out` writes them and `collect` and the workflow read."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.spec.spec import Spec

SCHEMA = 2


def plan_of(experiment: str, digest: str, specs: Iterable[Spec]) -> dict[str, Any]:
    """The document."""
    runs = [
        {"run_id": spec.run_id, "label": spec.label, "spec": spec.model_dump(mode="json")} for spec in specs
    ]
    return {"schema": SCHEMA, "experiment": experiment, "hash": digest, "runs": runs}


def read_plan(path: Path) -> dict[str, dict[str, Any]]:
    """The runs of a plan by their ids."""
    way_out = "`harness plan --experiment FILE --out FILE` writes one."
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"The plan {path} cannot be read: {error.strerror}. {way_out}") from None
    except ValueError as error:
        raise UserError(f"The plan {path} is not JSON: {error}. {way_out}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError(f"{path} is no plan of schema {SCHEMA}. {way_out}")
    return {run["run_id"]: run for run in document["runs"]}
