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
    ATTENTION = "attention"
    """Of both ends of an edge, a row each: what scores are computed with (GAT)."""
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
        if self.layer < 0:
            return f"the {self.part}"
        name = {Part.CONVOLUTION: "weight", Part.ROOT: "own weight"}.get(self.part, self.part)
        return f"the {name} of layer {self.layer}"


class Weights(NamedTuple):
    """A rank's pieces of the weights, by what they are for."""

    layers: Sequence[tuple[Tensor, Tensor | None]]
    """W, and the scale of its normalisation if it has one."""
    projection: Tensor | None = None
    head: Tensor | None = None
    roots: Sequence[Tensor] = ()
    """One a layer, or none."""
    attentions: Sequence[Tensor] = ()
    """Likewise."""


def by_part(weights: Sequence[Weight], tensors: Sequence[Tensor]) -> Weights:
    """Tensors in the order of the weights."""
    found = {(part, layer): tensor for (part, layer, _), tensor in zip(weights, tensors, strict=True)}
    layers = [
        (W, found.get((Part.SCALE, layer))) for (part, layer), W in found.items() if part is Part.CONVOLUTION
    ]
    roots, attentions = (
        [W for (part, _), W in found.items() if part is kind] for kind in (Part.ROOT, Part.ATTENTION)
    )
    return Weights(layers, found.get((Part.PROJECTION, -1)), found.get((Part.HEAD, -1)), roots, attentions)


def initial_weight(seed: int, number: int, weight: Weight, rows: range, cols: range) -> Tensor:
    """A rectangle of the number-th matrix of a model in float64, whoever asks for whichever part."""
    if weight.part is Part.SCALE:
        return torch.ones(len(rows), len(cols), dtype=torch.float64)
    f_in, f_out = weight.shape
    bound = sqrt(6 / (f_in + f_out))
    return (2 * rectangle(seed, Purpose.WEIGHTS, rows, cols, f_out, start=number * ROOM) - 1) * bound
