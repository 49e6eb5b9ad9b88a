"""What the tests of the report share: the page of a study, and a way to make a page of other runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report.figures import FramedTables
from harness.report.page import write_report
from harness.results.collect import collect


@pytest.fixture(scope="session")
def page(study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the study."""
    return write_report(
        FramedTables(study / "tables"), tmp_path_factory.mktemp("page") / "report.html"
    ).read_text()


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[..., str]:
    """`page_of(fill, plan)`: the page of the runs that `fill` puts into the folder it is given."""

    def make(fill: Callable[[Path], object], plan: Path | None = None) -> str:
        fill(tmp_path / "runs")
        collect(tmp_path / "runs", tmp_path / "tables", plan)
        return write_report(FramedTables(tmp_path / "tables"), tmp_path / "report.html").read_text()

    return make
