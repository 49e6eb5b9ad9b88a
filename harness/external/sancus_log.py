"""Logs of SANCUS (github.com/chenzhao/light-dist-gnn, revision 65495aa).

Every process writes lines with a time and its rank, among them one about itself and one about the graph. The first
process writes the losses, and at the end a summary of timers: for each name the mean over the processes of the total
seconds, their standard deviation, and the number of calls.
"""

import re
from collections.abc import Mapping
from math import nan
from typing import Any, NamedTuple

from harness.external.log_options import Options, parse_command
from harness.external.program import (
    FULL_GRAPH,
    NEEDS_DATASET,
    NEEDS_RANKS,
    NUMBER,
    PRODUCT,
    REDUCTION,
    Beyond,
    EpochReport,
    LoggedRun,
    Program,
    ProgramLog,
    list_accuracies,
    map_named,
)
from harness.ledger import NO_INDEX, Amounts, AxisName, Direction, Key, Op, Phase, TensorName

PROCESS = re.compile(r"<DistEnv (\d+)/(\d+) (\w+)>")
GRAPH = re.compile(r"<COO Graph: (\S+), \|V\|: \d+")
LOSS = re.compile(rf"\bEpoch (\d+) \| Loss {NUMBER}(?![\d.]| \|)")
ACCURACY = re.compile(rf"\bEpoch: (\d+), Train: {NUMBER}, Val: {NUMBER}, Test: {NUMBER}")
SUMMARY = "timer summary:"
TIMER = re.compile(r"(\d+\.\d\d)s +(\d+\.\d\d)s +(\d+) (\S.*?)\s*$", re.MULTILINE)
BROADCAST_OF_LAYER = re.compile(r"broadcast Forward(\w+) (\d+)")

BROADCAST = Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.BROADCAST, AxisName.P, tensor=TensorName.H)
PARTS = {
    "broadcast": BROADCAST,
    "spmm": PRODUCT,
    "mm": Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.GEMM),
    "all_reduce": REDUCTION,
}
"""The place in the ledger of each timer. Timers of single layers are parts of `broadcast`."""

DEFAULTS: Options = {"epoch": 20, "dataset": "reddit"}
"""The options that decide the spec, with the defaults of the program."""
KEYS = {"dataset": "dataset.name", "nprocs": "ranks", "epoch": "training.epochs", "layers": "model.layers"}
"""The key of a spec for each option that has one."""
FIXED: Options = {
    **FULL_GRAPH,
    "strategy.name": "sancus",
    "strategy.params.wire": "full",
    "strategy.params.overlap": False,
    "dataset.permutation": "none",
    "dataset.partition": "block",
    "model.norm": False,
    "model.dropout": 0.0,
    "training.features": False,
    "training.weight_decay": 0.0,
    "protocol": "corrected",
}
"""The keys that the program fixes. Its other settings are lines of dist_train.py, which it does not print."""


class Timer(NamedTuple):
    """The mean over the processes of the seconds of all calls of a timer, and the number of calls."""

    seconds: float
    calls: int


def _read(log: ProgramLog) -> LoggedRun:
    timers = _read_timers(log.text)
    processes = [{"nprocs": int(size), "backend": backend} for _, size, backend in PROCESS.findall(log.text)]
    graph = GRAPH.search(log.text)
    options = {
        **parse_command(f"{log.command}\n{log.text}", "main.py", DEFAULTS),
        **(processes[0] if processes else {}),
        **({"dataset": graph[1]} if graph else {}),
        **_count_broadcasts(timers),
    }
    if "epoch" in timers:
        options["epoch"] = timers["epoch"].calls
    return LoggedRun(
        options,
        _read_reports(log.text, timers),
        [
            each
            for epoch, *shares in ACCURACY.findall(log.text)
            for each in list_accuracies(int(epoch), *map(float, shares))
        ],
        nodes=processes,
        has_begun=bool(processes),
        has_ended=SUMMARY in log.text,
    )


def _read_timers(text: str) -> dict[str, Timer]:
    """Return the timers of the summary by name; empty without a summary."""
    _, _, summary = text.partition(SUMMARY)
    return {name: Timer(float(seconds), int(calls)) for seconds, _, calls, name in TIMER.findall(summary)}


def _read_reports(text: str, timers: Mapping[str, Timer]) -> list[EpochReport]:
    """Return a report for each loss. The last has the mean times over all epochs."""
    losses = sorted((int(epoch), float(loss)) for epoch, loss in LOSS.findall(text))
    reports = [EpochReport(0, epoch, nan, loss) for epoch, loss in losses]
    whole = timers.get("epoch")
    if reports and whole and whole.calls:
        parts = {
            key: Amounts(seconds=timers[name].seconds / whole.calls)
            for name, key in PARTS.items()
            if name in timers
        }
        reports[-1] = reports[-1]._replace(seconds=whole.seconds / whole.calls, parts=parts)
    return reports


def _count_broadcasts(timers: Mapping[str, Timer]) -> dict[str, Any]:
    """Return the number of layers, and of the broadcasts that were skipped because a cached block was used.

    Only the model with caches has timers of single layers.
    """
    calls = {
        match.groups(): timers[name].calls for name in timers if (match := BROADCAST_OF_LAYER.fullmatch(name))
    }
    if not calls or "epoch" not in timers:
        return {}
    skipped = sum(timers["epoch"].calls - sent for sent in calls.values())
    return {"layers": len({layer for layer, _ in calls}), "skipped": skipped}


def _map_keys(options: Options) -> dict[str, Any]:
    keys = {**FIXED, **map_named(options, KEYS)}
    if "layers" in options:
        keys["model.kind"] = "gcn"
    if options.get("skipped") == 0:
        keys["strategy.params.stale"] = 0
    return keys


def _describe_schedule(options: Options) -> str | None:
    if not options.get("skipped"):
        return None
    return (
        "all ranks skip the same broadcasts: the first layer's after the first epoch, the second layer's in every "
        "second epoch after fifty; and a rank's own cached rows are used, too. Ours takes turns, with current own rows"
    )


def _describe_caches(options: Options) -> str | None:
    return (
        "its caches were off, as published: no broadcast was skipped" if options.get("skipped") == 0 else None
    )


SANCUS = Program(
    "SANCUS",
    "... [0] Epoch 00000 | Loss ...",
    _read,
    _map_keys,
    [
        Beyond("caches", _describe_caches),
        Beyond("schedule", _describe_schedule, "strategy.params.stale"),
        Beyond(
            "loss",
            lambda _: (
                "each rank averages the loss over its own training vertices before gradients are summed; ours "
                "averages over all of them"
            ),
        ),
        Beyond("features", lambda _: "each row of the features is divided by its sum"),
    ],
    {**NEEDS_DATASET, **NEEDS_RANKS},
    times="mean",
    ending="its timer summary",
    appends="SANCUS appends to logs_P/all_log_RANK.txt: give the output of one run.",
)
