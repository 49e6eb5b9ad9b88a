"""The trained matrices of a model and their initialisation: each element is a function of the seed and its position.

Weights are Glorot uniform, scales are ones.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.random import Purpose, uniform_rectangle

ROOM = 1 << 40  # random indices reserved per matrix


class Part(StrEnum):
    """The part of a model to which a trained matrix belongs."""

    PROJECTION = "projection"
    ROOT = "root"
    """Multiplies the vertex's own features, in addition to its neighbours' (GraphSAGE)."""
    ATTENTION = "attention"
    """Computes edge scores, with a row for each endpoint (GAT)."""
    CONVOLUTION = "convolution"
    SCALE = "scale"
    """The scale of a normalisation; one row."""
    HEAD = "head"


class Weight(NamedTuple):
    """A trained matrix of a model."""

    part: Part
    layer: int
    """The index of the layer; -1 outside the layers."""
    shape: tuple[int, int]

    def __str__(self) -> str:
        if self.layer < 0:
            return f"the {self.part}"
        name = {Part.CONVOLUTION: "weight", Part.ROOT: "own weight"}.get(self.part, self.part)
        return f"the {name} of layer {self.layer}"


class Weights(NamedTuple):
    """A rank's pieces of the weights, by part."""

    layers: Sequence[tuple[Tensor, Tensor | None]]
    """W of each layer, and the scale of its normalisation or None."""
    projection: Tensor | None = None
    head: Tensor | None = None
    roots: Sequence[Tensor] = ()
    """One matrix per layer, or empty."""
    attentions: Sequence[Tensor] = ()
    """One matrix per layer, or empty."""


def group_by_part(weights: Sequence[Weight], tensors: Sequence[Tensor]) -> Weights:
    """Group tensors by part. They are in the order of the weights."""
    pieces = {(part, layer): tensor for (part, layer, _), tensor in zip(weights, tensors, strict=True)}
    layers = [
        (W, pieces.get((Part.SCALE, layer)))
        for (part, layer), W in pieces.items()
        if part is Part.CONVOLUTION
    ]
    roots, attentions = (
        [W for (part, _), W in pieces.items() if part is kind] for kind in (Part.ROOT, Part.ATTENTION)
    )
    return Weights(layers, pieces.get((Part.PROJECTION, -1)), pieces.get((Part.HEAD, -1)), roots, attentions)


def init_weight(seed: int, number: int, weight: Weight, rows: range, cols: range) -> Tensor:
    """Return a rectangle of the `number`-th matrix of a model in float64, the same for every rank and layout."""
    if weight.part is Part.SCALE:
        return torch.ones(len(rows), len(cols), dtype=torch.float64)
    f_in, f_out = weight.shape
    bound = sqrt(6 / (f_in + f_out))
    return (2 * uniform_rectangle(seed, Purpose.WEIGHTS, rows, cols, f_out, start=number * ROOM) - 1) * bound
