"""Claims of papers are drawn next to our values: which ones, and where."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.figures import beside_papers
from harness.figures.drawing import style_context
from harness.figures.kind import read_tables
from harness.results.parquet import read_claims_table


@pytest.fixture(scope="module")
def shown(tables: Path) -> list[beside_papers.ClaimDot]:
    (panel,) = beside_papers.split_by_paper_figure(read_claims_table(tables))
    return beside_papers.select_claims(panel, read_tables(tables))


def test_results_are_drawn_tested_or_not_and_settings_are_not(shown: list[beside_papers.ClaimDot]) -> None:
    *tested, untested = shown
    assert [(dot.verdict, dot.ratio) for dot in tested] == [
        ("holds", 1.1),
        ("within a factor", 1.6),
        ("contradicted", 0.125),
    ]
    assert untested.verdict == "cannot be tested here" and isnan(untested.ratio)
    assert untested.values == "untested  /  2 x", "the printed value stands there all the same"


def test_settings_are_drawn_if_a_figure_has_no_result(tables: Path) -> None:
    (panel,) = beside_papers.split_by_paper_figure(read_claims_table(tables))
    settings = replace(panel, runs=panel.runs[panel.runs.basis == "experiment"])
    assert [dot.verdict for dot in beside_papers.select_claims(settings, read_tables(tables))] == ["holds"]


def test_claims_that_share_their_words_are_told_apart_by_their_settings(tables: Path) -> None:
    (panel,) = beside_papers.split_by_paper_figure(read_claims_table(tables))
    runs = panel.runs.assign(what="share of an epoch", config=[f"step {n}" for n in range(len(panel.runs))])
    found = beside_papers.select_claims(replace(panel, runs=runs), read_tables(tables))
    assert len({dot.label for dot in found}) == len(found) > 1


def test_dots_and_intervals_stand_where_they_are(tables: Path, shown: list[beside_papers.ClaimDot]) -> None:
    panels = beside_papers.split_by_paper_figure(read_claims_table(tables))
    with style_context():
        figure = beside_papers.draw_figure(panels, [shown])
        figure.draw_without_rendering()
    (axes,) = figure.axes
    _, *lines = axes.lines  # the first is at one
    *lines, untested = lines
    *tested, _ = shown
    assert list(untested.get_xdata()) == [0] and untested.get_transform() == axes.get_yaxis_transform()
    for y, dot, interval, at in zip(axes.get_yticks(), tested, lines[::2], lines[1::2], strict=False):
        assert list(interval.get_xdata()) == [dot.low, dot.high]
        assert (list(at.get_xdata()), list(at.get_ydata())) == ([dot.ratio], [y])
    assert list(axes.get_yticks()) == sorted(set(axes.get_yticks())), "one below the other"
    low, high = axes.get_xlim()
    assert low < min(dot.low for dot in tested) and max(dot.high for dot in tested) < high
    assert 1 in axes.get_xticks()
    assert [text.get_text() for text in axes.get_yticklabels()] == [dot.label for dot in shown]


def test_claims_that_were_held_against_other_tables_are_not_shown(
    tables: Path, synthetic: SimpleNamespace, collected: Callable[[Callable[[Path], object]], Path]
) -> None:
    others = collected(
        lambda runs: synthetic.write_ok(runs, synthetic.make_spec("serial", "isolate-3-8m", {"p": 1}), 1.0)
    )
    shutil.copy(tables / "claims.parquet", others)
    assert not read_claims_table(tables).empty
    assert read_claims_table(others).empty
