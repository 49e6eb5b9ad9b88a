"""The tables of the page: the results of each panel, the sizes of the graphs, and the claims of papers."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pandas as pd

from harness.base.formatting import (
    FORMATS,
    TimeUnit,
    Unit,
    choose_time_unit,
    format_count,
    format_three_digits,
    format_times,
    format_whole,
)
from harness.report.figures.kind import Tables
from harness.report.figures.palette import strategy_sort_key
from harness.report.figures.panels import (
    PARAMS,
    SETTINGS,
    Panel,
    format_differing_params,
    format_json,
    is_unknown,
)
from harness.report.summary import are_tiny
from harness.results import statistics
from harness.results.launch_intervals import correct_level, count_needed_launches, count_pairs
from harness.results.schema import SOURCES, find_quantity

SHOWN_SETTINGS = {"dataset.name", "strategy.name", "ranks", "grid", *SETTINGS}
DERIVED_PREFIXES = ("machine.", "grid.")  # columns that follow from other settings
NO_VALUE = "–"
ALWAYS_SHOWN = ("strategy", "ranks", "status")


class Heading(NamedTuple):
    """The heading of a column of numbers or texts."""

    text: str
    number: bool
    folded: bool = False
    """Whether the column is hidden at first."""
    brief: Literal["", "name", "time"] = ""
    """The line of a row on a narrow screen that shows the cell before it is unfolded."""


class ResultTable(NamedTuple):
    """A table for the page: its cells as text, and the runs of each row."""

    title: str
    headings: list[Heading]
    rows: list[list[str]]
    runs: list[list[str]] = []


def tabulate_panel(panel: Panel, persistent_bytes: Mapping[str, float] = MappingProxyType({})) -> ResultTable:
    """Tabulate a panel: a row for each configuration, a column for each number that any row has.

    `persistent_bytes` has, for each run, the bytes of the rank with the most.
    """
    rows = panel.configurations
    memory = [
        max((persistent_bytes[run] for run in runs if run in persistent_bytes), default=math.nan)
        for runs in rows.run_ids
    ]
    rows = rows.assign(details=_describe_rows(rows), memory=memory)
    order = sorted(range(len(rows)), key=lambda number: _sort_key(rows.iloc[number]))
    rows = rows.iloc[order]
    longest = float(rows.epoch_seconds_median.max())
    unit = choose_time_unit(1.0 if math.isnan(longest) else longest)
    base = choose_baseline(rows)
    each = [row for _, row in rows.iterrows()]
    columns = {heading: [text(row) for row in each] for heading, text in _define_columns(unit, base).items()}
    kept = {
        heading: cells
        for heading, cells in columns.items()
        if heading.text in ALWAYS_SHOWN or any(cell not in ("", NO_VALUE) for cell in cells)
    }
    cells = [list(row) for row in zip(*kept.values(), strict=True)]
    return ResultTable(panel.title, list(kept), cells, list(rows.run_ids))


class Baseline(NamedTuple):
    """The configuration on one rank that speed-ups are relative to."""

    name: str
    seconds: float


def choose_baseline(rows: pd.DataFrame) -> Baseline | None:
    """Choose serial training if it was measured, else the fastest measured run on one rank; None without either."""
    measured = rows[(rows.source == "measured") & rows.epoch_seconds_median.notna() & (rows.ranks == 1)]
    serial = measured[measured["strategy.name"] == "serial"]
    chosen = serial if len(serial) else measured
    if chosen.empty:
        return None
    one = chosen.sort_values("epoch_seconds_median").iloc[0]
    return Baseline(str(one["strategy.name"]), float(one.epoch_seconds_median))


Shown = tuple[Heading, Callable[[Any], str]]
"""The heading of a column, and a function that formats its cell for a row."""
FOLDED = (
    "computing_share",
    "communicating_share",
    "vertices_per_second",
    "steps",
    "messages",
    "final_loss",
    "accuracy_train",
    "accuracy_valid",
    "accuracy_test",
    "seconds_to_target",
    "evaluation_seconds",
)
"""Quantities that are hidden at first."""


def _define_columns(unit: TimeUnit, base: Baseline | None) -> dict[Heading, Callable[[Any], str]]:
    """Return the heading of every column, with a function that formats its cell for a row."""

    def format_time(seconds: float) -> str:
        return format_three_digits(seconds * unit.per_second)

    def show_time(name: str, **look: Any) -> Shown:
        heading = Heading(f"{find_quantity(name).title} ({unit.name})", number=True, **look)
        return heading, lambda row: format_time(row[name])

    def show_range(title: str, low: str, high: str, **look: Any) -> Shown:
        def format_range(row: Any) -> str:
            is_known = not math.isnan(row[low])
            return f"{format_time(row[low])} – {format_time(row[high])}" if is_known else NO_VALUE

        return Heading(f"{title} ({unit.name})", number=True, **look), format_range

    def format_speedup(row: Any) -> str:
        if base is None or math.isnan(row.epoch_seconds_median):
            return NO_VALUE
        return format_times(base.seconds / row.epoch_seconds_median)

    spread, format_spread = show_range("range", "low", "high")
    return dict(
        [
            (Heading("strategy", number=False, brief="name"), lambda row: row["strategy.name"]),
            (Heading("details", number=False, brief="name"), lambda row: row.details),
            (Heading("ranks", number=True, brief="name"), lambda row: str(row.ranks)),
            (Heading("grid", number=False, brief="name"), lambda row: row.grid),
            show_time("epoch_seconds_median", brief="time"),
            (spread, lambda row: format_spread(row) if row.ok > 1 else NO_VALUE),
            (
                Heading(f"speed-up over {base.name}" if base else "speed-up", number=True, brief="time"),
                format_speedup,
            ),
            _show_quantity("elements_received"),
            _show_quantity("bytes_received"),
            (Heading("memory", number=True), lambda row: _format_quantity(row.memory, "B")),
            (Heading("launches", number=True), _format_launches),
            (Heading("status", number=False, brief="time"), _format_status),
            (Heading("parameters", number=False, folded=True), _format_parameters),
            show_range("95 % interval", "interval_low", "interval_high", folded=True),
            show_time("epoch_seconds_paper", folded=True),
            show_time("phase_seconds_mean", folded=True),
            *(_show_quantity(name, folded=True) for name in FOLDED),
            (Heading("payload / formula", number=True, folded=True), _format_payload_ratio),
        ]
    )


def _show_quantity(name: str, **look: Any) -> Shown:
    """Return the column of a quantity, each value with its own unit; shares are percentages."""
    quantity = find_quantity(name)
    percent = " (%)" if quantity.unit == "%" else ""
    heading = Heading(f"{quantity.title}{percent}", number=True, **look)
    return heading, lambda row: _format_quantity(row[name], quantity.unit)


def _format_quantity(value: Any, unit: Unit | None) -> str:
    if pd.isna(value):
        return NO_VALUE
    match unit:
        case "%":
            return f"{100 * value:.1f}"
        case "number":
            return f"{value:.4f}"
        case "s" | "B":
            return FORMATS[unit](value)
    return format_whole(value)


def _sort_key(row: Any) -> tuple[Any, ...]:
    """Sort by source, then by epoch time, with rows without a time last."""
    return (
        SOURCES.index(row.source),
        math.inf if math.isnan(row.epoch_seconds_median) else row.epoch_seconds_median,
        strategy_sort_key(row["strategy.name"]),
        row.details,
        row.ranks,
        row.grid,
    )


DEFAULT_VALUES = {"dataset.permutation": "none", "dataset.partition": "block", "dataset.parts": "0"}
"""Default values, which are not mentioned."""


def _describe_rows(rows: pd.DataFrame) -> list[str]:
    """Describe the settings that distinguish each row from others of its strategy or source."""
    names = [
        name
        for name in statistics.CONFIGURATION
        if name in rows and name not in SHOWN_SETTINGS and not name.startswith(DERIVED_PREFIXES)
    ]
    counts = rows.groupby("source")[names].nunique(dropna=False)
    params = {key: list(some.map(str)) for key, some in rows.groupby(["source", "strategy.name"])[PARAMS]}
    return [
        _describe_row(
            row,
            [name for name in names if name != PARAMS and counts.loc[row.source, name] > 1],
            params[row.source, row["strategy.name"]],
        )
        for _, row in rows.iterrows()
    ]


def _describe_row(row: Any, varying: list[str], params: list[str]) -> str:
    parts = [row.source] if row.source != "measured" else []
    parts += [format_differing_params(str(row[PARAMS]), params)] if len(set(params)) > 1 else []
    for name in varying:
        value = "unknown" if is_unknown(row[name]) else str(row[name])
        if value != DEFAULT_VALUES.get(name):
            parts.append(
                f"{name.removeprefix('training.').removeprefix('dataset.').replace('.', ' ')} {value}"
            )
    return ", ".join(part for part in parts if part)


def _format_parameters(row: Any) -> str:
    return "" if row[PARAMS] == "{}" or is_unknown(row[PARAMS]) else format_json(str(row[PARAMS]))


def _format_launches(row: Any) -> str:
    """Format the number of launches: those that succeeded, and the processes from which they were forked."""
    if row.source != "measured":
        return NO_VALUE
    launches = str(row.ok) if row.ok == row.launches else f"{row.ok} of {row.launches}"
    return (
        f"{launches} from {format_count(int(row.processes), 'process', 'processes')}"
        if row.processes < row.ok
        else launches
    )


def _format_status(row: Any) -> str:
    if row.statuses:
        return f"× {row.statuses}"
    return "✓ ok" if row.source == "measured" else NO_VALUE


def _format_payload_ratio(row: Any) -> str:
    if math.isnan(row.elements_payload_formula) or row.elements_payload_formula == 0:
        return NO_VALUE
    return f"{row.elements_payload / row.elements_payload_formula:.6g}"


# The summary of a panel: which configuration is fastest, by how much, and how certain that is.


class Slowdown(NamedTuple):
    """How much slower the fastest parallel run of a panel is than one rank."""

    best: str
    factor: float
    shares: tuple[float, ...] = ()
    """The least and the largest share of time that parallel runs communicate, if it is known."""
    tiny: tuple[int, ...] = ()
    """The vertices and nonzeros of a tiny graph."""


class PanelSummary(NamedTuple):
    """The summary of a panel: its own answer, and remarks that other panels may share."""

    answer: str
    certainty: str
    slowdown: Slowdown | None


def summarize_panel(panel: Panel, tables: Tables) -> PanelSummary | None:
    """Summarize a panel: the fastest configuration, the next one, and how certain the order is.

    Compares measured runs, or else several strategies that were emulated or predicted. None without a comparison.
    """
    compared = _select_compared(statistics.summarize_configurations(panel.runs, statistics.COMPARED))
    if compared is None:
        return None
    unit = choose_time_unit(float(compared.epoch_seconds_median.iloc[0]))
    first = compared.iloc[0]
    others = compared[compared["strategy.name"] != first["strategy.name"]]
    which, second = ("The next strategy", others.iloc[0]) if len(others) else ("Next", compared.iloc[1])
    side = statistics.Side(panel.runs, tables.epochs, tables.ledgers)
    one, two = (_select_launches(panel, row) for row in (first, second))
    level = correct_level(count_pairs(len(compared)))
    difference = statistics.compute_difference(one, two, side, side, level)
    certainty = (
        _describe_certainty(difference, len(compared))
        if first.source == "measured"
        else _describe_predicted_intervals(one, two)
    )
    epoch = f"{format_three_digits(first.epoch_seconds_median * unit.per_second)} {unit.name}"
    times_as_long = (
        f"{format_three_digits(difference.ratio)} times as long{_format_ratio_interval(difference)}"
    )
    best, next_best = _name_configuration(first), _name_configuration(second)
    if difference.interval is not None and difference.verdict != "slower":
        order = [f"Undecided between {best}, {epoch} per epoch, and {next_best}, {times_as_long}."]
    else:
        few = first.source == "measured" and difference.interval is None
        order = [
            f"Fastest{' in these launches' if few else ''}: {best}, {epoch} per epoch.",
            f"{which}: {next_best}, {times_as_long}.",
        ]
    sentences = [*order, *_describe_largest_difference(difference)]
    return PanelSummary(" ".join(sentences), certainty, find_slowdown(panel, compared))


def merge_summaries(
    summaries: Mapping[str, PanelSummary],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the answer of each panel, then each remark once; both with the titles of their panels."""
    certain: dict[str, list[str]] = {}
    slow: dict[str, dict[str, Slowdown]] = {}
    for title, summary in summaries.items():
        if summary.certainty:
            certain.setdefault(summary.certainty, []).append(title)
        if summary.slowdown:
            slow.setdefault(summary.slowdown.best, {})[title] = summary.slowdown
    remarks = [("; ".join(titles), text) for text, titles in certain.items()]
    remarks += [
        ("; ".join(found), _describe_slowdown(best, list(found.values()))) for best, found in slow.items()
    ]
    return [(title, summary.answer) for title, summary in summaries.items()], remarks


def _select_compared(rows: pd.DataFrame) -> pd.DataFrame | None:
    """Select the configurations to compare, all of one source, the fastest first; None if there are too few."""
    timed = rows[rows.epoch_seconds_median.notna()].sort_values("epoch_seconds_median")
    for source in ("measured", "emulated", "predicted"):
        rows_of_source = timed[timed.source == source].reset_index(drop=True)
        several_strategies = rows_of_source["strategy.name"].nunique() > 1
        if len(rows_of_source) > 1 and (source == "measured" or several_strategies):
            return rows_of_source.assign(details=_describe_rows(rows_of_source))
    return None


def _select_launches(panel: Panel, row: Any) -> pd.DataFrame:
    """Select the launches of a row that succeeded."""
    done = panel.runs[panel.runs.run_id.isin(row.run_ids) & (panel.runs.status == "ok")]
    return done.dropna(subset=["epoch_seconds_median"])


def _format_ratio_interval(difference: statistics.Difference) -> str:
    """Format the interval of the ratio, in brackets."""
    if difference.interval is None:
        return ""
    low, high = map(format_three_digits, difference.interval)
    return f" (95 % interval over launches: {low} to {high})"


def _describe_largest_difference(difference: statistics.Difference) -> list[str]:
    """Describe the part of an epoch in which two configurations differ most."""
    if not difference.parts or difference.parts[0][1] == difference.parts[0][2]:
        return []
    part, first, second = difference.parts[0]
    unit = choose_time_unit(max(first, second))
    one, two = (format_three_digits(seconds * unit.per_second) for seconds in (first, second))
    return [f"They differ most in {part.replace('_', '-')}: {one} and {two} {unit.name}."]


def _name_configuration(row: Any) -> str:
    details = f" ({row.details})" if row.details else ""
    return f"{row['strategy.name']}{details} on {format_count(int(row.ranks), 'rank')}"


def _describe_certainty(difference: statistics.Difference, configurations: int) -> str:
    """Describe how certain the order of the first two of several configurations is."""
    one, two = difference.launches
    among = f"corrected for choosing among {configurations}" if configurations > 2 else ""
    if difference.interval is None:
        needed = count_needed_launches(correct_level(count_pairs(configurations)))
        needs = f"an interval{f' {among}' if among else ''} needs {needed} launches of each"
        return f"The order is undecided: {needs}, and there are {one} and {two}."
    basis = ", ".join(filter(None, [f"{one} and {two} launches", among]))
    if difference.verdict == "slower":
        return f"The first is faster than the next ({basis})."
    return f"The first two are too close to call ({basis})."


def _describe_predicted_intervals(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """Describe the intervals of two emulated or predicted epoch times, if their records have them."""
    one, two = (
        _format_predicted_interval(json.loads(runs.extra.iloc[0] or "{}")) for runs in (first, second)
    )
    return (
        f"Within the intervals of the machine's constants, the first takes {one}, and the next {two}."
        if one and two
        else ""
    )


def _format_predicted_interval(extra: dict[str, Any]) -> str:
    low, high = (extra.get(f"predicted.seconds.{end}") for end in ("low", "high"))
    if low is None or high is None:
        return ""
    unit = choose_time_unit(high)
    return f"{format_three_digits(low * unit.per_second)} to {format_three_digits(high * unit.per_second)} {unit.name}"


def find_slowdown(panel: Panel, compared: pd.DataFrame) -> Slowdown | None:
    """Return by how much one rank beats every parallel run; None if a parallel run is faster."""
    on_one_rank, parallel = compared[compared.ranks == 1], compared[compared.ranks > 1]
    if on_one_rank.empty or parallel.empty:
        return None
    factor = float(parallel.epoch_seconds_median.min()) / float(on_one_rank.epoch_seconds_median.min())
    if factor <= 1:
        return None
    shares = parallel.communicating_share.dropna()
    sizes = panel.runs[["graph.vertices", "graph.nonzeros"]].dropna()
    return Slowdown(
        _name_configuration(on_one_rank.iloc[0]),
        factor,
        (float(shares.min()), float(shares.max())) if len(shares) else (),
        tuple(int(size) for size in sizes.iloc[0]) if are_tiny(sizes) else (),
    )


def _describe_slowdown(best: str, found: Sequence[Slowdown]) -> str:
    """Describe that no parallel run is faster than one rank, for all panels where this is so."""
    factor = format_three_digits(min(one.factor for one in found))
    text = f"Every parallel run here is slower than {best}, by a factor of {factor} or more"
    if shares := [share for one in found for share in one.shares]:
        low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        text += f": they communicate {low if low == high else f'{low} to {high}'} % of their time"
    if tiny := {one.tiny for one in found if one.tiny}:
        vertices, nonzeros = map(max, zip(*tiny, strict=True))
        subject, most = ("The graph is", "") if len(tiny) == 1 else ("The graphs are", "at most ")
        text += f". {subject} tiny: {most}{vertices:,} vertices and {nonzeros:,} nonzeros"
    return f"{text}."


# The sizes of the graphs.

GRAPH_SIZES = {
    "graph.vertices": "vertices",
    "graph.nonzeros": "nonzeros",
    "degree": "nonzeros per vertex",
    "graph.features": "features",
    "graph.classes": "classes",
    "graph.trained": "training vertices",
}


def tabulate_graphs(runs: pd.DataFrame) -> ResultTable | None:
    """Tabulate the sizes of graphs as runs trained on them, a row for each graph; None if no run recorded sizes."""
    recorded = runs.dropna(subset=["graph.vertices"])
    recorded = recorded.assign(degree=recorded["graph.nonzeros"] / recorded["graph.vertices"])
    rows = [
        [str(name), *(_format_size(sizes[column]) for column in GRAPH_SIZES)]
        for name, group in recorded.groupby("dataset.name")
        for _, sizes in group.drop_duplicates([*GRAPH_SIZES]).iterrows()
    ]
    headings = [
        Heading("graph", number=False),
        *(Heading(text, number=True) for text in GRAPH_SIZES.values()),
    ]
    return ResultTable("Graphs", headings, rows) if rows else None


def _format_size(size: Any) -> str:
    if pd.isna(size):
        return ""
    return format_three_digits(size) if size % 1 else f"{size:,.0f}"


# The claims of papers.


def tabulate_verdicts(table: pd.DataFrame) -> ResultTable | None:
    """Count the verdicts on results: a row for each source of our values, a column for each verdict."""
    counted = table[table.uncounted == ""]
    if counted.empty:
        return None
    counts = counted.groupby(["source", "verdict"], sort=False).size().unstack(fill_value=0)
    headings = [Heading("source", number=False), *(Heading(str(name), number=True) for name in counts)]
    rows = [[str(source), *(str(count) for count in row)] for source, row in counts.iterrows()]
    return ResultTable("", headings, rows)


CLAIM_HEADINGS = {
    "id": "claim",
    "place": "place",
    "what": "quantity",
    "config": "setting",
    "printed": "printed",
    "ours": "ours",
    "basis": "source of our value",
    "verdict": "verdict",
    "uncounted": "why not counted",
    "reason": "explanation",
}


def tabulate_claims(table: pd.DataFrame) -> list[ResultTable]:
    """Tabulate claims, with a table for each figure of a paper and one for the text of each paper."""
    headings = [Heading(text, number=False) for text in CLAIM_HEADINGS.values()]
    return [
        ResultTable(
            f"{figure or f'{paper}, text'}: {_format_verdict_counts(rows.verdict)}",
            headings,
            rows[[*CLAIM_HEADINGS]].values.tolist(),
        )
        for (paper, figure), rows in table.groupby(["paper", "figure"], sort=False)
    ]


def _format_verdict_counts(verdicts: "pd.Series[str]") -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.value_counts().items())
