"""Reading logs by `harness external read`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from harness.cli import main
from harness.experiment.external.program import flatten_keys
from harness.results.record import Record, read_record


class Example(NamedTuple):
    """A log of a program, and the options with which it is read."""

    program: str
    text: str
    options: tuple[str, ...]
    expected: Any


@pytest.fixture
def read_as(tmp_path: Path) -> Callable[..., int]:
    """`read_as(program, text, *options)`: the exit code of `harness external read`, of a log of that text."""

    def act(program: str, text: str, *options: str) -> int:
        log = tmp_path / "some.log"
        log.write_text(text)
        words = ["external", "read", str(log), "--format", program, "--out", str(tmp_path / "runs")]
        return main([*words, *options])

    return act


def only(folder: Path) -> Record:
    """Return the only record that was written."""
    (run,) = (folder / "runs").iterdir()
    return read_record(run)


def list_values(record: Record) -> dict[str, Any]:
    """Return the values of a record and its spec by dotted key, columns as lists, and the ledger's amounts by op."""
    values = flatten_keys(record.spec) | flatten_keys(record.record)
    for name in ("epochs", "accuracy", "memory"):
        values |= {f"{name}.{key}": list(column) for key, column in record.table(name).items()}
    ledger = record.table("ledger")
    for amount in ("seconds", "in_flight_seconds"):
        values |= {f"{amount}.{op}": total for op, total in ledger.groupby("op")[amount].sum().items()}
    return values | {"seconds": ledger.seconds.sum()}


def check_values(record: Record, expected: str) -> None:
    """Compare some values of a record with those of a YAML text. null stands for a value that is absent, too."""
    found = list_values(record)
    for key, value in flatten_keys(yaml.safe_load(expected)).items():
        is_number = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
        assert found.get(key) == (pytest.approx(value, nan_ok=True) if is_number else value), key
