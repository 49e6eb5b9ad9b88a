"""Places what papers print about several runs among our own values: ratios, ends of scaling, crossings, ends of axes.

A printed ratio becomes a value by applying it to our own value of the slower runs. `harness.claims.printed_marks` says
which runs a number describes.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from harness.report.figures.panels import BATCH, Panel
from harness.results.schema import OK

OURS = ("measured", "emulated", "predicted")
"""The sources of values that a printed ratio may be applied to, the best first."""
OVER_RANKS = ("ratio", "seconds", "end of scaling", "crossing")
IN_ROWS = ("ratio", "seconds")
IN_BARS = (*IN_ROWS, "end of axis")
"""The marks that lines over ranks, rows of epoch times, and bars show."""
OPPOSITE = {"": "", "at least": "at most", "at most": "at least"}
FIRST_COLUMNS = (
    *("claim", "mark", "bound", "read", "place", "printed", "mean_of"),
    *("curve", "strategy", "source", "status", "label", "ranks"),
)
SENTENCES = {
    "ratio": "A hollow marker is a printed ratio applied to our value of the slower runs, where its thin line begins "
    "among curves. It shows where the ratio would put the epoch, not a printed time.",
    "gain": "A hollow marker is a ratio as printed.",
    "seconds": "A hollow marker is a printed value.",
    "bound": "A caret is at a printed bound, and points to the side of the paper's value.",
    "end of scaling": "A ring marks the largest number of ranks up to which the paper says that epochs become faster.",
    "crossing": "Dashed vertical line: the number of ranks at which curves cross in the paper.",
    "end of axis": "Dotted vertical line: the end of the axis of the paper's figure.",
}
"""What captions say about each mark."""

PrintedMark = Mapping[str, Any]
"""A mark of the table of claims, with what is known about its claim."""
Settings = Mapping[str, Sequence[Any]]
"""The values that runs have in each column of the table `runs`."""


def read_marks(claims: pd.DataFrame) -> list[PrintedMark]:
    """Return the marks of the table of claims."""
    return [
        {**mark, "claim": row.id, "original": row.duplicate_of or row.id}
        | {name: getattr(row, name) for name in ("read", "place", "printed")}
        for row in claims[claims.marks != ""].itertuples()
        for mark in json.loads(str(row.marks))
    ]


POINT = ["curve", "strategy", "source", "label", "ranks"]


class OurValue(NamedTuple):
    """One of our values in a frame."""

    curve: str
    strategy: str
    source: str
    label: str
    ranks: int
    value: float
    batch: float = 0.0
    """The size of mini-batches, which papers may leave open."""

    @property
    def start(self) -> dict[str, Any]:
        """The columns of a mark that refers to this value."""
        return {"from_curve": self.curve, "from_ranks": self.ranks, "from_value": self.value}


class OurValues:
    """Our values in a frame, by curve and ranks, on the fastest grid."""

    def __init__(self, panel: Panel, frame: pd.DataFrame, column: str) -> None:
        ours = frame[frame.source.isin(OURS) & (frame.status == OK)].dropna(subset=[column])
        labelled = ours.assign(label=ours.label if "label" in ours else ours.curve)
        values = labelled.groupby(POINT, sort=False)[column].median().reset_index().sort_values(column)
        self.points = [
            OurValue(*row) for row in values.drop_duplicates(["curve", "ranks"]).itertuples(index=False)
        ]
        self.launches = panel.launches

    def find(self, settings: Settings) -> list[OurValue]:
        """Return the values of runs with these settings, measured ones first."""
        runs = self.launches[match_settings(self.launches, settings)]
        batches = dict(zip(zip(runs.curve, runs.ranks, strict=True), runs[BATCH], strict=True))
        at = [(point, (point.curve, point.ranks)) for point in self.points]
        found = [point._replace(batch=batches[place]) for point, place in at if place in batches]
        return sorted(found, key=lambda point: OURS.index(point.source))


def match_settings(runs: pd.DataFrame, settings: Settings) -> "pd.Series[bool]":
    """Return for each run whether it has these settings."""
    matches = pd.Series(True, index=runs.index)
    for name, values in settings.items():
        matches &= runs[name].isin(values)
    return matches


# Epoch times.


def place_among_times(
    panel: Panel, frame: pd.DataFrame, marks: Sequence[PrintedMark], column: str, kinds: Collection[str]
) -> pd.DataFrame:
    """Return a row for each mark of some kinds that has a place among the epoch times of a frame, in this column."""
    shown = [mark for mark in marks if mark["kind"] in kinds]
    if not shown:
        return pd.DataFrame()
    values = OurValues(panel, frame, column)
    return _drop_repeated([row for mark in shown for row in _place(mark, values, column)])


def _place(mark: PrintedMark, values: OurValues, column: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a mark: one for each curve of the best source, if runs that it describes are on several."""
    kind, number = mark["kind"], mark["number"]
    found = values.find(mark["runs"])
    best = [point for point in found if point.source == found[0].source]
    if kind == "ratio":
        for start, end in _pair(values.find(mark["relative_to"]), found):
            row = {column: start.value / number, "bound": OPPOSITE[mark["bound"]], **start.start}
            yield {**_describe(mark, end), **row}
    elif kind == "seconds":
        yield from ({**_describe(mark, point), column: number} for point in best)
    elif kind == "end of scaling":
        yield from ({**_describe(mark, point), **point.start} for point in best if point.ranks == number)
    elif kind == "crossing" and len({point.curve for point in found}) > 1:
        yield {**_describe(mark), "ranks": int(number)}
    elif kind == "end of axis" and found:
        yield {**_describe(mark), column: number}


def _pair(slower: list[OurValue], faster: list[OurValue]) -> list[tuple[OurValue, OurValue]]:
    """Return the pairs of values that a ratio compares.

    They are on each curve that has both, or on two curves of the best source with the same batch, or else the fastest.
    """
    if not (slower and faster):
        return []
    source = slower[0].source
    starts = [point for point in slower if point.source == source]
    pairs = [(start, end) for start in starts for end in faster if start.curve == end.curve]
    alike = [end for end in faster if end.source == source] or faster
    for start in starts if not pairs else ():
        pairs += [(start, end) for end in alike if start.batch == end.batch][:1]
    return pairs or [(starts[0], alike[0])]


# Gains over a strategy.


def place_among_gains(
    panel: Panel, frame: pd.DataFrame, marks: Sequence[PrintedMark], column: str, baseline: str
) -> pd.DataFrame:
    """Return a row for each printed ratio over the strategy `baseline` whose runs have a row in a frame of gains."""
    return _drop_repeated(
        [
            {**_describe(mark, OurValue(*row)), column: mark["number"]}
            for mark, launches in _match_gains(panel, marks, baseline)
            for row in frame[frame.run_id.isin(launches.run_id)][[*POINT, column]]
            .head(1)
            .itertuples(index=False)
        ]
    )


def find_printed_gains(panel: Panel, marks: Sequence[PrintedMark], baseline: str) -> pd.DataFrame:
    """Return a launch of each curve for which a ratio over `baseline` is printed, on the most ranks of the ratios."""
    found = [panel.launches.iloc[:0], *(launches for _, launches in _match_gains(panel, marks, baseline))]
    return pd.concat(found).sort_values("ranks", ascending=False, kind="stable").drop_duplicates("curve")


def _match_gains(
    panel: Panel, marks: Sequence[PrintedMark], baseline: str
) -> Iterator[tuple[PrintedMark, pd.DataFrame]]:
    """Yield each printed ratio over `baseline` on the same ranks, with the launches that it describes."""
    for mark in marks:
        slower = mark["relative_to"] or {}
        if slower.get("strategy.name") == [baseline] and slower["ranks"] == mark["runs"]["ranks"]:
            launches = panel.launches[match_settings(panel.launches, mark["runs"])]
            if len(launches):
                yield mark, launches


# Rows of marks.


def _describe(mark: PrintedMark, value: OurValue | None = None) -> dict[str, Any]:
    """Return the columns that all marks have. Marks of a whole figure have no curve."""
    curve, strategy, _, label, ranks, *_ = value or OurValue("", "", "", "", 0, 0.0)
    known = {
        name: mark[name] for name in ("claim", "original", "bound", "read", "place", "printed", "mean_of")
    }
    at = {"curve": curve, "strategy": strategy, "label": label, "ranks": ranks or pd.NA}
    return {**known, "mark": mark["kind"], **at, "source": "published", "status": OK}


def _drop_repeated(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows as a frame. A number that several claims print has one row, without a bound if possible."""
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).astype({"ranks": "Int64"})
    order = pd.DataFrame({"bound": found.bound != "", "repeats": found.claim != found.original})
    place = ["original", "mark", "curve", "label", "ranks", "from_curve", "from_ranks"]
    ordered = found.loc[order.sort_values(["bound", "repeats"], kind="stable").index]
    kept = (
        ordered.drop_duplicates([name for name in place if name in found])
        .sort_index()
        .drop(columns="original")
    )
    return kept[[*FIRST_COLUMNS, *(name for name in kept if name not in FIRST_COLUMNS)]].reset_index(
        drop=True
    )


def join_marks(frame: pd.DataFrame, marks: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the frame and its marks as parts of one table. Whole numbers stay whole where marks have none."""
    if marks.empty:
        return [frame]
    whole = [name for name in frame if pd.api.types.is_integer_dtype(frame[name])]
    return [frame.astype(dict.fromkeys(whole, "Int64")), marks]


def describe_marks(every: Sequence[pd.DataFrame]) -> str:
    """Return the sentences of a caption about the marks of several facets; empty if there are none."""
    found = [marks for marks in every if len(marks)]
    if not found:
        return ""
    marks = pd.concat(found, ignore_index=True)
    bounds = marks.bound != ""
    kinds = {*marks.mark[~bounds], *(["bound"] if bounds.any() else [])}
    if "from_value" not in marks:
        kinds = {"gain" if kind == "ratio" else kind for kind in kinds}
    sentences = [text for kind, text in SENTENCES.items() if kind in kinds]
    if (marks.mean_of > 1).any():
        sentences.append("Some ratios are means over several models or graphs (column mean_of of the data).")
    return " ".join(["From the paper:", *sentences])


# Values of single runs.


def add_readings(frame: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Add the column `read`, how each printed value was read, to a frame that has any."""
    if "run_id" not in frame or not (frame.source == "published").any():
        return frame
    runs = panel.runs[panel.runs.source == "published"]
    texts = {run: _join_readings(extra) for run, extra in zip(runs.run_id, runs.extra, strict=True)}
    return frame.assign(read=frame.run_id.map(texts).fillna(""))


def _join_readings(extra: str) -> str:
    """Return the values of `read.CLAIM` in the extra values of a record, each once."""
    values = json.loads(extra) if extra else {}
    return ", ".join(dict.fromkeys(value for name, value in values.items() if name.startswith("read.")))
