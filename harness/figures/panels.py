"""Comparisons: which runs share a panel, and which of them share a curve. Nothing is drawn yet.

A panel holds runs of one dataset, model, protocol, precision and machine. A curve is one strategy in a panel, with its
parameters and its order of the vertices. A point is one launch.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import pandas as pd

from harness.figures.palette import FILLS, StrategyLook, look_of, place_of
from harness.results.schema import MISSING, SOURCES

SETTINGS = {
    "model.kind": "{}",
    "model.layers": "layers {}",
    "model.hidden": "hidden {}",
    "model.order": "{}",
    "model.projection": "projection: {}",
    "model.norm": "norm: {}",
    "model.activation": "activation {}",
    "model.heads": "{} heads",
    "model.dropout": "dropout {}",
    "model.residual": "residual: {}",
    "training.features": "trained features: {}",
    "protocol": "{} protocol",
    "precision": "{}",
    "machine.name": "on {}",
}
PARAMS = "strategy.params"
BATCH = "training.batch"
VARIANT = [PARAMS, "dataset.permutation", "dataset.partition", BATCH]


class Panel(NamedTuple):
    """Runs that may be compared; `setting` is the difference from other panels, and may be empty."""

    dataset: str
    setting: str
    runs: pd.DataFrame

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.setting}" if self.setting else self.dataset


class Curve(NamedTuple):
    """One line of a panel. `variant` numbers the curves of one strategy and source."""

    strategy: str
    label: str
    source: str
    variant: int
    runs: pd.DataFrame

    @property
    def look(self) -> StrategyLook:
        return look_of(self.strategy)._replace(fill=FILLS[self.variant % len(FILLS)])

    @property
    def points(self) -> pd.DataFrame:
        """Every launch that succeeded."""
        done = self.runs[self.runs.status == "ok"].dropna(subset=["epoch_seconds_median"])
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

    @property
    def failures(self) -> pd.DataFrame:
        """The runs that did not succeed, one for each number of ranks and status."""
        failed = self.runs[self.runs.status != "ok"]
        return failed.sort_values("ranks").drop_duplicates(["ranks", "status"])


def panels(runs: pd.DataFrame, apart: Collection[str] = ()) -> list[Panel]:
    """The panels of some runs, by dataset, without runs that never took place. Settings in `apart` divide no panel."""
    recorded = runs[runs.status != MISSING]
    settings = [name for name in SETTINGS if name not in apart]
    varying = [name for name in settings if recorded[name].nunique(dropna=False) > 1]
    divided = []
    for values, group in recorded.groupby(["dataset.name", *settings], dropna=False):
        chosen = dict(zip(settings, values[1:], strict=True))
        setting = ", ".join(_setting(name, chosen[name]) for name in varying)
        divided.append(Panel(str(values[0]), setting, group))
    return divided


def curves(panel: Panel) -> list[Curve]:
    """The curves of a panel."""
    return in_order(_curves(panel))


def largest(panel: Panel) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Every measured curve that has a point, and its points at its largest number of ranks."""
    for curve in curves(panel):
        points = curve.points
        if curve.source == "measured" and not points.empty:
            yield curve, points[points.ranks == points.ranks.max()]


def in_order(some: Iterable[Curve]) -> list[Curve]:
    """Measured curves first, strategies in the order of the palette."""
    return sorted(
        some, key=lambda curve: (SOURCES.index(curve.source), place_of(curve.strategy), curve.variant)
    )


def _curves(panel: Panel) -> Iterator[Curve]:
    for (source, strategy), runs in panel.runs.groupby(["source", "strategy.name"]):
        variants = list(runs.groupby(VARIANT, dropna=False))
        for number, (values, group) in enumerate(variants):
            label = str(strategy)
            label += f" ({_variant(runs, values)})" if len(variants) > 1 else ""
            label += f" {source}" if source != "measured" else ""
            yield Curve(str(strategy), label, str(source), number, group)


def unknown(value: Any) -> bool:
    """Whether a record lacks a setting, as records of other programs do if the log does not name it."""
    return bool(pd.isna(value)) or value == ""


def _setting(name: str, value: Any) -> str:
    """A setting as part of a title."""
    if unknown(value):
        return f"{_short(name)} unknown"
    return SETTINGS[name].format(value).replace("_", " ")


def _short(name: str) -> str:
    """The short name of a setting: hidden for model.hidden, machine for machine.name."""
    return name.removesuffix(".name").rpartition(".")[2]


def _variant(runs: pd.DataFrame, variant: tuple[Hashable, ...]) -> str:
    """The values in which a variant differs from others of its strategy."""
    parts = []
    for name, own in zip(VARIANT, variant, strict=True):
        values = [str(other) for other in runs[name].unique()]
        if len(values) > 1:
            parts.append(f"{_short(name)} unknown" if unknown(own) else _value(name, str(own), values))
    return ", ".join(parts)


def _value(name: str, value: str, values: list[str]) -> str:
    """A value as part of a label; `values` are those of all variants."""
    if name == PARAMS:
        return _differing(value, values) or "defaults"
    return f"batch {value}" if name == BATCH else in_words(value)


def _differing(params: str, values: list[str]) -> str:
    """The parameters of one variant that another variant sets differently; a parameter without a record is unknown."""
    own, others = json.loads(params or "{}"), [json.loads(other or "{}") for other in values]
    known = {key: own.get(key, "unknown") for key in {key: None for other in others for key in other}}
    some = {key: value for key, value in known.items() if any(other.get(key) != value for other in others)}
    return in_words(json.dumps(some, separators=(",", ":")))


def in_words(text: str) -> str:
    """A flat JSON object in the form of a label: samples 5, fanout 3."""
    return text.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
