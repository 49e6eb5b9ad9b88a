"""Tidy frames that several kinds of figures share: one row for each launch, with what marks need to draw it."""

import pandas as pd

from harness.figures.panels import Curve, Panel

LAUNCH_COLUMNS = ["ranks", "grid", "launch", "status", "run_id"]


def tabulate_launches(curve: Curve, runs: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return a row for each of these runs of a curve: the curve, the launch, and the columns that are asked for."""
    frame = runs[[*LAUNCH_COLUMNS, *columns]].copy()
    frame.insert(0, "curve", curve.label)
    frame.insert(1, "strategy", curve.strategy)
    frame.insert(2, "source", curve.source)
    return frame


def tabulate_best_grids(panel: Panel, column: str) -> pd.DataFrame | None:
    """Return the launches on the best grid of every number of ranks, and failures, of curves over several ranks."""
    frames = []
    for curve in panel.curves:
        best = curve.summarize_launches("ranks", column, best="min")[["ranks", "grid"]]
        done = curve.points.merge(best, on=["ranks", "grid"])
        if done.ranks.nunique() > 1:
            frame = tabulate_launches(curve, pd.concat([done, curve.failures]), column)
            frame["shared_cores"] = (curve.oversubscribed_from > 0) & (
                frame.ranks >= curve.oversubscribed_from
            )
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else None
