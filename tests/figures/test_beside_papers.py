"""Claims beside a figure of a paper: which are drawn, and where."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.figures import beside_papers
from harness.figures.drawing import styled
from harness.figures.kind import read_tables
from harness.results.parquet import read_claims_of


@pytest.fixture(scope="module")
def shown(tables: Path) -> list[beside_papers.Dot]:
    (panel,) = beside_papers.paper_panels(read_claims_of(tables))
    return beside_papers.dots(panel, read_tables(tables))


def test_results_with_a_ratio_are_drawn_and_settings_are_not(shown: list[beside_papers.Dot]) -> None:
    assert [(dot.verdict, dot.ratio) for dot in shown] == [
        ("holds", 1.1),
        ("within a factor", 1.6),
        ("contradicted", 0.125),
    ]


def test_dots_and_intervals_stand_where_they_are(tables: Path, shown: list[beside_papers.Dot]) -> None:
    panels = beside_papers.paper_panels(read_claims_of(tables))
    with styled():
        figure = beside_papers.page(panels, [shown])
        figure.draw_without_rendering()
    (axes,) = figure.axes
    _, *lines = axes.lines  # the first is at one
    for y, dot, interval, at in zip(axes.get_yticks(), shown, lines[::2], lines[1::2], strict=True):
        assert list(interval.get_xdata()) == [dot.low, dot.high]
        assert (list(at.get_xdata()), list(at.get_ydata())) == ([dot.ratio], [y])
    assert list(axes.get_yticks()) == sorted(set(axes.get_yticks())), "one below the other"
    low, high = axes.get_xlim()
    assert low < min(dot.low for dot in shown) and max(dot.high for dot in shown) < high
    assert 1 in axes.get_xticks()
    assert [text.get_text() for text in axes.get_yticklabels()] == [dot.label for dot in shown]


def test_claims_that_were_held_against_other_tables_are_not_shown(
    tables: Path, synthetic: SimpleNamespace, collected: Callable[[Callable[[Path], object]], Path]
) -> None:
    others = collected(
        lambda runs: synthetic.write_ok(runs, synthetic.make_spec("serial", "isolate-3-8m", {"p": 1}), 1.0)
    )
    shutil.copy(tables / "claims.parquet", others)
    assert not read_claims_of(tables).empty
    assert read_claims_of(others).empty
