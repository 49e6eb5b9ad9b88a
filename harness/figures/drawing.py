"""All figures of some collected tables: of each dataset by itself, and of all datasets on one page."""

import re
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.figures import accuracy, breakdown, costs, scaling
from harness.figures.kind import Kind, read_tables
from harness.figures.panels import panels
from harness.figures.save import save, styled, tables_digest
from harness.results.parquet import read_collected

KINDS: tuple[Kind[Any], ...] = (scaling.KIND, breakdown.KIND, costs.KIND, accuracy.KIND)
"""In the order in which they are shown."""


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files, without their ending: of one dataset, or of all."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}" if dataset else kind


def draw_all(tables: Path, out: Path) -> list[Path]:
    """Draws what the tables hold; returns the files."""
    found = panels(read_collected(tables, "runs"))
    collected = read_tables(tables)
    if not found:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw."
        )
    shown = {kind.name: [kind.shown(panel, collected) for panel in found] for kind in KINDS}
    digest, paths = tables_digest(tables), []
    with styled():
        for dataset in ("", *sorted({panel.dataset for panel in found})):
            chosen = [number for number, panel in enumerate(found) if dataset in ("", panel.dataset)]
            for kind in KINDS:
                some = [shown[kind.name][number] for number in chosen]
                figure = kind.page([found[number] for number in chosen], some)
                paths += save(figure, out, name_of(kind.name, dataset), digest)
    return paths
