"""All figures of some collected tables: of each dataset by itself, and of all datasets on one page."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.figures import accuracy, breakdown, costs, layout, sampling, scaling, throughput, utilisation
from harness.figures.kind import Kind, Tables, read_tables
from harness.figures.save import EMPTY, save, styled, tables_digest
from harness.results.parquet import read_collected
from harness.results.schema import MISSING

KINDS: tuple[Kind[Any], ...] = (
    scaling.KIND,
    throughput.KIND,
    breakdown.KIND,
    sampling.KIND,
    utilisation.KIND,
    costs.KIND,
    accuracy.KIND,
)
"""In the order in which they are shown."""


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files, without their ending: of one dataset, or of all."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}" if dataset else kind


def draw_all(tables: Path, out: Path) -> list[Path]:
    """Draws what the tables hold; returns the files."""
    runs, collected = read_collected(tables, "runs"), read_tables(tables)
    if (runs.status == MISSING).all():
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw."
        )
    digest = tables_digest(tables)
    with styled():
        return [path for kind in KINDS for path in _draw(kind, runs, collected, out, digest)]


def _draw(kind: Kind[Any], runs: pd.DataFrame, tables: Tables, out: Path, digest: str) -> list[Path]:
    """Of each dataset, and of all. A figure that has nothing to show is there too, and says so."""
    found, paths = kind.panels(runs), []
    shown = [kind.shown(panel, tables) for panel in found]
    for dataset in ("", *sorted({panel.dataset for panel in found})):
        chosen = [
            (panel, what)
            for panel, what in zip(found, shown, strict=True)
            if what and dataset in ("", panel.dataset)
        ]
        figure = kind.page(*zip(*chosen, strict=True)) if chosen else layout.blank(EMPTY)
        said = f"tables {digest}" if chosen else f"{EMPTY}: tables {digest}"
        paths += save(figure, out, name_of(kind.name, dataset), said)
    return paths
