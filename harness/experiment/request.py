"""From what was asked for to a whole spec: what is to be as large as fits is chosen, what was left out filled in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.experiment.filled import filled
from harness.experiment.largest import chosen
from harness.spec.spec import Spec
from harness.validation import shown


def make_spec(root: Path, request: dict[str, Any], where: str) -> Spec:
    """The spec of a request whose keys are a spec's, with names for cards and text for the grid."""
    return filled(root, chosen(root, request, where), where)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A request of dotted keys and their values: training.epochs is the key epochs of training."""
    request: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, key = path.split(".")
        place = request
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UserError(f"{shown(path)} = {shown(value)}: {parent} has no keys of its own.")
        place[key] = value
    return request
