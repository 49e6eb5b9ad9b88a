"""Files: which there are, that they are the same every time, and what is refused."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.base.errors import UserError
from harness.report.figures import FramedTables, draw_all, drawing
from harness.report.figures.drawing import (
    FORMATS,
    TEXT_FORMATS,
    render_formats,
    style_context,
)
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.framed_tables import KINDS, tables_digest
from harness.report.figures.kind import read_tables
from harness.report.figures.marks import Facet
from harness.report.figures.panels import title_panels
from harness.report.figures.wrapping import LONGEST_WORD, MOST_WORDS, elide_word, wrap_text
from harness.results.schema import RUN_TABLES, RUNS

ROOT = Path(__file__).parents[2]

Collected = Callable[[Callable[[Path], object]], Path]


@pytest.fixture(scope="module")
def drawn(study: Path) -> list[Path]:
    return sorted((study / "figures").iterdir())


TWO_GRAPHS = ("", "-isolate-3-8m", "-products-14m")
"""The endings of the names of a kind that has something to show for both graphs of the study."""
DRAWN = {
    "breakdown": TWO_GRAPHS,
    "epoch-time": ("",),  # isolate-3-8m has a single strategy
    "papers": ("",),
    "received": ("",),  # nothing differs on isolate-3-8m
    "sampling": ("",),  # nobody samples on products-14m
    "strong-scaling": ("",),
}
"""Kinds whose figures of the study are known, and the graphs that they show."""
ABSENT = {"accuracy", "evaluation", "gain", "memory", "prediction", "target", "time-to-target"}
"""No run of the study has test vertices or a target, is of DistDGL, or was predicted; all hold the same memory."""


def test_there_is_a_figure_of_all_datasets_and_one_of_each_with_something_to_show(drawn: list[Path]) -> None:
    stems = {path.stem for path in drawn}
    assert stems >= {f"{name}{ending}" for name, endings in DRAWN.items() for ending in endings}
    for kind in KINDS:
        own = {stem.removeprefix(kind.name) for stem in stems if stem.startswith(kind.name)}
        if kind.name in DRAWN:
            assert own == set(DRAWN[kind.name]), kind.name
        assert not (kind.name in ABSENT and "" in own), kind.name
    assert sorted(path.name for path in drawn) == sorted(
        f"{stem}.{ending}" for stem in stems for ending in (*FORMATS, *TEXT_FORMATS)
    )
    assert all(path.stat().st_size > 1000 for path in drawn if path.suffix[1:] in FORMATS)


def test_an_svg_has_text_as_text_a_role_and_a_label(drawn: list[Path]) -> None:
    svg = next(path for path in drawn if path.name == "strong-scaling.svg").read_text()
    assert re.search(r'<svg role="img" aria-label="Strong scaling: products-14m, [^"]+"', svg)
    assert re.search(r"<text [^>]*>cagnet-1d</text>", svg)
    assert not re.search(r'<path id="DejaVu', svg), "no glyph is drawn as a path"


def test_an_svg_has_the_hatches_that_it_uses(drawn: list[Path]) -> None:
    for path in drawn:
        if path.suffix == ".svg":
            svg = path.read_text()
            assert len(svg) < 200_000, path
            for name in re.findall(r'<pattern id="([^"]+)"', svg):
                assert f"url(#{name})" in svg, (path, name)


def test_a_pdf_can_be_searched(drawn: list[Path]) -> None:
    for path in drawn:
        if path.suffix == ".pdf":
            assert b"/ToUnicode" in path.read_bytes()
            assert b"/FontFile2" in path.read_bytes()


def test_the_numbers_of_a_figure_are_written_as_csv(drawn: list[Path], runs: pd.DataFrame) -> None:
    """Every launch that the figure draws, and the seconds of every part of a bar."""
    by_name = {path.name: path for path in drawn}
    launches = pd.read_csv(by_name["epoch-time.csv"]).merge(runs, on="run_id")
    done = launches[launches.status_x == "ok"]
    assert done.epoch_seconds_median_x.tolist() == pytest.approx(done.epoch_seconds_median_y.tolist())
    assert len(done[done.curve == "cagnet-1d"]) == 2, "two launches"
    parts = pd.read_csv(by_name["breakdown-products-14m.csv"])
    one = parts[(parts.curve == "cagnet-1d") & (parts.ranks == 2)]
    measured = runs[(runs["strategy.name"] == "cagnet-1d") & (runs.ranks == 2)].epoch_seconds_median.median()
    assert one.seconds.sum() == pytest.approx(measured)


def test_a_caption_names_what_is_shown(drawn: list[Path]) -> None:
    text = next(path for path in drawn if path.name == "breakdown-products-14m.txt").read_text()
    assert "products-14m, gcn, 3 layers, hidden 128, float32, on local" in text


def test_figures_of_earlier_tables_are_removed(
    tables: Path, synthetic: SimpleNamespace, collected: Collected
) -> None:
    """A kind that has nothing to show any more, and a graph that is no longer there; files of others stay."""
    folder = collected(
        lambda to: synthetic.write_ok(to, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0)
    )
    out = folder / "figures"
    out.mkdir()
    old = f"<svg><title>{{}}</title><!-- tables {tables_digest(tables)} --></svg>"
    for name in ("sampling", "received-gone"):
        (out / f"{name}.svg").write_text(old.format(name))
        (out / f"{name}.csv").write_text("")
    kept = {out / name for name in ("mine.svg", "received-thesis.svg", "received-thesis.pdf", "README.md")}
    for path in kept:
        path.write_text(old.format("received-gone"))
    paths = draw_all(FramedTables(folder), out)
    assert set(out.iterdir()) == {*paths} | kept


@pytest.mark.parametrize("name", ["received.svg", "received.csv"])
def test_a_file_of_the_user_is_not_replaced(name: str, tables: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UserError, match=f"{name} exists"):
        draw_all(FramedTables(tables), tmp_path)
    assert (tmp_path / name).read_text() == "years of work"


def test_kinds_are_found_in_their_modules_in_the_order_of_the_report() -> None:
    assert [kind.name for kind in KINDS[:2]] == ["epoch-time", "strong-scaling"]
    assert [kind.place for kind in KINDS] == sorted(kind.place for kind in KINDS)
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 13


def test_every_figure_that_a_page_names_is_a_kind() -> None:
    names = {kind.name for kind in KINDS}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = [
        (page.name, name)
        for page in pages
        for pair in re.findall(r"figure `([a-z-]+)`|figures/\w+/([a-z-]+)\.svg", page.read_text())
        for name in pair
        if name
    ]
    assert len(named) > 4
    assert [(page, name) for page, name in named if name not in names] == []


def test_figures_have_the_widths_of_a_paper(drawn: list[Path]) -> None:
    boxes = {
        path.stem: re.search(rb"/MediaBox \[ ?([\d. ]+)\]", path.read_bytes())
        for path in drawn
        if path.suffix == ".pdf"
    }
    widths = {name: float(box[1].split()[2]) / 72 for name, box in boxes.items() if box}
    assert widths["breakdown"] == pytest.approx(7.0, abs=0.01)
    assert widths["strong-scaling"] == pytest.approx(3.4, abs=0.01)


def test_text_in_a_pdf_is_truetype(drawn: list[Path]) -> None:
    for path in drawn:
        if path.suffix == ".pdf":
            assert b"/Type3" not in path.read_bytes()
            assert b"/CIDFontType2" in path.read_bytes()


@pytest.mark.parametrize("theirs", [{}, {"lines.linewidth": 9, "pdf.fonttype": 3, "figure.dpi": 50}])
def test_the_same_tables_give_the_same_bytes(
    theirs: dict[str, object], runs: pd.DataFrame, tables: Path, drawn: list[Path], tmp_path: Path
) -> None:
    """Twice, and whatever settings the user has."""
    stamp = re.search(r"tables \w{16}", next(path for path in drawn if path.suffix == ".svg").read_text())
    assert stamp
    kind = next(kind for kind in KINDS if kind.name == "breakdown")
    name, before = "breakdown-isolate-3-8m", {path.name: path for path in drawn}
    some = [panel for panel in kind.split_panels(runs) if panel.dataset == "isolate-3-8m"]
    label = re.search(r'aria-label="([^"]*)"', before[f"{name}.svg"].read_text())
    assert label
    with mpl.rc_context(theirs), style_context():
        facets = [replace(facet, title="") for facet in kind.make_facets(some, read_tables(tables))]
        _, note = title_panels([facet.panel for facet in facets])
        figure = compose_figure(facets, kind.mark, note)
        again = render_formats(figure, FORMATS, name, stamp[0], label[1])
    for file_format, data in again.items():
        assert data == before[f"{name}.{file_format}"].read_bytes(), file_format
    assert plt.get_fignums() == [], "drawing leaves no figure open"


def test_last_digits_of_the_layout_do_not_reach_the_files(
    runs: pd.DataFrame, tables: Path, tmp_path: Path
) -> None:
    """A solver places the axes, and its last digits differ from one process to another."""
    kind = next(kind for kind in KINDS if kind.name == "breakdown")
    with style_context():
        figure = compose_figure(kind.make_facets(kind.split_panels(runs), read_tables(tables)), kind.mark)
        render_formats(figure, FORMATS, "one", "tables 0")
    for axes in figure.axes:
        bounds = axes.get_position(original=True).bounds
        assert all(abs(bound - round(bound, 6)) < 1e-12 for bound in bounds)
    assert round(figure.get_figheight(), 4) == figure.get_figheight()


def test_a_composed_figure_is_drawn_once_for_each_format(
    runs: pd.DataFrame, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    draw = Figure.draw

    def counted(figure: Figure, renderer: Any) -> None:
        drawn.append(figure)
        draw(figure, renderer)

    with style_context():
        facets: list[Facet] = KINDS[0].make_facets(KINDS[0].split_panels(runs), read_tables(tables))
        monkeypatch.setattr(Figure, "draw", counted)
        render_formats(compose_figure(facets, KINDS[0].mark), FORMATS, "one", "tables 0")
    assert len(drawn) <= len(FORMATS) + 1, "one more for the layout"


def test_names_of_users_are_drawn_as_they_are(synthetic: SimpleNamespace, collected: Collected) -> None:
    """Neither formulas nor hidden labels, and no path out of the folder."""
    spec = synthetic.make_spec("../_$\\mine{$ <b>", "_etc", {"p": 1})
    folder = collected(lambda to: synthetic.write_ok(to, spec, 1.0))
    paths = draw_all(FramedTables(folder), folder / "figures")
    assert {path.parent for path in paths} == {folder / "figures"}
    assert {path.suffix[1:] for path in paths} == {*FORMATS, *TEXT_FORMATS}


def test_pictures_in_other_formats_are_removed_when_svg_alone_is_drawn(
    synthetic: SimpleNamespace, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "KINDS", tuple(kind for kind in KINDS if kind.name == "breakdown"))
    folder = collected(
        lambda to: synthetic.write_ok(to, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0)
    )
    draw_all(FramedTables(folder), folder / "figures")
    mine = folder / "figures" / "breakdown-mine.pdf"
    mine.write_text("a user's own file")
    drawn = draw_all(FramedTables(folder), folder / "figures", formats=("svg",))
    assert {path.suffix[1:] for path in drawn} == {"svg", *TEXT_FORMATS}
    assert {*(folder / "figures").iterdir()} == {*drawn, mine}


def test_a_long_name_is_drawn_in_short_and_whole_in_the_numbers(
    synthetic: SimpleNamespace, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{'x' * 180}{middle}{'x' * 180}" for middle in "ab"]
    specs = [
        synthetic.make_spec(f"here.py:{name}", "tiny", {"p": ranks}) for name in names for ranks in (1, 2)
    ]

    def write(to: Path) -> None:
        for spec in specs:
            synthetic.write_ok(to, spec, 1.0)

    some = [kind for kind in KINDS if kind.name in ("epoch-time", "strong-scaling", "breakdown")]
    monkeypatch.setattr(drawing, "KINDS", tuple(some))
    folder = collected(write)
    for path in draw_all(FramedTables(folder), folder / "figures"):
        text = path.read_bytes().decode(errors="replace")
        if path.suffix == ".svg":
            assert "…" in text and "x" * 100 not in re.sub(
                "<metadata>.*</metadata>", "", text, flags=re.DOTALL
            )
        if path.suffix == ".csv":
            assert all(name in text for name in names), path


def test_long_words_are_short_and_distinct() -> None:
    long = [f"{'x' * 1500}{middle}{'x' * 1500}" for middle in "ab"]
    assert elide_word("a-name_of/usual.length@1-64") == "a-name_of/usual.length@1-64"
    assert len({elide_word(word) for word in long}) == 2
    assert {len(elide_word(word)) for word in long} == {LONGEST_WORD}
    assert len(wrap_text(" ".join(long), 20).replace("\n", "")) == 2 * LONGEST_WORD
    assert len(wrap_text("word " * 10_000, 100).split()) <= MOST_WORDS + 1
    assert max(map(len, wrap_text(" ".join(long), 20).split("\n"))) <= 20


def test_figures_are_drawn_one_after_the_other_where_there_are_no_semaphores(
    synthetic: SimpleNamespace, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /dev/shm cannot be written."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    some = tuple(kind for kind in KINDS if kind.name in ("epoch-time", "breakdown"))
    monkeypatch.setattr(drawing, "KINDS", some)
    folder = collected(
        lambda to: synthetic.write_ok(to, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0)
    )
    assert {path.suffix[1:] for path in draw_all(FramedTables(folder), folder / "figures")} == {
        *FORMATS,
        *TEXT_FORMATS,
    }


def test_unknown_strategy_cannot_be_chosen(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'plexsu'.* plexus\?"):
        draw_all(FramedTables(tables), tmp_path / "figures", chosen=["serial", "plexsu"])
    assert not (tmp_path / "figures").exists()


def test_tables_without_a_run_are_refused(tables: Path, tmp_path: Path) -> None:
    from harness.results import parquet

    for name in (*RUN_TABLES, "failures"):
        shutil.copy(tables / f"{name}.parquet", tmp_path)
    empty = parquet.serialize_table(parquet.to_arrow(pd.DataFrame(), RUNS), RUNS)
    (tmp_path / "runs.parquet").write_bytes(empty)
    with pytest.raises(UserError, match=r"no recorded run"):
        draw_all(FramedTables(tmp_path), tmp_path / "figures")
