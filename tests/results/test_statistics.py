"""The definitions of the project's numbers, against counting by hand and against scipy."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results import epoch_parts, run_summary, statistics
from harness.results.collect import collect
from harness.results.parquet import RunTable

PIECES = [("convolve", "spmm"), ("convolve", "glue"), ("sync", "all_reduce"), ("other", "glue")]


def epochs_of(seconds: list[list[float]], first: int = 0) -> pd.DataFrame:
    """The table of epochs in which row e has the seconds of each rank."""
    rows = [
        {"epoch": first + epoch, "rank_id": rank, "seconds": value, "loss": 1.0}
        for epoch, ranks in enumerate(seconds)
        for rank, value in enumerate(ranks)
    ]
    return pd.DataFrame(rows)


def ledger_of(pieces: dict[tuple[int, int], dict[tuple[str, str], float]]) -> pd.DataFrame:
    """A ledger with the seconds of each (phase, op) on each (epoch, rank)."""
    rows = [
        {"epoch": epoch, "rank_id": rank, "phase": phase, "op": op, "tensor": "", "seconds": seconds}
        for (epoch, rank), parts in pieces.items()
        for (phase, op), seconds in parts.items()
    ]
    return pd.DataFrame(rows, columns=["epoch", "rank_id", "phase", "op", "tensor", "seconds"])


def test_an_epoch_takes_as_long_as_its_slowest_rank() -> None:
    epochs = epochs_of([[9, 9], [1, 5], [2, 1], [4, 3]], first=-1)
    assert run_summary.compute_median_epoch(epochs) == 4  # of 5, 2, 4; the warm-up does not count


def test_the_papers_count_epochs_two_to_nine() -> None:
    epochs = epochs_of([[100.0]] * 2 + [[float(n)] for n in range(2, 10)] + [[1000.0]] * 5)
    assert run_summary.compute_paper_epoch(epochs) == pytest.approx(5.5)


def test_two_epochs_are_too_few_for_the_papers() -> None:
    assert run_summary.compute_paper_epoch(epochs_of([[1.0], [2.0]])) is None


def test_the_sum_of_phases_is_a_mean_over_ranks_without_what_has_no_name() -> None:
    named, nameless = ("convolve", "spmm"), ("other", "glue")
    ledger = ledger_of(
        {(0, 0): {named: 3, nameless: 9}, (0, 1): {named: 1}, (1, 0): {named: 8}, (1, 1): {named: 8}}
    )
    assert run_summary.compute_phase_sum(ledger) == 5  # the median of 2 and 8
    assert run_summary.compute_phase_sum(ledger.iloc[:0]) is None


PAIRS = st.lists(st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2)] * 2))


@given(PAIRS)
def test_rows_with_the_same_pair_have_the_same_number(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    first, place = run_summary.number_pairs(one, other)
    assert [pairs[row] for row in first[place]] == pairs
    assert sorted(first) == sorted(pairs.index(pair) for pair in set(pairs))


times = st.lists(st.floats(0.001, 100), min_size=1, max_size=7)


@given(st.lists(times, min_size=1, max_size=6), st.data())
def test_the_parts_of_the_median_epoch_add_up_to_it(seconds: list[list[float]], data: st.DataObject) -> None:
    """Whatever share of an epoch its rows cover, and whether the number of epochs is odd or even."""
    width = min(map(len, seconds))
    epochs = epochs_of([row[:width] for row in seconds])
    pieces = {
        (row.epoch, row.rank_id): {key: row.seconds * data.draw(st.floats(0, 0.25)) for key in PIECES}
        for row in epochs.itertuples()
    }
    parts = epoch_parts.split_launch(epochs, ledger_of(pieces))
    assert sum(parts.values()) == pytest.approx(run_summary.compute_median_epoch(epochs), rel=1e-9)
    assert all(seconds > -1e-9 for seconds in parts.values())


def test_the_parts_are_those_of_the_slowest_rank() -> None:
    spmm, wait = ("convolve", "spmm"), ("sync", "all_reduce")
    ledger = ledger_of({(0, 0): {spmm: 1, wait: 1}, (0, 1): {spmm: 4, wait: 0}})
    parts = epoch_parts.split_launch(epochs_of([[2.0, 4.5]]), ledger)
    assert parts == {(*spmm, ""): 4, (*wait, ""): 0, ("other", "glue", ""): 0.5}


def test_runs_are_split_together_as_each_of_them_is_split_alone() -> None:
    spmm, wait = ("convolve", "spmm"), ("sync", "all_reduce")
    epochs = {"a": epochs_of([[2.0, 4.5], [3.0, 1.0]]), "b": epochs_of([[1.0]]), "c": epochs_of([[7.0]])}
    ledgers = {
        "a": ledger_of({(0, 1): {spmm: 4, wait: 0.25}, (1, 0): {spmm: 2}}),
        "b": ledger_of({(0, 0): {spmm: 0.5}}),
    }
    whole = [
        pd.concat([rows.assign(run_id=run) for run, rows in tables.items()], ignore_index=True)
        for tables in (epochs, ledgers)
    ]
    parts = epoch_parts.split_epochs(*whole)
    assert parts == {run: epoch_parts.split_launch(epochs[run], ledgers[run]) for run in "ab"}
    table = RunTable(whole[0])
    assert list(table) == ["a", "b", "c"]
    assert table.select(["c", "unknown", "a"]).seconds.tolist() == [7.0, 2.0, 4.5, 3.0, 1.0]
    assert table["b"].seconds.tolist() == [1.0]


def test_launches_are_summed_up_by_the_middle(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    values = [1.0, 5.0, 2.0, 4.0]
    frames, ledgers = {}, {}
    for launch, seconds in enumerate(values):
        spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
        summary = {"epoch_seconds_median": seconds, "epoch_seconds_paper": 2 * seconds}
        synthetic.write_ok(tmp_path / "runs", spec, seconds, summary=summary)
        frames[spec.run_id] = epochs_of([[seconds]])
        ledgers[spec.run_id] = ledger_of({(0, 0): {("convolve", "spmm"): seconds}})
    failed = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=9)
    synthetic.write_failed(tmp_path / "runs", failed, "timeout", "TimeoutError", "late")
    runs = collect(tmp_path / "runs", tmp_path).runs
    (row,) = statistics.summarize_configurations(runs).to_dict("records")
    assert (row["launches"], row["ok"], row["statuses"]) == (5, 4, "timeout")
    assert (row["epoch_seconds_median"], row["low"], row["high"]) == (3.0, 1.0, 5.0)
    assert row["epoch_seconds_paper"] == 6.0
    assert math.isnan(row["interval_low"])
    parts = {run: epoch_parts.split_launch(frames[run], ledgers[run]) for run in frames}
    parts = epoch_parts.split_launches(runs[runs.status == "ok"], parts)
    assert sum(parts.values()) == pytest.approx(3.0)


def test_competitors_are_compared_within_blocks(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """Plexus takes twice as long on equal nodes. Some allocations are three times slower."""
    slower = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0]
    for launch, factor in enumerate(slower):
        for position, (strategy, grid, seconds) in enumerate(
            [("cagnet-1d", {"p": 2}, 1.0), ("plexus", {"x": 2, "y": 1, "z": 1}, 2.0)]
        ):
            spec = synthetic.make_spec(strategy, "tiny", grid, launch=launch)
            origin = synthetic.provenance(block=f"job-7-launch-{launch}", position=position)
            summary = {"epoch_seconds_median": factor * seconds}
            synthetic.write_ok(tmp_path / "runs", spec, seconds, summary=summary, provenance=origin)
    alone = synthetic.make_spec("plexus", "tiny", {"x": 2, "y": 1, "z": 1}, launch=9)
    synthetic.write_ok(tmp_path / "runs", alone, 1.0, summary={"epoch_seconds_median": 99.0})
    (pair,) = statistics.compare_competitors(collect(tmp_path / "runs", tmp_path).runs)
    ratio = 2.0 if pair.a.startswith("cagnet") else 0.5
    assert pair.ratios == [ratio] * 6 and pair.ratio == ratio
    assert pair.interval == (ratio, ratio)


def test_an_interval_appears_with_the_sixth_launch(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    for launch in range(6):
        spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
        synthetic.write_quoted(tmp_path / "runs", spec, 1.0 + launch, "measured")
    (row,) = statistics.summarize_configurations(collect(tmp_path / "runs", tmp_path).runs).to_dict("records")
    assert (row["interval_low"], row["interval_high"]) == (1.0, 6.0)


def test_sources_and_settings_are_never_summed_up_together(
    synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    synthetic.write_quoted(runs, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0, "measured")
    synthetic.write_quoted(runs, synthetic.make_spec("serial", "tiny", {"p": 1}, launch=1), 2.0, "predicted")
    synthetic.write_quoted(
        runs, synthetic.make_spec("serial", "tiny", {"p": 1}, protocol="faithful"), 3.0, "measured"
    )
    assert len(statistics.summarize_configurations(collect(runs, tmp_path).runs)) == 3


def test_summing_up_twice_the_configurations_takes_as_many_operations_on_frames(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks in range(1, 9):
        spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": ranks})
        synthetic.write_quoted(tmp_path / "runs", spec, 1.0 / ranks, "measured")
    runs = collect(tmp_path / "runs", tmp_path).runs
    calls: list[int] = []
    select = pd.DataFrame.__getitem__

    def counted(frame: pd.DataFrame, key: object) -> object:
        calls[-1] += 1
        return select(frame, key)

    monkeypatch.setattr(pd.DataFrame, "__getitem__", counted)
    for number in (4, 8):
        calls.append(0)
        assert len(statistics.summarize_configurations(runs.head(number))) == number
    assert calls[0] == calls[1]
