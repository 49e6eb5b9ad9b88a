"""Comparisons: which runs share a panel, and which of them share a curve. Nothing is drawn yet.

A panel holds runs of one dataset, model, protocol, precision and machine. A curve is one strategy in a panel, with its
parameters and its order of the vertices. A point is one launch.

Three exceptions give the panels of papers. If each strategy of a panel has its own way with the features, trained or
fixed, the curves say so and share the panel. A strategy alone has a curve for each graph, or a look for each variant.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from harness.figures.palette import FILLS, StrategyLook, look_of, look_of_number, place_of
from harness.results.schema import MISSING, SOURCES
from harness.results.statistics import find_oversubscribed, summarize_configurations

SETTINGS = {
    "model.kind": "{}",
    "model.layers": "{} layers",
    "model.hidden": "hidden {}",
    "model.order": "{}",
    "model.projection": "projection",
    "model.norm": "norm",
    "model.activation": "activation {}",
    "model.heads": "{} heads",
    "model.dropout": "dropout {}",
    "model.residual": "residual",
    "training.features": "features trained",
    "protocol": "{} protocol",
    "precision": "{}",
    "machine.name": "on {}",
}
PARTS = ("model.projection", "model.norm", "model.residual", "model.dropout")
"""The parts that a model may have: a model with none of them is bare, one with all of them is full."""
ALWAYS_SAID = ("model.kind", "model.layers", "model.hidden", "precision", "machine.name")
PARAMS = "strategy.params"
BATCH = "training.batch"
FEATURES = "training.features"
BY_STRATEGY = "trained by some"
"""The features of a panel in which some strategies train features and others do not."""
EPOCH, TARGET = "epoch_seconds_median", "seconds_to_target"
TIMES = [EPOCH, TARGET]
SEVERAL = 3
"""Variants at different places that are one line: fewer may differ by chance."""
VARIANT = [PARAMS, "dataset.permutation", "dataset.partition", BATCH]
UNLESS = {"dataset.permutation": "none", "dataset.partition": "block"}
"""What a variant does not say if variants differ in both."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs that may be compared; `setting` is the difference from other panels of the tables, and may be empty."""

    dataset: str
    setting: str
    runs: pd.DataFrame
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the settings in which the runs agree."""
    strategies: tuple[str, ...] = ()
    """All strategies of the tables, which share the looks."""
    graphs: tuple[str, ...] = ()
    """All graphs of the tables, if a curve is a graph; then the panel has no dataset."""
    order: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """The places of the values in which variants differ, by strategy, column and value."""

    @property
    def title(self) -> str:
        return ", ".join(part for part in (self.dataset, self.setting) if part)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row for each configuration of the panel: see `statistics.configurations`."""
        return summarize_configurations(self.runs)

    def place(self, strategy: str, variant: tuple[tuple[Hashable, ...], Any]) -> list[int]:
        """The place of a variant, by its values, among those of a strategy."""
        named = zip(VARIANT, map(str, variant[0]), strict=True)
        return [self.order.get((strategy, *each), 0) for each in named]

    @cached_property
    def curves(self) -> list["Curve"]:
        """Measured curves first, strategies in the order of the palette."""
        return in_order(_curves(self))


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a panel. `variant` numbers the curves of one strategy and source."""

    strategy: str
    label: str
    source: str
    variant: int
    runs: pd.DataFrame
    strategies: tuple[str, ...] = ()
    graph: int | None = None
    """The number of its graph among those of the tables, if the curves of a panel are graphs."""
    alone: bool = False
    """Whether the curves of a panel are variants of the only strategy of the tables."""

    @property
    def look(self) -> StrategyLook:
        if self.alone:
            return look_of_number(self.variant)
        look = look_of(self.strategy, self.strategies) if self.graph is None else look_of_number(self.graph)
        return look._replace(fill=FILLS[self.variant % len(FILLS)])

    @property
    def subject(self) -> object:
        """What a colour stands for: a variant or a graph if the curves of the panel are such, else the strategy."""
        if self.alone:
            return self.variant
        return self.strategy if self.graph is None else self.graph

    @property
    def name(self) -> str:
        """The name of the subject."""
        if self.graph is None:
            return name_of_strategy(self.strategy, self.strategies)
        return str(self.runs["dataset.name"].iloc[0])

    @cached_property
    def crowded(self) -> int:
        """The fewest ranks that shared cores, of a measured curve; 0: each rank had its own."""
        points = self.points
        shared = points[find_oversubscribed(points)] if self.source == "measured" else points[:0]
        return int(shared.ranks.min()) if len(shared) else 0

    @cached_property
    def points(self) -> pd.DataFrame:
        """Every launch that succeeded and has a time; a paper may print the time to a target alone."""
        done = self.runs[self.runs.status == "ok"].dropna(subset=TIMES, how="all")
        return done.sort_values(["ranks", "grid", "launch"])

    @property
    def line(self) -> pd.DataFrame:
        """Seconds of an epoch, by number of ranks."""
        return self.over("ranks", "epoch_seconds_median", best="min")

    def over(self, x: str, column: str, best: Literal["min", "max"]) -> pd.DataFrame:
        """Median and range over launches, by x, each on the best grid."""
        groups = self.points.dropna(subset=[column]).groupby([x, "grid"])[column]
        each = groups.agg(middle="median", low="min", high="max").reset_index()
        ordered = each.sort_values(["middle", "grid"], ascending=[best == "min", True])
        return ordered.groupby(x).head(1).sort_values(x)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """The runs that did not succeed, one for each number of ranks and status."""
        failed = self.runs[self.runs.status != "ok"]
        return failed.sort_values("ranks").drop_duplicates(["ranks", "status"])


class DrawnColumn(NamedTuple):
    """What is drawn over what: columns of runs, the best value of several grids, the labels of the axes, the unit."""

    column: str
    best: Literal["min", "max"]
    over: str
    across: str
    upright: str
    factor: float
    ideal: int
    """The power of x in ideal scaling; 0: none is drawn."""

    def line(self, curve: Curve) -> pd.DataFrame:
        """Median and range over launches on the best grid, by x."""
        return _line(curve, self.over, self.column, self.best)

    def marks(self, curve: Curve) -> list[tuple[int, float]]:
        """The points of the line, in the unit of the axis."""
        return [(x, y * self.factor) for x, y in _points(curve, self.over, self.column, self.best)]

    def places(self, curve: Curve) -> set[int]:
        """Every x at which the curve has a point or a failure."""
        failed = set(curve.failures.ranks) if self.over == "ranks" else set()
        return {x for x, _ in self.marks(curve)} | {int(x) for x in failed}


@lru_cache(maxsize=1024)
def _line(curve: Curve, over: str, column: str, best: Literal["min", "max"]) -> pd.DataFrame:
    return curve.over(over, column, best)


@lru_cache(maxsize=1024)
def _points(curve: Curve, over: str, column: str, best: Literal["min", "max"]) -> list[tuple[int, float]]:
    """The medians of a line by x: small axes ask for those of every other curve."""
    line = _line(curve, over, column, best)
    return [(int(x), float(y)) for x, y in zip(line[over], line.middle, strict=True)]


def panels(runs: pd.DataFrame, apart: Collection[str] = (), graphs: Sequence[str] = ()) -> list[Panel]:
    """The panels of some runs, by source and dataset, without runs that never took place.

    Settings in `apart` divide no panel. With `graphs`, the names of all datasets, datasets do not divide either.
    """
    recorded = runs[runs.status != MISSING]
    settings = [name for name in SETTINGS if name not in apart]
    strategies = tuple(sorted(set(map(str, recorded["strategy.name"]))))
    order = _order(recorded)
    keys = [*([] if graphs else ["dataset.name"]), *(name for name in settings if name != FEATURES)]
    groups = []
    for given, group in recorded.groupby(keys, dropna=False):
        for features, part in _by_features(group):
            values = dict(zip(keys, given, strict=True)) | {FEATURES: features}
            dataset = str(values.pop("dataset.name", ""))
            groups.append((dataset, {name: values[name] for name in settings}, part))
    groups.sort(key=lambda group: min(map(SOURCES.index, group[2].source)))
    texts = differences([values for _, values, _ in groups])
    return [
        Panel(dataset, setting, group, values, strategies, tuple(graphs), order)
        for (dataset, values, group), setting in zip(groups, texts, strict=True)
    ]


def _order(runs: pd.DataFrame) -> dict[tuple[str, str, str], int]:
    """The places of the values of variants: as measured runs have them, which stand as their experiment lists them."""
    by_source = runs.sort_values("source", key=lambda names: names.map(SOURCES.index), kind="stable")
    return {
        (str(strategy), column, value): place
        for strategy, rows in by_source.groupby("strategy.name")
        for column in VARIANT
        for place, value in enumerate(rows[column].map(str).unique())
    }


def _by_features(runs: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """Runs with trained and with fixed features apart, if some strategy has both; else all of them."""
    ways = runs.groupby("strategy.name")[FEATURES].nunique(dropna=False)
    if runs[FEATURES].nunique(dropna=False) > 1 and ways.max() == 1:
        return [(BY_STRATEGY, runs)]
    return [(value, part) for value, part in runs.groupby(FEATURES, dropna=False)]


def graph_panels(runs: pd.DataFrame) -> list[Panel]:
    """The panels of one strategy on several graphs, each a curve; else the panels of graphs."""
    recorded = runs[runs.status != MISSING]
    settings = recorded[[*SETTINGS]].map(str).agg("|".join, axis=1)
    together = recorded.groupby(settings)["dataset.name"].nunique().max() > 1
    curves = recorded.assign(panel=settings).groupby(["panel", "source", "dataset.name"])
    variants = curves[VARIANT].apply(lambda some: len(some.drop_duplicates())).max() if len(recorded) else 0
    if recorded["strategy.name"].nunique() != 1 or not together or variants >= SEVERAL:
        return panels(runs)
    return panels(runs, graphs=sorted(set(recorded["dataset.name"])))


class Titles(NamedTuple):
    """The titles of the panels of one figure, and the note beneath them: what all panels have in common."""

    each: list[str]
    note: str


def titles(some: Sequence[Panel]) -> Titles:
    """A title says what differs between these panels, and the note says the rest once."""
    values = [panel.values for panel in some]
    several = len({panel.dataset for panel in some}) > 1
    each = [
        ", ".join(part for part in (panel.dataset if several else "", text) if part)
        for panel, text in zip(some, differences(values), strict=True)
    ]
    common = [
        _setting(name, values[0][name])
        for name in ALWAYS_SAID
        if all(name in other and same(values[0][name], other[name]) for other in values)
    ]
    subject = [] if several or not some[0].dataset else [some[0].dataset]
    note = ", ".join([*subject, *common])
    varied = {word for text in each for word in text.split(", ")} & {"bare", "full"}
    means = {
        "bare": "bare: no projection, norm, residual connection or dropout",
        "full": "full: projection, norm, residual connections and dropout",
    }
    crowds = crowding(pd.concat([panel.runs for panel in some]))
    parts = (note, *(means[word] for word in sorted(varied)), crowds)
    return Titles(each, "; ".join([part for part in parts if part]))


def crowding(runs: pd.DataFrame) -> str:
    """A warning where measured ranks shared cores; nothing where each had its own."""
    measured = runs[(runs.source == "measured") & (runs.status == "ok")]
    crowded = measured[find_oversubscribed(measured)]
    if crowded.empty:
        return ""
    here = crowded["provenance.ranks_on_host"].fillna(crowded.ranks)
    most = crowded.assign(here=here).sort_values("here").iloc[-1]
    shared = counted(int(most["provenance.cores"]), "core")
    return f"up to {int(most['here'])} ranks shared {shared}, so the times do not measure scaling"


def differences(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of some sets of settings, the text of those settings that are not the same in all sets."""
    varying = [
        name for name in SETTINGS if any(not same(one.get(name), values[0].get(name)) for one in values)
    ]
    parts = [name for name in varying if name in PARTS]
    doses = {one[PARTS[-1]] for one in values if not unknown(one.get(PARTS[-1])) and one[PARTS[-1]] > 0}
    return [
        ", ".join(
            [
                *(_setting(name, one[name]) for name in varying if name not in parts),
                *([_parts(one, len(doses) > 1)] if parts else []),
            ]
        )
        for one in values
    ]


def _parts(values: Mapping[str, Any], doses: bool) -> str:
    """The parts of a model as a word, or their names. `doses`: whether rates of dropout differ."""
    missing = [f"{_short(name)} unknown" for name in PARTS if unknown(values[name])]
    having = [name for name in PARTS if not unknown(values[name]) and values[name]]
    dose = "" if unknown(values[PARTS[-1]]) else f"dropout {values[PARTS[-1]]:g}"
    if not having and not missing:
        return "bare"
    if len(having) == len(PARTS):
        return f"full, {dose}" if doses else "full"
    return ", ".join([*(dose if name == PARTS[-1] else SETTINGS[name] for name in having), *missing])


def same(one: Any, other: Any) -> bool:
    """Whether two values of a setting are equal, or both unknown."""
    return bool(unknown(one) and unknown(other)) or (not unknown(one) and not unknown(other) and one == other)


def largest(panel: Panel) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Every measured curve that has a point, and its points at its largest number of ranks."""
    for curve in panel.curves:
        points = curve.points
        if curve.source == "measured" and not points.empty:
            yield curve, points[points.ranks == points.ranks.max()]


def in_order(some: Iterable[Curve]) -> list[Curve]:
    """Measured curves first, strategies in the order of the palette."""
    return sorted(
        some,
        key=lambda one: (SOURCES.index(one.source), place_of(one.strategy), one.graph or 0, one.variant),
    )


def _curves(panel: Panel) -> Iterator[Curve]:
    trained = panel.values.get(FEATURES) == BY_STRATEGY
    apart = ["source", "strategy.name", *(["dataset.name"] if panel.graphs else [])]
    for (source, strategy, *graph), runs in panel.runs.groupby(apart):
        variants = sorted(runs.groupby(VARIANT, dropna=False), key=partial(panel.place, str(strategy)))
        lines = []
        for number, (values, group) in enumerate(variants):
            said = [_variant(runs, values)] if len(variants) > 1 else []
            said += [_setting(FEATURES, group[FEATURES].iloc[0])] if trained else []
            name = str(graph[0]) if graph else name_of_strategy(str(strategy), panel.strategies)
            label = _label(name, said, str(source))
            place = panel.graphs.index(name) if graph else None
            alone = len(panel.strategies) == 1 and len(variants) > 1 and not panel.graphs
            lines.append(
                Curve(str(strategy), label, str(source), number, group, panel.strategies, place, alone)
            )
        yield from followed(lines, "ranks", "ranks")


def name_of_strategy(strategy: str, others: Iterable[str]) -> str:
    """A strategy in a legend: of path/to/file.py:Class the class alone, unless another one has that name."""
    name = strategy.rpartition(".py:")[2]
    alike = any(other.rpartition(".py:")[2] == name for other in others if other != strategy)
    return strategy if alike else name


def _label(name: str, said: Iterable[str], source: str) -> str:
    """The name of a curve in a legend: a strategy or a graph, what tells it from others, and where it comes from."""
    details = ", ".join(part for part in said if part)
    return name + (f" ({details})" if details else "") + (f" {source}" if source != "measured" else "")


def followed(some: Sequence[Curve], over: str, across: str) -> list[Curve]:
    """The curves, with all variants of a strategy as one curve if they share at most one place along `over`.

    A paper may change a parameter with the number of ranks, or with the number of layers: its line goes through all.
    """
    joined = list[Curve]()
    groups: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in some:
        groups.setdefault((curve.source, curve.strategy, curve.graph), []).append(curve)
    for variants in groups.values():
        places = [set(curve.runs[over]) for curve in variants]
        tried, shared = len(set.union(*places)), sum(map(len, places))
        if min(len(variants), tried) < SEVERAL or shared > tried + 1:
            joined += variants
            continue
        runs = pd.concat([curve.runs for curve in variants])
        first = variants[0]
        label = _label(first.name, [f"{' and '.join(_varied(runs))} by {across}"], first.source)
        joined.append(replace(first, label=label, runs=runs, alone=False))
    return joined


def _varied(runs: pd.DataFrame) -> list[str]:
    """The names of what differs between the variants of a strategy."""
    params = [json.loads(text or "{}") for text in runs[PARAMS].astype(str).unique()]
    keys = dict.fromkeys(key for some in params for key in some)
    names = [key for key in keys if any(other.get(key) != params[0].get(key) for other in params)]
    return names + [
        _short(name) for name in VARIANT if name != PARAMS and runs[name].nunique(dropna=False) > 1
    ]


def data(lines: Sequence[Curve], column: str = EPOCH) -> Iterator[dict[str, Any]]:
    """A row for each launch."""
    for curve in lines:
        runs = curve.runs[["ranks", "grid", "launch", "status", column, "run_id"]]
        own = {"curve": curve.label, "strategy": curve.strategy, "source": curve.source}
        for row in runs.sort_values(["ranks", "grid", "launch"]).to_dict("records"):
            yield {**own, **{str(name): value for name, value in row.items()}}


def shown(panel: Panel, _: object) -> list[Curve]:
    """The curves of a panel; a paper may print something else than the time of an epoch."""
    return [curve for curve in panel.curves if curve.points[EPOCH].notna().any() or len(curve.failures)]


def reaching(panel: Panel, _: object) -> list[Curve]:
    """The curves with runs that reached their target accuracy, without other runs."""
    reached = {curve: curve.runs[TARGET].notna() for curve in panel.curves}
    return [replace(curve, runs=curve.runs[rows]) for curve, rows in reached.items() if rows.any()]


def unknown(value: Any) -> bool:
    """Whether a record lacks a setting, as records of other programs do if the log does not name it."""
    return bool(pd.isna(value)) or value == ""


def _setting(name: str, value: Any) -> str:
    """A setting as part of a title."""
    if unknown(value):
        return f"{_short(name)} unknown"
    if value == BY_STRATEGY:
        return f"features {BY_STRATEGY}"
    if name == FEATURES and not value:
        return "fixed features"
    if isinstance(value, bool | np.bool_):
        return SETTINGS[name] if value else f"no {SETTINGS[name]}"
    if name == "model.layers":
        return counted(int(value), "layer")
    return SETTINGS[name].format(value).replace("_", " ")


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 rank, 1,024 ranks."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _short(name: str) -> str:
    """The short name of a setting: hidden for model.hidden, machine for machine.name."""
    return name.removesuffix(".name").rpartition(".")[2]


def _variant(runs: pd.DataFrame, variant: tuple[Hashable, ...]) -> str:
    """The values in which a variant differs from others of its strategy."""
    parts = {}
    for name, own in zip(VARIANT, variant, strict=True):
        values = [str(other) for other in runs[name].unique()]
        if len(values) > 1:
            parts[name] = f"{_short(name)} unknown" if unknown(own) else _value(name, str(own), values)
    # Parts of a partitioner have no order, and blocks of an order no partitioner.
    if parts.keys() >= UNLESS.keys():
        parts = {name: said for name, said in parts.items() if said != UNLESS.get(name)} or parts
    return ", ".join(parts.values())


def _value(name: str, value: str, values: list[str]) -> str:
    """A value as part of a label; `values` are those of all variants."""
    if name == PARAMS:
        return differing(value, values) or "defaults"
    return f"batch {value}" if name == BATCH else in_words(value)


def differing(params: str, values: list[str]) -> str:
    """The parameters of one variant that another variant sets differently; a parameter without a record is unknown."""
    own, others = json.loads(params or "{}"), [json.loads(other or "{}") for other in values]
    known = {key: own.get(key, "unknown") for key in sorted({key for other in others for key in other})}
    some = {key: value for key, value in known.items() if any(other.get(key) != value for other in others)}
    return in_words(json.dumps(some, separators=(",", ":")))


def in_words(text: str) -> str:
    """A flat JSON object in the form of a label: samples 5, fanout 3."""
    return text.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
