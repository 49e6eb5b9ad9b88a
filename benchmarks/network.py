"""Training on slow links: what an epoch's words cost, and what hides or shrinks them."""

from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.launches import EPOCHS, RATIO_LAUNCHES, format_interval, measure_launches
from benchmarks.measuring import named, spec_of, train_in_turns, trainer_of, trainer_on_hosts
from benchmarks.plotting import make_facets, stack_bars
from benchmarks.registry import FOUR_HOSTS, Drawing, Hosts, Results, Table, benchmark
from benchmarks.runner import measure_on_hosts
from harness.base.formatting import format_share
from harness.graph.store.building import build_store
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Points
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.spec.spec import Spec


class Scheme(NamedTuple):
    """A strategy on a grid of four ranks; `batch` is 0 for the full graph."""

    name: str
    grid: str
    params: dict[str, Any] = {}
    batch: int = 0

    def spec(self, dataset: str, hidden: int) -> Spec:
        return spec_of(
            {
                "strategy": {"name": self.name, "params": self.params},
                "dataset": dataset,
                "ranks": prod(map(int, self.grid.split("x"))),
                "grid": self.grid,
                "machine": "ethernet",
                "model": {"hidden": hidden, "order": "aggregate_first"},
                "training": {"batch": self.batch},
            }
        )


SCHEMES = (
    Scheme("cagnet-1d", "4"),
    Scheme("cagnet-1d", "4", {"moves": "all_gather"}),
    Scheme("cagnet-1d", "4", {"weight_gradient": "T"}),
    Scheme("cagnet-1d", "4", {"overlap": True}),
    Scheme("cagnet-1.5d", "2x2"),
    Scheme("cagnet-1.5d", "1x4"),
    Scheme("cagnet-2d", "2x2"),
    Scheme("cagnet-2d", "2x2", {"moves": "all_gather"}),
    Scheme("cagnet-2d", "2x2", {"overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "S", "overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "T", "overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "T", "moves": "all_gather"}),
    Scheme("cagnet-3d", "2x1x2"),
    Scheme("cagnet-3d", "2x1x2", {"moves": "all_gather"}),
    Scheme("cagnet-3d", "2x1x2", {"overlap": True}),
    Scheme("plexus", "2x2x1"),
    Scheme("plexus", "2x1x2"),
    Scheme("plexus", "2x1x2", {"aggregation": "blocked"}),
    Scheme("plexus", "2x1x2", {"aggregation": "overlapped"}),
    Scheme("cagnet-sa-1d", "4"),
    Scheme("cagnet-sa-1d", "4", {"overlap": True}),
    Scheme("cagnet-sa-1.5d", "2x2"),
    Scheme("bns-gcn", "4"),
    Scheme("bns-gcn", "4", {"overlap": True}),
    Scheme("g3", "4"),
)


@benchmark
def network(
    hosts: Hosts = FOUR_HOSTS,
    dataset: str = "rmat-17",
    epochs: int = 3,
    hidden: int = 16,
    only: tuple[str, ...] = (),
) -> Results:
    """Train every scheme on slow links: its communication next to its words over the rate of the links.

    Seconds are the slowest rank's, the median of epochs: of the epoch, and of its collectives. Next to them are three
    counts of words, of the rank that has most, and how long each takes at the rate of the links:

    - `words`: the payload, as in the formulas. Stages that follow one another cannot take less time.
    - `received`: what a ring brings to the rank. Calls that overlap cannot take less time.
    - `on the path`: the payload of broadcasts, whose receiver all ranks wait for, and the received words of all other
      calls.

    Large calls are composed out of rounds, as in config/machines/ethernet.yaml.
    """
    counts = [
        (f"{words}:,.0f", "s at the rate:.3f", "ratio:.2f") for words in ("words", "received", "on the path")
    ]
    yield Table("scheme", "grid", "epoch s:.3f", "collectives s:.3f", *sum(counts, ()))
    for scheme in SCHEMES:
        if only and scheme.name not in only:
            continue
        trainer = trainer_of(scheme.spec(dataset, hidden))
        for turns in train_in_turns([trainer], epochs):
            moving, cells = turns.median("moving"), list[float]()
            for words in ("words", "received", "path"):
                count = turns.most(words)
                bound = BITS * count / hosts.mbits / 1e6
                cells += [count, bound, moving / bound]
            yield named(scheme.name, scheme.params), scheme.grid, turns.median(), moving, *cells


# Rounded messages.

WIRE_SCHEMES = (
    Scheme("cagnet-1d", "4"),
    Scheme("cagnet-1.5d", "2x2"),
    Scheme("cagnet-2d", "2x2"),
    Scheme("cagnet-3d", "2x1x2"),
    Scheme("cagnet-sa-1d", "4"),
    Scheme("cagnet-sa-1.5d", "2x2"),
    Scheme("plexus", "2x2x1"),
    Scheme("g3", "4"),
    Scheme("bns-gcn", "4"),
    Scheme("pipegcn", "4"),
    Scheme("neutronstar", "4"),
    Scheme("scalegnn", "1x2x2x1", batch=1 << 14),
    Scheme("distdgl", "4", batch=4096),
    Scheme("bulk-sage", "2x2", batch=4096),
)


@benchmark
def wires(hosts: Hosts = FOUR_HOSTS, dataset: str = "rmat-17", epochs: int = 3, hidden: int = 16) -> Results:
    """Train each strategy with features and activations on the wire in full and as bf16, in turns.

    Seconds are the slowest rank's, the median of epochs. Ratios are of turns side by side. `bytes` are those of the
    rank that sends most, as bf16 over those in full; tensors that are never rounded keep the ratio above a half.
    """
    titles = ("strategy", "grid", "in full s:.3f", "bf16 s:.3f", "times as fast:.2f", "bytes:.2f")
    yield Table(*titles, title=f"links of {hosts.rate}")
    for scheme in WIRE_SCHEMES:
        both = [scheme._replace(params={"wire": wire}) for wire in ("full", "bf16")]
        trainers = [trainer_of(each.spec(dataset, hidden)) for each in both]
        if turns := train_in_turns(trainers, epochs):
            full, bf16 = turns
            sent = bf16.most("bytes") / full.most("bytes")
            yield scheme.name, scheme.grid, full.median(), bf16.median(), bf16.ratio(full), sent


# The rate of the links, by the slope of epochs over words.

FULL_GRAPH = (
    *(scheme for scheme in SCHEMES if not scheme.params),
    Scheme("pipegcn", "4"),
    Scheme("neutronstar", "4"),
)
MINI_BATCHES = (
    Scheme("cluster-gcn", "4", {}, 256),
    Scheme("scalegnn", "1x2x2x1", {}, 4096),
    Scheme("scalegnn", "2x2x1x1", {}, 4096),
    Scheme("bulk-sage", "2x2", {"graph": "partitioned"}, 256),
    Scheme("bulk-ladies", "4x1", {}, 256),
    Scheme("distdgl", "4", {}, 256),
    Scheme("salient", "4", {"prefetch": False}, 256),
    Scheme("massivegnn", "4", {"prefetch": False}, 256),
    Scheme("quiver", "4", {"prefetch": False}, 256),
    Scheme("graphsage", "4", {}, 256),
    Scheme("graphsaint-node", "4", {}, 256),
)
"""Nothing is prefetched, so that an epoch takes the time of its words and of its other work, one after the other."""
FEW = 100_000
"""Words whose time on the slowest link is no more than the noise of an epoch."""
BITS = 32
USEFUL = 0.95
POINTS = Path(__file__).parent / "results" / "slope.csv"


@benchmark
def slope(
    rates: tuple[int, ...] = (100, 200, 400),
    widths: tuple[int, ...] = (16, 64),
    dataset: str = "ogbn-products@1/64",
    epochs: int = 2,
    only: tuple[str, ...] = (),
    redraw: bool = False,
) -> Results:
    """Compare epoch time with the words that a rank's link must carry, on links of several rates.

    The slope of seconds over words is the rate. On four hosts for each rate, every strategy trains at each width of
    features and hidden layers (network.points). The table has the bandwidth of each rate by least squares, next to the
    95 % of the rate that TCP leaves to useful bytes. Every strategy has its own intercept, for time that does
    not depend on words. Words are those on the path (see network). The slopes of strategies that send little more than
    gradients say nothing: their words take next to no time. Needs root; keeps benchmarks/results/slope.csv.

    Args:
        rates: of the links, in Mbit/s
        widths: of features and hidden layers
        dataset: a twin, without its width
        redraw: use the last measurements
    """
    if not redraw:
        for width in widths:
            build_store(find_root(), DatasetChoice(name=f"{dataset}w{width}"))
        words = [
            "--dataset",
            dataset,
            "--epochs",
            epochs,
            "--widths",
            *widths,
            *(["--only", *only] if only else []),
        ]
        at_rates = (
            measure_on_hosts("network.points", Hosts(4, f"{rate}mbit"), *words).assign(rate=rate)
            for rate in rates
        )
        frame = pd.concat(at_rates)
        frame[["rate", "strategy", "scheme", "width", "seconds", "words"]].to_csv(POINTS, index=False)
    frame = pd.read_csv(POINTS)
    points = {rate: frame[frame.rate == rate] for rate in sorted(set(frame.rate.astype(int).tolist()))}
    yield Drawing("slope", draw_slopes(frame))
    yield Table("links, Mbit/s", "95 % of it:.1f", "by the slope:.1f", "over it:.2f", "points")
    for rate, rows in points.items():
        found, useful = fit_bandwidth(rows), USEFUL * rate
        yield rate, useful, found, found / useful, len(rows)
    yield Table("over it, by itself", *(f"{rate}:.2f" for rate in points))
    for scheme in dict.fromkeys(scheme for rows in points.values() for scheme in rows.scheme):
        own = {rate: rows[rows.scheme == scheme] for rate, rows in points.items()}
        yield (
            scheme,
            *(
                fit_bandwidth(rows) / (USEFUL * rate) if has_many(rows) else None
                for rate, rows in own.items()
            ),
        )


@benchmark
def points(
    hosts: Hosts = FOUR_HOSTS,
    dataset: str = "ogbn-products@1/64",
    widths: tuple[int, ...] = (16, 64),
    epochs: int = 2,
    only: tuple[str, ...] = (),
) -> Results:
    """Measure the epochs and words that network.slope compares, on links of one rate.

    Args:
        dataset: a twin, without its width
        widths: of features and hidden layers
    """
    yield Table("strategy", "scheme", "width", "seconds", "words", title=f"links of {hosts.rate}")
    for scheme in FULL_GRAPH + MINI_BATCHES:
        for width in widths if not only or scheme.name in only else ():
            trainer = trainer_of(scheme.spec(f"{dataset}w{width}", width))
            for turns in train_in_turns([trainer], epochs):
                name = f"{scheme.name} {scheme.grid}"
                yield scheme.name, name, width, turns.median(), turns.most("path")


def has_many(rows: pd.DataFrame) -> bool:
    """Return True if more than a few words lie between the widths."""
    return bool(rows.words.max() - rows.words.min() > FEW)


def fit_bandwidth(rows: pd.DataFrame) -> float:
    """Return Mbit/s by the slope of seconds over words, of parallel lines: one for each strategy and grid."""
    own = pd.get_dummies(rows.scheme, dtype=float)
    slope = np.linalg.lstsq(np.column_stack([rows.words, own]), rows.seconds.to_numpy())[0][0]
    return float(BITS / slope / 1e6)


@style_context()
def draw_slopes(frame: pd.DataFrame) -> Figure:
    """Draw the epoch time over the elements on the path, a point for each strategy and width."""
    shown = frame[["rate", "words", "seconds"]].sort_values("rate")
    shown["curve"] = shown.rate.map("{} Mbit/s".format)
    return compose_figure(
        make_facets(shown),
        Points(
            Scale("words", "elements on the path of an epoch", log=True),
            Scale("seconds", "epoch time", "s", log=True),
        ),
        title=title_slopes(frame),
    )


def title_slopes(frame: pd.DataFrame) -> str:
    """Say which part of the useful rate of the links the slopes are."""
    shares = [fit_bandwidth(rows) / (USEFUL * rows.rate.iloc[0]) for _, rows in frame.groupby("rate")]
    share = f"{format_share(min(shares))} to {format_share(max(shares))}"
    return f"An epoch grows with its elements at {share} of what the links carry"


# G3's pipelines.

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("g3", {"pipeline": "sequential"}),
    ("g3", {"pipeline": "inter"}),
    ("g3", {"pipeline": "intra"}),
    ("g3", {"pipeline": "full"}),
    ("bns-gcn", {}),
    ("bns-gcn", {"precompute": False}),
    ("bns-gcn", {"overlap": True}),
]


@benchmark
def pipelines(
    hosts: int = 4,
    rate: str = "200mbit",
    dataset: str = "rmat-17",
    partition: str = "g3-guarded",
    kind: Literal["gcn", "sage", "gat"] = "gcn",
    heads: int = 8,
    layers: int = 3,
    hidden: int = 16,
    bin_nodes: int = 1000,
    launches: int = RATIO_LAUNCHES,
    epochs: int = EPOCHS,
) -> Results:
    """Train with G3's four pipelines on slow links, and with the exact halo exchange. Needs root.

    Every launch trains all variants, one after the other. A ratio is the median over launches of ratios to
    `sequential`, each of median epochs. Milliseconds are the slowest rank's, the median of epochs:
    of the epoch, and of the epoch without calls and waits (`computing`). Calls and received elements are those of the
    rank that has most. `at best` is the ratio of a variant that computes as `sequential` does, receives its elements
    at the rate of the links, and hides the shorter of the two. G3 has fetched the first layer's rows before training.
    Without `precompute`, the halo exchange has not, because it may sample other rows in each epoch.

    Args:
        hosts: emulated hosts
        rate: of each link, as 200mbit
        partition: method of partitioning
        kind: model
        heads: heads of attention, each of the hidden width
        bin_nodes: vertices in a bin of G3
    """
    model = {"kind": kind, "layers": layers, "hidden": hidden} | ({"heads": heads} if kind == "gat" else {})
    cluster, choice = Hosts(hosts, rate), {"name": dataset, "partition": partition, "parts": hosts}
    specs = [spec_of(request) for request in list_pipelines(choice, model, bin_nodes)]
    rows = measure_launches(specs, cluster, launches, epochs)
    yield Table(
        *("variant", "ms:.0f", "computing:.0f", "times as fast as sequential:.2f", "interval", "at best:.2f"),
        *("calls:,.0f", "elements received:,.0f", "s before training:.2f", "elements:,.0f"),
        title=f"{launches} launches of {epochs} epochs",
    )
    sequential = rows[rows.spec == 0].median()
    for number, (name, params) in enumerate(VARIANTS):
        own = rows[rows.spec == number]
        median, gain = own.median(), 1 / own.over_first
        moving = BITS * median.received / cluster.mbits / 1e6
        best = sequential.seconds / max(sequential.computing, moving)
        yield (
            *(named(name, params), 1e3 * median.seconds, 1e3 * median.computing, gain.median()),
            *(
                format_interval(gain, len(VARIANTS) - 1) if number else None,
                best,
                median.calls,
                median.received,
            ),
            *(median.setup_seconds, median.setup_received),
        )


def list_pipelines(
    dataset: dict[str, Any], model: dict[str, Any], bin_nodes: int = 1000
) -> list[dict[str, Any]]:
    """Return the requests of the variants, which have the same parts and the default order of products."""
    return [
        {
            "strategy": {
                "name": name,
                "params": params | ({"bin_nodes": bin_nodes} if name == "g3" else {}),
            },
            "dataset": dataset,
            "ranks": dataset["parts"],
            "model": model,
            "machine": "ethernet",
        }
        for name, params in VARIANTS
    ]


# ScaleGNN's optimisations.

STAGES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "+ prefetch": {"prefetch": True},
    "+ bf16": {"prefetch": True, "wire": "bf16"},
    "+ fusion": {"prefetch": True, "wire": "bf16", "fused": True},
    "+ overlap": {"prefetch": True, "wire": "bf16", "fused": True, "overlap": True},
}
MODEL = {"layers": 3, "projection": True, "norm": True, "residual": True, "dropout": 0.5}


@benchmark
def ablation(
    hosts: Hosts = FOUR_HOSTS,
    grid: str = "1x2x2x1",
    dataset: str = "rmat-17",
    batch: int = 1 << 14,
    hidden: int = 128,
    epochs: int = 3,
) -> Results:
    """Train with ScaleGNN's optimisations (its figure 5) on slow links, added one after the other.

    All stages are set up at once and take turns epoch by epoch, so that they meet the same machine. A time is the
    slowest rank's, the median over epochs: of the epoch, of the phases of sampling (`sample`) and of calls
    (`collectives`). Draws scalegnn-figure-5-GRID-hHIDDEN.

    Args:
        grid: sizes of the axes, for as many ranks as there are hosts
    """
    trainers = [
        trainer_on_hosts(
            hosts,
            {
                "strategy": {"name": "scalegnn", "params": params},
                "dataset": dataset,
                "grid": grid,
                "model": MODEL | {"hidden": hidden},
                "training": {"batch": batch},
            },
        )
        for params in STAGES.values()
    ]
    stages = train_in_turns(trainers, epochs)
    yield Table(
        *("stage", "epoch s:.3f", "sample s:.3f", "collectives s:.3f", "speed-up:.2f"),
        "of the stage before:.2f",
    )
    if not stages:
        return
    seconds, sampling, moving = (
        [stage.median(what) for stage in stages] for what in ("seconds", "sampling", "moving")
    )
    before = [seconds[0], *seconds]
    for name, epoch, sample, calls, last in zip(STAGES, seconds, sampling, moving, before, strict=False):
        yield name, epoch, sample, calls, seconds[0] / epoch, last / epoch
    rest = [max(e - s - m, 0) for e, s, m in zip(seconds, sampling, moving, strict=True)]
    parts = {"sampling": sampling, "collectives": moving, "everything else": rest}
    title = f"All optimisations together make an epoch {seconds[0] / seconds[-1]:.2f} times as fast"
    figure = stack_bars(list(STAGES), parts, Scale("seconds", "time of an epoch", "s"), title)
    yield Drawing(f"scalegnn-figure-5-{grid}-h{hidden}", figure, dataset)
