"""The command of an option is read back as the same spec."""

from typing import Any

import pytest
import yaml

from harness.base.errors import UserError
from harness.experiment.requests import make_spec, nest_settings
from harness.prediction.run_command import format_setting, make_run_command
from harness.registry import load_strategy, registered_strategies
from harness.spec.root import find_root
from harness.spec.spec import Spec

ROOT = find_root()
NAMES = [point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")]
CHANGES: dict[str, Any] = {
    "model": {"kind": "sage", "hidden": 64, "dropout": 0.25},
    "training": {"epochs": 3, "lr": 1e-05, "recompute": True},
    "precision": "float64",
    "seed": 7,
    "machine": "perlmutter",
}


def read_command(words: list[str]) -> Spec:
    """Read a command as `harness run` does: options first, then settings as YAML."""
    assert words[:2] == ["harness", "run"]
    request: dict[str, Any] = {}
    for option, value in zip(words[2::2], words[3::2], strict=True):
        if option == "--set":
            key, _, text = value.partition("=")
            request[key] = yaml.safe_load(text)
        else:
            key = {"--strategy": "strategy.name", "--dataset": "dataset.name"}.get(option, option[2:])
            request[key] = int(value) if option == "--ranks" else value
    return make_spec(ROOT, nest_settings(request), "the command")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("changes", [{}, CHANGES], ids=["defaults", "changed"])
def test_command_is_read_back_as_the_same_spec(name: str, changes: dict[str, Any]) -> None:
    strategy, read = load_strategy(name), 0
    for ranks in (1, 4, 6):
        for grid in strategy.grids(ranks)[:4]:
            dataset: dict[str, Any] = {"name": "tiny-sbm"}
            if changes and strategy.partitioned_over and grid[strategy.partitioned_over] > 1:
                dataset["partition"] = "metis"
            request = {**changes, "strategy": name, "dataset": dataset, "ranks": ranks, "grid": grid}
            try:
                spec = make_spec(ROOT, request, "here")
            except UserError:
                continue
            assert read_command(make_run_command(spec)) == spec
            read += 1
    assert read


def test_command_has_the_parameters_of_the_strategy_that_were_changed() -> None:
    params = {"precompute": False, "overlap": True}
    request = {"strategy": {"name": "compose", "params": params}, "dataset": "tiny-sbm", "ranks": 4}
    spec = make_spec(ROOT, request, "here")
    command = make_run_command(spec)
    assert read_command(command) == spec
    assert command[-4:] == [
        *("--set", "strategy.params.precompute=false"),
        *("--set", "strategy.params.overlap=true"),
    ]


@pytest.mark.parametrize("value", [1e-05, 1.5e300, 0.1, 3, True, "metis", "1", "yes", None, [15, 10], "a b"])
def test_setting_is_yaml_of_the_same_value(value: Any) -> None:
    read = yaml.safe_load(format_setting(value))
    assert read == value and type(read) is type(value)
