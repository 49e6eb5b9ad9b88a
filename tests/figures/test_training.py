"""Accuracies and losses are those of the runs, and exact strategies part from approximations."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.report.figures.drawing import style_context
from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.kinds import accuracy, loss_difference, training_loss
from harness.report.figures.marks import Facet
from harness.results.parquet import read_collected

pytestmark = pytest.mark.long

Collected = Callable[[Callable[[Path], object]], Path]
FOUND = [0.2, 0.5, 0.75]
SERIAL = [2.0, 1.0, 0.5, 0.25]
EPSILON = 2.0**-23


def facets_of(folder: Path, kind: FigureKind) -> list[Facet]:
    return kind.make_facets(kind.split_panels(read_collected(folder, "runs")), read_tables(folder))


@pytest.fixture
def write_losses(synthetic: SimpleNamespace) -> Callable[..., None]:
    """`write_losses(folder, strategy, losses, ranks)`: a run with these losses, two of them in warm-up epochs."""

    def write(folder: Path, strategy: str, losses: list[float], ranks: int = 2, **changes: object) -> None:
        spec = synthetic.make_spec(strategy, "tiny", {"p": ranks}, **changes)
        tables = synthetic.make_tables(spec, 1.0, 0.0)
        rows = [
            {"epoch": epoch - 2, "rank_id": rank, "seconds": 1.0, "loss": loss}
            for epoch, loss in enumerate(losses)
            for rank in range(ranks)
        ]
        tables["epochs"] = pd.DataFrame(rows)
        synthetic.write_record(
            folder, spec.model_dump(mode="json"), synthetic.make_record(spec, tables), tables
        )

    return write


def test_an_accuracy_line_is_a_run_at_the_largest_number_of_ranks(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for ranks, launch in ((1, 0), (2, 0), (2, 1)):
            target = {"target": 0.7}
            spec = synthetic.make_spec("scalegnn", "tiny", {"d": ranks}, training=target, launch=launch)
            tables = synthetic.make_tables(spec, 1.0, 0.0)
            rows = [
                {
                    "epoch": e,
                    "train_seconds": e + 1.0 + launch,
                    "eval_seconds": 0.1,
                    "split": split,
                    "accuracy": value,
                }
                for e, value in enumerate(FOUND)
                for split in ("train", "test")
            ]
            tables["accuracy"] = pd.DataFrame(rows)
            record = synthetic.make_record(spec, tables)
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)

    (facet,) = facets_of(collected(write), accuracy.KIND)
    assert set(facet.frame.ranks) == {2}
    with style_context():
        axes = Figure().add_subplot()
        accuracy.KIND.mark.draw(axes, facet)
    *runs, target = [line for line in axes.lines if len(line.get_xdata())]
    assert sorted(line.get_xydata().tolist() for line in runs) == [
        [[1.0, 0.2], [2.0, 0.5], [3.0, 0.75]],
        [[2.0, 0.2], [3.0, 0.5], [4.0, 0.75]],
    ]
    assert (set(target.get_ydata()), target.get_label()) == ({0.7}, "target")
    low, high = axes.get_ylim()
    assert 0.55 / (high - low) > 0.8, "the values fill the axis"


def test_full_graph_and_mini_batches_share_the_axes_of_accuracy(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Time to an accuracy compares strategies whose epochs cannot be compared."""

    def write(folder: Path) -> None:
        for name, batch in (("plexus", 0), ("distdgl", 64)):
            spec = synthetic.make_spec(name, "tiny", {"p": 2}, training={"batch": batch})
            tables = synthetic.make_tables(spec, 1.0, 0.0)
            once = tables["accuracy"].assign(accuracy=0.5)
            tables["accuracy"] = pd.concat([once.assign(epoch=epoch) for epoch in range(3)])
            record = synthetic.make_record(spec, tables)
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)

    folder = collected(write)
    (facet,) = facets_of(folder, accuracy.KIND)
    assert set(facet.frame.curve) == {"plexus", "distdgl"}


def test_agreement_is_the_difference_to_the_loss_of_serial_training(
    collected: Collected, write_losses: Callable[..., None]
) -> None:
    def write(folder: Path) -> None:
        write_losses(folder, "serial", SERIAL, ranks=1)
        write_losses(folder, "cagnet-1d", [loss * (1 + 4 * EPSILON) for loss in SERIAL])
        write_losses(folder, "sancus", [loss + 0.125 for loss in SERIAL])
        write_losses(folder, "plexus", SERIAL)
        write_losses(folder, "plexus", [9.0, 9.0, 9.0, 9.0], seed=1)

    (facet,) = facets_of(collected(write), loss_difference.KIND)
    rounding = EPSILON * np.median(SERIAL)
    assert facet.frame.rounding.unique().tolist() == pytest.approx([rounding])
    found = {curve: rows.difference.tolist() for curve, rows in facet.frame.groupby("curve")}
    assert found["sancus"] == pytest.approx([0.125] * 4)
    assert found["cagnet-1d"] == pytest.approx([4 * EPSILON * loss for loss in SERIAL])
    assert found["plexus"] == pytest.approx([rounding / 10] * 4), "0 has no place on a logarithmic axis"
    assert facet.frame.epoch.unique().tolist() == [1, 2, 3, 4], "warm-up epochs train too"
    with style_context():
        axes = Figure().add_subplot()
        loss_difference.KIND.mark.draw(axes, facet)
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert low < rounding / 10 and high > 0.125
    (reference,) = [line for line in axes.lines if line.get_label() == "rounding"]
    assert set(reference.get_ydata()) == {rounding}


def test_the_strategies_that_differ_most_have_colours(
    collected: Collected, write_losses: Callable[..., None]
) -> None:
    def write(folder: Path) -> None:
        write_losses(folder, "serial", SERIAL, ranks=1)
        for number in range(10):
            write_losses(folder, f"s{number}", [loss * (1 + 4.0**number * EPSILON) for loss in SERIAL])

    (facet,) = facets_of(collected(write), loss_difference.KIND)
    assert set(facet.highlights) == {f"s{number}" for number in range(2, 10)}


@pytest.mark.parametrize("with_serial", [True, False])
def test_losses_are_drawn_only_without_serial_training_and_if_they_differ(
    with_serial: bool, collected: Collected, write_losses: Callable[..., None]
) -> None:
    def write(folder: Path) -> None:
        write_losses(folder, "graphsage", SERIAL, training={"batch": 64})
        write_losses(folder, "distdgl", [loss + 0.1 for loss in SERIAL], training={"batch": 64})
        for name in ("cagnet-1d", "plexus", *(["serial"] if with_serial else [])):
            write_losses(folder, name, SERIAL, ranks=1)

    folder = collected(write)
    (facet,) = facets_of(folder, training_loss.KIND)
    assert set(facet.frame.curve) == {"graphsage", "distdgl"}
    assert facet.frame.loss[facet.frame.curve == "graphsage"].tolist() == SERIAL
    assert facets_of(folder, loss_difference.KIND) == [], (
        "all agree to the last bit, or nothing to compare with"
    )


def test_runs_of_fewer_than_three_epochs_have_no_line(
    collected: Collected, write_losses: Callable[..., None]
) -> None:
    def write(folder: Path) -> None:
        write_losses(folder, "serial", SERIAL, ranks=1)
        write_losses(folder, "plexus", [2.0, 1.1])
        write_losses(folder, "rdm", [2.0, 1.1, 0.5, float("nan")])

    (facet,) = facets_of(collected(write), loss_difference.KIND)
    assert facet.frame.groupby("curve").epoch.max().to_dict() == {"rdm": 3}
