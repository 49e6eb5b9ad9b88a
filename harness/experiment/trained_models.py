"""What each strategy can train: the kinds of models, the parts of a layer, trained features, narrow messages.

The table is made by admitting each strategy to a small graph with each setting.
"""

from pathlib import Path
from typing import Any, NamedTuple

from harness.base.errors import UserError
from harness.base.validation import Setting, list_settings
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec, nest_settings
from harness.graph.cards.catalog import load_card
from harness.registry import load_strategy, registered_strategies
from harness.strategy import Strategy, admit

NO_CHANGES: dict[str, Any] = {}
OPTIONAL_SETTINGS = {
    "GCN": NO_CHANGES,
    "GraphSAGE": {"model.kind": "sage"},
    "GAT": {"model.kind": "gat"},
    "norm": {"model.norm": True},
    "dropout": {"model.dropout": 0.5},
    "residual": {"model.projection": True, "model.residual": True},
    "trained features": {"training.features": True},
    "bf16 messages": {"strategy.params.wire": "bf16"},
}
"""The settings that a strategy may refuse, by their headings. Parts of a layer are tried with a GCN."""
GRAPH, BATCH = "tiny-sbm", 64


class TrainedModels(NamedTuple):
    """A strategy and the settings with which it trains: a row of the table."""

    strategy: str
    promise: str
    """How its numbers relate to those of serial training."""
    epoch: str
    """What a training step covers: the full graph or mini-batches."""
    settings: dict[str, bool]
    missing: str
    """The reason if it cannot train here at all."""

    def as_row(self) -> dict[str, Any]:
        """Return the columns by their headings."""
        return {"strategy": self.strategy, "numbers": self.promise, "trains on": self.epoch, **self.settings}


class StrategyDescription(NamedTuple):
    """What a strategy declares about itself."""

    name: str
    about: str
    paper: str
    promise: str
    axes: tuple[str, ...]
    partitioned_over: str | None
    trains_on: str
    models: tuple[str, ...]
    order: str
    """How `model.order=best` orders the products of a layer, and why if it does not choose."""
    parameters: list[Setting]


def describe_strategy(name: str) -> StrategyDescription:
    """Describe a strategy, by its name or as path/to/file.py:Class."""
    kind = load_strategy(name)
    over = kind.partitioned_over
    return StrategyDescription(
        name,
        about=(kind.__doc__ or "").strip().partition("\n")[0],
        paper=kind.paper,
        promise=kind.promise.value,
        axes=tuple(axis.value for axis in kind.axes),
        partitioned_over=over.value if over else None,
        trains_on=_describe_steps(kind),
        models=kind.models,
        order=_describe_order(kind),
        parameters=list_settings(kind.Params, "strategy.params."),
    )


def describe_strategies() -> list[StrategyDescription]:
    """Describe every installed strategy."""
    return [describe_strategy(name) for name in sorted(point.name for point in registered_strategies())]


def list_trained_models(root: Path) -> list[TrainedModels]:
    """List what each installed strategy trains."""
    rows = []
    for name in sorted(point.name for point in registered_strategies()):
        strategy = load_strategy(name)
        settings = {
            heading: _find_refusal(root, strategy, changes) == ""
            for heading, changes in OPTIONAL_SETTINGS.items()
        }
        missing = "" if any(settings.values()) else _find_refusal(root, strategy, NO_CHANGES)
        steps = _describe_steps(strategy)
        rows.append(TrainedModels(name, strategy.promise.value, steps, settings, missing))
    return rows


def _describe_order(strategy: type[Strategy]) -> str:
    if strategy.combine_first_refusal:
        return f"always (A H) W, because {strategy.combine_first_refusal}"
    if strategy.stale_order_reason:
        return f"best is (A H) W if rows of earlier epochs are used, because {strategy.stale_order_reason}"
    return "best chooses (A H) W or A (H W) for each layer"


def _describe_steps(strategy: type[Strategy]) -> str:
    """Return what a training step covers."""
    return "mini-batches" if strategy.mini_batches else "the full graph"


def _find_refusal(root: Path, strategy: type[Strategy], changes: dict[str, Any]) -> str:
    """Return the reason why a strategy cannot train with these settings; empty if it can."""
    settings = {
        "strategy.name": strategy.name,
        "dataset.name": GRAPH,
        "ranks": next(ranks for ranks in (4, 1) if strategy.grids(ranks)),
        "training.batch": BATCH if strategy.mini_batches else 0,
        **changes,
    }
    try:
        spec = make_spec(root, nest_settings(settings), "the table of models")
        admit(strategy, spec, facts_of_card(load_card(root, GRAPH)))
    except UserError as refusal:
        return str(refusal)
    return ""
