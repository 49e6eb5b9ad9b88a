"""What verbs that request a run take in common: the strategy, the graph, the ranks and their grid, and the settings."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.validation import RANKS
from harness.cli.commands.request import (
    CONFIG,
    DatasetName,
    Grid,
    MachineName,
    OptionStyle,
    Ranks,
    Request,
    Settings,
    StrategyName,
)

if TYPE_CHECKING:
    from harness.spec.spec import Spec


@dataclass(frozen=True, config=CONFIG)
class RequestedRun(Request):
    """The run that a verb is about."""

    options_come_first: ClassVar[bool] = True

    strategy: StrategyName | None = None
    """The strategy, a name of `harness list strategies`, or path/to/file.py:Class."""
    dataset: DatasetName | None = None
    """The graph, a name of `harness list datasets`, or a twin such as ogbn-products@1/16."""
    ranks: Ranks = 1
    """The number of ranks."""
    _: KW_ONLY
    grid: Grid = None
    """The size of each axis of the strategy, such as row=2,col=2, or best for the fastest grid that fits (default: the
    strategy's first choice for this number of ranks)."""
    machine: MachineName | None = None
    """The machine card (default: the card that config/site.yaml names, or local)."""
    settings: Settings = Field(default_factory=dict)
    """A key of `harness list settings`, for example training.epochs=5; may be repeated."""

    def make_spec(self, verb: str) -> "Spec":
        """Return the spec of the run, which its strategy has not admitted yet. `verb` begins some errors."""
        from harness.experiment.requests import make_spec, nest_settings

        missing = [f"--{name} NAME" for name in ("strategy", "dataset") if not getattr(self, name)]
        if missing:
            raise UserError(f"{verb} needs {' and '.join(missing)}.")
        assert self.strategy
        named = {"strategy.name": self.strategy, "dataset.name": self.dataset, "ranks": self.ranks}
        chosen = {key: value for key in ("grid", "machine") if (value := getattr(self, key))}
        for key in chosen.keys() & self.settings.keys():
            raise UserError(f"--{key} and --set {key} are the same. Give one of them.")
        try:
            return make_spec(self.home, nest_settings({**named, **chosen, **self.settings}), "the options")
        except UserError as error:
            raise UserError(name_options(str(error), self.settings, self.strategy)) from None


@dataclass(frozen=True, config=CONFIG)
class RequestedRank(RequestedRun):
    """A rank of the run that a verb is about."""

    options_come_first: ClassVar[bool] = True

    _: KW_ONLY
    rank: Annotated[int, Field(ge=0, lt=RANKS), OptionStyle(metavar="R")] = 0
    """The rank to show."""

    def make_spec(self, verb: str) -> "Spec":
        """Return the spec of the run. Raises UserError if it does not have the rank."""
        spec = super().make_spec(verb)
        if self.rank >= spec.ranks:
            raise UserError(
                f"--rank {self.rank} is not accepted: the ranks of this run are 0 to {spec.ranks - 1}."
            )
        return spec


PARAMS = "strategy.params."
"""The prefix of the keys of a strategy's parameters."""


def name_options(message: str, settings: Mapping[str, Any], strategy: str) -> str:
    """Return an error message with options instead of keys: --ranks, --grid, or --set KEY for the settings."""
    message = re.sub(r"^(the options: )?(ranks|grid)( =)? ", r"--\2 ", message)
    for key in settings:
        is_unknown = message.startswith(f"the options: {key} is not a key here")
        if is_unknown and (keys := _list_keys_ending_in(key, strategy)):
            return f"--set {key} is not a key. Did you mean {' or '.join(keys)}?"
        field = key.replace(PARAMS, f"parameters of {strategy}: ", 1)
        message = message.replace(f"the options: {field} = ", f"--set {key}=", 1)
    return message


def _list_keys_ending_in(key: str, strategy: str) -> list[str]:
    """Return the keys of a spec, including the strategy's parameters, whose last part is `key`."""
    from harness.registry import load_strategy
    from harness.spec.spec import find_spec_keys

    parameters = [PARAMS + name for name in load_strategy(strategy).Params.model_fields]
    return [*find_spec_keys(key), *(name for name in parameters if name.endswith(f".{key}"))]
