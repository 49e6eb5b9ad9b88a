"""The tables of the page: the results of each panel, and the sizes of the graphs."""

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from harness.figures.kind import Tables
from harness.figures.palette import place_of
from harness.figures.panels import PARAMS, SETTINGS, Panel, counted, differing, in_words, unknown
from harness.figures.units import BYTES, Unit, scale_for, three_digits, unit_for
from harness.results import statistics
from harness.results.schema import SOURCES

SHOWN = {"dataset.name", "strategy.name", "ranks", "grid", *SETTINGS}
DERIVED = ("machine.", "grid.")  # these follow from settings in SHOWN
NOTHING = "–"
ALWAYS = ("strategy", "ranks", "status")


class Heading(NamedTuple):
    """The heading of a column, whether the column holds numbers, and whether it is folded away at first."""

    text: str
    number: bool
    more: bool = False


class Results(NamedTuple):
    """A table for the page: its cells as text, in order, and the runs of each row."""

    title: str
    headings: list[Heading]
    rows: list[list[str]]
    runs: list[list[str]] = []


def results(panel: Panel, held: Mapping[str, float] = MappingProxyType({})) -> Results:
    """The table of a panel: a row for each configuration, a column for each number that any row has.

    `held`: the persistent bytes of the rank that has most, by run.
    """
    rows = panel.configurations
    most = [max((held[run] for run in runs if run in held), default=math.nan) for runs in rows.run_ids]
    rows = rows.assign(details=_details(rows), held=most)
    order = sorted(range(len(rows)), key=lambda number: _place(rows.iloc[number]))
    rows = rows.iloc[order]
    unit = unit_for(rows.seconds.max()) if rows.seconds.notna().any() else unit_for(1.0)
    base = baseline(rows)
    each = [row for _, row in rows.iterrows()]
    columns = {heading: [text(row) for row in each] for heading, text in _columns(unit, base).items()}
    kept = {
        heading: cells
        for heading, cells in columns.items()
        if heading.text in ALWAYS or any(cell not in ("", NOTHING) for cell in cells)
    }
    cells = [list(row) for row in zip(*kept.values(), strict=True)]
    return Results(panel.title, list(kept), cells, list(rows.run_ids))


class Baseline(NamedTuple):
    """The configuration that speed-ups are against."""

    name: str
    seconds: float


def baseline(rows: pd.DataFrame) -> Baseline | None:
    """Serial training if it was measured, else the slowest measured configuration of one rank; None without either."""
    measured = rows[(rows.source == "measured") & rows.seconds.notna() & (rows.ranks == 1)]
    serial = measured[measured["strategy.name"] == "serial"]
    chosen = serial if len(serial) else measured
    if chosen.empty:
        return None
    one = chosen.sort_values("seconds").iloc[0]
    return Baseline(str(one["strategy.name"]), float(one.seconds))


def _columns(unit: Unit, base: Baseline | None) -> dict[Heading, Callable[[Any], str]]:
    """Every column: its heading, and the function that gives its text for a row."""

    def seconds(name: str) -> Callable[[Any], str]:
        return lambda row: three_digits(row[name] * unit.per_second)

    def span(low: str, high: str) -> Callable[[Any], str]:
        return lambda row: NOTHING if math.isnan(row[low]) else f"{seconds(low)(row)} – {seconds(high)(row)}"

    def share(name: str) -> Callable[[Any], str]:
        return lambda row: NOTHING if math.isnan(row[name]) else f"{100 * row[name]:.1f}"

    def speedup(row: Any) -> str:
        if base is None or math.isnan(row.seconds):
            return NOTHING
        return f"{three_digits(base.seconds / row.seconds)}×"

    return {
        Heading("strategy", number=False): lambda row: row["strategy.name"],
        Heading("details", number=False): lambda row: row.details,
        Heading("ranks", number=True): lambda row: str(row.ranks),
        Heading("grid", number=False): lambda row: row.grid,
        Heading(f"median ({unit.name})", number=True): seconds("seconds"),
        Heading(f"range ({unit.name})", number=True): lambda row: (
            span("low", "high")(row) if row.ok > 1 else NOTHING
        ),
        Heading(f"over {base.name}, 1 rank" if base else "speed-up", number=True): speedup,
        Heading("words sent", number=True): lambda row: _whole(row.words_payload),
        Heading("held", number=True): lambda row: _bytes(row.held),
        Heading("launches", number=True): _launches,
        Heading("status", number=False): _status,
        Heading("parameters", number=False, more=True): _parameters,
        Heading(f"95 % interval ({unit.name})", number=True, more=True): span(
            "interval_low", "interval_high"
        ),
        Heading(f"paper’s mean ({unit.name})", number=True, more=True): seconds("seconds_paper"),
        Heading(f"sum of phases ({unit.name})", number=True, more=True): seconds("phase_seconds_mean"),
        Heading("computing (%)", number=True, more=True): share("computing_share"),
        Heading("communicating (%)", number=True, more=True): share("communicating_share"),
        Heading("vertices a second", number=True, more=True): lambda row: _whole(row.vertices_per_second),
        Heading("steps an epoch", number=True, more=True): lambda row: (
            "" if row.steps == 1 else _whole(row.steps)
        ),
        Heading("messages a rank", number=True, more=True): lambda row: _whole(row.messages),
        Heading("words received a rank", number=True, more=True): lambda row: _whole(row.words_received),
        Heading("words measured / formula", number=True, more=True): _ratio,
        Heading("loss", number=True, more=True): lambda row: (
            NOTHING if math.isnan(row.final_loss) else f"{row.final_loss:.4f}"
        ),
        Heading("train (%)", number=True, more=True): share("accuracy_train"),
        Heading("valid (%)", number=True, more=True): share("accuracy_valid"),
        Heading("test (%)", number=True, more=True): share("accuracy_test"),
        Heading("to the target (s)", number=True, more=True): lambda row: three_digits(row.seconds_to_target),
        Heading("evaluation (ms)", number=True, more=True): lambda row: three_digits(
            1e3 * row.evaluation_seconds
        ),
    }


def _bytes(size: float) -> str:
    if math.isnan(size):
        return NOTHING
    scale = scale_for(size, BYTES, plain=1e3)
    return f"{three_digits(size / scale.size)} {scale.name}"


def _place(row: Any) -> tuple[Any, ...]:
    return SOURCES.index(row.source), place_of(row["strategy.name"]), row.details, row.ranks, row.grid


ORDINARY = {"dataset.permutation": "none", "dataset.partition": "block", "dataset.parts": "0"}
"""Values that need no words."""


def _details(rows: pd.DataFrame) -> list[str]:
    """What tells a row from others of its strategy, and what it has that others of its source have not."""
    names = [name for name in statistics.CONFIGURATION if name not in SHOWN and not name.startswith(DERIVED)]
    counts = rows.groupby("source")[names].nunique(dropna=False)
    params = {key: list(some.map(str)) for key, some in rows.groupby(["source", "strategy.name"])[PARAMS]}
    return [
        _detail(
            row,
            [name for name in names if name != PARAMS and counts.loc[row.source, name] > 1],
            params[row.source, row["strategy.name"]],
        )
        for _, row in rows.iterrows()
    ]


def _detail(row: Any, varying: list[str], params: list[str]) -> str:
    parts = [row.source] if row.source != "measured" else []
    parts += [differing(str(row[PARAMS]), params)] if len(set(params)) > 1 else []
    for name in varying:
        value = "unknown" if unknown(row[name]) else str(row[name])
        if value != ORDINARY.get(name):
            parts.append(
                f"{name.removeprefix('training.').removeprefix('dataset.').replace('.', ' ')} {value}"
            )
    return ", ".join(part for part in parts if part)


def _parameters(row: Any) -> str:
    return "" if row[PARAMS] == "{}" or unknown(row[PARAMS]) else in_words(str(row[PARAMS]))


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


# The answer: which configuration was the fastest of a panel, by how much, and how sure that is.

SMALL = 1e6
"""Nonzeros of a graph below which an epoch's messages take longer than the work that ranks share."""


def answer(panel: Panel, tables: Tables) -> list[str]:
    """The sentences that a reader wants first: of measured runs or else of several strategies emulated or predicted.

    None where nothing is to be compared.
    """
    done = _compared(panel.configurations)
    if done is None:
        return []
    unit = unit_for(float(done.seconds.iloc[0]))
    first = done.iloc[0]
    others = done[done["strategy.name"] != first["strategy.name"]]
    which, second = ("The next strategy", others.iloc[0]) if len(others) else ("Next", done.iloc[1])
    side = statistics.Side(panel.runs, tables.epochs, tables.ledgers)
    one, two = (_launched(panel, row) for row in (first, second))
    apart = statistics.compute_difference(one, two, side, side)
    sure = _sure(first, second) if first.source == "measured" else _predicted(one, two)
    said = [
        f"Fastest: {_named(first)}, {three_digits(first.seconds * unit.per_second)} {unit.name} an epoch. "
        f"{which}: {_named(second)}, {three_digits(apart.ratio)} times as long{_between(apart)}.",
        *([sure] if sure else []),
    ]
    return [*said, *_largest_part(apart), *_slower_than_one(panel, done)]


def _compared(rows: pd.DataFrame) -> pd.DataFrame | None:
    """The configurations that an answer compares, the fastest first: all of one source."""
    timed = rows[rows.seconds.notna()].sort_values("seconds")
    for source in ("measured", "emulated", "predicted"):
        some = timed[timed.source == source].reset_index(drop=True)
        if len(some) > 1 and (source == "measured" or some["strategy.name"].nunique() > 1):
            return some.assign(details=_details(some))
    return None


def _launched(panel: Panel, row: Any) -> pd.DataFrame:
    """The launches of a row that succeeded."""
    done = panel.runs[panel.runs.run_id.isin(row.run_ids) & (panel.runs.status == "ok")]
    return done.dropna(subset=["epoch_seconds_median"])


def _between(apart: statistics.Difference) -> str:
    """The interval of the ratio in brackets, by the epochs of all launches."""
    if apart.interval is None:
        return ""
    low, high = map(three_digits, apart.interval)
    return f" (90 % interval over epochs: {low} to {high})"


def _largest_part(apart: statistics.Difference) -> list[str]:
    """The part of an epoch in which two configurations differ most."""
    if not apart.parts or apart.parts[0][1] == apart.parts[0][2]:
        return []
    part, first, second = apart.parts[0]
    unit = unit_for(max(first, second))
    one, two = (three_digits(seconds * unit.per_second) for seconds in (first, second))
    return [f"They differ most in {part.replace('_', '-')}: {one} and {two} {unit.name}."]


def _named(row: Any) -> str:
    details = f" ({row.details})" if row.details else ""
    return f"{row['strategy.name']}{details} on {counted(int(row.ranks), 'rank')}"


def _sure(first: Any, second: Any) -> str:
    """How sure the order of two configurations is."""
    least = min(first.ok, second.ok)
    if least == 1:
        return "One of the two was launched once, so another launch may change the order."
    if first.high < second.low:
        return f"Every launch of the first was faster than every launch of the next ({first.ok} and {second.ok})."
    return f"The ranges of their launches overlap ({first.ok} and {second.ok}), so the order is not sure."


def _predicted(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """The intervals of two epochs that were emulated or predicted, if their records have them."""
    one, two = (_interval(json.loads(runs.extra.iloc[0] or "{}")) for runs in (first, second))
    return (
        f"Within the constants of the machine's card, the first takes {one}, and the next {two}."
        if one and two
        else ""
    )


def _interval(extra: dict[str, Any]) -> str:
    low, high = (extra.get(f"predicted.seconds.{end}") for end in ("low", "high"))
    if low is None or high is None:
        return ""
    unit = unit_for(high)
    return f"{three_digits(low * unit.per_second)} to {three_digits(high * unit.per_second)} {unit.name}"


def _slower_than_one(panel: Panel, done: pd.DataFrame) -> list[str]:
    """The sentence that is due where no parallel run is faster than one rank."""
    alone, parallel = done[done.ranks == 1], done[done.ranks > 1]
    if alone.empty or parallel.empty or float(parallel.seconds.min()) <= float(alone.seconds.min()):
        return []
    best = alone.iloc[0]
    times = three_digits(float(parallel.seconds.min() / best.seconds))
    text = f"Every parallel run here is slower than {_named(best)}, by a factor of {times} or more"
    shares = parallel.communicating_share.dropna()
    if len(shares):
        low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
        text += f": they communicate {low if low == high else f'{low} to {high}'} % of their time"
    sizes = panel.runs[["graph.vertices", "graph.nonzeros"]].dropna()
    if len(sizes) and float(sizes["graph.nonzeros"].max()) < SMALL:
        vertices, nonzeros = (int(size) for size in sizes.iloc[0])
        text += f". The graph is tiny: {vertices:,} vertices and {nonzeros:,} nonzeros"
    return [f"{text}."]


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


def _size(size: Any) -> str:
    if pd.isna(size):
        return ""
    return three_digits(size) if size % 1 else f"{size:,.0f}"


# The claims of papers.


def scoreboard(table: pd.DataFrame) -> Results | None:
    """A row for each paper, a column for each verdict."""
    if table.empty:
        return None
    counts = table.groupby(["paper", "verdict"], sort=False).size().unstack(fill_value=0)
    headings = [Heading("paper", number=False), *(Heading(str(name), number=True) for name in counts)]
    rows = [[str(paper), *(str(count) for count in row)] for paper, row in counts.iterrows()]
    return Results("", headings, rows)


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
