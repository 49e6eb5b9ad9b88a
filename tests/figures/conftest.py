"""What the tests of figures share: collected tables of a synthetic study."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from harness.results.collect import collect
from harness.results.parquet import read_collected


@pytest.fixture(scope="session")
def tables(study: Path) -> Path:
    """The collected tables of the study."""
    return study / "tables"


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
