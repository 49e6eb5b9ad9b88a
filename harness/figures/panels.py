"""What is compared with what. A panel holds runs of one dataset, model, protocol, precision and machine; a curve is
one strategy in it, with its parameters and its order of the vertices; a point is one launch.

Nothing here draws.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import pandas as pd

from harness.figures.palette import FILLS, Look, look_of, place_of
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
    """Runs that may be compared; `setting` says how this panel differs from others, and may be empty."""

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
    def look(self) -> Look:
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
        """Median and range over launches, by x: of the best grid where there are several."""
        groups = self.points.dropna(subset=[column]).groupby([x, "grid"])[column]
        each = groups.agg(middle="median", low="min", high="max").reset_index()
        ordered = each.sort_values(["middle", "grid"], ascending=[best == "min", True])
        return ordered.groupby(x).head(1).sort_values(x)

    @property
    def failures(self) -> pd.DataFrame:
        """What did not succeed, once for each number of ranks and status."""
        failed = self.runs[self.runs.status != "ok"]
        return failed.sort_values("ranks").drop_duplicates(["ranks", "status"])


def panels(runs: pd.DataFrame, apart: Collection[str] = ()) -> list[Panel]:
    """The panels of some runs, by dataset. Runs that never took place are in none; settings `apart` divide nobody."""
    there = runs[runs.status != MISSING]
    settings = [name for name in SETTINGS if name not in apart]
    varying = [name for name in settings if there[name].nunique(dropna=False) > 1]
    found = []
    for values, group in there.groupby(["dataset.name", *settings], dropna=False):
        told = dict(zip(settings, values[1:], strict=True))
        setting = ", ".join(_setting(name, told[name]) for name in varying)
        found.append(Panel(str(values[0]), setting, group))
    return found


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
            told = [str(strategy)]
            told += [f"({_variant(runs, values)})"] if len(variants) > 1 else []
            told += [str(source)] if source != "measured" else []
            yield Curve(str(strategy), " ".join(told), str(source), number, group)


def unknown(value: Any) -> bool:
    """Whether a record leaves a setting open, as those of other programs do with what their logs do not say."""
    return bool(pd.isna(value)) or value == ""


def _setting(name: str, value: Any) -> str:
    """A setting in a title."""
    if unknown(value):
        return f"{_called(name)} unknown"
    return SETTINGS[name].format(value).replace("_", " ")


def _called(name: str) -> str:
    """model.hidden is called hidden, machine.name the machine."""
    return name.removesuffix(".name").rpartition(".")[2]


def _variant(runs: pd.DataFrame, values: tuple[Hashable, ...]) -> str:
    """What sets a variant apart from the strategy's others."""
    told = []
    for name, value in zip(VARIANT, values, strict=True):
        everyone = [str(other) for other in runs[name].unique()]
        if len(everyone) > 1:
            told.append(f"{_called(name)} unknown" if unknown(value) else _told(name, str(value), everyone))
    return ", ".join(told)


def _told(name: str, value: str, everyone: list[str]) -> str:
    """A value that is not everyone's."""
    if name == PARAMS:
        return _differing(value, everyone) or "defaults"
    return f"batch {value}" if name == BATCH else in_words(value)


def _differing(params: str, everyone: list[str]) -> str:
    """The parameters of one variant whose values are not everyone's; one that its record lacks is unknown."""
    mine, others = json.loads(params or "{}"), [json.loads(other or "{}") for other in everyone]
    known = {key: mine.get(key, "unknown") for key in {key: None for other in others for key in other}}
    some = {key: value for key, value in known.items() if any(other.get(key) != value for other in others)}
    return in_words(json.dumps(some, separators=(",", ":")))


def in_words(text: str) -> str:
    """A flat JSON object as people write it: samples 5, fanout 3."""
    return text.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
