"""DistGNN is serial training where copies add up at once; else dense training by the recurrence of its bins."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import cross_entropy

from harness.check.case import Case, train_rank
from harness.check.laws import ScipyCounts
from harness.check.reference import dense_matrix, train_densely
from harness.comm.grid import Grid
from harness.errors import UserError
from harness.graph.partition import partitioned
from harness.ledger import Direction, Ledger, Op
from harness.models.weights import initial_weight
from harness.replay import replay
from harness.run.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategies.distgnn import DistGnn
from harness.strategy import BlockCounts, Promise

PARTS = 3


def case_of(
    ranks: int = PARTS,
    partition: str = "libra",
    *,
    directed: bool = True,
    model: dict[str, Any] | None = None,
    **params: Any,
) -> Case:
    order = {"partition": partition, "parts": ranks} if partition != "block" else {}
    spec = {
        "strategy": {"name": "distgnn", "params": params},
        "dataset": {"name": "check", **order},
        "ranks": ranks,
        "grid": {"p": ranks},
        "machine": {"name": "test"},
        "precision": "float64",
        "model": {"layers": 3, "hidden": 10, **(model or {})},
        "training": {"optimizer": "sgd", "lr": 0.5, "warmup": 0},
    }
    return Case("test", Spec.model_validate(spec), vertices=211, directed=directed)


def strategy_of(case: Case) -> DistGnn:
    strategy = case.strategy()
    assert isinstance(strategy, DistGnn)
    return strategy


@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("world", [2, 5])
def test_on_libras_cut_it_is_serial_training(ranks, world: int, directed: bool, kind: str) -> None:
    case = case_of(world, directed=directed, model={"kind": kind, "norm": True, "dropout": 0.3})
    serial = train_densely(case.strategy(), case.store(), 4)
    for result in ranks(world, train_rank, case, 4):
        assert result.losses == pytest.approx(serial.losses, rel=1e-12)


class CopiedSum(Function):
    """The sum over copies (P, n, F): a master adds what has landed; a copy adds what the master had of all others."""

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


def dense_losses(case: Case, epochs: int) -> list[float]:
    """The losses of dense training by the recurrence, with the rows of every rank's copies."""
    store, spec, strategy = case.store(), case.spec, strategy_of(case)
    everyone, facts = range(store.n), strategy.facts
    A, parts = dense_matrix(store), torch.zeros(store.n, store.n, dtype=torch.int64)
    pattern, edge_parts = store.adjacency(everyone, everyone), store.edge_parts(everyone)
    assert edge_parts is not None
    row = torch.repeat_interleave(torch.arange(store.n), pattern.rowptr.diff())
    parts[row, pattern.col.long()] = edge_parts.long()
    of_part = torch.stack([A * (parts == p) for p in range(PARTS)])
    copies = torch.stack([(each != 0).any(dim=0) | (each != 0).any(dim=1) for each in of_part])
    owner = torch.cat([torch.full((len(rows),), p) for p, rows in enumerate(facts.blocks(PARTS))])
    X = store.feature_block(everyone, range(store.features)).double()
    labels, trains = store.labels(everyone), store.split(everyone) == 1
    trains &= labels >= 0
    weights = [
        initial_weight(spec.seed, number, weight, *map(range, weight.shape)).requires_grad_()
        for number, weight in enumerate(strategy.weights)
    ]
    optimizer = torch.optim.SGD(weights, lr=0.5)
    gradients = spec.strategy.params.get("gradients", "own")
    states: list[dict[str, Any]] = [{"forward": {}, "backward": {}, "gradients": gradients} for _ in weights]
    losses, delay = [], strategy.delay
    for epoch in range(epochs):
        H = X * copies[..., None]
        for layer, W in enumerate(weights):
            T = of_part @ H
            if not strategy.alone:
                T = CopiedSum.apply(T, (copies, owner), delay, epoch, states[layer])
            H = T @ W
            H = H.relu() if layer + 1 < len(weights) else H
        Z = H[owner, torch.arange(store.n)]
        loss = cross_entropy(Z[trains], labels[trains])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "params",
    [{"delay": 1}, {"delay": 3}, {"delay": 2, "gradients": "delayed"}, {"aggregates": "none"}],
    ids=str,
)
def test_training_is_dense_training_by_the_recurrence(ranks, params: dict[str, Any]) -> None:
    case = case_of(**params)
    expected = dense_losses(case, 10)
    exact = train_densely(case.strategy(), case.store(), 10).losses
    assert expected != pytest.approx(exact, rel=1e-3) and case.strategy().promised() is Promise.APPROXIMATE
    for result in ranks(PARTS, train_rank, case, 10):
        assert result.losses == pytest.approx(expected, rel=1e-12)


def test_the_words_are_those_of_the_copies() -> None:
    """Twice a row for every copy but the master, once in the last layer: counted by the partitioner."""
    case, world = case_of(4, directed=False), 4
    strategy, counts = strategy_of(case), ScipyCounts(case.store())
    copies = sum(partitioned(case.graph().A, "libra", world, 0).copies or ()) - case.vertices
    words = dict.fromkeys(range(3), 0.0)
    for rank in range(world):
        for key, sent in strategy.words(strategy.coordinates(rank), counts).items():
            if key.op is Op.ALL_TO_ALL and key.direction is Direction.FORWARD:
                words[key.layer] += sent
    assert words == {0: 2 * copies * 13, 1: 2 * copies * 10, 2: copies * 10}


def words_by_epoch(case: Case, epochs: int) -> list[tuple[float, float]]:
    """The words of every epoch: sent, and by the formula."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    grid = Grid.build(strategy.grid, Ledger())
    trainer, words = Trainer(strategy, grid, case.store()), []
    for epoch in range(epochs):
        sent = sum(amounts.words_payload for amounts in trainer.epoch().entries.values())
        words.append((sent, sum(strategy.words_of_epoch(grid.coordinates, counts, epoch).values())))
        trainer.evaluate()  # sums up at once, whatever is under way
    grid.settle()
    return words


@pytest.mark.parametrize("partition", ["libra", "block"])
def test_every_epoch_sends_the_words_of_its_bin(ranks, partition: str) -> None:
    """As many as cd-0 sends in an epoch are sent in r epochs, but for the weights' gradients and the loss."""
    late, once = case_of(4, partition, delay=3, gradients="delayed"), case_of(4, partition)
    trained = sum(a * b for a, b in strategy_of(once).shapes) + 1
    by_rank = zip(ranks(4, words_by_epoch, late, 6), ranks(4, words_by_epoch, once, 1), strict=True)
    for words, [(at_once, formula)] in by_rank:
        assert [sent for sent, _ in words] == [formula for _, formula in words]
        assert at_once == formula and sum(sent - trained for sent, _ in words[:3]) == at_once - trained
        assert words[:3] == words[3:] and all(sent > trained for sent, _ in words)


def test_one_rank_is_exact_and_trained_features_and_graphs_unread_are_refused() -> None:
    assert case_of(1, delay=3).strategy().promised() is Promise.EXACT
    assert case_of(2, delay=1, aggregates="none").strategy().promised() is Promise.APPROXIMATE
    case = case_of()
    trained = case.spec.model_copy(
        update={"training": case.spec.training.model_copy(update={"features": True})}
    )
    with pytest.raises(UserError, match="features of their own"):
        Case("test", trained, case.vertices).strategy()
    with pytest.raises(UserError, match="by facts alone"):
        replay(case.strategy())
