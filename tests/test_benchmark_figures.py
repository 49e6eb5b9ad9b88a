"""Figures of benchmarks: each title is computed from the rows, and recorded figures have that of the recorded rows."""

import re
from xml.etree import ElementTree

import pandas as pd

from benchmarks.comparison import ROWS, summarize_launches
from benchmarks.comparison_figures import title_elements_and_time, title_predicted, title_times_to_target
from benchmarks.finding_figures import (
    FROM_PAGE,
    title_dimensions,
    title_elements,
    title_gain,
    title_model,
    title_received,
)
from benchmarks.findings import DIMENSIONS, predict_points
from benchmarks.graphs import title_builds
from benchmarks.network import POINTS as SLOPE
from benchmarks.network import title_slopes
from benchmarks.plotting import RESULTS, make_facets, read_recorded
from benchmarks.trust import read_errors, title_errors
from harness.report.figures.palette import look_of


def read_comparison() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the measured and the predicted rows."""
    rows = pd.read_csv(ROWS, keep_default_na=False, na_values=[""]).fillna({"options": ""})
    is_predicted = rows.seconds_low.notna()
    return rows[~is_predicted], rows[is_predicted]


def list_titles() -> dict[str, str]:
    """Return the title of each recorded figure, computed from the recorded rows."""
    measured, predicted = read_comparison()
    dimensions, points = pd.read_csv(DIMENSIONS), predict_points()
    models = points[~points.scaling].melt("published", ["printed", "terms"], "model", "seconds")
    (received,) = read_recorded("received", "received.by-strategy")
    (builds,) = read_recorded("building", "graphs.build-twins ogbn-papers100m 1/64 1/16 1/4 1")
    return {
        **{
            f"findings-{name}": title(read_recorded(page, f"findings.{name}")[0])
            for name, (page, _, title) in FROM_PAGE.items()
        },
        "findings-model": title_model(models),
        "findings-dimensions": title_dimensions(dimensions),
        "findings-elements": title_elements(dimensions),
        "received": title_received(received, "reddit on 64 ranks"),
        "comparison": title_elements_and_time(summarize_launches(measured)),
        "comparison-epochs": title_times_to_target(summarize_launches(measured)),
        "comparison-predicted": title_predicted(predicted),
        "building-ogbn-papers100m": title_builds(builds),
        "slope": title_slopes(pd.read_csv(SLOPE)),
        "trust": title_errors(read_errors()),
    }


def test_every_recorded_figure_has_the_title_of_its_recorded_rows() -> None:
    """Titles are wrapped, so spaces are ignored."""
    titles = list_titles()
    assert titles.keys() == {path.stem for path in RESULTS.glob("*.svg")}
    for name, title in titles.items():
        texts = ElementTree.parse(RESULTS / f"{name}.svg").iter("{http://www.w3.org/2000/svg}text")
        drawn = "".join("".join(text.itertext()) for text in texts)
        assert re.sub(r"\s", "", title) in re.sub(r"\s", "", drawn), name


def test_title_of_predictions_names_the_fastest_and_the_ties() -> None:
    _, predicted = read_comparison()
    first, _, tied = title_predicted(predicted).partition(";")
    assert "compose" in first and "plexus and rdm" in tied
    factor = predicted.strategy.map({"rdm": 0.01}).fillna(1.0)
    columns = ["seconds", "seconds_low", "seconds_high"]
    other = title_predicted(predicted.assign(**{name: predicted[name] * factor for name in columns}))
    assert "rdm" in other and "plexus" not in other


def test_title_of_dimensions_claims_no_order_that_the_rows_lack() -> None:
    table = pd.read_csv(DIMENSIONS)
    assert "1.5D and 3D" in title_dimensions(table) and "overlap" in title_dimensions(table)
    exact = table.assign(low=table.seconds, high=table.seconds)
    assert "overlap" not in title_dimensions(exact)
    slow = table.assign(elements=table.elements.where(table.strategy != "cagnet-2d", 1e12))
    assert "never" in title_elements(slow)


def test_title_of_gain_follows_the_smaller_saving() -> None:
    (table,) = read_recorded("gain", "findings.gain")
    before = title_gain(table)
    table.loc[table[table.columns[0]] == "the first layer's halo once", table.columns[1:]] = 0.9
    assert title_gain(table) != before


def test_recorded_tables_are_read_as_numbers_and_texts() -> None:
    (table,) = read_recorded("received", "received.by-strategy")
    amounts = ["elements received", "in an epoch", "before training"]
    assert list(table.columns) == ["strategy", "grid", "partition", *amounts]
    assert table["elements received"].is_monotonic_increasing and table.grid[0] == "row=1,col=64"
    assert len(read_recorded("findings", "findings.dimensions")) == 3


def test_facets_without_panels_have_the_looks_of_strategies_or_numbers() -> None:
    frame = pd.DataFrame({"curve": ["a", "b"], "strategy": ["plexus", ""], "graph": ["x", "y"]})
    first, second = make_facets(frame, "graph")
    assert (first.title, second.title) == ("x", "y") and first.panel is second.panel
    assert first.looks["a"] == look_of("plexus") != first.looks["b"]
