"""The command `harness run` of a spec, with every setting that differs from its default."""

import json
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from harness.registry import load_strategy
from harness.spec.spec import Spec, format_grid


def make_run_command(spec: Spec, default_machine: str = "local") -> list[str]:
    """Return the words of the command that trains a spec.

    `default_machine` is the machine of a command that names none; the first launch is the default.
    """
    words = ["harness", "run", "--strategy", spec.strategy.name, "--dataset", spec.dataset.name]
    words += ["--ranks", str(spec.ranks), "--grid", format_grid(spec.grid)]
    for key, value in list_changed_settings(spec).items():
        if (key, value) != ("machine", default_machine):
            words += ["--set", f"{key}={format_setting(value)}"]
    return words


def list_changed_settings(spec: Spec) -> dict[str, Any]:
    """Return the dotted keys of a spec that differ from their defaults, except those with an option of their own.

    The machine has no default here, because it depends on the project.
    """
    strategy = load_strategy(spec.strategy.name)
    params = strategy.Params.model_validate(spec.strategy.params)
    changed = dict(_list_changes(params, "strategy.params."))
    changed |= _list_changes(spec.dataset, "dataset.", skip=("name", "parts"))
    axis = strategy.partitioned_over
    filled = spec.grid.get(axis, 0) * strategy.parts_per_block(params) if axis else 0
    if spec.dataset.partitioned and spec.dataset.parts != filled:
        changed["dataset.parts"] = spec.dataset.parts
    for name in ("model", "training", "measure"):
        changed |= _list_changes(getattr(spec, name), f"{name}.")
    changed |= _list_changes(spec, "", only=("protocol", "precision", "seed", "launch"))
    return changed | {"machine": spec.machine.name}


def _list_changes(
    settings: BaseModel, prefix: str, skip: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    values = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        if name in skip or (only and name not in only):
            continue
        if getattr(settings, name) != field.get_default(call_default_factory=True):
            yield prefix + name, values[name]


def format_setting(value: Any) -> str:
    """Return a value as `--set` reads it, which is YAML."""
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    text = json.dumps(value, separators=(",", ":"))
    if isinstance(value, float) and "." not in text:  # YAML reads 1e-05 as text
        text = text.replace("e", ".0e")
    return text
