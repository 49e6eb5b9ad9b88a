"""Elements that a rank receives in an epoch, compared with the lower bound for strategies of its kind."""

import pandas as pd

from harness.base.formatting import format_bytes, format_three_digits
from harness.report.figures.axis_scales import scale_of
from harness.report.figures.frames import add_notes, describe_first_rows, sort_rows, tabulate_largest_ranks
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Dots
from harness.report.figures.panels import Panel

ELEMENTS, BYTES, BOUND = "elements_received", "bytes_received", "elements_bound"
RECEIVED = scale_of(ELEMENTS, "elements received per epoch")


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the launches of each curve on several ranks; None if nothing differs and no bound is known."""
    frame = tabulate_largest_ranks(panel.launches, ELEMENTS, BYTES, BOUND)
    if frame is None or (frame := frame[(frame[ELEMENTS] > 0)].reset_index(drop=True)).empty:
        return None
    frame = sort_rows(frame, ELEMENTS)
    frame[BOUND] = frame[BOUND].where(frame[BOUND] > 0)
    medians = frame.groupby("label", sort=False)[[ELEMENTS, BYTES, BOUND]].median()
    if medians[BOUND].isna().all() and medians[ELEMENTS].nunique() < 2:
        return None
    same_order = medians[BYTES].is_monotonic_increasing

    def describe(rows: pd.DataFrame) -> str:
        elements, size, bound = rows[[ELEMENTS, BYTES, BOUND]].median()
        ratio = RECEIVED.format_value(elements)
        if pd.notna(bound):
            ratio = f"{format_three_digits(elements / bound)}× bound"
        return ratio if same_order or pd.isna(size) else f"{ratio}, {format_bytes(size)}"

    return add_notes(frame, describe)


KIND = FigureKind(
    "received",
    "Elements received",
    "How many elements does a rank receive, compared with the lower bound?",
    make_frame,
    Dots(RECEIVED, reference=scale_of(BOUND, "lower bound")),
    headline=describe_first_rows("Fewest"),
    caption="""\
Elements that the rank with the most receives in an epoch, for each curve at its largest number of ranks, sorted. A
tick is the lower bound for all strategies of its kind, and the note on the right is their ratio. Rows without a tick
have no known bound; their note is the number of elements. Bytes are added if they have another order, because
strategies send elements of different sizes.""",
    place=62,
)
