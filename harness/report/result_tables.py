"""The tables of the page: the results of each panel, and the sizes of the graphs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from harness.figures.page_layout import Unit, three_digits, unit_for
from harness.figures.palette import place_of
from harness.figures.panels import SETTINGS, Panel, in_words, unknown
from harness.results import statistics
from harness.results.schema import SOURCES

SHOWN = {"dataset.name", "strategy.name", "ranks", "grid", *SETTINGS}
DERIVED = ("machine.", "grid.")  # these follow from settings in SHOWN
NOTHING = "–"
ALWAYS = ("strategy", "ranks", "status")


class Heading(NamedTuple):
    """The heading of a column, and whether the column holds numbers."""

    text: str
    number: bool


class Results(NamedTuple):
    """A table for the page: its cells as text, in order."""

    title: str
    headings: list[Heading]
    rows: list[list[str]]


def results(panel: Panel) -> Results:
    """The table of a panel: a row for each configuration, a column for each number that any row has."""
    rows = statistics.configurations(panel.runs)
    rows["details"] = _details(rows)
    order = sorted(range(len(rows)), key=lambda number: _place(rows.iloc[number]))
    rows = rows.iloc[order]
    unit = unit_for(rows.seconds.max()) if rows.seconds.notna().any() else unit_for(1.0)
    columns = {heading: [text(row) for _, row in rows.iterrows()] for heading, text in _columns(unit).items()}
    kept = {
        heading: cells
        for heading, cells in columns.items()
        if heading.text in ALWAYS or any(cell not in ("", NOTHING) for cell in cells)
    }
    return Results(panel.title, list(kept), [list(row) for row in zip(*kept.values(), strict=True)])


def _columns(unit: Unit) -> dict[Heading, Callable[[Any], str]]:
    """Every column: its heading, and the function that gives its text for a row."""

    def seconds(name: str) -> Callable[[Any], str]:
        return lambda row: three_digits(row[name] * unit.per_second)

    def span(low: str, high: str) -> Callable[[Any], str]:
        return lambda row: NOTHING if math.isnan(row[low]) else f"{seconds(low)(row)} – {seconds(high)(row)}"

    def share(name: str) -> Callable[[Any], str]:
        return lambda row: NOTHING if math.isnan(row[name]) else f"{100 * row[name]:.1f}"

    return {
        Heading("strategy", number=False): lambda row: row["strategy.name"],
        Heading("details", number=False): lambda row: row.details,
        Heading("ranks", number=True): lambda row: str(row.ranks),
        Heading("grid", number=False): lambda row: row.grid,
        Heading("launches", number=True): _launches,
        Heading(f"median ({unit.name})", number=True): seconds("seconds"),
        Heading(f"range ({unit.name})", number=True): lambda row: (
            span("low", "high")(row) if row.ok > 1 else NOTHING
        ),
        Heading(f"95 % interval ({unit.name})", number=True): span("interval_low", "interval_high"),
        Heading(f"paper’s mean ({unit.name})", number=True): seconds("seconds_paper"),
        Heading(f"sum of phases ({unit.name})", number=True): seconds("phase_seconds_mean"),
        Heading("computing (%)", number=True): share("computing_share"),
        Heading("communicating (%)", number=True): share("communicating_share"),
        Heading("vertices a second", number=True): lambda row: _whole(row.vertices_per_second),
        Heading("steps an epoch", number=True): lambda row: "" if row.steps == 1 else _whole(row.steps),
        Heading("messages a rank", number=True): lambda row: _whole(row.messages),
        Heading("words received a rank", number=True): lambda row: _whole(row.words_received),
        Heading("words measured / formula", number=True): _ratio,
        Heading("loss", number=True): lambda row: (
            NOTHING if math.isnan(row.final_loss) else f"{row.final_loss:.4f}"
        ),
        Heading("train (%)", number=True): share("accuracy_train"),
        Heading("valid (%)", number=True): share("accuracy_valid"),
        Heading("test (%)", number=True): share("accuracy_test"),
        Heading("to the target (s)", number=True): lambda row: three_digits(row.seconds_to_target),
        Heading("evaluation (ms)", number=True): lambda row: three_digits(1e3 * row.evaluation_seconds),
        Heading("status", number=False): _status,
    }


def _place(row: Any) -> tuple[Any, ...]:
    return SOURCES.index(row.source), place_of(row["strategy.name"]), row.details, row.ranks, row.grid


def _details(rows: pd.DataFrame) -> list[str]:
    """The settings that vary among the rows of one source and have no column in the table."""
    names = [name for name in statistics.CONFIGURATION if name not in SHOWN and not name.startswith(DERIVED)]
    counts = rows.groupby("source")[names].nunique(dropna=False)
    return [
        _detail(row, [name for name in names if counts.loc[row.source, name] > 1])
        for _, row in rows.iterrows()
    ]


def _detail(row: Any, varying: list[str]) -> str:
    parts = [row.source] if row.source != "measured" else []
    for name in varying:
        value = "unknown" if unknown(row[name]) else str(row[name])
        if name == "strategy.params":
            parts += [in_words(value)] if value != "{}" else []
        else:
            parts.append(f"{name.removeprefix('training.').replace('.', ' ')} {value}")
    return ", ".join(parts)


def _launches(row: Any) -> str:
    if row.source != "measured":
        return NOTHING
    return str(row.ok) if row.ok == row.launches else f"{row.ok} of {row.launches}"


def _status(row: Any) -> str:
    if row.statuses:
        return f"× {row.statuses}"
    return "✓ ok" if row.source == "measured" else NOTHING


def _whole(number: float) -> str:
    return NOTHING if math.isnan(number) else f"{number:,.0f}"


def _ratio(row: Any) -> str:
    if math.isnan(row.words_formula) or row.words_formula == 0:
        return NOTHING
    return f"{row.words_payload / row.words_formula:.6g}"


# The sizes of the graphs.

SIZES = {
    "graph.vertices": "vertices",
    "graph.nonzeros": "nonzeros",
    "degree": "nonzeros a vertex",
    "graph.features": "features",
    "graph.classes": "classes",
    "graph.trained": "vertices trained on",
}


def graphs(runs: pd.DataFrame) -> Results | None:
    """A row for each graph whose sizes a run has counted, as it was trained on; None without any."""
    counted = runs.dropna(subset=["graph.vertices"])
    counted = counted.assign(degree=counted["graph.nonzeros"] / counted["graph.vertices"])
    rows = [
        [str(name), *(_size(sizes[column]) for column in SIZES)]
        for name, group in counted.groupby("dataset.name")
        for _, sizes in group.drop_duplicates([*SIZES]).iterrows()
    ]
    headings = [Heading("graph", number=False), *(Heading(text, number=True) for text in SIZES.values())]
    return Results("Graphs", headings, rows) if rows else None


def _size(size: float) -> str:
    return three_digits(size) if size % 1 else f"{size:,.0f}"


# The claims of papers.

SAID = {
    "id": "claim",
    "place": "place",
    "what": "of what",
    "config": "setting",
    "printed": "printed",
    "ours": "ours",
    "basis": "taken from",
    "verdict": "verdict",
    "reason": "behind it",
}


def claims(table: pd.DataFrame) -> list[Results]:
    """A table for each figure of a paper, and one for each paper's text: what is printed, our value, the verdict."""
    headings = [Heading(text, number=False) for text in SAID.values()]
    return [
        Results(
            f"{figure or f'{paper}, text'}: {_counts(rows.verdict)}", headings, rows[[*SAID]].values.tolist()
        )
        for (paper, figure), rows in table.groupby(["paper", "figure"], sort=False)
    ]


def _counts(verdicts: "pd.Series[str]") -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.value_counts().items())
