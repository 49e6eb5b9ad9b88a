"""The trained matrices of a model, and their first values: each element a function of the seed and of its place.

Weights are Glorot uniform, scales are ones.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.random import Purpose, rectangle

ROOM = 1 << 40  # elements set aside for one matrix


class Part(StrEnum):
    """What a trained matrix is for."""

    PROJECTION = "projection"
    ROOT = "root"
    """Of what a vertex itself has, beside its neighbours (GraphSAGE)."""
    CONVOLUTION = "convolution"
    SCALE = "scale"
    """Of a normalisation: one row."""
    HEAD = "head"


class Weight(NamedTuple):
    """One trained matrix of a model, whole."""

    part: Part
    layer: int
    """-1 outside any layer."""
    shape: tuple[int, int]

    def __str__(self) -> str:
        kind = {Part.CONVOLUTION: "weight", Part.ROOT: "own weight", Part.SCALE: "scale"}.get(self.part)
        return f"the {kind} of layer {self.layer}" if kind else f"the {self.part}"


def weights_of(
    features: int,
    hidden: int,
    classes: int,
    layers: int,
    *,
    projection: bool,
    norm: bool,
    root: bool = False,
) -> list[Weight]:
    """In the order in which the model comes to them. With a projection every layer is as wide as it is long."""
    ends = (hidden, hidden) if projection else (features, classes)
    widths = [ends[0], *[hidden] * (layers - 1), ends[1]]
    found = []
    if projection:
        found.append(Weight(Part.PROJECTION, -1, (features, hidden)))
    for layer in range(layers):
        if root:
            found.append(Weight(Part.ROOT, layer, (widths[layer], widths[layer + 1])))
        found.append(Weight(Part.CONVOLUTION, layer, (widths[layer], widths[layer + 1])))
        if norm and (projection or layer + 1 < layers):
            found.append(Weight(Part.SCALE, layer, (1, widths[layer + 1])))
    if projection:
        found.append(Weight(Part.HEAD, -1, (hidden, classes)))
    return found


class Weights(NamedTuple):
    """A rank's pieces of the weights, by what they are for."""

    layers: Sequence[tuple[Tensor, Tensor | None]]
    """W, and the scale of its normalisation if it has one."""
    projection: Tensor | None = None
    head: Tensor | None = None
    roots: Sequence[Tensor] = ()
    """One a layer, or none."""


def by_part(weights: Sequence[Weight], tensors: Sequence[Tensor]) -> Weights:
    """Tensors in the order of `weights_of`."""
    found = {(part, layer): tensor for (part, layer, _), tensor in zip(weights, tensors, strict=True)}
    layers = [
        (W, found.get((Part.SCALE, layer))) for (part, layer), W in found.items() if part is Part.CONVOLUTION
    ]
    roots = [W for (part, _), W in found.items() if part is Part.ROOT]
    return Weights(layers, found.get((Part.PROJECTION, -1)), found.get((Part.HEAD, -1)), roots)


def initial_weight(seed: int, number: int, weight: Weight, rows: range, cols: range) -> Tensor:
    """A rectangle of the number-th matrix of a model in float64, whoever asks for whichever part."""
    if weight.part is Part.SCALE:
        return torch.ones(len(rows), len(cols), dtype=torch.float64)
    f_in, f_out = weight.shape
    bound = sqrt(6 / (f_in + f_out))
    return (2 * rectangle(seed, Purpose.WEIGHTS, rows, cols, f_out, start=number * ROOM) - 1) * bound
