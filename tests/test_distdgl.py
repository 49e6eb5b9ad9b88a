"""The comparison with DistDGL: how the amounts of ranks, epochs and launches become a table."""

from collections.abc import Callable
from math import isnan

import pandas as pd
import pytest

from benchmarks.competitors import INSTALL_DGL
from benchmarks.distdgl import (
    FANOUTS,
    ITS,
    OURS,
    Run,
    combine_epochs,
    combine_ranks,
    depth,
    epochs,
    list_growths,
    ratio_of_seconds,
    summarise,
)
from benchmarks.registry import Results


@pytest.mark.parametrize("compare", [epochs, depth], ids=["epochs", "depth"])
def test_without_dgl_the_page_says_how_to_install_it(
    compare: Callable[[], Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DGL_PYTHON", raising=False)
    assert list(compare()) == [INSTALL_DGL]


def test_slowest_rank_counts_and_rows_add_up() -> None:
    shares = {"loss": 2.0, "sampling": 0.1, "pulling": 0.3, "training": 0.2}
    ranks = [
        {"seconds": 1.0, "rows": 5, "bytes": 10, **shares, "accuracy": 0.5},
        {"seconds": 3.0, "rows": 7, "bytes": 30, **shares, "loss": 1.0},
    ]
    combined = combine_ranks(ranks)
    assert (combined["seconds"], combined["rows"], combined["bytes"]) == (3.0, 12, 40)
    assert (combined["loss"], combined["accuracy"]) == (1.5, 0.5)


def test_first_epoch_warms_up_and_the_last_has_loss_and_accuracy() -> None:
    rows = pd.DataFrame(
        {
            "run": [0, 0, 0],
            "epoch": [0, 1, 2],
            "seconds": [9.0, 2.0, 4.0],
            "loss": [3.0, 2.0, 1.0],
            "accuracy": [None, None, 0.8],
        }
    )
    (row,) = combine_epochs(rows).itertuples()
    assert (row.seconds, row.loss, row.accuracy) == (3.0, 1.0, 0.8)


def make_rows(launches: int = 6) -> pd.DataFrame:
    """Two, three and four layers, drawn once and again; four layers have ten times the rows of two."""
    programs = {OURS: range(3), ITS: range(6)}
    return pd.DataFrame(
        [
            {
                "launch": launch,
                "program": program,
                "run": run,
                "rows": 10.0 ** (run % 3 / 2),
                "seconds": (1 + run % 3) * (2 if program == ITS else 1),
                "speed": 8.0 / (1 + run % 3),
                "speed_with_pulling": 4.0,
            }
            for launch in range(launches)
            for program, runs in programs.items()
            for run in runs
        ]
    )


def test_growth_is_from_two_layers_to_four_of_each_program() -> None:
    runs = [Run(FANOUTS[layers], 16, 2, 4, replace) for replace in (False, True) for layers in FANOUTS]
    growths = {
        what: (value, interval)
        for _, what, value, interval in list_growths("g", make_rows(), runs, [2, 3, 8])
    }
    assert growths["rows by card"] == (4, "")
    assert growths[f"{OURS}, drawn once: rows"][0] == pytest.approx(10)
    assert growths[f"{ITS}, drawn again: seconds"] == (3.0, "3 - 3")
    assert growths[f"{ITS}, drawn once: time by speed"][0] == 3.0
    assert growths[f"{ITS}, drawn once: time by speed with pulling"][0] == 1.0
    assert f"{OURS}, drawn again: rows" not in growths


def test_ratio_is_ours_over_its_and_empty_where_only_distdgl_ran() -> None:
    rows = make_rows()
    assert ratio_of_seconds(rows, 0) == (0.5, "0.5 - 0.5")
    value, interval = ratio_of_seconds(rows, 5)
    assert isnan(value) and interval == ""
    assert summarise(rows, 2, ITS)["seconds"] == 6
