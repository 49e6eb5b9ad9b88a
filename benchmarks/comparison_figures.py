"""The figures of `comparison`, drawn from benchmarks/results/comparison.csv. Titles say what the rows show."""

import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from benchmarks.plotting import join_names, make_facets, show_intervals
from harness.base.formatting import format_count, format_seconds
from harness.registry import load_strategy
from harness.report.figures.axis_scales import RANKS, Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Dots, Lines, Points
from harness.report.figures.palette import look_of

TO_TARGET = Scale("seconds_to_target", "time to the target", "s", log=True)


def find_front(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether no other one is better in both elements and time."""
    better = [
        (
            (rows.elements_to_target <= row.elements_to_target)
            & (rows.seconds_to_target < row.seconds_to_target)
        ).any()
        for row in rows.itertuples()
    ]
    return ~pd.Series(better, rows.index)


def tabulate_reached(on_links: pd.DataFrame) -> pd.DataFrame:
    """Return the choices that reached the target, with their names."""
    reached = on_links.dropna(subset=["seconds_to_target"]).copy()
    reached["label"] = reached["curve"] = (reached.strategy + " " + reached.options).str.strip()
    reached["hosts"] = reached.ranks.map(lambda ranks: format_count(ranks, "host"))
    return reached.sort_values(["ranks", "seconds_to_target"])


@style_context()
def draw_elements_and_time(on_links: pd.DataFrame) -> Figure:
    """Draw the time to the target over the elements received until then, for each number of hosts."""
    reached = tabulate_reached(on_links)
    reached["front"] = pd.concat([find_front(rows) for _, rows in reached.groupby("ranks")])
    looks = {curve: look_of(name) for curve, name in zip(reached.curve, reached.strategy, strict=True)}
    elements = Scale("elements_to_target", "elements received until the target", log=True)
    return compose_figure(
        make_facets(reached, "hosts", looks=looks),
        Points(elements, TO_TARGET, front="front"),
        title=title_elements_and_time(on_links),
    )


def title_elements_and_time(on_links: pd.DataFrame) -> str:
    """Say how well the elements order the strategies by their time to the target."""
    groups = tabulate_reached(on_links).groupby("ranks")
    found = {
        str(rows.hosts.iloc[0]): float(spearmanr(rows.elements_to_target, rows.seconds_to_target).statistic)
        for _, rows in groups
    }
    strong = (
        "Who receives less is done sooner" if min(found.values()) > 0.7 else "Elements do not decide the time"
    )
    parts = ", ".join(f"{value:.2f} on {hosts}" for hosts, value in found.items())
    return f"{strong}: rank correlation {parts}"


@style_context()
def draw_times_to_target(on_links: pd.DataFrame) -> Figure:
    """Draw the time to the target of every choice, sorted; the note is the number of epochs and the time of one."""
    reached = tabulate_reached(on_links)
    epochs = reached.epochs_to_target.map("{:.0f}".format)
    reached["note"] = epochs + " × " + reached.seconds.map(format_seconds)
    looks = {curve: look_of(name) for curve, name in zip(reached.curve, reached.strategy, strict=True)}
    return compose_figure(
        make_facets(reached, "hosts", looks=looks), Dots(TO_TARGET), title=title_times_to_target(on_links)
    )


def title_times_to_target(on_links: pd.DataFrame) -> str:
    """Say who reaches the target first, and who has the shortest epoch."""
    parts = []
    for _, rows in tabulate_reached(on_links).groupby("ranks"):
        longer = rows.seconds.iloc[0] / rows.seconds.min()
        epoch = f"an epoch {longer:.1f} times the shortest" if longer > 1.05 else "the shortest epoch"
        parts.append(f"{rows.label.iloc[0]} is first on {rows.hosts.iloc[0]}, with {epoch}")
    return "; ".join(parts)


@style_context()
def draw_predicted(predicted: pd.DataFrame) -> Figure:
    """Draw the predicted epochs over the number of GPUs with their intervals: full graph, and mini-batches."""
    frame = predicted.assign(curve=predicted.strategy, low=predicted.seconds_low, high=predicted.seconds_high)
    frame["family"] = name_families(predicted)
    frame = frame.sort_values(["family", "ranks"])
    fastest = frame.sort_values("seconds").drop_duplicates(["family", "ranks"]).curve
    last = frame[frame.ranks == frame.ranks.max()].sort_values("seconds").groupby("family").head(3).curve
    shown = list(dict.fromkeys([*fastest, *last]))
    return compose_figure(
        make_facets(show_intervals(frame, "seconds"), "family", "predicted", highlights=shown),
        Lines(RANKS._replace(label="GPUs"), Scale("seconds", "predicted epoch", "s", log=True)),
        title=title_predicted(predicted),
    )


def name_families(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return for each row whether its strategy trains on the full graph or on mini-batches."""
    batches = {name: load_strategy(name).mini_batches for name in rows.strategy.unique()}
    return rows.strategy.map(lambda name: "mini-batches" if batches[name] else "full graph")


def title_predicted(predicted: pd.DataFrame) -> str:
    """Say which full-graph strategies are the fastest, as far as the intervals tell."""
    full = predicted[name_families(predicted) == "full graph"]
    groups = [rows.sort_values("seconds") for _, rows in full.groupby("ranks")]
    first = list(dict.fromkeys(str(rows.strategy.iloc[0]) for rows in groups))
    close = [set(rows.strategy[rows.seconds_low < rows.seconds_high.iloc[0]]) - {first[0]} for rows in groups]
    always = sorted(set.intersection(*close))
    fastest = (
        f"{first[0]} is predicted the fastest" if len(first) == 1 else f"{join_names(first)} are the fastest"
    )
    doubt = f"; the intervals of {join_names(always)} overlap with it at every size" if always else ""
    return f"On the full graph {fastest}{doubt}"
