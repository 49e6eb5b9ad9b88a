"""SANCUS with bound 0 is bitwise the 1D algorithm; otherwise it equals dense training on rows of the scheduled age."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import Case, RankResult, train_rank
from harness.ledger import Ledger, Op, TensorName
from harness.prediction.replay import replay
from harness.runtime.trainer import Trainer
from harness.strategies.sancus import Sancus
from harness.strategy import BlockCounts, Promise
from tests.cases import DOUBLE, in_parts, make_case

PARTS = 3
TRAINING = {"optimizer": "sgd", "lr": 0.5, "warmup": 0}


def make_sancus_case(
    name: str = "sancus",
    ranks: int = PARTS,
    *,
    directed: bool = True,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **params: Any,
) -> Case:
    return make_case(
        name,
        {"p": ranks},
        params,
        dataset=in_parts(ranks),
        model={"layers": 3, "hidden": 10, **(model or {})},
        training={**TRAINING, **(training or {})},
        directed=directed,
        **DOUBLE,
    )


def strategy_of(case: Case) -> Sancus:
    strategy = case.strategy()
    assert isinstance(strategy, Sancus)
    return strategy


def trained(ranks: Any, case: Case, epochs: int) -> Sequence[RankResult]:
    done: Sequence[RankResult] = ranks(case.spec.ranks, train_rank, case, epochs)
    return done


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"weight_gradient": "T", "overlap": True}], ids=str)
def test_bound_0_is_bitwise_equal_to_cagnet_1d(ranks, world: int, options: dict[str, Any]) -> None:
    mine = trained(ranks, make_sancus_case(ranks=world, stale=0, **options), 4)
    theirs = trained(ranks, make_sancus_case("cagnet-1d", world, **options), 4)
    assert make_sancus_case(ranks=world, stale=0).strategy().effective_promise is Promise.EXACT
    for one, other in zip(mine, theirs, strict=True):
        assert one.losses == other.losses and one.sent == other.sent
        assert all(map(torch.equal, one.parameters, other.parameters))


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("bound", [0, 1, 2, 7, 20])
def test_copies_are_within_the_bound_and_turns_are_balanced(world: int, bound: int) -> None:
    strategy = strategy_of(make_sancus_case(ranks=world, stale=bound, model={"order": "aggregate_first"}))
    for j in range(world):
        sent = [epoch for epoch in range(100) if strategy.is_broadcast(j, 1, epoch)]
        assert sent[0] == 0 and max(b - a for a, b in pairwise(sent)) == bound + 1
    by_epoch = [sum(strategy.is_broadcast(j, 1, epoch) for j in range(world)) for epoch in range(1, 100)]
    assert max(by_epoch) == by_epoch[0] == -(-world // (bound + 1)) and min(by_epoch) >= max(by_epoch) - 1
    assert [epoch for epoch in range(100) if strategy.is_broadcast(0, 0, epoch)] == [0], (
        "given features never change"
    )


def elements_by_epoch(case: Case, epochs: int) -> tuple[list[tuple[float, float]], str]:
    """Return the words of every epoch, sent and by the formula, and the rank's count of skipped broadcasts."""
    strategy, counts = case.strategy(), BlockCounts(case.store())
    grid = Grid.build(strategy.grid, Ledger())
    trainer, words = Trainer(strategy, grid, case.store()), []
    for epoch in range(epochs):
        sent = sum(amounts.elements_payload for amounts in trainer.epoch().entries.values())
        words.append((sent, sum(strategy.words_of_epoch(grid.coordinates, counts, epoch).values())))
        trainer.evaluate()  # uses the current rows, and does not cache them
    return words, trainer.ctx.measured.chosen["broadcasts of H"]


@pytest.mark.parametrize(
    "changes", [{}, {"model": {"order": "combine_first"}}, {"training": {"features": True}}]
)
def test_each_epoch_sends_the_words_of_its_turns(ranks, changes: dict[str, Any]) -> None:
    case, epochs = make_sancus_case(ranks=4, stale=2, **changes), 8
    by_rank = ranks(4, elements_by_epoch, case, epochs)
    for words, _ in by_rank:
        assert [sent for sent, _ in words] == [formula for _, formula in words]
        assert words[0][0] == max(words)[0] > words[1][0] >= words[3][0] > 0
    strategy = strategy_of(case)
    sends = [
        strategy.is_broadcast(j, layer, e) for j in range(4) for layer in range(3) for e in range(epochs)
    ]
    assert {said for _, said in by_rank} == {f"{sends.count(False)} of {len(sends)} skipped"}


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_prediction_is_for_an_epoch_after_the_first(bound: int) -> None:
    """In the first epoch all ranks broadcast, so it is not representative."""
    case = make_sancus_case(ranks=4, stale=bound)
    strategy, store, counts = case.strategy(), case.store(), BlockCounts(case.store())
    for opened in (False, True):
        entries = replay(strategy, 1, store, skip_transient=opened).entries.items()
        sent = sum(each.elements_payload for key, each in entries if key.op is Op.BROADCAST)
        epoch = strategy.transient_epochs if opened else 0
        formula = strategy.words_of_epoch(strategy.coordinates(1), counts, epoch)
        assert sent == sum(words for key, words in formula.items() if key.op is Op.BROADCAST)


def test_promise_is_exact_if_no_row_can_be_stale() -> None:
    promised = [
        make_sancus_case(ranks=1, stale=5).strategy().effective_promise,
        make_sancus_case(stale=5, model={"layers": 1}).strategy().effective_promise,
        make_sancus_case(stale=5).strategy().effective_promise,
        make_sancus_case(stale=5, model={"layers": 1, "order": "combine_first"}).strategy().effective_promise,
    ]
    assert promised == [Promise.EXACT, Promise.EXACT, Promise.APPROXIMATE, Promise.APPROXIMATE]


def test_memory_includes_the_rows_of_all_other_ranks() -> None:
    case = make_sancus_case(stale=1)
    strategy, counts = strategy_of(case), BlockCounts(case.store())
    at = strategy.coordinates(2)
    others = case.vertices - len(strategy.rows(at))
    assert strategy.memory(at, counts)[TensorName.H] == 8 * others * sum(f_in for f_in, _ in strategy.shapes)
