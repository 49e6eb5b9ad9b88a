"""The questions that a strategy answers. A plugin is one class that derives from `Strategy`, in a package of its own.

A strategy sees its spec, facts about the graph and, on a rank, a `Context`. Files, launchers, clocks, tables and plots
are out of its sight.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from harness.comm.layout import Coordinates, coordinates, list_grids
from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.models.gcn import MODELS
from harness.models.weights import Part, Weight, Weights
from harness.spec.spec import ModelChoice, Spec
from harness.strategy.counts import WORD, Counts, Piece
from harness.strategy.facts import Facts, weights_of_model
from harness.validation import Frozen, format_value, validate

if TYPE_CHECKING:
    from harness.models.operators import Operators
    from harness.strategy.context import Context


# The communication contract of a strategy: payload words of one rank and epoch, by row of the ledger.


class WordsKey(NamedTuple):
    """The part of a ledger's key that a formula of words has."""

    direction: Direction
    layer: int
    op: Op
    axis: str
    tensor: TensorName


class Words(dict[WordsKey, float]):
    """A table of words, written row by row as in the paper. An axis of one rank carries nothing."""

    def __init__(self, grid: Mapping[AxisName, int], recomputed: range = range(0)) -> None:
        """The forward pass of the layers `recomputed` is repeated in the backward pass."""
        super().__init__()
        self._grid, self._recomputed = grid, recomputed

    def put(
        self,
        direction: Direction,
        layer: int,
        op: Op,
        axes: AxisName | tuple[AxisName, ...],
        tensor: TensorName,
        words: float,
    ) -> None:
        """Adds words to the row of an axis, or of several axes taken as one; rows without words do not appear."""
        joint = (axes,) if isinstance(axes, AxisName) else axes
        if prod(self._grid[axis] for axis in joint) > 1 and words:
            name = "+".join(axis for axis in self._grid if axis in joint)
            again = direction is Direction.FORWARD and layer in self._recomputed
            for each in (direction, Direction.BACKWARD) if again else (direction,):
                key = WordsKey(each, layer, op, name, tensor)
                self[key] = self.get(key, 0) + words


class MiniBatch(NamedTuple):
    """The vertices and matrices of a training step, as one rank that has the whole graph draws them.

    The vertices of a layer's input begin with those of its output. A sampled subgraph has the same in all layers.
    """

    vertices: Sequence[Tensor]
    """The vertices of every layer's input in turn, and of the output."""
    A: Sequence[Csr]
    """Each layer's matrix: as many rows as its output has vertices, as many columns as its input."""
    importance: Tensor | None = None
    """The factor of each output vertex in the loss; None: all alike."""


# The costs of a strategy according to its paper, one line a quantity, to be held against the costs of this code.


class Quantity(StrEnum):
    """The quantity of a formula, for one rank and epoch."""

    WORDS = "words"
    CALLS = "messages"
    FORWARD_WORDS = "words forward"
    FORWARD_CALLS = "messages forward"
    """The forward pass of the layers alone, without the loss."""
    LAYOUT = "layout"
    """A factor that follows from the layout of matrices over ranks."""


class Published(NamedTuple):
    """A formula of a paper, with its value for one spec."""

    quantity: Quantity
    formula: str
    claims: tuple[str, ...]
    """The ids under which the numbers of papers are listed."""
    value: float
    because: str
    """The difference of this code from the paper, and its reason."""
    ours: float | None = None
    """The value by our layouts; words and messages are counted instead."""


class Promise(StrEnum):
    """The relation of a strategy's numbers to serial training's."""

    EXACT = "exact"
    ESTIMATOR = "estimator"
    APPROXIMATE = "approximate"
    OTHER_MODEL = "another model"
    """Those of serial training, of the model that `multiplier` makes of the one that the spec names."""


class NoParams(Frozen):
    """The parameters of a strategy that has none."""


class MessageParams(Frozen):
    """The parameter of every strategy whose ranks send each other rows or partial sums."""

    wire: Literal["full", "bf16"] = "full"
    """The type in which features, activations and their gradients travel. Gradients of weights, losses and sums of
    squares always travel in full."""


KINDS = get_args(ModelChoice.model_fields["kind"].annotation)


class Strategy(ABC):
    """A parallel training algorithm."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """The paper that describes the algorithm, for lists; a strategy of your own may leave it out."""
    promise: ClassVar[Promise]
    axes: ClassVar[tuple[AxisName, ...]]
    """The axes of its grid, as people write them."""
    slowest_first: ClassVar[tuple[AxisName, ...] | None] = None
    """The axes from the slowest to the fastest in the numbering of ranks; None: the order of `axes`."""
    partitioned_over: ClassVar[AxisName | None] = None
    """The axis over which rows are split by a partition of the vertices; None if a partition has no meaning."""
    mini_batches: ClassVar[bool] = False
    """True for training on mini-batches of `training.batch` vertices, False for the full graph."""
    parts: ClassVar[bool] = False
    """True if models may have a projection, normalisation, dropout or residual; False for the bare model alone."""
    models: ClassVar[tuple[str, ...]] = ("gcn",)
    """The kinds of models that the strategy trains."""
    recomputes: ClassVar[bool] = False
    """True if a layer can be computed twice in a step, and `words` counts the messages of both times (`recomputed`)."""
    unweighted: ClassVar[str | None] = None
    """The reason why the algorithm cannot train on weighted edges; None if it multiplies by A as the blocks have it."""
    untrained: ClassVar[Mapping[str, str]] = {}
    """The reasons why the algorithm cannot train other kinds, by kind; a refusal gives the reason."""
    Params: ClassVar[type[Frozen]] = NoParams

    def __init__(self, spec: Spec, facts: Facts) -> None:
        self.spec = spec
        self.facts = replace(facts, directed=True) if spec.model.kind == "sage" else facts
        """The facts of the matrix that the model multiplies by."""
        self.params = validate(self.Params, spec.strategy.params, f"parameters of {self.name}")
        self.grid = {axis: spec.grid[axis] for axis in self.slowest_first or self.axes}
        self.weights = weights_of_model(spec.model, facts)
        """Everything that the model trains, in order."""
        self.shapes = [weight.shape for weight in self.weights if weight.part is Part.CONVOLUTION]
        """The weight matrices of the convolutions, layer by layer."""

    @property
    def steps(self) -> int:
        """Training steps in an epoch: one over the full graph, or one for each mini-batch."""
        return 1

    @property
    def recomputed(self) -> range:
        """The layers that are computed once more in the backward pass: all but the last, or none."""
        return range(self.spec.model.layers - 1 if self.spec.training.recompute else 0)

    @property
    def groups(self) -> int:
        """The number of mini-batches of a step, each in a data-parallel group of its own."""
        return 1

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        """A mini-batch as one rank that has the whole graph draws it: the definition that training is held to.

        `targets` are the vertices that the loss counts, ascending.
        """
        raise NotImplementedError(f"{self.name} trains on the full graph")

    @property
    def rounding(self) -> float:
        """The relative rounding of numbers on their way between ranks; 0 if nothing is rounded."""
        return torch.finfo(self.wire).eps / 2 if self.wire else 0.0

    @property
    def word_bytes(self) -> float:
        """The fewest bytes of a number of H on its way between ranks."""
        return self.wire.itemsize if self.wire else WORD[self.spec.precision]

    @property
    def wire(self) -> torch.dtype | None:
        """The type in which features, activations and their gradients travel; None for the type of the run."""
        params = self.params
        return torch.bfloat16 if isinstance(params, MessageParams) and params.wire == "bf16" else None

    @property
    def opening(self) -> int:
        """The epochs at the start that are unlike all later ones, as those that fill caches; predictions skip them."""
        return 0

    @property
    def can_be_captured(self) -> bool:
        """True if a CUDA graph of one training step serves all later ones: each is the same function of the weights.

        So are the steps over the full graph of a strategy whose numbers are exact. Numbers that such a step computes
        from its own number come from `Context.numbers`.
        """
        alike = self.promised() in (Promise.EXACT, Promise.OTHER_MODEL)
        return alike and not self.mini_batches and self.opening == 0

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Payload words of one epoch, counted from 0 through warm-up. Epochs differ if their mini-batches do, or if
        some rows are not sent in every epoch."""
        return self.words(at, counts)

    @classmethod
    def parts_of_block(cls, params: Frozen) -> int:
        """The parts of a partition in every block of rows: more than one if the strategy cuts blocks further."""
        return 1

    def coordinates(self, rank: int) -> dict[AxisName, int]:
        """The coordinates of a rank: the last axis of `grid` is the fastest."""
        return coordinates(self.grid, rank)

    def published(self) -> list[Published]:
        """The costs according to the strategy's paper; empty if no paper has a formula."""
        return []

    def weights_of(self, rank: int) -> list[Piece]:
        """The piece of every weight that a rank holds."""
        at = self.coordinates(rank)
        return [self.weight(weight, at) for weight in self.weights]

    def promised(self) -> Promise:
        """The relation of its numbers to serial training's, with these parameters."""
        return self.promise

    def multiplier(self, A: Tensor, layer: int, step: int | None) -> Tensor | None:
        """The matrix of a layer in a training step in place of A, dense and in the order of the dataset.

        A step equals the serial one with these matrices; without a step, evaluation does. None if no matrix does.
        """
        return A if self.promised() is Promise.EXACT else None

    def received(self, x: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """The rows that arrive where rows x are sent in a training step, and a bound of the variance of each number.

        Their mean over the steps is x. None unless messages are drawn at random.
        """
        return None

    def crowded(self) -> str | None:
        """The reason why so many ranks cannot share so few vertices, or None."""
        ranks, vertices = self.spec.ranks, self.facts.vertices
        if ranks > vertices:
            return f"{ranks} ranks for {vertices} vertices: a rank needs at least one vertex"
        return None

    def wants_dH(self, layer: int) -> bool:
        """True if anything is trained below this layer's input."""
        return layer > 0 or self.spec.training.features or self.spec.model.projection

    def parameters_of(self, rank: int) -> list[Piece]:
        """The piece that a rank holds of everything trained: the weights and, if features are trained, the features."""
        trained = [self.input(self.coordinates(rank))] if self.spec.training.features else []
        return self.weights_of(rank) + trained

    def samples(self, counts: Counts) -> int:
        """Bytes of the mini-batches that a rank draws at once; 0 if a rank draws one at a time."""
        return 0

    def least_words(self, at: Coordinates, counts: Counts) -> float:
        """Return a lower bound on the words that the rank receives in an epoch, with any strategy of the same kind.

        0 where no bound is known: the page of lower bounds is docs/lower-bounds.md.
        """
        return 0.0

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """Every grid of this many ranks, the best guess first; empty if the number does not suit."""
        return list_grids(ranks, *cls.axes)

    @abstractmethod
    def refuse(self) -> str | None:
        """The reason why this spec cannot run on this graph, or None."""

    @abstractmethod
    def weight(self, weight: Weight, at: Coordinates) -> Piece:
        """The part of a weight matrix that the rank at `at` holds."""

    @abstractmethod
    def input(self, at: Coordinates) -> Piece:
        """The part of the input features (vertices by features) that the rank at `at` holds."""

    @abstractmethod
    def output(self, at: Coordinates) -> Piece:
        """The part of the model's output (vertices by classes) that the rank at `at` holds."""

    @abstractmethod
    def operators(self, ctx: "Context") -> "Operators":
        """The operator set of one rank."""

    def forward(self, operators: "Operators", weights: Weights) -> Tensor:
        """The rank's part of the model's output. A strategy that interleaves layers overrides this."""
        model, recompute = MODELS[self.spec.model.kind], len(self.recomputed) > 0
        X, residual = operators.inputs(), self.spec.model.residual
        return model(operators, X, weights, residual=residual, recompute=recompute)

    @abstractmethod
    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Payload words of the first training epoch for the rank at `at`, from spec, facts and counts of the graph."""

    @abstractmethod
    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Bytes that the rank at `at` holds all the time, by tensor; sums that are zero are left out."""


def faults_of(strategy: type[Strategy]) -> list[str]:
    """The attributes of a class that are missing or wrong: each with its value and the accepted values."""
    attributes: dict[str, Any] = {}
    faults = []
    for name, (expected, _) in EXPECTED.items():
        try:
            attributes[name] = getattr(strategy, name)
        except AttributeError:
            faults.append(f"{name} is missing: {expected}")
        except Exception as error:
            faults.append(f"{name} raises {type(error).__name__}: it is to be {expected}")
    for name, value in attributes.items():
        expected, holds = EXPECTED[name]
        if not holds(value, attributes):
            faults.append(f"{name} = {format_value(value)} is not accepted: {expected}")
    return faults


def _are_axes(value: Any) -> bool:
    is_tuple = isinstance(value, tuple) and len(value) > 0
    return is_tuple and all(isinstance(axis, AxisName) for axis in value) and len(set(value)) == len(value)


def _are_the_axes(value: Any, attributes: dict[str, Any]) -> bool:
    if value is None or not _are_axes(attributes.get("axes")):
        return True
    return _are_axes(value) and set(value) == set(attributes["axes"])


def _are_models(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(kind in KINDS for kind in value)


Holds = Callable[[Any, dict[str, Any]], bool]
EXPECTED: dict[str, tuple[str, Holds]] = {
    "name": ("a text", lambda value, _: isinstance(value, str) and bool(value)),
    "paper": ("a text", lambda value, _: isinstance(value, str)),
    "promise": (
        f"a harness.strategy.Promise ({', '.join(Promise.__members__)})",
        lambda value, _: isinstance(value, Promise),
    ),
    "axes": ("a tuple of different harness.ledger.AxisName", lambda value, _: _are_axes(value)),
    "slowest_first": ("a tuple of the same axes, or None", _are_the_axes),
    "partitioned_over": (
        "one of its axes, or None",
        lambda value, attributes: (
            value is None or not _are_axes(attributes.get("axes")) or value in attributes["axes"]
        ),
    ),
    "mini_batches": ("a bool", lambda value, _: isinstance(value, bool)),
    "parts": ("a bool", lambda value, _: isinstance(value, bool)),
    "recomputes": ("a bool", lambda value, _: isinstance(value, bool)),
    "models": (f"a tuple of {', '.join(KINDS)}", lambda value, _: _are_models(value)),
    "Params": (
        "a class that derives from harness.validation.Frozen",
        lambda value, _: isinstance(value, type) and issubclass(value, Frozen),
    ),
}
"""The attributes of a strategy's class: the accepted values in words, and a test of a value beside the others."""
