"""The spec: everything that defines one run, validated and frozen. Its hash is the run id.

A spec does not depend on files, results or launchers. Whether the grid and the parameters suit a strategy is checked
by the strategy (`harness.strategy.admit`).
"""

import hashlib
import json
from collections.abc import Mapping
from math import prod
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from harness.base.validation import RANKS, VERTICES, WIDTH, Frozen, Seed, Setting, added_later, list_settings
from harness.ledger import AxisName
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import Machine

Protocol = Literal["corrected", "faithful"]
"""The loss covers the labelled training vertices, or the vertices on which the paper's code trained."""


class StrategyChoice(Frozen):
    """The strategy, with all its parameters, defaults included."""

    name: str = Field(max_length=1000)
    """A name of `harness list strategies`, or path/to/file.py:Class."""
    params: dict[str, JsonValue] = {}
    """The strategy's own parameters, as strategy.params.KEY: `harness list strategies --strategy NAME`."""


PARTS = ("projection", "norm", "activation", "dropout", "residual")
"""The optional parts of a model, in addition to its convolutions."""


class ModelChoice(Frozen):
    """The model. A convolution is computed as (A H) W or A (H W): equal results at different cost."""

    kind: Literal["gcn", "sage", "gat"] = "gcn"
    """The kind of convolution.

    sage: A is the mean over the neighbours, and a second weight multiplies the row of the vertex itself.
    gat: attention over the edges and loops of A; the values of A are not used.
    """
    layers: int = Field(3, ge=1, le=4096)
    """The number of convolutions."""
    hidden: int = Field(16, ge=1, le=WIDTH)
    """The hidden width; for gat, the width of each head."""
    heads: int = Field(8, ge=1, le=4096)
    """The number of heads in each layer of gat."""
    order: Literal["aggregate_first", "combine_first", "best"] = "best"
    """A convolution as (A H) W, or as A (H W). `best`: in each layer the one whose products with A in an epoch, forward
    and backward, have fewer columns, which sends the fewest elements; (A H) W where the algorithm allows no other or
    uses rows of earlier epochs. neutronstar takes the orders of the lowest price that it finds, rdm and compose those
    that send the fewest elements.
    """
    projection: bool = False
    """A linear layer first maps features to the hidden width, and another maps the last layer to the classes."""
    norm: bool = False
    """The output of a convolution is normalised row by row (RMSNorm), with a learnable scale."""
    activation: Literal["relu", "none"] = "relu"
    """The activation function of hidden layers."""
    dropout: float = Field(0.0, ge=0, le=0.99)
    """The fraction of a layer's output that a training step drops."""
    residual: bool = False
    """The input of a layer is added to its output."""

    @property
    def width(self) -> int:
        """The width of the output of a hidden layer."""
        return self.hidden * self.heads if self.kind == "gat" else self.hidden

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelChoice":
        default = type(self).model_fields["heads"].default
        if self.heads != default and self.kind != "gat":
            raise ValueError(
                f"heads = {self.heads}, but {self.kind} has no heads: leave it at {default}, or set kind to gat"
            )
        return self

    @model_validator(mode="after")
    def _check_residual(self) -> "ModelChoice":
        if self.residual and not self.projection:
            raise ValueError(
                "a residual adds the input of a layer to its output, so both need the same width: set projection too"
            )
        return self


MAX_EPOCHS = 1 << 31


class Training(Frozen):
    """The length and the method of training. Warm-up epochs train like others but are not timed."""

    epochs: int = Field(10, ge=1, le=MAX_EPOCHS)
    """The number of timed epochs."""
    warmup: int = Field(2, ge=0, le=MAX_EPOCHS)
    """The number of epochs before the timed ones."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """The optimizer that updates weights."""
    lr: float = Field(0.01, gt=0)
    """The learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """The L2 penalty: this fraction of a weight is added to its gradient (torch's weight_decay)."""
    features: bool = False
    """Whether the input features are trained like weights."""
    evaluate_every: int = Field(0, ge=0, le=MAX_EPOCHS)
    """Epochs between evaluations of the full graph; 0 evaluates once, at the end."""
    batch: int = Field(0, ge=0, le=VERTICES)
    """The number of vertices in a mini-batch; 0 trains on the full graph."""
    target: float = Field(0.0, ge=0, le=1)
    """The test accuracy at which training stops after an evaluation; 0 disables it."""
    recompute: bool = added_later(False)
    """Whether layers except the last keep only their input, and the backward pass recomputes them, with messages."""
    cuda_graph: bool = added_later(False)
    """Whether epochs after the first two are replayed from a CUDA graph: equal results, with one launch per epoch."""


class Measure(Frozen):
    """Measurements in addition to times and message sizes."""

    utilisation_ms: int = Field(0, ge=0, le=86_400_000)
    """The length in milliseconds of the windows in which the utilisation of a rank is recorded; 0 disables it."""
    tape: bool = added_later(False)
    """Whether an additional epoch is recorded event by event, for `harness runs emulate`."""


class Spec(Frozen):
    """One run. Equal specs are the same run and have the same id; the order of keys does not matter."""

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
    """The vertices in the loss: those of the training split, or those on which the paper's code trained."""
    precision: Literal["float32", "float64"] = "float32"
    """The data type of features, weights and activations."""
    machine: Machine
    """A name of `harness list machines` (default: the card named in config/site.yaml, or local)."""
    seed: Seed = 0
    """The seed of weights, samples and dropout."""
    launch: Seed = 0
    """The number of the launch: equal runs with another launch are repetitions."""

    @field_validator("strategy", "dataset", mode="before")
    @classmethod
    def _wrap_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_grid(self) -> "Spec":
        if min(self.grid.values(), default=0) < 1 or prod(self.grid.values()) != self.ranks:
            raise ValueError(f"a grid of {format_grid(self.grid)} does not have exactly {self.ranks} ranks")
        return self

    @property
    def run_id(self) -> str:
        return digest(self.model_dump(mode="json"))

    @property
    def label(self) -> str:
        """A readable name: dataset, strategy, grid, seed and the start of the id."""
        grid = label_grid(self.grid)
        return f"{self.dataset.name}-{self.strategy.name}-{grid}-s{self.seed}-{self.run_id[:6]}"


def list_spec_keys() -> list[str]:
    """Return the dotted keys that a request may set. Each strategy defines the keys of its parameters."""
    return [setting.key for setting in list_spec_settings()]


def list_spec_settings() -> list[Setting]:
    """Return the settings of a request: keys, accepted values, defaults and meanings."""
    settings: list[Setting] = []
    for setting in list_settings(Spec):
        kind = Spec.model_fields[setting.key].annotation
        if isinstance(kind, type) and issubclass(kind, Frozen) and kind is not Machine:
            settings += list_settings(kind, f"{setting.key}.")
        else:
            settings.append(setting)
    return settings


def list_changed_settings(spec: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a spec, given as JSON data, that differ from their defaults, by dotted key.

    `params` are the default parameters of the strategy. The strategy, the dataset, the ranks, the grid and the machine
    have no defaults and are left out. Sections may be missing, as in the record of another program.
    """
    name = (spec.get("dataset") or {}).get("name") or "any"
    default_sections: dict[str, Any] = {
        "strategy": {"params": params},
        "dataset": DatasetChoice(name=name).model_dump(mode="json"),
        "model": ModelChoice().model_dump(mode="json"),
        "training": Training().model_dump(mode="json"),
        "measure": Measure().model_dump(mode="json"),
        **{key: Spec.model_fields[key].default for key in ("protocol", "precision", "seed", "launch")},
    }
    defaults = _flatten_keys(default_sections)
    given = {key: value for key, value in spec.items() if key not in ("ranks", "grid", "machine")}
    return {
        key: value
        for key, value in _flatten_keys(given).items()
        if key not in ("strategy.name", "dataset.name") and (key not in defaults or defaults[key] != value)
    }


def _flatten_keys(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves |= (
            _flatten_keys(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return leaves


def find_spec_keys(last: str) -> list[str]:
    """Return the keys of a spec whose last part is `last`."""
    return [key for key in list_spec_keys() if key == last or key.endswith(f".{last}")]


def format_grid(grid: Mapping[AxisName, int] | Mapping[str, int]) -> str:
    """Return a grid in the notation that --grid accepts, such as x=2,y=2; none without axes."""
    return ",".join(f"{axis}={size}" for axis, size in grid.items()) or "none"


def label_grid(grid: Mapping[AxisName, int]) -> str:
    """Return the short form of a grid in labels and tables, such as x2y2. --grid accepts it, too."""
    return "".join(f"{axis.value}{size}" for axis, size in grid.items()) or "no axes"


def canonical_json(data: Any) -> str:
    """Return data as JSON with sorted keys and no spaces, so that equal data is equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_data(data: Any) -> str:
    """Return the SHA-256 of the data as canonical JSON, in hexadecimal digits."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def digest(data: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the data."""
    return hash_data(data)[:16]
