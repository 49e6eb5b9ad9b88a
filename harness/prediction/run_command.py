"""The command `harness run` of a spec, with every setting that differs from its default."""

import json
from typing import Any

import yaml

from harness.registry import load_strategy
from harness.spec.spec import Spec, format_grid, list_changed_settings


def make_run_command(spec: Spec, default_machine: str = "local") -> list[str]:
    """Return the words of the command that trains a spec.

    `default_machine` is the machine of a command that names none; the first launch is the default.
    """
    words = ["harness", "run", "--strategy", spec.strategy.name, "--dataset", spec.dataset.name]
    words += ["--ranks", str(spec.ranks), "--grid", format_grid(spec.grid)]
    if spec.machine.name != default_machine:
        words += ["--machine", spec.machine.name]
    for key, value in _list_settings(spec).items():
        words += ["--set", f"{key}={format_setting(value)}"]
    return words


def _list_settings(spec: Spec) -> dict[str, Any]:
    """Return the dotted keys of a spec that differ from their defaults and have no option."""
    strategy = load_strategy(spec.strategy.name)
    params = strategy.Params.model_validate(spec.strategy.params)
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in strategy.Params.model_fields.items()
    }
    changed = list_changed_settings(
        spec.model_dump(mode="json") | {"strategy": {"params": params.model_dump(mode="json")}},
        strategy.Params.model_construct(**defaults).model_dump(mode="json"),
    )
    axis = strategy.partitioned_over
    filled = spec.grid.get(axis, 0) * strategy.parts_per_block(params) if axis else 0
    if not spec.dataset.partitioned or spec.dataset.parts == filled:
        changed.pop("dataset.parts", None)
    return changed


def format_setting(value: Any) -> str:
    """Return a value as `--set` reads it, which is YAML."""
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    text = json.dumps(value, separators=(",", ":"))
    if isinstance(value, float) and "." not in text:  # YAML reads 1e-05 as text
        text = text.replace("e", ".0e")
    return text
