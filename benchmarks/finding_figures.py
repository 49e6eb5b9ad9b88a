"""The figures of docs/evidence/findings.md, each drawn from the table of its benchmark.

The title of a figure says what its rows show, and is computed from them.
"""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.plotting import join_names, make_facets, show_intervals
from harness.base.formatting import format_share, format_three_digits
from harness.report.figures.axis_scales import RANKS, Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import PAGE_WIDTH, compose_figure
from harness.report.figures.marks import Bars, Dots, Facet, Lines, Points
from harness.report.figures.palette import NAVY, RED, Fill, numbered_look

ONE = 1.0
"""The value of a ratio without a difference."""
ORDERS = {"none": "as stored", "single": "one permutation", "double": "two permutations"}


@style_context()
def draw_balance(table: pd.DataFrame) -> Figure:
    """Draw the fullest block over the mean: a row for each graph and order."""
    frame = table.melt("graph", list(ORDERS), "order", "ratio")
    worst = frame.groupby("graph").ratio.transform("max")
    frame = frame.assign(worst=worst, curve=frame.order.map(ORDERS)).sort_values(
        ["worst", "graph", "ratio"], ascending=False
    )
    frame["label"] = frame.graph + ", " + frame.curve
    frame["note"] = frame.ratio.map("{:.2f}×".format)
    looks = {name: numbered_look(number) for number, name in enumerate(ORDERS.values())}
    scale = Scale("ratio", "fullest of 8 x 8 blocks over the mean", "times", log=True)
    return compose_figure(
        make_facets(frame, looks=looks), Dots(scale, line=ONE, letters=60), title=title_balance(table)
    )


def title_balance(table: pd.DataFrame) -> str:
    """Say how far the fullest block is from the mean with each order."""
    most = table[list(ORDERS)].max()
    best = str(most.idxmin())
    return (
        f"{ORDERS[best].capitalize()}: no block has more than {most[best]:.2f} times the mean; "
        f"other orders reach {most.max():.2f} times"
    )


MODELS = {"printed": "equation 4.4 as printed", "terms": "terms for each product"}


@style_context()
def draw_model(table: pd.DataFrame) -> Figure:
    """Draw the times of both models over the published times. `table` has a row for each grid and model."""
    frame = table.assign(curve=table.model.map(MODELS))
    return compose_figure(
        make_facets(frame, source="predicted"),
        Points(
            Scale("published", "published products of an epoch", "s", log=True),
            Scale("seconds", "by the model", "s", log=True),
            equality=True,
        ),
        title=title_model(table),
    )


def title_model(table: pd.DataFrame) -> str:
    """Say how far each model is from the published times."""
    ratios = (table.seconds / table.published).groupby(table.model).median().sort_values(ascending=False)
    parts = [f"{MODELS[str(model)]} is {format_three_digits(ratio)} times" for model, ratio in ratios.items()]
    title = f"{join_names(parts)} the published time, in the median"
    return title[0].upper() + title[1:]


ENDS = {
    "cycle": ("in a cycle", Fill(RED, "")),
    "no swap helps": ("when no swap helps", Fill("#b9d6f2", "")),
    "gamma": ("at its goal, sets of equal size", Fill(NAVY, "")),
}
"""How the search of G3's partitioner ends: its name in the table, the name that is shown, and its fill."""


@style_context()
def draw_swaps(table: pd.DataFrame) -> Figure:
    """Draw how many searches of each form end in which way."""
    ways = table["it ends: why"].map({way: shown for way, (shown, _) in ENDS.items()})
    frame = table.assign(label=table.form, curve=table.form, part=ways, searches=1)
    fills = dict(ENDS.values())
    return compose_figure(
        make_facets(frame), Bars(Scale("searches", "searches"), fills), title=title_swaps(table)
    )


def title_swaps(table: pd.DataFrame) -> str:
    """Say how often each form of the search ends in a cycle."""
    cycles = (table["it ends: why"] == "cycle").groupby(table.form).agg(["sum", "count"])
    parts = [f"{row['sum']} of {row['count']} searches {form}" for form, row in cycles.iterrows()]
    return f"G3's swaps end in a cycle in {join_names(parts)}"


DIMENSIONS = {"cagnet-1d": "1D", "cagnet-1.5d": "1.5D", "cagnet-2d": "2D", "cagnet-3d": "3D"}
"""CAGNET's schemes, which are told apart by dimension, since all of them have the hue of CAGNET."""


def make_dimension_facets(table: pd.DataFrame) -> list[Facet]:
    """Return a facet for each graph, with a curve for each dimension."""
    looks = {name: numbered_look(number) for number, name in enumerate(DIMENSIONS.values())}
    return make_facets(table.assign(curve=table.strategy.map(DIMENSIONS)), "graph", "predicted", looks)


@style_context()
def draw_dimensions(table: pd.DataFrame) -> Figure:
    """Draw the predicted epochs of CAGNET's schemes over the number of GPUs, with their intervals."""
    return compose_figure(
        make_dimension_facets(show_intervals(table, "seconds")),
        Lines(RANKS._replace(label="GPUs"), Scale("seconds", "predicted epoch", "s", log=True)),
        title=title_dimensions(table),
    )


def title_dimensions(table: pd.DataFrame) -> str:
    """Say which schemes are the fastest at the most GPUs, and whether the intervals tell them apart."""
    most = table.ranks.max()
    groups = [rows.sort_values("seconds") for _, rows in table[table.ranks == most].groupby("graph")]
    fastest = sorted({DIMENSIONS[str(rows.strategy.iloc[0])] for rows in groups})
    leading = sorted({DIMENSIONS[str(name)] for rows in groups for name in rows.strategy.head(2)})
    overlap = all(rows.low.iloc[1] < rows.high.iloc[0] for rows in groups)
    if overlap and len(leading) == 2:
        return f"On {most} GPUs {join_names(leading)} are the fastest on every graph, and their intervals overlap"
    doubt = "; its interval overlaps with the next" if overlap else ""
    return f"The fastest on {most} GPUs: {join_names(fastest)}{doubt}"


@style_context()
def draw_elements(table: pd.DataFrame) -> Figure:
    """Draw the elements received by CAGNET's schemes, each on its fastest grid, over the number of GPUs."""
    return compose_figure(
        make_dimension_facets(table),
        Lines(RANKS._replace(label="GPUs"), Scale("elements", "elements received", log=True)),
        title=title_elements(table),
    )


def title_elements(table: pd.DataFrame) -> str:
    """Say from how many GPUs on 2D receives fewer elements than 1D, for each graph."""
    wide = table.pivot_table("elements", ["graph", "ranks"], "strategy", sort=False).reset_index()
    graphs: dict[int, list[str]] = {}
    for graph, rows in wide.groupby("graph", sort=False):
        last = rows.ranks[rows["cagnet-2d"] >= rows["cagnet-1d"]].max()
        start = rows.ranks[~(rows.ranks <= last)].min()
        graphs.setdefault(0 if pd.isna(start) else int(start), []).append(str(graph))
    parts = [f"from {start} GPUs on ({join_names(some)})" for start, some in sorted(graphs.items()) if start]
    parts += [f"never ({join_names(graphs[0])})"] if 0 in graphs else []
    return f"2D receives fewer elements than 1D {join_names(parts)}"


@style_context()
def draw_gain(table: pd.DataFrame) -> Figure:
    """Draw the epochs of G3 and of halo exchanges over those of halos in every epoch, for each setting."""
    variant = table.columns[0]
    frame = table.melt(variant, var_name="setting", value_name="ratio")
    frame = frame.assign(label=frame[variant], curve=frame[variant], note=frame.ratio.map("{:.2f}×".format))
    return compose_figure(
        make_facets(frame, "setting"),
        Dots(Scale("ratio", "epoch over that of halos in every epoch", "times"), line=ONE, letters=20),
        title=title_gain(table),
    )


def title_gain(table: pd.DataFrame) -> str:
    """Say what is saved by all of G3 and by fetching the first layer once."""
    saved = 1 - table.set_index(table.columns[0]).astype(float)
    g3, once = (
        saved.loc[name].to_numpy() for name in ("G3, all of its pipeline", "the first layer's halo once")
    )
    verdict = (
        "at least as much" if (once >= g3).all() else "about as much" if (once >= g3 - 0.02).all() else "less"
    )
    return (
        f"G3 saves {format_share(g3.min())} to {format_share(g3.max())} of an epoch; "
        f"a halo exchange that fetches the first layer once saves {verdict}"
    )


COUNTED = {"once": numbered_look(0), "twice, or with loops": numbered_look(1)}
TWICE = 1.05
"""The ratio from which a count has more than each edge once."""


@style_context()
def draw_edges(table: pd.DataFrame) -> Figure:
    """Draw every printed number of edges or nonzeros over the edges counted once."""
    ratio = "over each edge once"
    frame = table.sort_values([ratio, "graph"]).assign(curve=table.claim, ratio=table[ratio])
    frame["label"] = frame.graph + ", " + frame.paper + " " + frame.called
    frame = frame.drop_duplicates(["label", "ratio"])
    frame["note"] = frame.ratio.map("{:.2f}×".format)
    frame["verdict"] = [list(COUNTED)[value >= TWICE] for value in frame.ratio]
    return compose_figure(
        make_facets(frame, source="published"),
        Dots(
            Scale("ratio", "printed number over the edges, each counted once", "times"),
            line=ONE,
            verdicts=COUNTED,
            letters=50,
        ),
        title=title_edges(table),
    )


def title_edges(table: pd.DataFrame) -> str:
    """Say how many of the printed numbers of edges count more than each edge once."""
    edges = table[table.called == "edges"]["over each edge once"]
    return f"{(edges >= TWICE).sum()} of the {len(edges)} printed numbers of edges count each edge twice"


@style_context()
def draw_settings(table: pd.DataFrame) -> Figure:
    """Draw the predicted epoch of each case, from the fastest to the slowest setting that the paper leaves open."""
    case = table.columns[0]
    frame = table.assign(
        label=table[case] + " GPUs",
        curve=table[case],
        strategy="scalegnn",
        low=table["shortest ms"] / 1e3,
        high=table["longest ms"] / 1e3,
        note=table["longest over shortest"].map("{:.2f}×".format),
    )
    frame["seconds"] = (frame.low * frame.high) ** 0.5
    frame = frame.sort_values("longest over shortest", ascending=False)
    return compose_figure(
        make_facets(frame, source="predicted"),
        Dots(
            Scale("seconds", "predicted epoch, from the fastest to the slowest setting", "s", log=True),
            letters=40,
        ),
        title=title_settings(table),
    )


def title_settings(table: pd.DataFrame) -> str:
    """Say by how much the open settings change an epoch, with the decimals of the recorded table."""
    factors = table["longest over shortest"]
    most, least = factors.max(), factors.min()
    return f"The settings that ScaleGNN's paper leaves open change an epoch by a factor of {least:.2f} to {most:.2f}"


@style_context()
def draw_received(table: pd.DataFrame, case: str) -> Figure:
    """Draw what a rank receives with the best settings of each strategy, least first."""
    received = "elements received"
    scale = Scale(received, "elements that a rank receives in 100 epochs and before them")
    frame = table.sort_values(received).assign(curve=table.strategy, low=0.0, high=table[received])
    sizes = frame.grid.str.replace(r"\w+=", "", regex=True).str.replace(",", " x ")
    frame["label"] = frame.strategy + ", " + sizes
    frame["note"] = frame[received].map(scale.format_value)
    title = title_received(table, case)
    figure = compose_figure(make_facets(frame), Dots(scale, letters=60), title=title)
    figure.set_figwidth(PAGE_WIDTH)  # the first figure of the project: its title has room for one line
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=9)
    return figure


def title_received(table: pd.DataFrame, case: str) -> str:
    """Say by how much the strategies differ."""
    factor = table["elements received"].max() / table["elements received"].min()
    return f"Same training, up to {factor:.0f} times the communication: {case}"


Draw = Callable[[pd.DataFrame], Figure]
FROM_PAGE: dict[str, tuple[str, Draw, Callable[[pd.DataFrame], str]]] = {
    "balance": ("findings", draw_balance, title_balance),
    "gain": ("gain", draw_gain, title_gain),
    "swaps": ("findings", draw_swaps, title_swaps),
    "edges": ("findings", draw_edges, title_edges),
    "settings": ("findings", draw_settings, title_settings),
}
"""The figures that are drawn of a recorded table: its page, how they are drawn, and their titles."""
