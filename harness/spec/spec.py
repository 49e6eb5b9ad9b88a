"""The spec: everything that defines one run, validated and frozen. Its hash is the run id.

A spec knows nothing of files, results or launchers. The strategy decides whether the grid and the parameters suit it
(`harness.strategy.admit`).
"""

import hashlib
import json
from math import prod
from typing import Any, Literal

from pydantic import (
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from harness.ledger import AxisName
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import Machine
from harness.validation import RANKS, VERTICES, WIDTH, Frozen, Seed, Setting, added_later, list_settings

Protocol = Literal["corrected", "faithful"]
"""A loss over the labelled training vertices, or over the vertices that the paper's code trained on."""


class StrategyChoice(Frozen):
    """The strategy, with all its parameters, defaults included."""

    name: str = Field(max_length=1000)
    """A name of `harness list strategies`, or path/to/file.py:Class."""
    params: dict[str, JsonValue] = {}
    """The strategy's own parameters, as strategy.params.KEY: `harness list strategies -v`."""


PARTS = ("projection", "norm", "activation", "dropout", "residual")
"""The optional parts of a model, besides its convolutions."""


class ModelChoice(Frozen):
    """The model. The order of a convolution is (A H) W or A (H W): same numbers, other costs."""

    kind: Literal["gcn", "sage", "gat"] = "gcn"
    """The kind of convolution.

    sage: A is the mean over the neighbours, and another weight multiplies the vertex's own row.
    gat: attention along the edges and the loops of A, whose values are not used.
    """
    layers: int = Field(3, ge=1, le=4096)
    """The number of convolutions."""
    hidden: int = Field(16, ge=1, le=WIDTH)
    """The hidden width; for gat, the width of every head."""
    heads: int = Field(8, ge=1, le=4096)
    """The heads of every layer of gat."""
    order: Literal["aggregate_first", "combine_first"] = "aggregate_first"
    """A convolution as (A H) W, or as A (H W)."""
    projection: bool = False
    """Features are first brought to the hidden width, and a head brings the last layer to the classes."""
    norm: bool = False
    """The output of a convolution is normalised row by row (RMSNorm), with a learnable scale."""
    activation: Literal["relu", "none"] = "relu"
    """The function that is applied to the output of a hidden layer."""
    dropout: float = Field(0.0, ge=0, le=0.99)
    """The share of a layer's output that a training step drops."""
    residual: bool = False
    """The input of a layer is added to its output."""

    @property
    def width(self) -> int:
        """The width of the output of a hidden layer."""
        return self.hidden * self.heads if self.kind == "gat" else self.hidden

    @model_validator(mode="after")
    def _heads_are_used(self) -> "ModelChoice":
        default = type(self).model_fields["heads"].default
        if self.heads != default and self.kind != "gat":
            raise ValueError(
                f"heads = {self.heads}, and a {self.kind} has no heads: leave it at {default}, or set kind to gat"
            )
        return self

    @model_validator(mode="after")
    def _residuals_fit(self) -> "ModelChoice":
        if self.residual and not self.projection:
            raise ValueError(
                "a residual adds a layer's input to its output, so both need one width: set projection too"
            )
        return self


LONGEST = 1 << 31
"""The most epochs."""


class Training(Frozen):
    """The length and the method of training. Warm-up epochs train like the others and are not timed."""

    epochs: int = Field(10, ge=1, le=LONGEST)
    """The number of timed epochs."""
    warmup: int = Field(2, ge=0, le=LONGEST)
    """The number of epochs before the timed ones."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """The method by which weights are updated."""
    lr: float = Field(0.01, gt=0)
    """The learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """The share of a weight that is added to its gradient (torch's weight_decay)."""
    features: bool = False
    """The input features are trained too, like weights."""
    evaluate_every: int = Field(0, ge=0, le=LONGEST)
    """Epochs between evaluations of the full graph; 0 evaluates once, at the end."""
    batch: int = Field(0, ge=0, le=VERTICES)
    """Vertices of a mini-batch; 0 trains on the full graph."""
    target: float = Field(0.0, ge=0, le=1)
    """The test accuracy at which training stops after an evaluation; 0 never stops training."""
    recompute: bool = added_later(False)
    """All layers but the last keep nothing but their input; the backward pass computes them again, with messages."""
    cuda_graph: bool = added_later(False)
    """Epochs after the first two are replayed from a CUDA graph: the same numbers, with one launch an epoch."""


class Measure(Frozen):
    """Measurements besides times and words."""

    utilisation_ms: int = Field(0, ge=0, le=86_400_000)
    """Milliseconds of the windows for which the utilisation of a rank is recorded; 0 records nothing."""
    tape: bool = added_later(False)
    """Whether another epoch is recorded event by event, for `harness emulate`."""


class Spec(Frozen):
    """One run. Equal specs are the same run and have the same id, whatever the order of their keys."""

    strategy: StrategyChoice
    dataset: DatasetChoice
    ranks: int = Field(1, ge=1, le=RANKS)
    """The number of ranks; --ranks."""
    grid: dict[AxisName, int]
    """The size of each axis of the strategy, as 2x2; by default its first choice; --grid."""
    model: ModelChoice = ModelChoice()
    training: Training = Training()
    measure: Measure = Measure()
    protocol: Protocol = "corrected"
    """The vertices that the loss counts: those of the training split, or those that the paper's code trained on."""
    precision: Literal["float32", "float64"] = "float32"
    """The type of features, weights and activations."""
    machine: Machine
    """A name of `harness list machines` (default: that of config/site.yaml, or local)."""
    seed: Seed = 0
    """The seed of weights, samples and dropout."""
    launch: Seed = 0
    """The number of the launch: equal runs with another launch are repetitions."""

    @field_validator("strategy", "dataset", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _grid_holds_the_ranks(self) -> "Spec":
        if min(self.grid.values(), default=0) < 1 or prod(self.grid.values()) != self.ranks:
            raise ValueError(f"a grid of {grid_text(self.grid)} does not hold exactly {self.ranks} ranks")
        return self

    @property
    def run_id(self) -> str:
        return digest(self.model_dump(mode="json"))

    @property
    def label(self) -> str:
        """The name for people: dataset, strategy, grid, seed and the start of the id."""
        grid = grid_text(self.grid, "")
        return f"{self.dataset.name}-{self.strategy.name}-{grid}-s{self.seed}-{self.run_id[:6]}"


def keys_of_a_spec() -> list[str]:
    """The keys that a request may set, with dots; those of a strategy's parameters are the strategy's own."""
    return [setting.key for setting in settings_of_a_spec()]


def settings_of_a_spec() -> list[Setting]:
    """What a request may set, with what is accepted, the default and the meaning."""
    settings: list[Setting] = []
    for setting in list_settings(Spec):
        kind = Spec.model_fields[setting.key].annotation
        if isinstance(kind, type) and issubclass(kind, Frozen) and kind is not Machine:
            settings += list_settings(kind, f"{setting.key}.")
        else:
            settings.append(setting)
    return settings


def grid_text(grid: dict[AxisName, int], joint: str = " x ") -> str:
    """A grid in words: the axis x of size 2 is x2."""
    return joint.join(f"{axis.value}{size}" for axis, size in grid.items()) or "no axes"


def canonical_json(data: Any) -> str:
    """One spelling for equal data: sorted keys, no spaces, shortest numbers."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: Any) -> str:
    """The first sixteen hexadecimal digits of the sha256 of the data."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()[:16]
