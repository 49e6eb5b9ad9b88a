"""Panels and curves: which runs are compared with each other, and which of them form one curve. Nothing is drawn here.

A panel holds runs with the same dataset, model, protocol, precision and machine. A curve is one strategy in a panel,
with its parameters and its vertex order. A point is one launch.

Three exceptions reproduce the panels of papers. If no strategy ran both with trained and with fixed features, runs of
both kinds share a panel and the labels name the kind. If the tables have a single strategy, each graph may be a curve.
If that strategy has several variants, each variant has a colour.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.base.formatting import format_count
from harness.report.figures.palette import FILLS, CurveLook, look_of, numbered_look, strategy_sort_key
from harness.results.schema import MISSING, SOURCES, find_quantity
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
    "family": "{}",
    "protocol": "{} protocol",
    "precision": "{}",
    "machine.name": "on {}",
    "at.ranks": "{} ranks",
}
"""The settings in which panels may differ, and how titles name them."""
MODEL_PARTS = ("model.projection", "model.norm", "model.residual", "model.dropout")
"""Optional parts of a model. A model without any of them is called bare, a model with all of them full."""
NOTE_SETTINGS = ("model.kind", "model.layers", "model.hidden", "precision", "machine.name")
"""The settings that the note under a figure names if all panels agree on them."""
PARAMS = "strategy.params"
BATCH = "training.batch"
FEATURES = "training.features"
FAMILY = "family"
AT_RANKS = "at.ranks"
"""The only number of ranks that a panel shows, for kinds that split panels by it. Runs have no such column."""
COUNTED = {"model.layers": "layer", AT_RANKS: "rank"}
"""The settings that are numbers of something."""
"""Whether an epoch trains on the full graph or on mini-batches."""
BY_STRATEGY = "trained by some"
"""The value of `training.features` for a panel where some strategies train features and others do not."""
EPOCH, TARGET = "epoch_seconds_median", "seconds_to_target"
TIMES = [EPOCH, TARGET]
MIN_JOINED_VARIANTS = 3
"""The fewest variants that are joined into one curve. Fewer may lie at different places by chance."""
VARIANT = [PARAMS, "dataset.permutation", "dataset.partition", BATCH]
DEFAULT_LAYOUT = {"dataset.permutation": "none", "dataset.partition": "block"}
"""Values that labels omit if variants differ in both settings."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs that may be compared. `setting` describes how the panel differs from the others, and may be empty."""

    dataset: str
    setting: str
    runs: pd.DataFrame
    values: Mapping[str, Any] = field(default_factory=dict)
    """The settings that all runs of the panel share, with their values."""
    strategies: tuple[str, ...] = ()
    """All strategies of the tables. Looks are assigned among them."""
    graphs: tuple[str, ...] = ()
    """All graphs of the tables if each curve is a graph. The panel then has no dataset."""
    order: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """The positions at which variants are listed, by strategy, column and value."""

    @property
    def title(self) -> str:
        return ", ".join(part for part in (self.dataset, self.setting) if part)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row for each configuration of the panel. See `statistics.summarize_configurations`."""
        return summarize_configurations(self.runs)

    def variant_sort_key(self, strategy: str, variant: tuple[tuple[Hashable, ...], Any]) -> list[int]:
        """Return the sort key of a variant of a strategy: the positions of its values."""
        named = zip(VARIANT, map(str, variant[0]), strict=True)
        return [self.order.get((strategy, *each), 0) for each in named]

    @cached_property
    def curves(self) -> list["Curve"]:
        """The curves of the panel, measured ones first, strategies in the order of the palette."""
        return sort_curves(_make_curves(self))

    @cached_property
    def launches(self) -> pd.DataFrame:
        """The runs of all curves in their order, each with the label of its curve in the column `curve`.

        The runs of a curve are sorted by ranks, grid and launch.
        """
        frames = [
            curve.runs.assign(curve=curve.label, strategy=curve.strategy).sort_values(
                ["ranks", "grid", "launch"]
            )
            for curve in self.curves
        ]
        return pd.concat(frames, ignore_index=True) if frames else self.runs.assign(curve="", strategy="")

    def add_value(self, name: str, value: Any) -> "Panel":
        """Return a panel of the same runs and curves whose values have one more entry."""
        panel = replace(self, values={**self.values, name: value})
        vars(panel).update(curves=self.curves, launches=self.launches)  # which are costly to make
        return panel

    @property
    def looks(self) -> dict[str, CurveLook]:
        """The look of each curve, by its label."""
        return {curve.label: curve.look for curve in self.curves}


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve of a panel. `variant` numbers the curves of one strategy and source."""

    strategy: str
    label: str
    source: str
    variant: int
    runs: pd.DataFrame
    strategies: tuple[str, ...] = ()
    graph: int | None = None
    """The index of its graph among all graphs of the tables, if the curves of the panel are graphs."""
    only_strategy: bool = False
    """Whether the curves of the panel are variants of the only strategy in the tables."""

    @property
    def look(self) -> CurveLook:
        if self.only_strategy:
            return numbered_look(self.variant)
        look = look_of(self.strategy, self.strategies) if self.graph is None else numbered_look(self.graph)
        return look._replace(fill=FILLS[self.variant % len(FILLS)])

    @property
    def subject(self) -> object:
        """What its colour stands for: the variant or graph if the curves of the panel are those, else the strategy."""
        if self.only_strategy:
            return self.variant
        return self.strategy if self.graph is None else self.graph

    @property
    def name(self) -> str:
        """The name of the strategy or graph."""
        if self.graph is None:
            return short_strategy_name(self.strategy, self.strategies)
        return str(self.runs["dataset.name"].iloc[0])

    @cached_property
    def points(self) -> pd.DataFrame:
        """The launches that succeeded and have a time. Papers may print only the time to a target."""
        done = self.runs[self.runs.status == "ok"].dropna(subset=TIMES, how="all")
        return done.sort_values(["ranks", "grid", "launch"])

    def summarize_launches(self, x: str, column: str) -> pd.DataFrame:
        """Return the median and range of a quantity over launches for each value of `x`, on the best grid."""
        groups = self.points.dropna(subset=[column]).groupby([x, "grid"])[column]
        each = groups.agg(middle="median", low="min", high="max").reset_index()
        ordered = each.sort_values(
            ["middle", "grid"], ascending=[find_quantity(column).better != "more", True]
        )
        return ordered.groupby(x).head(1).sort_values(x)


def split_panels(
    runs: pd.DataFrame,
    ignore: Collection[str] = (),
    graphs: Sequence[str] = (),
    across_families: bool = False,
) -> list[Panel]:
    """Split runs into panels, sorted by source and dataset. Planned runs that were never recorded are dropped.

    Runs that differ only in the settings `ignore` share a panel. If `graphs` names all datasets, runs on different
    datasets share a panel too. Epochs of the full graph and of mini-batches differ in what they train on, and share a
    panel only `across_families`.
    """
    recorded = runs[runs.status != MISSING]
    if not across_families:
        recorded = recorded.assign(**{FAMILY: name_families(recorded)})
    settings = [name for name in SETTINGS if name not in ignore and name in recorded]
    strategies = tuple(sorted(set(map(str, recorded["strategy.name"]))))
    order = _order_variants(recorded)
    keys = [*([] if graphs else ["dataset.name"]), *(name for name in settings if name != FEATURES)]
    groups = []
    for given, group in recorded.groupby(keys, dropna=False):
        for features, part in _split_by_features(group):
            values = dict(zip(keys, given, strict=True)) | {FEATURES: features}
            dataset = str(values.pop("dataset.name", ""))
            groups.append((dataset, {name: values[name] for name in settings}, part))
    groups.sort(key=lambda group: min(map(SOURCES.index, group[2].source)))
    texts = describe_differences([values for _, values, _ in groups])
    return [
        Panel(dataset, setting, group, values, strategies, tuple(graphs), order)
        for (dataset, values, group), setting in zip(groups, texts, strict=True)
    ]


def put_paper_first(panels: list[Panel]) -> list[Panel]:
    """Return the panels of a paper's own runs, then the panels with runs that were made here."""
    return sorted(panels, key=lambda panel: bool((panel.runs.source == "measured").any()))


def split_across_families(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels that have full-graph and mini-batch strategies together."""
    return split_panels(runs, across_families=True)


def name_families(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return for each run whether its strategy trains on the full graph or on mini-batches.

    Papers and logs of other programs may not give the size of their batches; another run of the strategy does.
    """
    sampled = set(runs["strategy.name"][runs[BATCH] > 0])
    return runs["strategy.name"].isin(sampled).map({True: "mini-batches", False: "full graph"})


def _order_variants(runs: pd.DataFrame) -> dict[tuple[str, str, str], int]:
    """Number the values of each variant column by first appearance in measured runs, then in others."""
    by_source = runs.sort_values("source", key=lambda names: names.map(SOURCES.index), kind="stable")
    return {
        (str(strategy), column, value): place
        for strategy, rows in by_source.groupby("strategy.name")
        for column in VARIANT
        for place, value in enumerate(rows[column].map(str).unique())
    }


def _split_by_features(runs: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """Split runs by trained or fixed features if a strategy ran with both; otherwise keep them together."""
    variants = runs.groupby("strategy.name")[FEATURES].nunique(dropna=False)
    if runs[FEATURES].nunique(dropna=False) > 1 and variants.max() == 1:
        return [(BY_STRATEGY, runs)]
    return [(value, part) for value, part in runs.groupby(FEATURES, dropna=False)]


def split_with_graph_curves(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels; if the tables have a single strategy on several graphs, each graph is a curve."""
    recorded = runs[runs.status != MISSING]
    settings = recorded[[name for name in SETTINGS if name in recorded]].map(str).agg("|".join, axis=1)
    together = recorded.groupby(settings)["dataset.name"].nunique().max() > 1
    curves = recorded.assign(panel=settings).groupby(["panel", "source", "dataset.name"])
    variants = curves[VARIANT].apply(lambda rows: len(rows.drop_duplicates())).max() if len(recorded) else 0
    if recorded["strategy.name"].nunique() != 1 or not together or variants >= MIN_JOINED_VARIANTS:
        return split_panels(runs)
    return split_panels(runs, graphs=sorted(set(recorded["dataset.name"])))


class PanelTitles(NamedTuple):
    """The titles of the panels of a figure, and a note with what all panels have in common."""

    titles: list[str]
    note: str


def title_panels(panels: Sequence[Panel]) -> PanelTitles:
    """Title each panel by what differs between the panels, and describe everything else in a note."""
    values = [panel.values for panel in panels]
    several = len({panel.dataset for panel in panels}) > 1
    titles = [
        ", ".join(part for part in (panel.dataset if several else "", text) if part)
        for panel, text in zip(panels, describe_differences(values), strict=True)
    ]
    common = [
        _format_setting(name, values[0][name])
        for name in NOTE_SETTINGS
        if all(name in other and is_same_setting(values[0][name], other[name]) for other in values)
    ]
    subject = [] if several or not panels[0].dataset else [panels[0].dataset]
    note = ", ".join([*subject, *common])
    varied = {word for text in titles for word in text.split(", ")} & {"bare", "full"}
    meanings = {
        "bare": "bare: no projection, norm, residual connection or dropout",
        "full": "full: projection, norm, residual connections and dropout",
    }
    warning = describe_oversubscription(pd.concat([panel.runs for panel in panels]))
    parts = (note, *(meanings[word] for word in sorted(varied)), warning)
    return PanelTitles(titles, "; ".join([part for part in parts if part]))


def describe_oversubscription(runs: pd.DataFrame) -> str:
    """Return a warning if measured ranks shared cores, else an empty text."""
    if "status" not in runs:
        return ""  # claims
    measured = runs[(runs.source == "measured") & (runs.status == "ok")]
    affected = measured[find_oversubscribed(measured)]
    if affected.empty:
        return ""
    ranks_on_host = affected["provenance.ranks_on_host"].fillna(affected.ranks)
    most = affected.assign(ranks_on_host=ranks_on_host).sort_values("ranks_on_host").iloc[-1]
    shared = format_count(int(most["provenance.cores"]), "core")
    return f"up to {int(most['ranks_on_host'])} ranks shared {shared}, so the times do not measure scaling"


def describe_differences(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe, for each set of settings, those that are not the same in all sets."""
    varying = [
        name
        for name in SETTINGS
        if any(not is_same_setting(one.get(name), values[0].get(name)) for one in values)
    ]
    parts = [name for name in varying if name in MODEL_PARTS]
    rates = {
        one[MODEL_PARTS[-1]]
        for one in values
        if not is_unknown(one.get(MODEL_PARTS[-1])) and one[MODEL_PARTS[-1]] > 0
    }
    return [
        ", ".join(
            [
                *(_format_setting(name, one[name]) for name in varying if name in one and name not in parts),
                *([_describe_model_parts(one, len(rates) > 1)] if parts else []),
            ]
        )
        for one in values
    ]


def _describe_model_parts(values: Mapping[str, Any], rates_differ: bool) -> str:
    """Return `bare`, `full`, or the names of the parts. The dropout rate is added to `full` if rates differ."""
    missing = [f"{_short_setting_name(name)} unknown" for name in MODEL_PARTS if is_unknown(values[name])]
    present = [name for name in MODEL_PARTS if not is_unknown(values[name]) and values[name]]
    dropout = "" if is_unknown(values[MODEL_PARTS[-1]]) else f"dropout {values[MODEL_PARTS[-1]]:g}"
    if not present and not missing:
        return "bare"
    if len(present) == len(MODEL_PARTS):
        return f"full, {dropout}" if rates_differ else "full"
    return ", ".join(
        [*(dropout if name == MODEL_PARTS[-1] else SETTINGS[name] for name in present), *missing]
    )


def is_same_setting(one: Any, other: Any) -> bool:
    """Return whether two values of a setting are equal or both unknown."""
    return bool(is_unknown(one) and is_unknown(other)) or (
        not is_unknown(one) and not is_unknown(other) and one == other
    )


def sort_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Sort curves: measured ones first, strategies in the order of the palette."""
    return sorted(
        curves,
        key=lambda one: (
            SOURCES.index(one.source),
            strategy_sort_key(one.strategy),
            one.graph or 0,
            one.variant,
        ),
    )


def _make_curves(panel: Panel) -> Iterator[Curve]:
    trained = panel.values.get(FEATURES) == BY_STRATEGY
    keys = ["source", "strategy.name", *(["dataset.name"] if panel.graphs else [])]
    for (source, strategy, *graph), runs in panel.runs.groupby(keys):
        variants = sorted(
            runs.groupby(VARIANT, dropna=False), key=partial(panel.variant_sort_key, str(strategy))
        )
        lines = []
        for number, (values, group) in enumerate(variants):
            details = [_describe_variant(runs, values)] if len(variants) > 1 else []
            details += [_format_setting(FEATURES, group[FEATURES].iloc[0])] if trained else []
            name = str(graph[0]) if graph else short_strategy_name(str(strategy), panel.strategies)
            label = _format_label(name, details, str(source))
            graph_index = panel.graphs.index(name) if graph else None
            only_strategy = len(panel.strategies) == 1 and len(variants) > 1 and not panel.graphs
            lines.append(
                Curve(
                    str(strategy),
                    label,
                    str(source),
                    number,
                    group,
                    panel.strategies,
                    graph_index,
                    only_strategy,
                )
            )
        yield from join_variants(lines, "ranks", "ranks")


def short_strategy_name(strategy: str, others: Iterable[str]) -> str:
    """Shorten path/to/file.py:Class to Class, unless another strategy has that name."""
    name = strategy.rpartition(".py:")[2]
    alike = any(other.rpartition(".py:")[2] == name for other in others if other != strategy)
    return strategy if alike else name


def _format_label(name: str, details: Iterable[str], source: str) -> str:
    """Format the label of a curve: its strategy or graph, the details that distinguish it, and its source."""
    described = ", ".join(part for part in details if part)
    return name + (f" ({described})" if described else "") + (f" {source}" if source != "measured" else "")


def join_variants(curves: Sequence[Curve], x_column: str, x_label: str) -> list[Curve]:
    """Join the variants of each strategy into one curve if their positions along x overlap at most once.

    A paper may change a parameter with the number of ranks or layers and still draw one line.
    """
    joined = list[Curve]()
    groups: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.source, curve.strategy, curve.graph), []).append(curve)
    for variants in groups.values():
        positions = [set(curve.runs[x_column]) for curve in variants]
        distinct, total = len(set.union(*positions)), sum(map(len, positions))
        if min(len(variants), distinct) < MIN_JOINED_VARIANTS or total > distinct + 1:
            joined += variants
            continue
        runs = pd.concat([curve.runs for curve in variants])
        first = variants[0]
        label = _format_label(
            first.name, [f"{' and '.join(_list_differing_settings(runs))} by {x_label}"], first.source
        )
        joined.append(replace(first, label=label, runs=runs, only_strategy=False))
    return joined


def _list_differing_settings(runs: pd.DataFrame) -> list[str]:
    """Return the names of the parameters and settings that differ between the variants of a strategy."""
    params = [json.loads(text or "{}") for text in runs[PARAMS].astype(str).unique()]
    keys = dict.fromkeys(key for one in params for key in one)
    names = [key for key in keys if any(other.get(key) != params[0].get(key) for other in params)]
    return names + [
        _short_setting_name(name)
        for name in VARIANT
        if name != PARAMS and runs[name].nunique(dropna=False) > 1
    ]


def is_unknown(value: Any) -> bool:
    """Return whether a record lacks a setting, as records of other programs do if their log does not name it."""
    return bool(pd.isna(value)) or value == ""


def _format_setting(name: str, value: Any) -> str:
    """Format a setting for a title."""
    if is_unknown(value):
        return f"{_short_setting_name(name)} unknown"
    if value == BY_STRATEGY:
        return f"features {BY_STRATEGY}"
    if name == FEATURES and not value:
        return "fixed features"
    if isinstance(value, bool | np.bool_):
        return SETTINGS[name] if value else f"no {SETTINGS[name]}"
    if name in COUNTED:
        return format_count(int(value), COUNTED[name])
    return SETTINGS[name].format(value).replace("_", " ")


def _short_setting_name(name: str) -> str:
    """Shorten the name of a setting: hidden for model.hidden, machine for machine.name."""
    return name.removesuffix(".name").rpartition(".")[2]


def _describe_variant(runs: pd.DataFrame, variant: tuple[Hashable, ...]) -> str:
    """Describe the values in which a variant differs from the other variants of its strategy."""
    parts = {}
    for name, own in zip(VARIANT, variant, strict=True):
        values = [str(other) for other in runs[name].unique()]
        if len(values) > 1:
            parts[name] = (
                f"{_short_setting_name(name)} unknown"
                if is_unknown(own)
                else _format_variant_value(name, str(own), values)
            )
    # A partitioner excludes a vertex order, and an order excludes a partitioner: name only the one that was chosen.
    if parts.keys() >= DEFAULT_LAYOUT.keys():
        parts = {name: text for name, text in parts.items() if text != DEFAULT_LAYOUT.get(name)} or parts
    return ", ".join(parts.values())


def _format_variant_value(name: str, value: str, values: list[str]) -> str:
    """Format a value for a label. `values` has the values of all variants."""
    if name == PARAMS:
        return format_differing_params(value, values) or "defaults"
    if name == BATCH:
        return "full graph" if value == "0" else f"batch {value}"
    return format_json(value)


def format_differing_params(params: str, values: list[str]) -> str:
    """Format the parameters that another variant sets differently. A parameter that was not recorded is unknown."""
    own, others = json.loads(params or "{}"), [json.loads(other or "{}") for other in values]
    known = {key: own.get(key, "unknown") for key in sorted({key for other in others for key in other})}
    differing = {
        key: value for key, value in known.items() if any(other.get(key) != value for other in others)
    }
    return format_json(json.dumps(differing, separators=(",", ":")))


def format_json(text: str) -> str:
    """Format a flat JSON object for a label: samples 5, fanout 3."""
    return text.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
