"""Selections: the runs of an experiment's `published` part that share some settings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack, cast, get_args, get_type_hints

from harness.base.validation import suggest_names
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


SETTING = re.compile(r"(\w+)=([^=|]+(?:\|[^=|]+)*)")
READERS: Mapping[type, tuple[str, Callable[[str], object]]] = {
    bool: ("true or false", {"true": True, "false": False}.__getitem__),
    int: ("a whole number", int),
    str: ("a name", str),
}
"""How the values of a setting are read, by its type, and what they are."""


class TrainingSettings(TypedDict, total=False):
    """The settings of the order, the model, the training and the strategy."""

    permutation: str
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
    """The settings by which runs are selected. A set stands for any of its members."""

    strategy: str | frozenset[str]
    dataset: str | frozenset[str]
    kind: str | frozenset[str]
    ranks: int | frozenset[int]
    machine: str | frozenset[str]
    launch: int


SETTINGS = {key: (get_args(hint) or (hint,))[0] for key, hint in get_type_hints(Settings).items()}
"""The types of the values of settings."""


@dataclass(frozen=True)
class Selection:
    """Runs of experiments, and how their times are predicted. `select` makes one, and `parse_selection` reads one."""

    experiments: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)
    twins: str = ""
    """The scales of the twins for a strategy whose sizes depend on the edges, such as `1/32,1/16,1/8`."""
    cards: tuple[str, ...] = ()
    """Other cards of the same machine. Several are choices that the paper leaves open."""

    def narrow(self, **settings: Unpack[Settings]) -> "Selection":
        """Return the runs of this selection that have these settings too."""
        return replace(self, settings=Settings(**{**self.settings, **settings}))

    def __str__(self) -> str:
        """Return the selection as `parse_selection` reads it."""
        words = ["|".join(self.experiments)]
        words += [
            f"{key}={'|'.join(map(_format_value, _list_values(value)))}"
            for key, value in self.settings.items()
        ]
        words += [f"twins={self.twins}"] if self.twins else []
        words += [f"cards={'|'.join(self.cards)}"] if self.cards else []
        return " ".join(words)

    def list_choices(self, key: str) -> list[Any]:
        """List the values that a setting may have; nothing if it may have any."""
        return _list_values(self.settings[key]) if key in self.settings else []  # type: ignore[literal-required]

    def accepts(self, spec: Spec) -> bool:
        """Return whether a run has all the settings."""
        return all(get_setting(spec, key) in self.list_choices(key) for key in self.settings)


def select(
    *experiments: str, twins: str = "", cards: tuple[str, ...] = (), **settings: Unpack[Settings]
) -> Selection:
    """Select the runs of experiments that have these settings; `cards` replace the machine card of predictions."""
    return Selection(experiments, settings, twins, cards)


def parse_selection(text: str) -> Selection:
    """Read a selection: experiments, settings, and how times are predicted, each with choices separated by `|`.

    An example is `plexus-figure-8 strategy=bns-gcn ranks=4|8 twins=1/10,1/7 cards=perlmutter|perlmutter-gloo`.
    """
    experiments, *words = text.split()
    texts: dict[str, str] = {}
    for word in words:
        if not (found := SETTING.fullmatch(word)):
            raise ValueError(f"{word} is not KEY=VALUE or KEY=VALUE|VALUE")
        if found[1] in texts:
            raise ValueError(f"{found[1]} is given twice")
        texts[found[1]] = found[2]
    twins, cards = texts.pop("twins", ""), texts.pop("cards", "")
    settings = cast(Settings, {key: _parse_setting(key, value) for key, value in texts.items()})
    return Selection(tuple(experiments.split("|")), settings, twins, tuple(cards.split("|")) if cards else ())


def _parse_setting(key: str, text: str) -> object:
    """Return the value of a setting, or a set of several."""
    if key not in SETTINGS:
        raise ValueError(f"{key} is not a setting of a selection.{suggest_names(key, SETTINGS)}")
    expected, read = READERS[SETTINGS[key]]
    try:
        values = [read(value) for value in text.split("|")]
    except (KeyError, ValueError):
        raise ValueError(f"{key}={text} is not {expected}") from None
    return values[0] if len(values) == 1 else frozenset(values)


def _list_values(value: object) -> list[Any]:
    return sorted(value) if isinstance(value, frozenset) else [value]


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
