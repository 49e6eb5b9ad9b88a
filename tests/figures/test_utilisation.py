"""How busy ranks are is what the windows say, epoch after epoch."""

from pathlib import Path

import pandas as pd
import pytest

from harness.figures import utilisation
from harness.figures.kind import read_tables
from harness.figures.panels import split_panels

NAN = float("nan")


def windows(device: float = NAN) -> pd.DataFrame:
    """Two timed epochs of two ranks, of two windows each, and a warm-up."""
    rows = [
        (epoch, rank, window, 0.01 if window == 0 else 0.004, share)
        for epoch, shares in ((-1, (1.0, 1.0)), (0, (0.5, 0.25)), (1, (0.75, 0.0)))
        for rank in (0, 1)
        for window, share in enumerate(shares)
    ]
    frame = pd.DataFrame(rows, columns=["epoch", "rank", "window", "seconds", "share"])
    frame["computing_seconds"] = frame.seconds * frame.share * (1 + 0.2 * (frame["rank"] - 0.5))
    return frame.assign(communicating_seconds=0.0, device_percent=device)


def test_windows_stand_one_after_the_other() -> None:
    """The mean over ranks; warm-up is not shown."""
    series = utilisation.average_ranks(windows())
    assert list(series.begin) == pytest.approx([0, 0.01, 0.014, 0.024])
    assert list(series.percent) == pytest.approx([50, 25, 75, 0])


def test_what_a_driver_tells_is_taken() -> None:
    assert list(utilisation.average_ranks(windows(device=42)).percent) == [42] * 4


def test_curves_without_windows_are_left_out(tables: Path, runs: pd.DataFrame) -> None:
    collected = read_tables(tables)
    (panel,) = [panel for panel in split_panels(runs) if panel.dataset == "products-14m"]
    assert [strip.label for strip in utilisation.select_strips(panel, collected)] == [
        "serial",
        "cagnet-1d",
        "plexus",
    ]
    assert utilisation.select_strips(panel, collected._replace(utilisation={})) == []
