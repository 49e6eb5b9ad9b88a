"""A case: a spec and a graph, on which the strategy trains on every rank and the dense reference trains serially."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor

from harness.base.device import is_gpu, prefer_determinism
from harness.comm import engine
from harness.comm.call import compare_calls
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.conformance.account import Seen, count_epoch_words
from harness.conformance.live_memory import SetUpMemory, UncountedTensor
from harness.graph.model import (
    NO_LABEL,
    TEST,
    TRAIN,
    VALID,
    EdgeWeights,
    Graph,
    LabelTask,
    RawGraph,
    Weighting,
)
from harness.graph.normalise import normalise_adjacency
from harness.graph.partitions.partition import Method, Partition, partition_graph
from harness.graph.store.memory_store import MemoryStore
from harness.graph.vertex_data import draw_label_sets, draw_uniform_labels
from harness.kernels.random import Purpose, integers, uniform_rectangle
from harness.ledger import AxisName, TensorName
from harness.ledger.tape import OutlineEvent, Tape, outline_events
from harness.prediction.replay import Meter
from harness.registry import load_strategy
from harness.runtime.checksums import bit_checksums, check_replicas, gather_checksums
from harness.runtime.trainer import Epoch, Trainer
from harness.spec.dataset import COMPUTED
from harness.spec.spec import Spec, format_grid
from harness.strategy import Piece, Strategy, admit, facts_of
from harness.strategy.memory import HeldTensor
from harness.strategy.models import SplitAccuracy

# The graph that strategies are tested on has every property that could reveal an error. It is directed, so that A
# and A^T differ; no grid divides its prime number of vertices; some vertices are isolated; the training mask is
# partial and leaves the first vertices out, so that some rank has no training vertices.

FEATURES, CLASSES = 13, 7
DEGREE = 4


@lru_cache(maxsize=8)
def make_check_graph(
    vertices: int,
    *,
    directed: bool = True,
    task: LabelTask = "single-label",
    weights: Weighting | None = None,
    seed: int = 7,
) -> Graph:
    """Return a graph with this many vertices. The numbers of features and classes are prime too.

    The cases of a check share few graphs, whose tensors nobody changes.
    """
    X = uniform_rectangle(seed, Purpose.FEATURES, range(vertices), range(FEATURES), FEATURES) - 0.5
    draw = integers(seed, Purpose.SPLIT, range(vertices), high=10)
    split = torch.where(draw < 5, TRAIN, torch.where(draw < 7, VALID, TEST))
    split[: vertices // 4] = TEST
    labels = draw_uniform_labels(range(vertices), CLASSES, seed)
    if task == "multi-label":
        labels = draw_label_sets(range(vertices), CLASSES, seed)
    labels[draw == 4] = NO_LABEL
    raw = _edges(vertices, seed)
    if weights and not directed:  # an undirected edge has one weight
        one_way = raw.source <= raw.target
        raw = replace(raw, source=raw.source[one_way], target=raw.target[one_way])
    if weights:
        raw = replace(raw, weight=_weights(len(raw.source), weights, seed))
    A, counts = normalise_adjacency(raw, directed, weights)
    return Graph(A, X.float(), labels, split.to(torch.uint8), CLASSES, directed, counts, weights)


def _edges(vertices: int, seed: int) -> RawGraph:
    """Return random edges. Every eighth vertex has none."""
    ends = integers(seed, Purpose.EDGES, range(2 * DEGREE * vertices), high=vertices).view(2, -1)
    source, target = ends[:, (ends % 8 != 5).all(dim=0)].numpy()
    return RawGraph(vertices, source, target)


def _weights(edges: int, weights: Weighting, seed: int) -> EdgeWeights:
    """Return weights far from 1. A tenth are 0; raw weights are small, and half of the others are negative."""
    drawn = uniform_rectangle(seed, Purpose.TEST, range(edges), range(1), 1)[:, 0].double().numpy()
    weight = np.where(drawn < 0.1, 0.0, 3 * drawn)
    return weight if weights == "normalised" else (weight - 1.5 * (weight > 0)) / DEGREE


@dataclass(frozen=True)
class Case:
    """A spec to train, and a graph, which every rank builds from the case."""

    name: str
    spec: Spec
    vertices: int
    directed: bool = True
    task: LabelTask = "single-label"
    weights: Weighting | None = None
    train_twice: bool = False
    """True to train twice; the second training, with collectives composed of rounds, must give the same bits."""

    @property
    def description(self) -> str:
        """Describe the complete case, with everything needed to repeat it."""
        spec, choice = self.spec, self.spec.dataset
        params = ", ".join(f"{key} = {value}" for key, value in spec.strategy.params.items())
        kind = f"{f'{self.weights} ' if self.weights else ''}{'' if self.directed else 'un'}directed"
        order = choice.permutation if choice.partition == "block" else choice.partition
        return (
            f"{spec.strategy.name.rpartition(':')[2]} ({params or 'its defaults'}) on {format_grid(spec.grid)}, "
            f"{spec.model.kind} of {spec.model.layers} layers, the check's {kind} graph of {self.vertices} vertices "
            f"(order {order}, {self.task}), {', '.join(_list_settings(spec))}"
        )

    @property
    def settings(self) -> str:
        """The model, the graph, and the settings in which this case differs from the other cases of a check."""
        choice, model = self.spec.dataset, self.spec.model
        graph = [
            "" if self.directed else "undirected",
            "" if self.task == "single-label" else self.task,
            f"{self.weights} weights" if self.weights else "",
            choice.partition if choice.partition != "block" else "",
            f"{choice.permutation} permutation" if choice.permutation != "none" else "",
        ]
        chosen = [each for each in _list_settings(self.spec) if not each.startswith(USUAL)]
        return ", ".join([f"{model.kind} of {model.layers} layers", *filter(None, graph), *chosen])

    def graph(self) -> Graph:
        return make_check_graph(self.vertices, directed=self.directed, task=self.task, weights=self.weights)

    def store(self) -> MemoryStore:
        """Return the graph in the order of the spec."""
        choice = self.spec.dataset
        return MemoryStore(self.graph(), choice.permutation, choice.seed, self.partition)

    @cached_property
    def partition(self) -> Partition | None:
        """The partition of the spec, or None.

        It is cached when `strategy` is called and sent to the ranks with the case, because ranks do not compute
        partitions.
        """
        choice = self.spec.dataset
        if choice.partition == "block":
            return None
        assert choice.partition in COMPUTED, choice.partition
        method = cast(Method, choice.partition)
        return partition_graph(self.graph().A, method, choice.parts, choice.seed)

    def strategy(self) -> Strategy:
        return admit(load_strategy(self.spec.strategy.name), self.spec, facts_of(self.store()))


USUAL = (
    *("model.hidden=", "training.epochs=", "training.optimizer=", "training.lr=", "training.batch="),
    "protocol=corrected",
)
"""What is alike in all cases of a check."""


def _list_settings(spec: Spec) -> Iterator[str]:
    """Yield the settings of a spec that differ from the defaults of a run, as `--set` accepts them."""
    for section in ("model", "training"):
        chosen = getattr(spec, section)
        for key, value in chosen.model_dump(exclude={"kind", "layers"}).items():
            if value != type(chosen).model_fields[key].default:
                yield f"{section}.{key}={str(value).lower()}"
    yield f"protocol={spec.protocol}"


@dataclass(frozen=True)
class RankResult:
    """The results of one rank."""

    at: dict[AxisName, int]
    losses: list[float]
    gradients: list[Tensor]
    parameters: list[Tensor]
    output: Tensor
    hits: dict[str, SplitAccuracy]
    sent: Seen
    """The words and bytes of the first epoch."""
    lines: list[OutlineEvent]
    """The calls and waits of the first epoch."""
    unaccounted: float
    """Ticks of the first epoch outside any entry, except those of calls that ended on a thread of the library."""
    persistent_bytes: dict[TensorName, int]
    held: list[HeldTensor]
    """The tensors that these bytes consist of."""
    uncounted: list[UncountedTensor]
    """The tensors that were kept after set-up without being counted; empty if they were not looked for."""
    remote_rows: int
    """The feature rows of other ranks that its mini-batches needed, by its own count."""
    chosen: dict[str, str]
    """The choices by measured time, on which the bits depend."""
    unordered: set[str]
    """The operations that ran without a deterministic implementation, although determinism was requested."""


def train_rank(
    case: Case,
    epochs: int,
    composed_from: int | None = None,
    chosen: Sequence[Mapping[str, str]] = (),
    searched: Collection[int] | None = None,
) -> RankResult:
    """Train one rank of the case. Every rank of a world calls this.

    `chosen` are the choices of every rank in an earlier training of the case. On the ranks `searched`, by default all,
    uncounted tensors are looked for. A case that is trained twice asks a GPU for deterministic operations.
    """
    device = engine.select_device(Engine(case.spec.machine.engine), engine.rank())
    asked = prefer_determinism() if case.train_twice and is_gpu(device) else nullcontext(set[str]())
    with asked as unordered:
        result = _train_rank(case, epochs, device, composed_from, chosen, searched)
    return replace(result, unordered=unordered)


def _train_rank(
    case: Case,
    epochs: int,
    device: torch.device,
    composed_from: int | None,
    chosen: Sequence[Mapping[str, str]],
    searched: Collection[int] | None,
) -> RankResult:
    strategy, tape, store = case.strategy(), Tape(), case.store()
    is_searched = searched is None or engine.rank() in searched
    set_up = SetUpMemory(strategy, device) if is_searched else None
    grid = Grid.build(strategy.grid, tape, device, composed_from, strategy.wire)
    # An epoch of the first training shows every mistake in the sizes. Calls are compared in the memory of the host.
    with nullcontext() if chosen or is_gpu(device) else compare_calls():
        trainer = Trainer(strategy, grid, store, chosen[grid.rank] if chosen else None)
        uncounted = set_up.find_uncounted(trainer) if set_up else []
        del set_up
        with Meter(tape):
            done = [trainer.epoch()]
    lines, unaccounted = outline_events(tape.events), _unaccounted(done[0], tape)
    gradients = [each.grad.clone().cpu() for each in trainer.parameters if each.grad is not None]
    sums = [bit_checksums(trainer.parameters)]
    for _ in range(epochs - 1):
        done.append(trainer.epoch())
        sums.append(bit_checksums(trainer.parameters))
    tape.recording = False
    remote_rows = trainer.ctx.measured.remote.rows
    check_replicas(strategy, gather_checksums(grid, sums))
    output = trainer.output().cpu()
    hits = trainer.evaluate()[0]
    grid.drain()
    return RankResult(
        at=dict(grid.coordinates),
        losses=[epoch.loss.item() for epoch in done],
        gradients=gradients,
        parameters=[each.detach().cpu() for each in trainer.parameters],
        output=output,
        hits=hits,
        sent=count_epoch_words(done[0].entries),
        lines=lines,
        unaccounted=unaccounted,
        persistent_bytes=trainer.ctx.memory.persistent_bytes(),
        held=trainer.ctx.memory.list_held(),
        uncounted=uncounted,
        remote_rows=remote_rows,
        chosen=trainer.ctx.measured.chosen,
        unordered=set(),
    )


DISTANCES = (1e-6, 1e-8)
"""The distances to the weights whose losses are compared. A jump of a derivative between two weights, as of a ReLU,
spoils a difference of losses. It is less likely at the smaller distance, where rounding errors are larger."""


def draw_direction(number: int, piece: Piece) -> Tensor:
    """Draw a piece of a matrix of random signs: the direction in which weight `number` is moved."""
    drawn = uniform_rectangle(number, Purpose.TEST, piece.rows, piece.cols, piece.cols.stop)
    return torch.where(drawn < 0.5, -1.0, 1.0).double()


def compute_nearby_losses(case: Case, distance: float) -> list[float]:
    """Return the losses of first epochs that start with one weight moved by `distance` either way, for each weight.

    Called on every rank of a world.
    """
    strategy = case.strategy()
    device = engine.select_device(Engine(case.spec.machine.engine), engine.rank())
    grid = Grid.build(strategy.grid, Tape(), device, wire=strategy.wire)
    pieces, losses = strategy.weight_pieces(grid.rank), []
    for number, piece in enumerate(pieces):
        for signed in (distance, -distance):
            trainer = Trainer(strategy, grid, case.store())
            with torch.no_grad():
                trainer.weights[number].add_(signed * draw_direction(number, piece).to(device))
            losses.append(trainer.epoch().loss.item())
            grid.drain()
    return losses


def _unaccounted(epoch: Epoch, tape: Tape) -> float:
    """Count the ticks outside any entry. A call that ends on a library's thread may take one at either end."""
    recorded = sum(amounts.seconds for amounts in epoch.entries.values())
    return max(abs(epoch.seconds - recorded) - sum(event.leaves for event in tape.events), 0)
