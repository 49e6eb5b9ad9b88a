"""Logs of examples/train.py of Plexus (github.com/hpcgroup/plexus, revision 90b1367).

The first process prints the loss of every epoch and, after the last timed epoch, a tree of timers: for each epoch and
each operation in it, the milliseconds of the slowest process and the mean over the processes. Options are not printed,
but the scripts of the program echo its command, and the harness knows it if it ran the program.
"""

import re
from math import nan
from typing import Any

from harness.external.log_options import Options, parse_command
from harness.external.program import (
    FULL_GRAPH,
    NEEDS_DATASET,
    NUMBER,
    Beyond,
    EpochReport,
    LoggedRun,
    Program,
    ProgramLog,
    map_named,
)
from harness.ledger import NO_INDEX, Amounts, Direction, Key, Op, Phase

LOSS = re.compile(rf"Epoch: (\d+), Train Loss: {NUMBER}")
TIMER = re.compile(
    rf"\|--[^'\n]*'(.+?) \| Max Time: {NUMBER} ms \| Avg Time: {NUMBER} ms \| Load Imbalance: "
)
TIMED_EPOCH = re.compile(r"epoch (\d+)")
PARENTS = {
    "gcn conv fwd": Direction.FORWARD,
    "gcn conv bwd": Direction.BACKWARD,
    "cross entropy fwd": Direction.FORWARD,
    "cross entropy bwd": Direction.BACKWARD,
}
"""The direction of the timers below each timer."""
PRODUCTS = {
    "AGG = A * H": Op.SPMM,
    "OUT = AGG * W": Op.GEMM,
    "GRAD_W = AGG.T * GRAD_OUT": Op.GEMM,
    "GRAD_AGG = GRAD_OUT * W.T": Op.GEMM,
    "GRAD_H = A.T * GRAD_AGG": Op.SPMM,
}
"""The operation of each timer of a product."""
COLLECTIVES = {"all-reduce": Op.ALL_REDUCE, "reduce-scatter": Op.REDUCE_SCATTER, "gather": Op.ALL_GATHER}
"""The operation of each timer of a collective, by a word in its name. Only some versions of AxoNN have these timers."""
ALL_AXES = "x+y+z"
"""A timer sums the collectives over all axes."""
OVERLAPPED = "AGG = A * H and All-Reduce AGG"

DEFAULTS: Options = {
    "G_intra_r": 1,
    "G_intra_c": 1,
    "G_intra_d": 1,
    "num_epochs": 2,
    "block_aggregation": False,
    "overlap_aggregation": False,
    "tune_gemms": False,
    "lr": 3e-3,
    "weight_decay": 0.0,
    "num_gcn_layers": 3,
    "hidden_size": 128,
    "seed": 0,
}
"""The options that decide the spec, with the defaults of the program."""
KEYS = {
    "num_epochs": "training.epochs",
    "lr": "training.lr",
    "weight_decay": "training.weight_decay",
    "num_gcn_layers": "model.layers",
    "hidden_size": "model.hidden",
    "seed": "seed",
}
"""The key of a spec for each option that has one."""
AXES = {"G_intra_r": "x", "G_intra_c": "y", "G_intra_d": "z"}
"""The axis of our grid for each size of theirs."""
CLASS_AXES = {0: "G_intra_c", 1: "G_intra_r", 2: "G_intra_d"}
"""The axis that splits the classes, by the number of layers modulo 3."""
FIXED: Options = {
    **FULL_GRAPH,
    "strategy.name": "plexus",
    "strategy.params.wire": "full",
    "strategy.params.loops": "in_A",
    "dataset.partition": "block",
    "model.kind": "gcn",
    "model.norm": False,
    "model.dropout": 0.0,
    "training.features": True,
    "training.evaluate_every": 0,
    "protocol": "faithful",
    "precision": "float32",
}
"""The keys that the program fixes. Its loss covers all labelled vertices."""


def _read(log: ProgramLog) -> LoggedRun:
    options = parse_command(f"{log.command}\n{log.text}", "train.py", DEFAULTS)
    timers = _read_timers(log.text)
    if OVERLAPPED in log.text:
        options |= {"block_aggregation": True, "overlap_aggregation": True}
    losses = [(int(epoch), float(loss)) for epoch, loss in LOSS.findall(log.text)]
    reports = [EpochReport(0, epoch, *_describe_epoch(epoch, loss, timers)) for epoch, loss in losses]
    return LoggedRun(
        options,
        sorted(reports, key=lambda report: report.epoch),
        has_begun=bool(re.search(r"train\.py\", line \d+, in train\b", log.text)),
        has_ended=bool(timers),
    )


def _describe_epoch(
    epoch: int, loss: float, timers: dict[int, tuple[float, dict[Key, Amounts]]]
) -> tuple[float, float, dict[Key, Amounts]]:
    seconds, parts = timers.get(epoch, (nan, {}))
    return seconds, loss, parts


def _read_timers(text: str) -> dict[int, tuple[float, dict[Key, Amounts]]]:
    """Return the seconds of the slowest process and the mean seconds of each part, by timed epoch."""
    epochs: dict[int, tuple[float, dict[Key, Amounts]]] = {}
    parts: dict[Key, Amounts] = {}
    direction = Direction.FORWARD
    for name, slowest, mean in TIMER.findall(text):
        if epoch := TIMED_EPOCH.fullmatch(name):
            parts = {}
            epochs[int(epoch[1])] = float(slowest) / 1000, parts
        direction = PARENTS.get(name, direction)
        if key := _find_key(name, direction):
            parts.setdefault(key, Amounts()).add({"seconds": float(mean) / 1000})
    return epochs


def _find_key(name: str, direction: Direction) -> Key | None:
    """Return the place of a timer in the ledger; None if others below it are counted, or if it mixes operations."""
    if op := PRODUCTS.get(name):
        return Key(Phase.CONVOLVE, NO_INDEX, direction, op)
    if name.startswith("cross entropy"):
        return Key(Phase.LOSS, NO_INDEX, direction)
    for word, op in COLLECTIVES.items():
        if word in name:
            return Key(Phase.CONVOLVE, NO_INDEX, direction, op, ALL_AXES)
    return None


def _map_keys(options: Options) -> dict[str, Any]:
    keys = {**FIXED, **map_named(options, KEYS)}
    if options.keys() >= AXES.keys():
        keys["grid"] = {axis: options[size] for size, axis in AXES.items()}
    if "overlap_aggregation" in options:
        blocked = "blocked" if options["block_aggregation"] else "whole"
        keys["strategy.params.aggregation"] = "overlapped" if options["overlap_aggregation"] else blocked
    if "tune_gemms" in options:
        keys["strategy.params.weight_gradient"] = "measured" if options["tune_gemms"] else "straight"
    return keys


def _describe_labels(options: Options) -> str | None:
    shifts = "shifts the labels in place in every epoch, so losses after the first are of other labels"
    if not options.keys() >= AXES.keys():
        return f"if an axis splits the classes, it {shifts}"
    classes = CLASS_AXES[options["num_gcn_layers"] % 3]
    return shifts if options[classes] != 1 else None


def _describe_blocks(options: Options) -> str | None:
    is_blocked = options.get("block_aggregation")
    return "blocks have at most a million rows; ours are a number of equal blocks" if is_blocked else None


def _describe_decay(options: Options) -> str | None:
    decays = options.get("weight_decay")
    return "AdamW decays the weights and not the gradients; ours is an L2 penalty" if decays else None


def _describe_gemms(options: Options) -> str | None:
    return "all dense products are tuned; ours measures dW only" if options.get("tune_gemms") else None


PLEXUS = Program(
    "Plexus",
    "Epoch: 000, Train Loss: ...",
    _read,
    _map_keys,
    [
        Beyond(
            "weights",
            lambda _: (
                "as published, its optimizer has the features but no weight, because Net.layers is a plain list: "
                "its losses are not those of training a GCN"
            ),
        ),
        Beyond("labels", _describe_labels),
        Beyond(
            "padding",
            lambda _: "pads blocks to the largest and widths to multiples of the grid; ours does not",
        ),
        Beyond("block_aggregation", _describe_blocks, "strategy.params.blocks"),
        Beyond("weight_decay", _describe_decay, "training.weight_decay"),
        Beyond("tune_gemms", _describe_gemms),
        Beyond("features", lambda _: "its preprocessing divides each row of the features by its sum"),
    ],
    {
        **NEEDS_DATASET,
        "grid": "its grid: give --set grid=XxYxZ, where X is --G_intra_r, Y is --G_intra_c and Z is --G_intra_d.",
    },
    times="median",
    ending="the tree of its timers",
)
