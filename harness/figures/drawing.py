"""All figures of some collected tables: of each dataset by itself, and of all datasets on one page."""

import re
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.figures import breakdown, costs, scaling
from harness.figures.bars import Group, height
from harness.figures.layout import legend, page, rows_of_three
from harness.figures.panels import Panel, panels
from harness.figures.save import save, styled, tables_digest
from harness.results.parquet import read_collected

SCALING, BREAKDOWN, COSTS = "strong-scaling", "breakdown", "costs"
BAR, FRAME = 0.145, 0.62  # inches


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files, without their ending: of one dataset, or of all."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}" if dataset else kind


def draw_all(tables: Path, out: Path) -> list[Path]:
    """Draws what the tables hold; returns the files."""
    runs = read_collected(tables, "runs")
    epochs, ledgers, memory = (
        _by_run(read_collected(tables, name)) for name in ("epochs", "ledger", "memory")
    )
    found = panels(runs)
    if not found:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw."
        )
    bars = [breakdown.rows(panel, epochs, ledgers) for panel in found]
    weighed = [costs.bars(panel, memory) for panel in found]
    digest, paths = tables_digest(tables), []
    with styled():
        for dataset in ("", *sorted({panel.dataset for panel in found})):
            chosen = [number for number, panel in enumerate(found) if dataset in ("", panel.dataset)]
            some = [found[number] for number in chosen]
            paths += save(strong_scaling(some), out, name_of(SCALING, dataset), digest)
            paths += save(
                breakdowns(some, [bars[number] for number in chosen]),
                out,
                name_of(BREAKDOWN, dataset),
                digest,
            )
            paths += save(
                beside_each_other(some, [weighed[number] for number in chosen]),
                out,
                name_of(COSTS, dataset),
                digest,
            )
    return paths


def strong_scaling(some: list[Panel]) -> Figure:
    """One strong-scaling figure, a panel each."""
    figure, axes = page([scaling.height(panel) for panel in some], [panel.title for panel in some])
    legend(figure, scaling.handles(some))
    for each, panel in zip(axes, some, strict=True):
        scaling.draw(each, panel)
    return figure


def breakdowns(some: list[Panel], bars: list[breakdown.Rows]) -> Figure:
    """One breakdown figure, a panel each, as tall as its bars need."""
    heights = [FRAME + BAR * height(rows) for rows in bars]
    figure, axes = page(heights, [panel.title for panel in some])
    legend(figure, breakdown.handles(bars))
    for each, rows in zip(axes, bars, strict=True):
        breakdown.draw(each, rows)
    return figure


def beside_each_other(some: list[Panel], bars: list[list[Group[costs.Bar]]]) -> Figure:
    """One figure of costs, three axes a panel."""
    heights = [FRAME + BAR * height(each) for each in bars]
    figure, rows = rows_of_three(heights, [panel.title for panel in some])
    for three, each in zip(rows, bars, strict=True):
        costs.draw(three, each)
    return figure


def _by_run(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(run_id): rows for run_id, rows in table.groupby("run_id")}
