"""The claims behind a figure of a paper: our value divided by the printed one, its interval, and the verdict."""

import pandas as pd

from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import add_notes, sort_rows
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Dots
from harness.report.figures.palette import BLUE, GREY, MUTED, ORANGE, RED, CurveLook
from harness.report.figures.panels import Panel

VERDICTS = {
    "holds": CurveLook(BLUE, "o"),
    "in part": CurveLook(ORANGE, "P"),
    "within a factor": CurveLook(ORANGE, "^"),
    "contradicted": CurveLook(RED, "v"),
    "predicted": CurveLook(BLUE, "D"),
    "prediction off": CurveLook(ORANGE, "d"),
    "not comparable": CurveLook(GREY, "X"),
    "fitted": CurveLook(GREY, "s"),
    "cannot be tested here": CurveLook(MUTED, "_"),
}


def split_by_paper_figure(claims: pd.DataFrame) -> list[Panel]:
    """Split claims into panels, one for each figure of a paper."""
    shown = claims[claims.figure != ""]
    return [Panel(str(figure), "", rows) for figure, rows in shown.groupby("figure")]


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return a row for each result among the claims of a figure; None if no claim has a ratio or a range of them.

    If no result has one, as in a table of graphs, settings and facts have rows too.
    """
    judged = panel.runs[panel.runs.verdict.isin(list(VERDICTS))]
    results = judged[judged.uncounted == ""]
    claims = results if (results.ratio_high > 0).any() else judged
    if not (claims.ratio_high > 0).any():
        return None
    labels = claims.what.where(claims.config == "", claims.what + " (" + claims.config + ")")
    repeated = labels.duplicated(keep=False)
    frame = pd.DataFrame(
        {
            "curve": claims.id,
            "strategy": claims.paper,
            "source": "measured",
            "status": "ok",
            "label": labels.where(~repeated, labels + ", " + claims.id),
            "verdict": claims.verdict,
            "ours": claims.ours.where(claims.ours != "", "untested"),
            "printed": claims.printed,
            **{
                name: claims[name].where(claims[name] > 0).astype(float)
                for name in ("ratio", "ratio_low", "ratio_high")
            },
        }
    )
    frame = frame.rename(columns={"ratio_low": "low", "ratio_high": "high"}).reset_index(drop=True)
    return add_notes(sort_rows(frame, "ratio"), lambda rows: f"{rows.ours.iloc[0]} / {rows.printed.iloc[0]}")


def count_verdicts(frame: pd.DataFrame) -> str:
    """Count the results by verdict."""
    counts = frame.verdict.value_counts()
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts)


KIND = FigureKind(
    "papers",
    "Comparison with papers",
    "Do the results of papers hold here?",
    make_frame,
    Dots(
        Scale("ratio", "our value / printed value", "times", log=True),
        line=1.0,
        verdicts=VERDICTS,
        letters=52,
    ),
    split_by_paper_figure,
    headline=count_verdicts,
    table="claims",
    caption="""\
Claims behind a figure or table of a paper: our value divided by the printed one, the interval of a prediction, and the
verdict. On the right are our value and the printed one. Our value is measured if the paper's own run was made;
otherwise it comes from a prediction or a formula. A prediction never contradicts a paper. Rows without a marker are
statements, ranges over settings that the paper does not print, and claims that cannot be tested on this machine.
Settings, facts and other claims that the scoreboard does not count are shown only where no other claim has a ratio.""",
    place=130,
)
