"""What the tests of the report share: a drawn study, and a way to make a page of other runs."""

import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.figures import draw_all
from harness.figures.drawing import KINDS, name_of, tables_digest
from harness.report import write
from harness.results.collect import collect
from harness.results.parquet import read_collected

SYNTHETIC = runpy.run_path(str(Path(__file__).parents[1] / "synthetic_runs.py"))


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The functions of tests/synthetic_runs.py."""
    return SimpleNamespace(**SYNTHETIC)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, with tables/ and figures/."""
    folder = tmp_path_factory.mktemp("drawn")
    SYNTHETIC["write_study"](folder / "runs")
    collect(folder / "runs", folder / "tables")
    draw_all(folder / "tables", folder / "figures")
    return folder


@pytest.fixture(scope="session")
def page(drawn: Path) -> str:
    """The page of the study."""
    return write(drawn / "tables", drawn / "figures", drawn / "report.html").read_text()


def sketch(tables: Path, figures: Path) -> None:
    """Empty figures of these tables, in no time."""
    figures.mkdir()
    for dataset in read_collected(tables, "runs")["dataset.name"].unique():
        for kind in KINDS:
            said = f"<!-- tables {tables_digest(tables)} -->"
            (figures / f"{name_of(kind.name, dataset)}.svg").write_text(f"<svg>{said}</svg>")


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[..., str]:
    """`page_of(fill, plan)`: the page, with empty figures, of the runs that `fill` puts into the folder it is given."""

    def make(fill: Callable[[Path], object], plan: Path | None = None) -> str:
        fill(tmp_path / "runs")
        collect(tmp_path / "runs", tmp_path / "tables", plan)
        sketch(tmp_path / "tables", tmp_path / "figures")
        return write(tmp_path / "tables", tmp_path / "figures", tmp_path / "report.html").read_text()

    return make
