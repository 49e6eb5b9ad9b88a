"""How far a prediction can be trusted, where it can be checked and where it cannot: docs/evidence/trust.md.

Nothing runs. One side are epochs on links that were shaped, from the pages `prediction` and `unseen`; the other side
are the numbers that papers print of machines on which this project never ran, from the claims and their saved
predictions.
"""

from statistics import median

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.plotting import RESULTS, make_facets
from benchmarks.recorded_tables import parse_numbers, read_tables
from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.base.formatting import format_three_digits
from harness.base.progress import ignore_step
from harness.claims.evidence import Evidence
from harness.claims.scoreboard import select_counted
from harness.claims.verdicts import Result, compute_error, judge_all
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Points
from harness.spec.root import find_root

LINKS, UNSEEN, HELD_OUT, OTHERS = (
    "links that were shaped",
    "graphs and rates not seen before",
    "machines of papers, held out",
    "machines of papers, others",
)
LEVEL = 0.9
"""The share of the numbers that are not held out which a widened interval holds."""

COLUMNS = ("side", "kind", "ratio", "low", "high")
SHOWN = 60
"""About the most points of a side in the figure."""


@benchmark
def trust() -> Results:
    """Compare the errors of predictions on shaped links with those on machines of papers, and widen the latter.

    `ratios` are numbers that compare two epochs. An error is the factor between what was predicted and what was
    observed or printed. Intervals on machines of papers have the errors of the model and of the constants, and a
    further, independent one: the smallest with which nine of ten numbers that are not held out are inside. It is judged
    on those that are.
    """
    frame = read_errors()
    yield Table(
        *("predictions", "number", "ratios", "median error:.2f", "within 1.25:.0%", "within 2:.0%"),
        *("inside:.0%", "median width:.2f"),
    )
    for side, rows in frame.groupby("side", sort=False):
        yield (
            *(side, len(rows), int((rows.kind == "ratio").sum()), rows.error.median()),
            *(
                (rows.error <= 1.25).mean(),
                (rows.error <= 2).mean(),
                is_inside(rows).mean(),
                find_width(rows),
            ),
        )
    held_out, others = (frame[frame.side == side] for side in (HELD_OUT, OTHERS))
    factor = fit_further_error(others)
    yield Table("intervals on machines of papers", "factor:.2f", "held out inside:.0%", "median width:.2f")
    for name, by in (("of the model and the constants", 1.0), ("with a further error", factor)):
        wide = widen(held_out, by)
        yield name, by, is_inside(wide).mean(), find_width(wide)
    yield Drawing("trust", draw_errors(frame))


def read_errors() -> pd.DataFrame:
    """Return the predictions of both sides, with their ratios, intervals and errors."""
    links = [read_links(side, page) for side, page in ((LINKS, "prediction"), (UNSEEN, "unseen"))]
    frame = pd.concat([*links, read_claims_predicted()], ignore_index=True)
    return frame.assign(error=frame.ratio.map(compute_error))


def read_links(side: str, page: str) -> pd.DataFrame:
    """Return the predictions on a page of epochs on shaped links, of every strategy and grid."""
    rows = []
    for table in read_tables(RESULTS / f"{page}.md"):
        if "prediction.links" in table.above and "between" in table.header:
            for row in table.rows():
                low, high = parse_numbers(row["between"])
                observed = parse_numbers(row["observed ms"])[0]
                predicted = parse_numbers(row["predicted ms"])[0]
                rows.append((side, "absolute", *(each / observed for each in (predicted, low, high))))
    return pd.DataFrame(rows, columns=COLUMNS)


def read_claims_predicted() -> pd.DataFrame:
    """Return the predictions of numbers that papers print, which no constant was fitted to."""
    root = find_root()
    evidence = Evidence(root, predictions=root / "workflows" / "predictions", quick=True, log=ignore_step)
    rows = [
        (
            *(HELD_OUT if each.claim.fitted == "held out" else OTHERS, each.claim.kind),
            *(ratio.value, ratio.low, ratio.high),
        )
        for of_paper in judge_all(root, evidence).values()
        for each in select_counted(of_paper)
        if each.error and each.result is not Result.FITTED and (ratio := each.ratio)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def is_inside(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each interval holds what was observed or printed."""
    return (rows.low <= 1) & (rows.high >= 1)


def find_width(rows: pd.DataFrame) -> float:
    """Return the median of the upper end of an interval over the lower."""
    return float((rows.high / rows.low).median())


def widen(rows: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Return intervals with a further, independent error of a factor."""
    below, above = (np.exp(np.hypot(log_of, np.log(factor))) for log_of in find_deviations(rows))
    return rows.assign(low=rows.ratio / below, high=rows.ratio * above)


def fit_further_error(rows: pd.DataFrame) -> float:
    """Return the smallest factor with which `LEVEL` of the intervals hold 1."""
    below, above = find_deviations(rows)
    towards = np.where(rows.ratio > 1, below, above)
    needed = np.sqrt(np.maximum(np.log(rows.error) ** 2 - towards**2, 0))
    return float(np.exp(np.quantile(needed, LEVEL, method="higher")))


def find_deviations(rows: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of the factors from the ratios to the lower and to the upper ends of their intervals."""
    low, ratio, high = np.log(rows[["low", "ratio", "high"]].to_numpy(float)).T
    return ratio - low, high - ratio


@style_context()
def draw_errors(frame: pd.DataFrame) -> Figure:
    """Draw the error of each prediction over the share of predictions with smaller errors."""
    ordered = frame.sort_values("error").rename(columns={"side": "curve"})
    numbers, sizes = ordered.groupby("curve").cumcount() + 1, ordered.groupby("curve").error.transform("size")
    shown = (numbers % (sizes // SHOWN).clip(1) == 0) | (numbers == sizes)
    points = ordered.assign(share=numbers / sizes)[shown]
    return compose_figure(
        make_facets(points, source="predicted"),
        Points(
            Scale("error", "factor between predicted and observed", "times", log=True),
            Scale("share", "predictions with at most this error", "%"),
        ),
        title=title_errors(frame),
    )


def title_errors(frame: pd.DataFrame) -> str:
    """Say the median errors on links, on graphs not seen before, and on machines of papers."""
    links, unseen, papers = (
        format_three_digits(median(frame[frame.side.isin(sides)].error))
        for sides in ((LINKS,), (UNSEEN,), (HELD_OUT, OTHERS))
    )
    return (
        f"Half of the predictions are within a factor of {links} on links that were shaped, of {unseen} there on "
        f"graphs not seen before, and of {papers} on machines of papers"
    )
