"""What the tests of figures share: collected tables of a synthetic study."""

import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from harness.results.collect import collect
from harness.results.parquet import read_collected

SYNTHETIC = runpy.run_path(str(Path(__file__).parents[1] / "synthetic_runs.py"))


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The functions of tests/synthetic_runs.py."""
    return SimpleNamespace(**SYNTHETIC)


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collected tables of the study."""
    folder = tmp_path_factory.mktemp("study")
    SYNTHETIC["write_study"](folder / "runs")
    collect(folder / "runs", folder)
    return folder


@pytest.fixture(scope="session")
def runs(tables: Path) -> pd.DataFrame:
    return read_collected(tables, "runs")


@pytest.fixture
def collected(tmp_path: Path) -> Callable[[Callable[[Path], object]], Path]:
    """`collected(write)`: tables of the runs that `write` puts into the folder it is given."""

    def make(write: Callable[[Path], object]) -> Path:
        write(tmp_path / "runs")
        collect(tmp_path / "runs", tmp_path)
        return tmp_path

    return make
