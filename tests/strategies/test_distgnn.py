"""DistGNN without a delay equals serial training; otherwise it equals dense training by its recurrence."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import cross_entropy

from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.laws import ScipyCounts
from harness.conformance.reference import dense_model_matrix, train_densely
from harness.graph.partition import partition_graph
from harness.ledger import Direction, Ledger, Op, TensorName
from harness.models import Part
from harness.models.weights import init_weight
from harness.runtime.trainer import Trainer
from harness.strategies.distgnn import DistGnn
from harness.strategy import BlockCounts, Promise, csr_bytes
from tests.cases import DOUBLE, SGD, in_parts, make_case

PARTS = 3


def make_distgnn_case(
    ranks: int = PARTS,
    partition: str = "libra",
    *,
    directed: bool = True,
    model: dict[str, Any] | None = None,
    **params: Any,
) -> Case:
    return make_case(
        "distgnn",
        {"p": ranks},
        params,
        dataset=in_parts(ranks, partition),
        model={"layers": 3, "hidden": 10, **(model or {})},
        training={**SGD, "warmup": 0},
        directed=directed,
        **DOUBLE,
    )


def strategy_of(case: Case) -> DistGnn:
    strategy = case.strategy()
    assert isinstance(strategy, DistGnn)
    return strategy


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("world", [2, 5])
def test_training_on_libras_vertex_cut_equals_serial_training(
    ranks, world: int, directed: bool, kind: str
) -> None:
    case = make_distgnn_case(world, directed=directed, model={"kind": kind, "norm": True, "dropout": 0.3})
    serial = train_densely(case.strategy(), case.store(), 4)
    for result in ranks(world, train_rank, case, 4):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)
        assert result.uncounted == []  # nothing of the whole graph


class CopiedSum(Function):
    """The sum over copies (P, n, F): a master adds received parts; a copy adds the master's last sum of all others."""

    @staticmethod
    def forward(
        saved: Any, x: Tensor, cut: tuple[Tensor, Tensor], delay: int, epoch: int, state: Any
    ) -> Tensor:
        saved.rest = cut, delay, epoch, state
        return delayed(x, cut, delay, epoch, state["forward"])

    @staticmethod
    def backward(saved: Any, dT: Tensor) -> tuple[Tensor, None, None, None, None]:
        cut, delay, epoch, state = saved.rest
        own = state["gradients"] == "own"
        return dT if own else delayed(dT, cut, delay, epoch, state["backward"]), None, None, None, None


def delayed(
    x: Tensor, cut: tuple[Tensor, Tensor], delay: int, epoch: int, state: dict[Any, Tensor]
) -> Tensor:
    copies, owner = cut
    is_master = torch.zeros_like(copies)
    is_master[owner, torch.arange(len(owner))] = True
    is_copy = (copies & ~is_master)[..., None]
    partials, rest = (state.setdefault(name, torch.zeros_like(x)) for name in ("partials", "rest"))
    moves = is_copy & (torch.arange(len(owner)) % delay == epoch % delay)[None, :, None]
    if epoch >= delay:
        partials[:] = torch.where(moves, state.pop(("up", epoch - delay)), partials)
        rest[:] = torch.where(moves, state.pop(("down", epoch - delay)), rest)
    total = x[owner, torch.arange(len(owner))] + partials.sum(dim=0)
    state["up", epoch], state["down", epoch] = x.clone(), total - partials
    return torch.where(is_master[..., None], total, torch.where(is_copy, x + rest, torch.zeros_like(x)))


def part_of_entries(case: Case) -> Tensor:
    """Return the rank of every entry of A, (n, n): by the store's vertex cut, or by the row if row + column is even."""
    store, owner = case.store(), owner_of(case)
    everyone, vertex = range(store.n), torch.arange(store.n)
    if (edge_parts := store.edge_parts(everyone)) is None:
        even = (vertex[:, None] + vertex) % 2 == 0
        return torch.where(even, owner[:, None], owner)
    pattern, parts = store.adjacency(everyone, everyone), torch.zeros(store.n, store.n, dtype=torch.int64)
    row = torch.repeat_interleave(vertex, pattern.rowptr.diff())
    parts[row, pattern.col.long()] = edge_parts.long()
    return parts


def owner_of(case: Case) -> Tensor:
    """Return the rank of every vertex's master."""
    blocks = strategy_of(case).facts.blocks(PARTS)
    return torch.cat([torch.full((len(rows),), p) for p, rows in enumerate(blocks)])


def dense_losses(case: Case, epochs: int) -> list[float]:
    """Return the losses of dense training by the recurrence, with the rows of every rank's copies.

    Every rank multiplies by its own entries of A, and autograd by their transpose.
    """
    store, spec, strategy = case.store(), case.spec, strategy_of(case)
    everyone, owner, parts = range(store.n), owner_of(case), part_of_entries(case)
    A = dense_model_matrix(spec.model.kind, store)
    of_part = torch.stack([A * (parts == p) for p in range(PARTS)])
    copies = torch.stack([(each != 0).any(dim=0) | (each != 0).any(dim=1) for each in of_part])
    copies[owner, torch.arange(store.n)] = True
    X = store.feature_block(everyone, range(store.features)).double()
    labels, trains = store.labels(everyone), store.split(everyone) == 1
    trains &= labels >= 0
    weights = [
        init_weight(spec.seed, number, weight, *map(range, weight.shape)).requires_grad_()
        for number, weight in enumerate(strategy.weights)
    ]
    layers: list[dict[Part, Tensor]] = [{} for _ in strategy.shapes]
    for weight, W in zip(strategy.weights, weights, strict=True):
        layers[weight.layer][weight.part] = W
    optimizer = torch.optim.SGD(weights, lr=0.5)
    gradients = spec.strategy.params.get("gradients", "own")
    states: list[dict[str, Any]] = [{"forward": {}, "backward": {}, "gradients": gradients} for _ in layers]
    losses, delay = [], strategy.delay
    for epoch in range(epochs):
        H = X * copies[..., None]
        for layer, of_layer in enumerate(layers):
            first = spec.model.order == "combine_first"
            T = of_part @ (H @ of_layer[Part.CONVOLUTION] if first else H)
            if not strategy.is_local_only:
                T = CopiedSum.apply(T, (copies, owner), delay, epoch, states[layer])
            Z = T if first else T @ of_layer[Part.CONVOLUTION]
            H = Z + H @ of_layer[Part.ROOT] if Part.ROOT in of_layer else Z
            H = H.relu() if layer + 1 < len(layers) else H
        Z = H[owner, torch.arange(store.n)]
        loss = cross_entropy(Z[trains], labels[trains])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


LATE: list[dict[str, Any]] = [
    {"delay": 1},
    {"delay": 3},
    {"delay": 2, "gradients": "delayed"},
    {"aggregates": "none"},
]
GRAPHS = list(product(["libra", "block", "metis", "random"], [False, True], ["gcn", "sage"]))
SYMMETRIC = ("block", False, "gcn")
"""A symmetric matrix whose pieces are not symmetric. The quick tests try every choice of parameters on it."""
OTHERS = [
    ("libra", True, "gcn", 1),
    ("libra", False, "sage", 2),
    ("metis", False, "gcn", 3),
    ("random", True, "sage", 0),
]
"""The other graphs of the quick tests, each with one choice of parameters."""


@pytest.mark.parametrize(
    ("partition", "directed", "kind", "params"),
    [
        pytest.param(
            *graph, params, marks=[] if graph == SYMMETRIC or (*graph, number) in OTHERS else pytest.mark.slow
        )
        for graph in GRAPHS
        for number, params in enumerate(LATE)
    ],
    ids=str,
)
def test_training_equals_dense_training_by_the_recurrence(
    ranks, partition: str, directed: bool, kind: str, params: dict[str, Any]
) -> None:
    case = make_distgnn_case(PARTS, partition, directed=directed, model={"kind": kind}, **params)
    expected = dense_losses(case, 6)
    exact = train_densely(case.strategy(), case.store(), 6).losses
    assert (
        expected != pytest.approx(exact, rel=1e-6)
        and case.strategy().effective_promise is Promise.APPROXIMATE
    )
    for result in ranks(PARTS, train_rank, case, 6):
        assert result.losses == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "params", [pytest.param(each, marks=pytest.mark.slow) for each in LATE[:-1]] + LATE[-1:], ids=str
)
def test_combine_first_training_equals_dense_training_by_the_recurrence(
    ranks, params: dict[str, Any]
) -> None:
    case = make_distgnn_case(PARTS, "block", directed=False, model={"order": "combine_first"}, **params)
    for result in ranks(PARTS, train_rank, case, 6):
        assert result.losses == pytest.approx(dense_losses(case, 6), rel=1e-12)


@pytest.mark.parametrize(
    ("partition", "params", "matrices"),
    [("libra", {"delay": 1}, 1), ("block", {"delay": 1}, 2), ("block", {"delay": 0}, 1)],
    ids=str,
)
def test_undirected_graph_has_a_transpose_only_if_its_pieces_are_not_symmetric(
    partition: str, params: dict[str, Any], matrices: int
) -> None:
    case = make_distgnn_case(PARTS, partition, directed=False, **params)
    strategy, counts = strategy_of(case), ScipyCounts(case.store())
    for rank in range(PARTS):
        at = strategy.coordinates(rank)
        sizes = strategy.sizes_of(at, counts)
        rows = len(strategy.rows(at)) + sum(sizes.K)
        assert strategy.memory(at, counts)[TensorName.A] == matrices * csr_bytes(
            rows, sizes.entries, "float64"
        )


def test_words_equal_the_number_of_copies() -> None:
    """A row for every copy except the master, sent twice, or once in the last layer; the partitioner counts copies."""
    case, world = make_distgnn_case(4, directed=False, model={"order": "aggregate_first"}), 4
    strategy, counts = strategy_of(case), ScipyCounts(case.store())
    copies = sum(partition_graph(case.graph().A, "libra", world, 0).copies or ()) - case.vertices
    words = dict.fromkeys(range(3), 0.0)
    for rank in range(world):
        for key, sent in strategy.words(strategy.coordinates(rank), counts).items():
            if key.op is Op.ALL_TO_ALL and key.direction is Direction.FORWARD:
                words[key.layer] += sent
    assert words == {0: 2 * copies * 13, 1: 2 * copies * 10, 2: copies * 10}


def words_by_epoch(case: Case, epochs: int) -> list[tuple[float, float]]:
    """Return the words of every epoch: sent, and by the formula."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    grid = Grid.build(strategy.grid, Ledger())
    trainer, words = Trainer(strategy, grid, case.store()), []
    for epoch in range(epochs):
        sent = sum(amounts.words_payload for amounts in trainer.epoch().entries.values())
        words.append((sent, sum(strategy.words_of_epoch(grid.coordinates, counts, epoch).values())))
        trainer.evaluate()  # sums without a delay, whatever is in flight
    grid.drain()
    return words


@pytest.mark.parametrize("partition", ["libra", "block"])
def test_each_epoch_sends_the_words_of_its_bin(ranks, partition: str) -> None:
    """In r epochs as many words are sent as by cd-0 in one epoch, except for weight gradients and the loss."""
    late, once = (
        make_distgnn_case(4, partition, delay=3, gradients="delayed"),
        make_distgnn_case(4, partition, model={"order": "aggregate_first"}),
    )
    trained = sum(a * b for a, b in strategy_of(once).shapes) + 1
    by_rank = zip(ranks(4, words_by_epoch, late, 6), ranks(4, words_by_epoch, once, 1), strict=True)
    for words, [(at_once, formula)] in by_rank:
        assert [sent for sent, _ in words] == [formula for _, formula in words]
        assert at_once == formula and sum(sent - trained for sent, _ in words[:3]) == at_once - trained
        assert words[:3] == words[3:] and all(sent > trained for sent, _ in words)


def test_one_rank_is_exact() -> None:
    assert make_distgnn_case(1, delay=3).strategy().effective_promise is Promise.EXACT
    apart = make_distgnn_case(2, delay=1, aggregates="none")
    assert apart.strategy().effective_promise is Promise.APPROXIMATE
