"""Points over points: the front of time and memory, and predictions over measurements."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from harness.report.figures.axis_scales import choose_log_ticks
from harness.report.figures.kind import read_tables
from harness.report.figures.kinds import prediction, time_and_memory
from harness.report.figures.marks.points import spread_apart
from harness.report.figures.panels import split_panels
from harness.results.parquet import read_collected
from harness.results.statistics import find_persistent_bytes

Collected = Callable[[Callable[[Path], object]], Path]


def test_front_has_the_curves_that_no_other_beats_in_both(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    sizes = {"serial": (4.0, 100), "plexus": (1.0, 400), "rdm": (2.0, 200), "cagnet-1d": (3.0, 300)}

    def write(folder: Path) -> None:
        for name, (seconds, size) in sizes.items():
            spec = synthetic.make_spec(name, "tiny", {"p": 1 if name == "serial" else 4})
            tables = synthetic.make_tables(spec, seconds, 0.0)
            tables["memory"]["persistent_bytes"] = [
                size if rank == 0 else 1 for rank in tables["memory"]["rank_id"]
            ]
            synthetic.write_record(
                folder, spec.model_dump(mode="json"), synthetic.make_record(spec, tables), tables
            )

    folder = collected(write)
    (panel,) = split_panels(read_collected(folder, "runs"))
    frame = time_and_memory.make_frame(panel, read_tables(folder))
    assert frame is not None
    assert set(frame.curve[frame[time_and_memory.FRONT]]) == {"serial", "plexus", "rdm"}
    held = frame.set_index("curve")[time_and_memory.MEMORY]
    assert held.to_dict() == {name: 3 * size for name, (_, size) in sizes.items()}, "three tensors"


def test_equal_memory_says_nothing(synthetic: SimpleNamespace, collected: Collected) -> None:
    folder = collected(
        lambda to: [
            synthetic.write_ok(to, synthetic.make_spec(name, "tiny", {"p": 4}), 1.0)
            for name in ("rdm", "plexus")
        ]
    )
    (panel,) = split_panels(read_collected(folder, "runs"))
    assert time_and_memory.make_frame(panel, read_tables(folder)) is None


def test_most_persistent_bytes_are_those_of_one_rank() -> None:
    ranks, sizes = {"rank_id": [0, 0, 5, 5]}, {"persistent_bytes": [1, 2, 30, 40]}
    table = pd.DataFrame({"run_id": ["a"] * 3 + ["b"], **ranks, **sizes})
    assert find_persistent_bytes(table).to_dict() == {"a": 30, "b": 40}


def test_predictions_are_paired_with_runs_of_their_grid(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    measured = {(1, 4): 1.0, (2, 2): 2.0, (4, 1): 4.0}

    def write(folder: Path) -> None:
        for (x, y), seconds in measured.items():
            for launch, factor in enumerate((0.9, 1.0, 1.3)):
                spec = synthetic.make_spec("plexus", "tiny", {"x": x, "y": y, "z": 1}, launch=launch)
                synthetic.write_quoted(folder, spec, seconds * factor, "measured")
            spec = synthetic.make_spec("plexus", "tiny", {"x": x, "y": y, "z": 1}, seed=9)
            synthetic.write_quoted(folder, spec, {1: 1.1, 2: 1.0, 4: 2.0}[x], "predicted")
        synthetic.write_quoted(
            folder, synthetic.make_spec("plexus", "tiny", {"x": 8}, seed=9), 1.0, "predicted"
        )

    folder = collected(write)
    (panel,) = split_panels(read_collected(folder, "runs"))
    frame = prediction.make_frame(panel, read_tables(folder))
    assert frame is not None
    pairs = sorted(zip(frame[prediction.MEASURED], frame[prediction.PREDICTED], strict=True))
    assert pairs == [(1.0, 1.1), (2.0, 1.0), (4.0, 2.0)]
    assert sorted(frame[prediction.AGREEMENT]) == pytest.approx([0.5, 0.5, 1 / 1.1])
    assessed = prediction.assess_predictions(frame)
    assert all(number in assessed for number in ("3 runs", "0.50", "50 %"))


def test_two_pairs_are_too_few_for_an_order(synthetic: SimpleNamespace, collected: Collected) -> None:
    def write(folder: Path) -> None:
        for ranks in (2, 4):
            for seed, source in ((0, "measured"), (9, "predicted")):
                spec = synthetic.make_spec("rdm", "tiny", {"p": ranks}, seed=seed)
                synthetic.write_quoted(folder, spec, 1.0, source)

    folder = collected(write)
    (panel,) = split_panels(read_collected(folder, "runs"))
    assert prediction.make_frame(panel, read_tables(folder)) is None


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.5, 0.5], [0.5, 0.6, 0.7]),
        ([0.99, 1.0], [0.85, 0.95]),
        ([0.0], [0.05]),
    ],
)
def test_labels_move_apart_only_as_far_as_they_must(heights: list[float], expected: list[float]) -> None:
    assert spread_apart(heights, 0.1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-3, 9e-3, [1e-3, 2e-3, 5e-3]),
        (1e-3, 1e-1, [1e-3, 1e-2, 1e-1]),
        (1.0, 1e9, [1e-1, 1e2, 1e5, 1e8]),
        (9.3, 9.6, [9.3, 9.4, 9.5, 9.6]),
    ],
)
def test_logarithmic_ticks_leave_room_for_their_labels(
    low: float, high: float, expected: list[float]
) -> None:
    assert choose_log_ticks(low, high, 0.3) == pytest.approx(expected)
