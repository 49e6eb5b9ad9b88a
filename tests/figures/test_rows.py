"""Rows of dots have the numbers of hand-made tables: values, notes, order, and which runs they show."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.report.figures.drawing import style_context
from harness.report.figures.frames import add_notes, has_differences, sort_rows
from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.kinds import epoch_time, evaluation, gain, papers, received
from harness.report.figures.marks import Dots, Facet
from harness.report.figures.panels import EPOCH, Panel
from harness.results.parquet import read_claims_table, read_collected

Collected = Callable[[Callable[[Path], object]], Path]
Write = Callable[..., object]


@pytest.fixture
def frame_of(collected: Collected) -> Callable[[FigureKind, Callable[[Path], object]], pd.DataFrame | None]:
    """`frame_of(kind, write)`: the frame of the only panel of the runs that `write` makes."""

    def make(kind: FigureKind, write: Callable[[Path], object]) -> pd.DataFrame | None:
        folder = collected(write)
        panels, tables = kind.split_panels(read_collected(folder, "runs")), read_tables(folder)
        frames = [kind.make_frame(panel, tables) for panel in panels]
        (frame,) = [frame for frame in frames if frame is not None] or [None]
        return frame

    return make


@pytest.fixture
def add(synthetic: SimpleNamespace) -> Write:
    """`add(folder, strategy, grid, **summary)`: write a run that has these values in its summary."""

    def write(
        folder: Path, strategy: str, grid: dict[str, int], *, source: str = "measured", launch: int = 0,
        training: dict[str, Any] | None = None, predicted: Any = None, **summary: Any,
    ) -> None:  # fmt: skip
        seed = ["measured", "published", "predicted"].index(source)
        spec = synthetic.make_spec(strategy, "tiny", grid, launch=launch, seed=seed, training=training or {})
        record = {"run_id": spec.run_id, "label": spec.label, "status": "ok", "source": source}
        record |= {"summary": summary, "provenance": {}, "error": None}
        record |= {"predicted": predicted} if predicted else {}
        synthetic.write_record(folder, spec.model_dump(mode="json"), record, {})

    return write


def notes_of(frame: pd.DataFrame | None) -> dict[str, str]:
    """The note of each row, in the order of the rows."""
    assert frame is not None
    return dict(zip(frame.label, frame.note, strict=True))


def test_epoch_times_are_medians_of_the_best_grid_at_most_ranks(
    frame_of: Any, add: Write, synthetic: SimpleNamespace
) -> None:
    def write(folder: Path) -> None:
        add(folder, "serial", {"p": 1}, epoch_seconds_median=5.0)
        add(folder, "plexus", {"x": 1, "y": 2, "z": 1}, epoch_seconds_median=0.1)
        for launch, seconds in enumerate((2.0, 2.4, 2.2)):
            add(folder, "plexus", {"x": 4, "y": 1, "z": 1}, launch=launch, epoch_seconds_median=seconds)
        add(folder, "plexus", {"x": 2, "y": 2, "z": 1}, epoch_seconds_median=3.0)
        add(folder, "cagnet-1d", {"p": 4}, epoch_seconds_median=1.0)
        for ranks, status in ((2, "timeout"), (8, "oom"), (16, "oom")):
            spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": ranks})
            synthetic.write_failed(folder, spec, status, "MemoryError", "out of memory")

    frame = frame_of(epoch_time.KIND, write)
    assert notes_of(frame) == {
        "cagnet-1d, 4 ranks": "1.00 s, oom on 8 ranks",
        "plexus, 4×1×1": "2.20 s",
        "serial, 1 rank": "5.00 s",
    }
    assert sorted(frame[frame.curve == "plexus"][EPOCH]) == [2.0, 2.2, 2.4]


def test_curve_whose_runs_all_failed_has_a_row_without_a_value(
    frame_of: Any, add: Write, synthetic: SimpleNamespace
) -> None:
    def write(folder: Path) -> None:
        add(folder, "serial", {"p": 1}, epoch_seconds_median=5.0)
        add(folder, "plexus", {"x": 2, "y": 1, "z": 1}, epoch_seconds_median=2.0)
        spec = synthetic.make_spec("rdm", "tiny", {"p": 4})
        synthetic.write_failed(folder, spec, "oom", "MemoryError", "out of memory")

    frame = frame_of(epoch_time.KIND, write)
    assert list(notes_of(frame).items())[-1] == ("rdm, 4 ranks", "oom on 4 ranks")
    assert frame[EPOCH].isna().sum() == 1


def test_predictions_have_their_interval(frame_of: Any, add: Write) -> None:
    def write(folder: Path) -> None:
        add(folder, "serial", {"p": 1}, epoch_seconds_median=5.0)
        interval = {"seconds": {"low": 1.5, "value": 2.0, "high": 3.5}}
        add(folder, "cagnet-1d", {"p": 64}, source="predicted", predicted=interval, epoch_seconds_median=2.0)

    frame = frame_of(epoch_time.KIND, write).set_index("curve")
    assert tuple(frame.loc["cagnet-1d predicted", ["low", "high"]]) == (1.5, 3.5)
    assert frame.loc["serial", ["low", "high"]].isna().all()


def test_single_curve_is_not_compared(frame_of: Any, add: Write) -> None:
    assert (
        frame_of(epoch_time.KIND, lambda folder: add(folder, "serial", {"p": 1}, epoch_seconds_median=5.0))
        is None
    )


def test_received_elements_are_divided_by_their_bound(frame_of: Any, add: Write) -> None:
    def write(folder: Path) -> None:
        time = {"epoch_seconds_median": 1.0}
        add(folder, "serial", {"p": 1}, elements_received=0, elements_bound=0, **time)
        add(folder, "cagnet-1d", {"p": 4}, elements_received=2800, elements_bound=1000, **time)
        add(folder, "bns-gcn", {"p": 4}, elements_received=1500, elements_bound=1000, **time)
        add(folder, "plexus", {"x": 4, "y": 1, "z": 1}, elements_received=22_000, elements_bound=0, **time)

    frame = frame_of(received.KIND, write)
    assert notes_of(frame) == {
        "bns-gcn, 4 ranks": "1.50× bound",
        "cagnet-1d, 4 ranks": "2.80× bound",
        "plexus, 4×1×1": "22.0 k",
    }, "serial receives nothing"
    assert frame[received.BOUND].tolist()[:2] == [1000, 1000]
    assert pd.isna(frame[received.BOUND].iloc[2])


def test_bytes_are_named_if_they_have_another_order(add: Write, collected: Collected) -> None:
    def write(folder: Path) -> None:
        for name, words in (("cagnet-1d", 1000), ("adaqp", 2000)):
            add(folder, name, {"p": 4}, epoch_seconds_median=1.0, elements_received=words, elements_bound=500)

    folder = collected(write)
    runs = read_collected(folder, "runs")
    runs["bytes_received"] = runs["strategy.name"].map({"cagnet-1d": 4000.0, "adaqp": 1000.0})
    (panel,) = received.KIND.split_panels(runs)
    frame = received.make_frame(panel, read_tables(folder))
    assert [*notes_of(frame).values()] == ["2.00× bound, 4.00 kB", "4.00× bound, 1.00 kB"]


def test_equal_numbers_without_a_bound_are_not_drawn(frame_of: Any, add: Write) -> None:
    def write(folder: Path) -> None:
        for name in ("plexus", "rdm"):
            add(folder, name, {"p": 4}, epoch_seconds_median=1.0, elements_received=1000)

    assert frame_of(received.KIND, write) is None


def test_best_accuracies_of_all_families_and_papers_share_a_panel(
    frame_of: Any, add: Write, synthetic: SimpleNamespace
) -> None:
    """Tables I and II of ScaleGNN: the best accuracy of all evaluations, compared with the printed one."""

    def write(folder: Path) -> None:
        spec = synthetic.make_spec("scalegnn", "tiny", {"d": 4}, training={"batch": 64})
        tables = synthetic.make_tables(spec, 1.0, 0.0)
        known = {"eval_seconds": 0.1, "split": "test"}
        tables["accuracy"] = pd.DataFrame(
            [
                {"epoch": n, "train_seconds": n + 1.0, "accuracy": value, **known}
                for n, value in enumerate((0.9, 0.96, 0.95))
            ]
        )
        record = synthetic.make_record(spec, tables)
        record["summary"] |= {"accuracy_test": 0.95}
        synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)
        add(folder, "serial", {"p": 1}, epoch_seconds_median=1.0, accuracy_test=0.77)
        add(folder, "scalegnn", {"d": 8}, source="published", accuracy_test=0.963)
        add(folder, "scalegnn", {"d": 16}, source="published", epoch_seconds_median=0.5)

    frame = frame_of(evaluation.ACCURACY_KIND, write)
    assert [*notes_of(frame).values()] == ["96.3 %", "96.0 %", "77.0 %"]
    assert list(frame.source) == ["published", "measured", "measured"]


def test_time_to_target_names_those_that_did_not_reach_it(frame_of: Any, add: Write) -> None:
    def write(folder: Path) -> None:
        target = {"training": {"target": 0.6}, "epoch_seconds_median": 1.0}
        add(folder, "serial", {"p": 1}, seconds_to_target=30.0, **target)
        add(folder, "plexus", {"p": 4}, seconds_to_target=8.0, **target)
        add(folder, "rdm", {"p": 4}, **target)

    frame = frame_of(evaluation.TARGET_KIND, write)
    assert [*notes_of(frame).values()] == ["8.00 s", "30.0 s", "not reached"]


def test_gain_is_the_ratio_of_throughputs_at_the_most_common_ranks(frame_of: Any, add: Write) -> None:
    def write(folder: Path) -> None:
        batch = {"training": {"batch": 64}, "epoch_seconds_median": 1.0}
        for ranks, theirs, ours in ((2, 100.0, 150.0), (4, 200.0, 500.0), (8, None, 900.0)):
            if theirs:
                add(folder, "distdgl", {"p": ranks}, vertices_per_second=theirs, **batch)
            add(folder, "quiver", {"p": ranks}, vertices_per_second=ours, **batch)
        add(folder, "graphsage", {"p": 4}, vertices_per_second=50.0, **batch)

    frame = frame_of(gain.KIND, write)
    assert notes_of(frame) == {"quiver, 4 ranks": "2.50×", "graphsage, 4 ranks": "0.250×"}


@pytest.fixture(scope="module")
def claims(tables: Path) -> Panel:
    (panel,) = papers.split_by_paper_figure(read_claims_table(tables))
    return panel


def test_results_of_papers_are_drawn_and_settings_are_not(claims: Panel, tables: Path) -> None:
    frame = papers.make_frame(claims, read_tables(tables))
    assert frame is not None
    assert list(zip(frame.verdict, frame.ratio, strict=True))[:3] == [
        ("contradicted", 0.125),
        ("holds", 1.1),
        ("within a factor", 1.6),
    ]
    assert [*notes_of(frame).values()][-1] == "untested / 2 x", "the printed value is there all the same"
    assert (frame.low[1], frame.high[1]) == pytest.approx((1.1 / 1.3, 1.1 * 1.3))
    settings = claims.runs[claims.runs.basis == "experiment"]
    assert not set(settings.id) & set(frame.curve)


def test_settings_and_facts_are_drawn_where_no_result_has_a_ratio(claims: Panel, tables: Path) -> None:
    settings = Panel("a", "", claims.runs[claims.runs.basis == "experiment"])
    frame = papers.make_frame(settings, read_tables(tables))
    assert frame is not None
    assert [*frame.curve] == [*settings.runs.id]
    nothing = Panel("a", "", settings.runs.assign(ratio=float("nan"), ratio_low=0.0, ratio_high=0.0))
    assert papers.make_frame(nothing, read_tables(tables)) is None


def test_range_is_drawn_as_an_interval_without_a_marker(claims: Panel, tables: Path) -> None:
    ranges = Panel("a", "", claims.runs.assign(ratio=float("nan")))
    frame = papers.make_frame(ranges, read_tables(tables))
    assert frame is not None and frame.ratio.isna().all()
    assert (frame.low[frame.high.notna()] > 0).all() and frame.high.notna().sum() >= 3


def test_claims_with_the_same_words_have_rows_of_their_own(claims: Panel, tables: Path) -> None:
    frame = papers.make_frame(Panel("a", "", claims.runs.assign(what="share")), read_tables(tables))
    assert frame is not None
    assert frame.label.nunique() == len(frame) > 1


def test_median_marker_interval_and_tick_are_drawn_at_their_values(
    frame_of: Any, add: Write, collected: Collected
) -> None:
    panel = SimpleNamespace(looks={}, runs=pd.DataFrame())
    looks = dict.fromkeys("ab", evaluation_look())
    rows = [("a", 1.0, 0.5), ("a", 2.0, 0.5), ("a", 6.0, 0.5), ("b", 8.0, float("nan"))]
    frame = pd.DataFrame(rows, columns=["curve", "value", "bound"])
    frame = frame.assign(strategy="s", source="measured", status="ok", label=frame.curve, note="")
    mark = Dots(
        epoch_time.SECONDS._replace(column="value"), reference=epoch_time.SECONDS._replace(column="bound")
    )
    panel.looks = looks
    with style_context():
        axes = Figure().add_subplot()
        mark.draw(axes, Facet("", frame, panel))  # type: ignore[arg-type]
    middle = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]  # type: ignore[index]
    ranges = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    ticks = {float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "|"}  # type: ignore[index]
    assert (middle, ranges, ticks) == ([2.0, 8.0], [(1.0, 6.0)], {0.5})
    (launches,) = axes.collections
    assert sorted(launches.get_offsets()[:, 0]) == [1.0, 2.0, 6.0]  # type: ignore[call-overload,index]


def evaluation_look() -> Any:
    return papers.VERDICTS["holds"]


def test_rows_are_sorted_by_median_and_stay_together() -> None:
    frame = pd.DataFrame(
        {"label": ["b", "a", "b", "c"], "x": [3.0, 2.0, 9.0, None], "failures": ["", "", "", "oom"]}
    )
    frame.index = pd.Index([0, 2, 5, 9])  # rows between them were dropped
    ordered = add_notes(sort_rows(frame, "x"), lambda rows: f"{rows.x.median():g}")
    assert ordered.label.tolist() == ["a", "b", "b", "c"]
    assert ordered.note.tolist() == ["2", "6", "6", "nan, oom"]
    assert "failures" not in ordered


def test_values_that_agree_in_three_digits_say_nothing() -> None:
    frame = pd.DataFrame({"label": ["a", "b"], "x": [1.0, 1.0001], "y": [1.0, 1.1]})
    assert (has_differences(frame, "x"), has_differences(frame, "y")) == (False, True)


def test_claims_of_other_tables_are_not_shown(
    tables: Path, synthetic: SimpleNamespace, collected: Collected
) -> None:
    others = collected(
        lambda runs: synthetic.write_ok(runs, synthetic.make_spec("serial", "isolate-3-8m", {"p": 1}), 1.0)
    )
    shutil.copy(tables / "claims.parquet", others)
    assert not read_claims_table(tables).empty
    assert read_claims_table(others).empty
