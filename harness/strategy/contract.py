"""The interface of a strategy. A plugin is a package with one class that derives from `Strategy`.

A strategy sees its spec, facts about the graph and, on a rank, a `Context`. It knows nothing about files, launchers,
clocks, tables and plots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from harness.base.validation import Frozen, format_value, validate
from harness.comm.layout import Coordinates, coordinates, list_grids
from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.spec.spec import ModelChoice, Spec
from harness.strategy.counts import WORD, Counts, Piece
from harness.strategy.facts import Facts, list_weights
from harness.strategy.models.gcn import MODELS
from harness.strategy.models.weights import Part, Weight, Weights
from harness.strategy.recurrence import DenseGraph, Recurrence
from harness.strategy.reference_sampler import ReferenceSampler

if TYPE_CHECKING:
    from harness.strategy.context import Context
    from harness.strategy.models.operators import Operators


# The communication volume of a strategy: payload words of one rank and epoch, by row of the ledger.


class WordsKey(NamedTuple):
    """The fields of a ledger key that a formula for words specifies."""

    direction: Direction
    layer: int
    op: Op
    axis: str
    tensor: TensorName


class Words(dict[WordsKey, float]):
    """A table of payload words, written row by row as in the paper. Axes of one rank carry no words."""

    def __init__(self, grid: Mapping[AxisName, int], recomputed_layers: range = range(0)) -> None:
        """Create an empty table; words forward in `recomputed_layers` count again in the backward pass."""
        super().__init__()
        self._grid, self._recomputed_layers = grid, recomputed_layers

    def add(
        self,
        direction: Direction,
        layer: int,
        op: Op,
        axes: AxisName | tuple[AxisName, ...],
        tensor: TensorName,
        words: float,
    ) -> None:
        """Add words to the row of an axis, or of several axes used as one. Rows of zero words are left out."""
        joint = (axes,) if isinstance(axes, AxisName) else axes
        if prod(self._grid[axis] for axis in joint) > 1 and words:
            name = "+".join(axis for axis in self._grid if axis in joint)
            again = direction is Direction.FORWARD and layer in self._recomputed_layers
            for each in (direction, Direction.BACKWARD) if again else (direction,):
                key = WordsKey(each, layer, op, name, tensor)
                self[key] = self.get(key, 0) + words


class MiniBatch(NamedTuple):
    """The vertices and matrices of a training step, as drawn by one rank that has the whole graph.

    The vertices of a layer's input begin with the vertices of its output. In a sampled subgraph they are the same in
    all layers.
    """

    vertices: Sequence[Tensor]
    """The vertices of every layer's input, then those of the output."""
    A: Sequence[Csr]
    """Each layer's matrix, with a row for each vertex of its output and a column for each vertex of its input."""
    importance: Tensor | None = None
    """The weight of each output vertex in the loss; None for equal weights."""


# The costs of a strategy according to its paper, one for each quantity, to compare with the costs of this code.


class Quantity(StrEnum):
    """What a published formula counts, for one rank and epoch."""

    WORDS = "words"
    CALLS = "messages"
    FORWARD_WORDS = "words forward"
    FORWARD_CALLS = "messages forward"
    """Only the forward pass of the layers, without the loss."""
    LAYOUT = "layout"
    """A factor that follows from how matrices are distributed over ranks."""


class PublishedCost(NamedTuple):
    """A formula of a paper, with its value for one spec."""

    quantity: Quantity
    formula: str
    claims: tuple[str, ...]
    """The ids of the claims that quote it."""
    value: float
    because: str
    """How this code differs from the paper, and why."""
    ours: float | None = None
    """The value in this code's layout; None for words and messages, which are counted."""


class Promise(StrEnum):
    """How a strategy's results relate to those of serial training."""

    EXACT = "exact"
    ESTIMATOR = "estimator"
    APPROXIMATE = "approximate"
    OTHER_MODEL = "another model"
    """The results of serial training with the adjacency that `effective_adjacency` returns."""


class NoParams(Frozen):
    """The parameters of a strategy without parameters."""


class MessageParams(Frozen):
    """The parameters of every strategy whose ranks exchange rows or partial sums."""

    wire: Literal["full", "bf16"] = "full"
    """The type in which features, activations and their gradients are sent. Gradients of weights, losses and sums of
    squares are always sent in full precision."""


KINDS = get_args(ModelChoice.model_fields["kind"].annotation)


class Strategy(ABC):
    """A parallel training algorithm."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """The paper that describes the algorithm, shown in lists. Optional."""
    promise: ClassVar[Promise]
    axes: ClassVar[tuple[AxisName, ...]]
    """The axes of its grid, in the order in which users write them."""
    slowest_first: ClassVar[tuple[AxisName, ...] | None] = None
    """The axes from the slowest to the fastest in the numbering of ranks; None for the order of `axes`."""
    partitioned_over: ClassVar[AxisName | None] = None
    """The axis over which a vertex partition splits rows; None if the strategy takes no partition."""
    mini_batches: ClassVar[bool] = False
    """Whether it trains on mini-batches of `training.batch` vertices instead of the full graph."""
    has_model_parts: ClassVar[bool] = False
    """Whether models may have a projection, normalisation, dropout or residual connections."""
    combine_first_refusal: ClassVar[str | None] = None
    """Why no layer can multiply A (H W); None if a layer can."""
    stale_order_reason: ClassVar[str | None] = None
    """Why `order=best` multiplies (A H) W in every layer if rows of earlier epochs are used; None if they never are."""
    models: ClassVar[tuple[str, ...]] = ("gcn",)
    """The kinds of models that the strategy trains."""
    can_recompute: ClassVar[bool] = False
    """Whether layers can be recomputed in the backward pass, and `words` counts their messages again."""
    edge_weights_refusal: ClassVar[str | None] = None
    """Why the algorithm cannot train on weighted edges; None if it can."""
    model_refusals: ClassVar[Mapping[str, str]] = {}
    """Why the algorithm cannot train other kinds of models, by kind."""
    Params: ClassVar[type[Frozen]] = NoParams
    recurrence: ClassVar[type[Recurrence] | None] = None
    """The training step in dense algebra, if ranks multiply by stale, rounded or delayed rows."""
    reference_sampler: ClassVar[type[ReferenceSampler] | None] = None
    """The samples in dense algebra, if it draws mini-batches, or draws from the whole graph in every step."""

    def __init__(self, spec: Spec, facts: Facts) -> None:
        self.spec = spec
        self.facts = replace(facts, directed=True) if spec.model.kind == "sage" else facts
        """The facts about the matrix that the model multiplies by."""
        self.params = validate(self.Params, spec.strategy.params, f"parameters of {self.name}")
        self.grid = {axis: spec.grid[axis] for axis in self.slowest_first or self.axes}
        self.weights = list_weights(spec.model, facts)
        """The weights of the model, in the order of their first use."""
        self.shapes = [weight.shape for weight in self.weights if weight.part is Part.CONVOLUTION]
        """The shapes of the convolutions' weight matrices, layer by layer."""

    @property
    def steps(self) -> int:
        """The training steps in an epoch: one over the full graph, or one for each mini-batch."""
        return 1

    @property
    def recomputed_layers(self) -> range:
        """The layers that are recomputed in the backward pass: all but the last, or none."""
        return range(self.spec.model.layers - 1 if self.spec.training.recompute else 0)

    @property
    def groups(self) -> int:
        """The number of data-parallel groups, each of which trains on its own mini-batch in a step."""
        return 1

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        """Return the mini-batch of a step and group, drawn from the whole graph.

        This defines what the strategy trains on; `harness check` compares training with it. `targets` are the vertices
        that the loss counts, in ascending order.
        """
        raise NotImplementedError(f"{self.name} trains on the full graph")

    @property
    def rounding(self) -> float:
        """The relative rounding error of numbers sent between ranks; 0 if they are not rounded."""
        return torch.finfo(self.wire).eps / 2 if self.wire else 0.0

    @property
    def word_bytes(self) -> float:
        """The fewest bytes in which an element of H is sent."""
        return self.wire.itemsize if self.wire else WORD[self.spec.precision]

    @property
    def wire(self) -> torch.dtype | None:
        """The type in which features, activations and their gradients are sent; None for the precision of the run."""
        params = self.params
        return torch.bfloat16 if isinstance(params, MessageParams) and params.wire == "bf16" else None

    @property
    def transient_epochs(self) -> int:
        """The number of first epochs that differ from all later ones, such as those that fill caches.

        Predictions skip them.
        """
        return 0

    @property
    def can_be_captured(self) -> bool:
        """True if all training steps can replay a CUDA graph of one step.

        Each step must be the same function of the weights, as full-graph steps of an exact strategy are. Numbers that
        change with the step come from `Context.numbers`.
        """
        is_repeated = self.effective_promise in (Promise.EXACT, Promise.OTHER_MODEL)
        return is_repeated and not self.mini_batches and self.transient_epochs == 0

    def reference_words(self, at: Coordinates, entries: Tensor) -> Words | None:
        """Return `words` of the first epoch, counted by brute force from the entries of the dense matrix A.

        Override this if `words` shares code with the run, such as that which chooses the rows to send: `harness check`
        then compares both.
        """
        return None

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the payload words of one epoch; `epoch` counts from 0, warm-up included.

        Override this if epochs differ, because their mini-batches do or because some rows are not sent in every epoch.
        """
        return self.words(at, counts)

    @classmethod
    def parts_per_block(cls, params: Frozen) -> int:
        """Return how many parts of the partition a block of rows has: more than one if the strategy cuts blocks."""
        return 1

    def coordinates(self, rank: int) -> dict[AxisName, int]:
        """Return the coordinates of a rank: the last axis of `grid` is the fastest."""
        return coordinates(self.grid, rank)

    def published_costs(self) -> list[PublishedCost]:
        """Return the costs according to the strategy's paper; empty without a published formula."""
        return []

    def weight_pieces(self, rank: int) -> list[Piece]:
        """Return the piece of every weight that a rank holds."""
        at = self.coordinates(rank)
        return [self.weight_piece(weight, at) for weight in self.weights]

    @property
    def effective_promise(self) -> Promise:
        """The promise with these parameters, which may be stronger or weaker than the class's."""
        return self.promise

    def effective_adjacency(self, graph: DenseGraph, layer: int, step: int | None) -> Tensor | None:
        """Return the dense matrix that a layer effectively multiplies by in a step, in the order of the dataset.

        Serial training with these matrices in place of A gives the same results; with `step` None, evaluation does.
        None if no such matrix exists.
        """
        return graph.A if self.effective_promise is Promise.EXACT else None

    def transmit_rows(self, x: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """Return the rows that arrive when `x` is sent in a training step, and a bound on the variance of each element.

        Their mean over all steps is `x`. None unless messages are rounded at random.
        """
        return None

    def too_many_ranks(self) -> str | None:
        """Return an error message if there are more ranks than vertices, or None."""
        ranks, vertices = self.spec.ranks, self.facts.vertices
        if ranks > vertices:
            return f"{ranks} ranks for {vertices} vertices: a rank needs at least one vertex"
        return None

    def needs_dH(self, layer: int) -> bool:
        """Return whether the gradient of a layer's input is needed."""
        return layer > 0 or self.spec.training.features or self.spec.model.projection

    def combines_first(self, layer: int) -> bool:
        """Return whether a layer multiplies by W before A: as the model says, or as `order=best` decides."""
        order = self.spec.model.order
        if order == "best":
            return self.aggregate_first_reason is None and self.is_narrower_combined(layer)
        return order == "combine_first"

    @property
    def aggregate_first_reason(self) -> str | None:
        """Why `order=best` multiplies (A H) W in every layer, whatever the widths; None if it chooses.

        Override this if it depends on the parameters.
        """
        return self.combine_first_refusal or self.stale_order_reason

    def is_narrower_combined(self, layer: int) -> bool:
        """Return whether the products with A in an epoch have fewer columns in total if H W comes first.

        The total decides, because the flops of these products and the elements of the rows that they exchange are
        proportional to it. The flops of adding returned gradients are not counted, and dense products usually cost the
        same in both orders. The products are those of the forward pass, once more if the layer is recomputed, and of
        the backward pass. With (A H) W, the backward pass multiplies by A^T only for the gradient of the layer's input.
        Override this if the strategy multiplies by A less often or sends fewer rows in one of the orders.

        Equal totals are decided for (A H) W. With attention they are decided for A (H W), because (A H) W also
        multiplies received rows by W.
        """
        f_in, f_out = self.shapes[layer]
        forward = 1 + (layer in self.recomputed_layers)
        combined, aggregated = (forward + 1) * f_out, (forward + self.needs_dH(layer)) * f_in
        return combined < aggregated or (combined == aggregated and self.spec.model.kind == "gat")

    def parameter_pieces(self, rank: int) -> list[Piece]:
        """Return the pieces of all trained tensors that a rank holds: the weights, then the features if trained."""
        trained = [self.input_piece(self.coordinates(rank))] if self.spec.training.features else []
        return self.weight_pieces(rank) + trained

    def sample_bytes(self, counts: Counts) -> int:
        """Return the bytes of the mini-batches that a rank draws together; 0 if it draws one at a time."""
        return 0

    def words_lower_bound(self, at: Coordinates, counts: Counts) -> float:
        """Return a lower bound on the words that the rank receives in an epoch, with any strategy of the same kind.

        0 where no bound is known: the page of lower bounds is docs/concepts/lower-bounds.md.
        """
        return 0.0

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """Return all grids of this many ranks, the best guess first; empty if the strategy has none."""
        return list_grids(ranks, *cls.axes)

    @abstractmethod
    def refuse(self) -> str | None:
        """Return why this spec cannot run on this graph, or None if it can."""

    @abstractmethod
    def weight_piece(self, weight: Weight, at: Coordinates) -> Piece:
        """Return the part of a weight matrix that the rank at `at` holds."""

    @abstractmethod
    def input_piece(self, at: Coordinates) -> Piece:
        """Return the part of the input features (vertices by features) that the rank at `at` holds."""

    @abstractmethod
    def output_piece(self, at: Coordinates) -> Piece:
        """Return the part of the model's output (vertices by classes) that the rank at `at` holds."""

    @abstractmethod
    def operators(self, ctx: "Context") -> "Operators":
        """Return the operator set of one rank."""

    def forward(self, operators: "Operators", weights: Weights) -> Tensor:
        """Return the rank's part of the model's output. Override this to interleave layers."""
        model, recompute = MODELS[self.spec.model.kind], len(self.recomputed_layers) > 0
        X, residual = operators.inputs(), self.spec.model.residual
        return model(operators, X, weights, residual=residual, recompute=recompute)

    @abstractmethod
    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the payload words of the rank at `at` in the first epoch, from the spec and facts about the graph."""

    @abstractmethod
    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes that the rank at `at` holds between steps, by tensor; zeros may be left out.

        These are the tensors in the context's memory, on the device. Gradients and the states of the optimizer are left
        out: both follow from the weights, and the predicted peak counts them.
        """


def find_faults(strategy: type[Strategy]) -> list[str]:
    """Return a message for each class attribute that is missing or invalid, with its value and what is accepted."""
    attributes: dict[str, Any] = {}
    faults = []
    for name, (expected, _) in EXPECTED.items():
        try:
            attributes[name] = getattr(strategy, name)
        except AttributeError:
            faults.append(f"{name} is missing: {expected}")
        except Exception as error:
            faults.append(f"{name} raises {type(error).__name__}: it must be {expected}")
    for name, value in attributes.items():
        expected, is_valid = EXPECTED[name]
        if not is_valid(value, attributes):
            faults.append(f"{name} = {format_value(value)} is not accepted: {expected}")
    return faults


def _is_axes(value: Any) -> bool:
    is_tuple = isinstance(value, tuple) and len(value) > 0
    return is_tuple and all(isinstance(axis, AxisName) for axis in value) and len(set(value)) == len(value)


def _is_order_of_axes(value: Any, attributes: dict[str, Any]) -> bool:
    if value is None or not _is_axes(attributes.get("axes")):
        return True
    return _is_axes(value) and set(value) == set(attributes["axes"])


def _is_models(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(kind in KINDS for kind in value)


IsValid = Callable[[Any, dict[str, Any]], bool]
EXPECTED: dict[str, tuple[str, IsValid]] = {
    "name": ("a text", lambda value, _: isinstance(value, str) and bool(value)),
    "paper": ("a text", lambda value, _: isinstance(value, str)),
    "promise": (
        f"a harness.strategy.Promise ({', '.join(Promise.__members__)})",
        lambda value, _: isinstance(value, Promise),
    ),
    "axes": ("a tuple of different harness.ledger.AxisName", lambda value, _: _is_axes(value)),
    "slowest_first": ("a tuple of the same axes, or None", _is_order_of_axes),
    "partitioned_over": (
        "one of its axes, or None",
        lambda value, attributes: (
            value is None or not _is_axes(attributes.get("axes")) or value in attributes["axes"]
        ),
    ),
    "mini_batches": ("a bool", lambda value, _: isinstance(value, bool)),
    "has_model_parts": ("a bool", lambda value, _: isinstance(value, bool)),
    "can_recompute": ("a bool", lambda value, _: isinstance(value, bool)),
    "models": (f"a tuple of {', '.join(KINDS)}", lambda value, _: _is_models(value)),
    "Params": (
        "a class that derives from harness.base.validation.Frozen",
        lambda value, _: isinstance(value, type) and issubclass(value, Frozen),
    ),
    "recurrence": (
        "a class that derives from harness.strategy.Recurrence, or None",
        lambda value, _: value is None or (isinstance(value, type) and issubclass(value, Recurrence)),
    ),
    "reference_sampler": (
        "a class that derives from harness.strategy.ReferenceSampler, or None",
        lambda value, _: value is None or (isinstance(value, type) and issubclass(value, ReferenceSampler)),
    ),
}
"""The attributes of a strategy class: what is accepted, in words, and a check of a value given all attributes."""
