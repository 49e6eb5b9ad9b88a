"""Files: which there are, that they are the same every time, and what is refused."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from harness.errors import UserError
from harness.figures import draw_all, scaling
from harness.figures.drawing import FORMATS, KINDS, name_of, save, styled
from harness.figures.kind import CAPTIONS
from harness.figures.panels import panels
from harness.results.schema import RUN_TABLES, RUNS

Collected = Callable[[Callable[[Path], object]], Path]


@pytest.fixture(scope="module")
def drawn(study: Path) -> list[Path]:
    return sorted((study / "figures").iterdir())


def test_there_is_a_figure_of_all_datasets_and_one_of_each(drawn: list[Path]) -> None:
    of = {"runs": ("", "-isolate-3-8m", "-products-14m"), "claims": ("", "-plexus-fig8c")}
    names = [f"{kind.name}{each}" for kind in KINDS for each in of[kind.of]]
    assert sorted(path.name for path in drawn) == sorted(
        f"{name}.{kind}" for name in names for kind in FORMATS
    )
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_every_kind_says_how_it_is_read() -> None:
    assert sorted(path.stem for path in CAPTIONS.iterdir()) == sorted(kind.name for kind in KINDS)


def test_figures_have_the_widths_of_a_paper(drawn: list[Path]) -> None:
    boxes = {
        path.stem: re.search(rb"/MediaBox \[ ?([\d. ]+)\]", path.read_bytes())
        for path in drawn
        if path.suffix == ".pdf"
    }
    widths = {name: float(box[1].split()[2]) / 72 for name, box in boxes.items() if box}
    assert widths["strong-scaling"] == pytest.approx(7.0, abs=0.01)
    assert widths["breakdown-products-14m"] == pytest.approx(3.4, abs=0.01)


def test_text_in_a_pdf_is_truetype(drawn: list[Path]) -> None:
    for path in drawn:
        if path.suffix == ".pdf":
            assert b"/Type3" not in path.read_bytes()
            assert b"/CIDFontType2" in path.read_bytes()


@pytest.mark.parametrize("theirs", [{}, {"lines.linewidth": 9, "pdf.fonttype": 3, "figure.dpi": 50}])
def test_the_same_tables_give_the_same_bytes(
    theirs: dict[str, object], runs: pd.DataFrame, drawn: list[Path], tmp_path: Path
) -> None:
    """Twice, and whatever settings the user has."""
    stamp = re.search(r"tables \w{16}", next(path for path in drawn if path.suffix == ".svg").read_text())
    assert stamp
    some = [panel for panel in panels(runs) if panel.dataset == "isolate-3-8m"]
    with mpl.rc_context(theirs), styled():
        again = save(scaling.page(some, some), tmp_path, name_of("strong-scaling", "isolate-3-8m"), stamp[0])
    before = {path.name: path for path in drawn}
    for path in again:
        assert path.read_bytes() == before[path.name].read_bytes(), path.name
    assert plt.get_fignums() == [], "drawing leaves no figure open"


def test_names_of_users_are_drawn_as_they_are(synthetic: SimpleNamespace, collected: Collected) -> None:
    """Neither formulas nor hidden labels, and no path out of the folder."""
    spec = synthetic.make_spec("../_$\\mine{$ <b>", "_etc", {"p": 1})
    folder = collected(lambda to: synthetic.write_ok(to, spec, 1.0))
    paths = draw_all(folder, folder / "figures")
    assert {path.parent for path in paths} == {folder / "figures"}
    assert len(paths) == len(FORMATS) * sum(2 if kind.of == "runs" else 1 for kind in KINDS)


def test_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no table.*runs\.parquet.*harness collect"):
        draw_all(tmp_path / "absent", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_tables_without_a_run_are_refused(tables: Path, tmp_path: Path) -> None:
    from harness.results import parquet

    for name in RUN_TABLES:
        shutil.copy(tables / f"{name}.parquet", tmp_path)
    empty = parquet.to_bytes([parquet.to_arrow(pd.DataFrame(), RUNS)], RUNS)
    (tmp_path / "runs.parquet").write_bytes(empty)
    with pytest.raises(UserError, match=r"no run that took place"):
        draw_all(tmp_path, tmp_path / "figures")
