"""What each strategy trains, by asking it: kinds of models, parts of a layer, trained features, narrow messages."""

from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.experiment.defaults import make_spec, nested
from harness.experiment.known_graph import facts_of_card
from harness.registry import load_strategy, registered_strategies
from harness.store.catalog import load_card
from harness.strategy import Strategy, admit
from harness.validation import Setting, list_settings

BARE: dict[str, Any] = {}
ASKED = {
    "GCN": BARE,
    "GraphSAGE": {"model.kind": "sage"},
    "GAT": {"model.kind": "gat"},
    "norm": {"model.norm": True},
    "dropout": {"model.dropout": 0.5},
    "residual": {"model.projection": True, "model.residual": True},
    "trained features": {"training.features": True},
    "bf16 messages": {"strategy.params.wire": "bf16"},
}
"""The settings that a strategy may refuse, by their headings. Parts of a layer are asked of a GCN."""
GRAPH, BATCH = "tiny-sbm", 64


class TrainedModels(NamedTuple):
    """A row of the table."""

    strategy: str
    promise: str
    """The relation of its numbers to serial training's."""
    epoch: str
    """The graph of a training step."""
    settings: dict[str, bool]
    missing: str
    """The reason why it trains nothing here, if it does not."""

    def as_row(self) -> dict[str, Any]:
        """Every column by its heading."""
        return {"strategy": self.strategy, "numbers": self.promise, "trains on": self.epoch, **self.settings}


class Described(NamedTuple):
    """What a strategy says of itself."""

    name: str
    about: str
    paper: str
    promise: str
    axes: tuple[str, ...]
    partitioned_over: str | None
    trains_on: str
    models: tuple[str, ...]
    parameters: list[Setting]


def described_strategies() -> list[Described]:
    """Every installed strategy."""
    found = []
    for name in sorted(point.name for point in registered_strategies()):
        kind = load_strategy(name)
        axes, over = tuple(axis.value for axis in kind.axes), kind.partitioned_over
        about = (kind.__doc__ or "").strip().partition("\n")[0]
        trains_on = "mini-batches" if kind.mini_batches else "the full graph"
        parameters = list_settings(kind.Params, "strategy.params.")
        found.append(
            Described(
                *(name, about, kind.paper, kind.promise.value, axes, over.value if over else None),
                *(trains_on, kind.models, parameters),
            )
        )
    return found


def trained_models(root: Path) -> list[TrainedModels]:
    """A row for each installed strategy."""
    rows = []
    for name in sorted(point.name for point in registered_strategies()):
        strategy = load_strategy(name)
        settings = {heading: _refusal(root, strategy, changes) == "" for heading, changes in ASKED.items()}
        missing = "" if any(settings.values()) else _refusal(root, strategy, BARE)
        epoch = "mini-batches" if strategy.mini_batches else "the full graph"
        rows.append(TrainedModels(name, strategy.promise.value, epoch, settings, missing))
    return rows


def as_cells(rows: list[TrainedModels]) -> list[tuple[str, ...]]:
    """The table in words, with its headings."""
    headings = tuple(rows[0].as_row())
    signs = {True: "yes", False: "-"}
    return [headings, *(tuple(signs.get(cell, str(cell)) for cell in row.as_row().values()) for row in rows)]


def _refusal(root: Path, strategy: type[Strategy], changes: dict[str, Any]) -> str:
    """The reason why a strategy does not train with these settings; empty if it does."""
    asked = {
        "strategy.name": strategy.name,
        "dataset.name": GRAPH,
        "ranks": next(ranks for ranks in (4, 1) if strategy.grids(ranks)),
        "training.batch": BATCH if strategy.mini_batches else 0,
        **changes,
    }
    try:
        spec = make_spec(root, nested(asked), "the table of models")
        admit(strategy, spec, facts_of_card(load_card(root, GRAPH)))
    except UserError as refusal:
        return str(refusal)
    return ""
