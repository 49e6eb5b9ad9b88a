"""Checks that a spec's strategy can run on its graph, with a reason if it cannot."""

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.validation import format_value
from harness.graph.blocks import Blocks
from harness.ledger import AxisName
from harness.spec.spec import PARTS, ModelChoice, Spec, format_grid
from harness.strategy.contract import Strategy
from harness.strategy.facts import Facts


class Ready(NamedTuple):
    """An admitted strategy, and the blocks of its graph if they are open."""

    strategy: Strategy
    blocks: Blocks | None = None


class Candidate(NamedTuple):
    """The grids on which a strategy can run, and the reason if there are none."""

    name: str
    ready: Sequence[Ready]
    reason: str


def admit(strategy: type[Strategy], spec: Spec, facts: Facts) -> Strategy:
    """Return the strategy for this spec and graph; raise `UserError` with the reason if the spec cannot run."""
    if set(spec.grid) != set(strategy.axes):
        raise UserError(
            f"grid {format_grid(spec.grid)}: {strategy.name} is arranged over the axes "
            f"{', '.join(axis.value for axis in strategy.axes)}, each named once."
        )
    grids = strategy.grids(spec.ranks)
    if not grids:
        raise UserError(f"ranks = {spec.ranks}: {strategy.name} has no grid of that many ranks.")
    ready = strategy(spec, facts)
    reason = (
        _refuse_model(ready)
        or _refuse_edge_weights(ready)
        or _refuse_training(ready)
        or _refuse_cuda_graph(ready)
        or ready.refuse()
        or _refuse_partition(ready)
    )
    if reason:
        raise UserError(f"{strategy.name} cannot run on {spec.dataset.name}: {reason}.")
    return ready


def _refuse_model(strategy: Strategy) -> str | None:
    """Return why the strategy cannot train the spec's model, or None."""
    model, bare = strategy.spec.model, ModelChoice()
    if model.kind not in strategy.models:
        because = strategy.model_refusals.get(model.kind)
        refused = f"{model.kind}, because {because}" if because else model.kind
        return f"it trains {', '.join(strategy.models)} and not {refused}: set model.kind accordingly"
    for part in PARTS:
        if not strategy.has_model_parts and getattr(model, part) != getattr(bare, part):
            return f"it trains the bare model, without {part}: leave model.{part} at {getattr(bare, part)}"
    if model.order == "combine_first" and strategy.combine_first_refusal:
        return f"{strategy.combine_first_refusal}: use model.order=aggregate_first"
    return None


WITHOUT_WEIGHTS = {
    "sage": "GraphSAGE takes the mean over the neighbours, whatever their edges weigh",
    "gat": "attention computes the value of every edge by itself",
}
"""Why models cannot train on weighted edges, by kind."""


def _refuse_edge_weights(strategy: Strategy) -> str | None:
    """Return why the weights of edges would be ignored, or None."""
    reason = WITHOUT_WEIGHTS.get(strategy.spec.model.kind) or strategy.edge_weights_refusal
    if strategy.facts.weights is None or reason is None:
        return None
    way_out = "Train gcn by another strategy, or import the graph without --weights"
    return f"its edges carry weights, and {reason}. {way_out}"


def _refuse_training(strategy: Strategy) -> str | None:
    """Return why the strategy cannot train with the spec's batch size or recomputation, or None."""
    training, vertices = strategy.spec.training, strategy.facts.vertices
    batch = training.batch
    if training.recompute and not strategy.can_recompute:
        return "it cannot compute a layer twice in a step: leave training.recompute at false"
    if training.recompute and not strategy.recomputed_layers:
        return "its one layer is the last, which is never recomputed: leave training.recompute at false"
    if not strategy.mini_batches:
        return f"it trains on the full graph: leave training.batch = {batch} at 0" if batch else None
    if not 0 < batch <= vertices:
        return (
            f"training.batch = {batch}: it trains on mini-batches; set training.batch to their vertices, "
            f"from 1 to the {vertices} of the graph"
        )
    return None


ORDINARY_EPOCHS = 2
"""The epochs before a CUDA graph is captured, which are not timed: the second sees the state that the first left."""


def _refuse_cuda_graph(strategy: Strategy) -> str | None:
    """Return why a CUDA graph cannot replay the spec's epochs, or None."""
    spec, way_out = strategy.spec, "leave training.cuda_graph at false"
    if not spec.training.cuda_graph:
        return None
    if spec.machine.engine != "nccl":
        return (
            f"a CUDA graph holds kernels of GPUs and calls of NCCL, and the machine {spec.machine.name} has device "
            f"{spec.machine.device} and engine {spec.machine.engine}: {way_out}, or choose a machine with GPUs"
        )
    if not strategy.can_be_captured:
        differ = "its mini-batches" if strategy.mini_batches else "with these parameters its epochs"
        return f"{differ} differ, and a CUDA graph repeats one epoch: {way_out}"
    if spec.training.warmup < ORDINARY_EPOCHS:
        return (
            f"training.warmup = {spec.training.warmup}: the first {ORDINARY_EPOCHS} epochs are not replayed from the "
            f"CUDA graph, and would be timed: set training.warmup to at least {ORDINARY_EPOCHS}"
        )
    if spec.measure.tape:
        return f"measure.tape records kernel by kernel, and a CUDA graph is replayed as a whole: {way_out}"
    return None


def _refuse_partition(strategy: Strategy) -> str | None:
    """Return why the graph's partition does not fit the strategy's grid, or None."""
    bounds, axis = strategy.facts.bounds, strategy.partitioned_over
    if not bounds:
        return None
    if axis is None:
        return "its rows and columns share their bounds: set dataset.partition=block"
    parts, blocks = len(bounds) - 1, strategy.grid[axis] * strategy.parts_per_block(strategy.params)
    if parts != blocks:
        return f"the partition has {parts} parts, and the rows are split into {blocks}: ask for {blocks}"
    return None


AXIS_SIZE = re.compile(r"([a-z]+)(\d+)")
SHORT_GRID = re.compile(rf"({AXIS_SIZE.pattern})+")
NO_AXES = ("none", "no axes")
"""How a grid without axes is printed."""


def parse_grid(strategy: type[Strategy], text: str | None, ranks: int) -> dict[AxisName, int]:
    """Parse a grid such as x=2,y=2,z=2 or x2y2z2, or 2x2x2 along the strategy's axes; None gives its first choice."""
    if text is None:
        grids = strategy.grids(ranks)
        if not grids:
            raise UserError(f"ranks = {ranks}: {strategy.name} has no grid of that many ranks.")
        return grids[0]
    axes = ", ".join(axis.value for axis in strategy.axes)
    try:
        if text in NO_AXES:
            grid = {}
        elif "=" in text:
            pairs = (part.split("=") for part in text.split(","))
            grid = {AxisName(name.strip()): int(size) for name, size in pairs}
        elif SHORT_GRID.fullmatch(text):
            grid = {AxisName(name): int(size) for name, size in AXIS_SIZE.findall(text)}
        else:
            grid = dict(zip(strategy.axes, map(int, text.split("x")), strict=True))
    except ValueError:
        raise UserError(
            f"grid {format_value(text)} is not understood. {strategy.name} takes sizes along {axes}, "
            f"as {'x'.join('2' for _ in strategy.axes)} or {','.join(a.value + '=2' for a in strategy.axes)}."
        ) from None
    if prod(grid.values()) != ranks:
        raise UserError(
            f"grid {format_value(text)} holds {prod(grid.values())} ranks, not the {ranks} asked for. "
            f"`harness list grids --strategy {strategy.name} --ranks {ranks}` lists those that fit."
        )
    return grid
