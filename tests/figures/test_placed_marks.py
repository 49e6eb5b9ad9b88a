"""What papers print about several runs, placed among our values: where marks lie, and what files say about them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from harness.report.charts import make_spec
from harness.report.figures.drawing import draw_all, style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.framed_tables import FramedTables
from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.kinds import breakdown, epoch_time, gain, received, strong_scaling
from harness.report.figures.marks import Facet
from harness.report.figures.panels import EPOCH
from harness.results.parquet import read_collected, write_claims

pytestmark = pytest.mark.long

SECONDS = {("plexus", 2): 4.0, ("plexus", 4): 2.0, ("cagnet-1d", 2): 8.0, ("cagnet-1d", 4): 6.0}


def select(strategy: str, ranks: int | None = None) -> dict[str, list[Any]]:
    return {"strategy.name": [strategy], **({"ranks": [ranks]} if ranks else {})}


def claim(number: int, mark: dict[str, Any], **columns: str) -> dict[str, Any]:
    """A row of the table of claims with one mark."""
    known = {"bound": "", "mean_of": 1, "relative_to": None}
    texts = (
        "paper",
        "what",
        "config",
        "ours",
        "basis",
        "source",
        "uncounted",
        "formula",
        "error",
        "verdict",
        "words",
        "heading",
        "unprinted",
        "reason",
    )
    row = dict.fromkeys((*texts, "duplicate_of"), "") | dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    row |= {"id": f"PLX-{number}", "role": "result", "figure": "plexus-fig8c", "place": "Section 7"}
    return row | {"printed": "3 x", "read": "ratio", "marks": json.dumps([known | mark])} | columns


@pytest.fixture
def tables_of(tmp_path: Path, synthetic: SimpleNamespace, collected: Any) -> Callable[..., Path]:
    """`tables_of(*claims)`: tables of two strategies on 2 and 4 ranks, and these claims."""

    def write(folder: Path) -> None:
        for (name, ranks), seconds in SECONDS.items():
            synthetic.write_ok(folder, synthetic.make_spec(name, "tiny", {"p": ranks}), seconds)

    def make(*claims: dict[str, Any]) -> Path:
        folder: Path = collected(write)
        if claims:
            write_claims(folder / "claims.parquet", list(claims), folder)
        return folder

    return make


@pytest.fixture
def facet_of(tables_of: Callable[..., Path]) -> Callable[..., Facet]:
    """`facet_of(kind, *claims)`: the only facet of the tables."""

    def make(kind: FigureKind, *claims: dict[str, Any]) -> Facet:
        folder = tables_of(*claims)
        (facet,) = kind.make_facets(kind.split_panels(read_collected(folder, "runs")), read_tables(folder))[
            :1
        ]
        return facet

    return make


def epoch(facet: Facet, strategy: str, ranks: int) -> float:
    """Our epoch time in the frame."""
    rows = facet.frame[(facet.frame.strategy == strategy) & (facet.frame.ranks == ranks)]
    return float(rows[EPOCH].median())


SPEEDUP = {"kind": "ratio", "number": 4.0, "runs": select("plexus", 4), "relative_to": select("cagnet-1d", 4)}


def test_ratio_is_applied_to_our_value_of_the_slower_runs(facet_of: Callable[..., Facet]) -> None:
    facet = facet_of(strong_scaling.KIND, claim(1, SPEEDUP))
    (row,) = facet.printed.to_dict("records")
    assert row[EPOCH] == pytest.approx(epoch(facet, "cagnet-1d", 4) / 4)
    assert (row["strategy"], row["ranks"], row["from_ranks"]) == ("plexus", 4, 4)
    assert (row["read"], row["source"], row["bound"]) == ("ratio", "published", "")


def test_ratio_without_our_value_of_either_side_is_not_placed(facet_of: Callable[..., Facet]) -> None:
    for runs, slower in (
        (select("plexus", 8), select("cagnet-1d", 4)),
        (select("plexus", 4), select("rdm", 4)),
    ):
        mark = {**SPEEDUP, "runs": runs, "relative_to": slower}
        assert facet_of(strong_scaling.KIND, claim(1, mark)).printed.empty


def test_ratio_of_two_numbers_of_ranks_stays_on_its_curve(collected: Any, synthetic: SimpleNamespace) -> None:
    """Variants of a strategy that the paper leaves open each have a mark, from their own value."""

    def write(folder: Path) -> None:
        for batch, seconds in ((64, 8.0), (128, 6.0)):
            for ranks in (2, 4):
                spec = synthetic.make_spec("distdgl", "tiny", {"p": ranks}, training={"batch": batch})
                synthetic.write_ok(folder, spec, seconds / ranks)

    folder = collected(write)
    mark = {**SPEEDUP, "number": 1.5, "runs": select("distdgl", 4), "relative_to": select("distdgl", 2)}
    write_claims(folder / "claims.parquet", [claim(1, mark)], folder)
    panels = strong_scaling.KIND.split_panels(read_collected(folder, "runs"))
    (facet,) = strong_scaling.KIND.make_facets(panels, read_tables(folder))
    assert [*facet.printed.curve] == [*facet.printed.from_curve] == [*facet.frame.curve.unique()]
    for row in facet.printed.to_dict("records"):
        ours = facet.frame[(facet.frame.curve == row["curve"]) & (facet.frame.ranks == 2)][EPOCH]
        assert row[EPOCH] == pytest.approx(float(ours.median()) / 1.5)


def test_ratio_of_two_variants_compares_equal_batches(collected: Any, synthetic: SimpleNamespace) -> None:
    def write(folder: Path) -> None:
        for batch, seconds in ((64, 8.0), (128, 20.0)):
            for fused, factor in ((False, 1.0), (True, 0.5)):
                strategy = {"name": "scalegnn", "params": {"fused": fused}}
                spec = synthetic.make_spec(strategy, "tiny", {"p": 4}, training={"batch": batch})
                synthetic.write_ok(folder, spec, seconds * factor)

    folder = collected(write)
    params = {fused: {"strategy.params": [f'{{"fused":{fused}}}']} for fused in ("true", "false")}
    mark = {**SPEEDUP, "number": 3.0, "runs": params["true"], "relative_to": params["false"]}
    write_claims(folder / "claims.parquet", [claim(1, mark)], folder)
    panels = epoch_time.KIND.split_panels(read_collected(folder, "runs"))
    (facet,) = epoch_time.KIND.make_facets(panels, read_tables(folder))
    pairs = [
        (start.rpartition("batch ")[2], end.rpartition("batch ")[2])
        for start, end in zip(facet.printed.from_curve, facet.printed.curve, strict=True)
    ]
    assert len(pairs) == 2 and all(start == end for start, end in pairs), pairs


def test_speedup_of_at_most_is_a_time_of_at_least(facet_of: Callable[..., Facet]) -> None:
    mark = {**SPEEDUP, "bound": "at most"}
    assert [*facet_of(strong_scaling.KIND, claim(1, mark)).printed.bound] == ["at least"]


def test_number_of_two_claims_is_drawn_once_and_without_its_bound(facet_of: Callable[..., Facet]) -> None:
    first = claim(1, {**SPEEDUP, "bound": "at least"})
    facet = facet_of(strong_scaling.KIND, first, claim(2, SPEEDUP, duplicate_of="PLX-1"))
    assert facet.printed[["claim", "bound"]].to_numpy().tolist() == [["PLX-2", ""]]


def test_end_of_scaling_is_drawn_at_our_point(facet_of: Callable[..., Facet]) -> None:
    mark = {"kind": "end of scaling", "number": 4, "runs": select("plexus")}
    facet = facet_of(strong_scaling.KIND, claim(1, mark, read="text"), claim(2, SPEEDUP))
    ring, _ = facet.printed.to_dict("records")
    assert ring["from_value"] == pytest.approx(epoch(facet, "plexus", 4)) and pd.isna(ring[EPOCH])


def test_axis_of_bars_reaches_the_end_of_the_papers_axis(facet_of: Callable[..., Facet]) -> None:
    mark = {"kind": "end of axis", "number": 50.0, "runs": {"dataset.name": ["tiny"]}}
    for kind, shown in ((breakdown.KIND, True), (strong_scaling.KIND, False), (epoch_time.KIND, False)):
        facet = facet_of(kind, claim(1, mark, read="axis"))
        assert (len(facet.printed) == 1) is shown
        if shown:
            with style_context():
                (axes,) = compose_figure([facet], kind.mark).axes
            assert axes.get_xlim()[1] > 50.0
            assert [*facet.printed.read] == ["axis"]


def test_marks_are_drawn_where_the_frame_puts_them(facet_of: Callable[..., Facet]) -> None:
    facet = facet_of(strong_scaling.KIND, claim(1, SPEEDUP))
    with style_context():
        (axes,) = compose_figure([facet], strong_scaling.KIND.mark).axes
    start, end = epoch(facet, "cagnet-1d", 4), epoch(facet, "cagnet-1d", 4) / 4
    lines = [line.get_xydata() for line in axes.lines]
    assert any(len(xy) == 2 and [*xy[:, 1]] == pytest.approx([start, end]) for xy in lines)
    assert any(len(xy) == 1 and xy[0][1] == pytest.approx(end) for xy in lines)
    low, high = axes.get_ylim()
    assert low < end < high


def test_chart_of_the_report_has_the_same_marks(facet_of: Callable[..., Facet]) -> None:
    facet = facet_of(strong_scaling.KIND, claim(1, SPEEDUP))
    values = [
        layer["data"]["values"]
        for layer in make_spec(strong_scaling.KIND.mark, facet)["layer"]
        if "data" in layer
    ]
    found = [row for rows in values for row in rows if row.get("strategy") == "plexus" and EPOCH in row]
    assert {row[EPOCH] for row in found} == {epoch(facet, "cagnet-1d", 4) / 4}
    assert any(all(word in row.get("text", "") for word in ("3 x", "Section 7", "PLX-1")) for row in found)


def test_gain_shows_the_printed_ratio_of_another_family_even_without_ours(
    collected: Any, synthetic: SimpleNamespace
) -> None:
    """Full-graph strategies and mini-batches share this figure only where a paper prints the ratio."""

    def write(folder: Path) -> None:
        for name, batch in (("distdgl", 64), ("g3", 0), ("plexus", 0)):
            spec = synthetic.make_spec(name, "tiny", {"p": 4}, training={"batch": batch})
            synthetic.write_ok(folder, spec, 1.0)

    folder = collected(write)
    mark = {**SPEEDUP, "runs": select("g3", 4), "relative_to": select("distdgl", 4)}
    shown = {}
    for claims in ((), (claim(1, mark),)):
        if claims:
            write_claims(folder / "claims.parquet", [*claims], folder)
        panels = gain.KIND.split_panels(read_collected(folder, "runs"))
        facets = gain.KIND.make_facets(panels, read_tables(folder))
        shown[len(claims)] = [
            (*facet.frame.strategy.unique(), *facet.printed.get("ratio", ())) for facet in facets
        ]
    assert shown == {0: [], 1: [("g3", 4.0)]}


def test_data_and_caption_say_how_a_number_was_read(
    tables_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of our runs, and figures without printed numbers, are the same as without claims."""
    monkeypatch.setattr("harness.report.figures.drawing.KINDS", (strong_scaling.KIND, received.KIND))
    before = {
        path.name: path.read_bytes() for path in draw_all(FramedTables(tables_of()), tmp_path / "before")
    }
    folder = tables_of(claim(1, SPEEDUP), claim(2, {**SPEEDUP, "number": 5.0, "bound": "at most"}))
    after = {path.name: path.read_bytes() for path in draw_all(FramedTables(folder), tmp_path / "after")}
    caption = after["strong-scaling.txt"].decode()
    assert "hollow marker" in caption and "caret" in caption
    data, ours = (pd.read_csv(tmp_path / name / "strong-scaling.csv") for name in ("after", "before"))
    printed = data[data.source == "published"]
    assert [*printed.read] == ["ratio", "ratio"] and [*printed.place.unique()] == ["Section 7"]
    pd.testing.assert_frame_equal(data[: len(ours)][[*ours]], ours, check_dtype=False)
    for name in ("received.csv", "received.txt"):
        assert before[name] == after[name]
