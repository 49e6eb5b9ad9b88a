"""Which programs are understood, and what their options are called in a spec."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.external.log import Log

Settings = Mapping[str, Any]

KEYS = {
    "dataset": "dataset.name",
    "partition_method": "dataset.partition",
    "n_partitions": "ranks",
    "n_layers": "model.layers",
    "n_hidden": "model.hidden",
    "dropout": "model.dropout",
    "n_epochs": "training.epochs",
    "lr": "training.lr",
    "weight_decay": "training.weight_decay",
    "seed": "seed",
    "sampling_rate": "strategy.params.p",
}
SMOOTHED = {"feat_corr": "strategy.params.features", "grad_corr": "strategy.params.gradients"}
MODELS = {"graphsage": "sage"}


class Program(NamedTuple):
    """A program, how its logs are known, and which of our strategies does the same."""

    title: str
    mark: str
    """An option that it has and the others have not."""
    strategy: Callable[[Settings], dict[str, Any]]


def _bns(_: Settings) -> dict[str, Any]:
    return {"strategy.name": "bns-gcn"}


def _pipe(told: Settings) -> dict[str, Any]:
    """Without its pipeline it waits for the whole boundary, as BNS-GCN with p = 1 does."""
    if not told.get("enable_pipeline", True):
        return {"strategy.name": "bns-gcn", "strategy.params.p": 1.0}
    kept = {ours: told["corr_momentum"] * told[flag] for flag, ours in SMOOTHED.items() if flag in told}
    return {"strategy.name": "pipegcn", **kept}


PROGRAMS = {
    "bns-gcn": Program("BNS-GCN", "sampling_rate", _bns),
    "pipegcn": Program("PipeGCN", "enable_pipeline", _pipe),
}


def keys_of(program: Program, log: Log) -> dict[str, Any]:
    """The keys of a spec that a log tells, dotted; refused if it tells that another program wrote it."""
    told = log.settings
    if told and program.mark not in told:
        wrote = [name for name, other in PROGRAMS.items() if other.mark in told]
        way_out = f" Read it by --format {wrote[0]}." if wrote else ""
        raise UserError(
            f"{log.where} is no log of {program.title}: the options that it begins with lack {program.mark}.{way_out}"
        )
    keys = {ours: told[theirs] for theirs, ours in KEYS.items() if theirs in told}
    keys |= {"model.kind": MODELS.get(told["model"], told["model"])} if "model" in told else {}
    keys |= {"model.heads": told["heads"]} if told.get("model") == "gat" else {}
    keys |= {"model.norm": told["norm"] not in (None, "none")} if "norm" in told else {}
    return {"training.warmup": 0, **keys, **program.strategy(told)}
