"""Selections: the runs of an experiment's `published` part that share some settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from harness.spec.spec import Spec, format_grid

SPEC_KEYS = {
    "strategy": "strategy.name",
    "dataset": "dataset.name",
    "partition": "dataset.partition",
    "permutation": "dataset.permutation",
    "machine": "machine.name",
    "kind": "model.kind",
    "layers": "model.layers",
    "hidden": "model.hidden",
    "heads": "model.heads",
    "batch": "training.batch",
    "epochs": "training.epochs",
    "warmup": "training.warmup",
    "target": "training.target",
    "features": "training.features",
    "ranks": "ranks",
    "launch": "launch",
    "protocol": "protocol",
    "utilisation_ms": "measure.utilisation_ms",
}
"""The keys of a spec by short names. Any other name is a parameter of the strategy."""


class TrainingSettings(TypedDict, total=False):
    """The settings of the order, the model, the training and the strategy."""

    permutation: str
    kind: str
    layers: int
    hidden: int
    batch: int
    features: bool
    wire: str
    """This and the following are parameters of strategies."""
    prefetch: bool
    fused: bool
    overlap: bool
    pipeline: str


class Settings(TrainingSettings, total=False):
    """The settings by which runs are selected."""

    strategy: str | frozenset[str]
    """A set stands for any of its members."""
    dataset: str
    ranks: int
    machine: str | frozenset[str]
    launch: int


@dataclass(frozen=True)
class Selection:
    """Runs of an experiment, and how their times are predicted. `select` makes one."""

    experiment: str
    settings: Settings = field(default_factory=Settings)
    twins: str = ""
    """The scales of the twins for a strategy whose sizes depend on the edges, such as `1/32,1/16,1/8`."""
    cards: tuple[str, ...] = ()
    """Other cards of the same machine. Several are choices that the paper leaves open."""

    def narrow(self, **settings: Unpack[Settings]) -> "Selection":
        """Return the runs of this selection that have these settings too."""
        return replace(self, settings=Settings(**{**self.settings, **settings}))

    def with_twins(self, twins: str) -> "Selection":
        """Return this selection with the times predicted from twins of these scales."""
        return replace(self, twins=twins)

    def with_cards(self, *cards: str) -> "Selection":
        """Return this selection with the times predicted by each of these machine cards."""
        return replace(self, cards=cards)

    def __repr__(self) -> str:
        settings = [f"{key}={_format_setting(value)}" for key, value in self.settings.items()]
        words = [self.experiment, *settings]
        words += [f"twins={self.twins}"] if self.twins else []
        words += [f"card={'|'.join(self.cards)}"] if self.cards else []
        return f"<{' '.join(words)}>"

    def accepts(self, spec: Spec) -> bool:
        """Return whether a run has all the settings."""
        return all(_matches(get_setting(spec, key), value) for key, value in self.settings.items())


def select(experiment: str, *, cards: tuple[str, ...] = (), **settings: Unpack[Settings]) -> Selection:
    """Select the runs of an experiment that have these settings; `cards` replace the machine card of predictions."""
    return Selection(experiment, settings, cards=cards)


def get_setting(spec: Spec, key: str) -> Any:
    """Return a setting of a run by its short name; None for a parameter that its strategy does not have."""
    if key == "grid":
        return format_grid(spec.grid)
    if key in SPEC_KEYS:
        return get_value(spec, SPEC_KEYS[key])
    value = spec.strategy.params.get(key)
    return tuple(value) if isinstance(value, list) else value


def get_value(spec: Spec, path: str) -> Any:
    """Return the value at a dotted path of a spec."""
    value: Any = spec
    for name in path.split("."):
        value = getattr(value, name)
    return value


def with_dotted_keys(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings by the dotted keys that a request has."""
    return {SPEC_KEYS.get(key, f"strategy.params.{key}"): value for key, value in settings.items()}


def _matches(setting: object, wanted: object) -> bool:
    return setting in wanted if isinstance(wanted, frozenset) else setting == wanted


def _format_setting(value: object) -> str:
    return "|".join(sorted(value)) if isinstance(value, frozenset) else str(value)
