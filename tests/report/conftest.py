"""What the tests of the report share: a drawn study, and a way to make a page of other runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.figures.drawing import KINDS, file_stem, tables_digest
from harness.report import write_report
from harness.results.collect import collect
from harness.results.parquet import read_collected


@pytest.fixture(scope="session")
def page(study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the study."""
    folder = tmp_path_factory.mktemp("page")
    return write_report(study / "tables", study / "figures", folder / "report.html").read_text()


def sketch(tables: Path, figures: Path) -> None:
    """Empty figures of these tables, in no time."""
    figures.mkdir()
    for dataset in ("", *read_collected(tables, "runs")["dataset.name"].unique()):
        for kind in KINDS:
            said = f"<!-- tables {tables_digest(tables)} -->"
            (figures / f"{file_stem(kind.name, dataset)}.svg").write_text(f"<svg>{said}</svg>")


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[..., str]:
    """`page_of(fill, plan)`: the page, with empty figures, of the runs that `fill` puts into the folder it is given."""

    def make(fill: Callable[[Path], object], plan: Path | None = None) -> str:
        fill(tmp_path / "runs")
        collect(tmp_path / "runs", tmp_path / "tables", plan)
        sketch(tmp_path / "tables", tmp_path / "figures")
        return write_report(tmp_path / "tables", tmp_path / "figures", tmp_path / "report.html").read_text()

    return make
