"""The words of a run equal the strategy's formula, and are compared with the totals in its paper."""

from math import gcd

import pandas as pd
import pytest

from harness.conformance.account import Seen, Sent, account, count_epoch_words, count_recorded_words
from harness.conformance.case import Case
from harness.conformance.checks import ScipyCounts
from harness.ledger import Direction, Op, TensorName
from harness.prediction.replay import replay
from harness.spec.spec import Spec
from harness.strategy import Quantity, WordsKey
from tests.conformance.mutants import __file__ as mutants


def case(name: str, grid: dict[str, int], ranks: int) -> Case:
    spec = {"strategy": name, "dataset": "check", "ranks": ranks, "grid": grid, "machine": {"name": "test"}}
    return Case(
        "test", Spec.model_validate({**spec, "model": {"hidden": 8, "order": "aggregate_first"}}), vertices=96
    )


def test_words_of_the_last_epoch_are_counted_on_each_rank() -> None:
    names = ("epoch", "rank_id", "direction", "layer", "op", "axis", "tensor", "calls")
    names += ("elements_payload", "elements_received", "bytes")
    rows = [
        (0, 0, "forward", 0, "all_gather", "p", "H", 1, 7.0, 7.0, 28),
        (1, 0, "forward", 0, "all_gather", "p", "H", 1, 5.0, 4.0, 20),
        (1, 0, "forward", 0, "all_gather", "p", "H", 2, 3.0, 2.0, 12),
        (1, 0, "forward", 0, "spmm", "", "", 1, 0.0, 0.0, 0),
        (1, 1, "backward", 1, "all_reduce", "p", "dW", 1, 9.0, 8.0, 36),
        (1, 2, "forward", 0, "spmm", "", "", 1, 0.0, 0.0, 0),
    ]
    assert count_recorded_words(pd.DataFrame(rows, columns=list(names))) == {
        0: {WordsKey(Direction.FORWARD, 0, Op.ALL_GATHER, "p", TensorName.H): Sent(8.0, 3, 32, 6.0)},
        1: {WordsKey(Direction.BACKWARD, 1, Op.ALL_REDUCE, "p", TensorName("dW")): Sent(9.0, 1, 36, 8.0)},
    }


def count_replayed(it: Case, rank: int) -> Seen:
    """Count the words that a rank of a case sends, by a replay."""
    return count_epoch_words(replay(it.strategy(), rank, it.store()).entries)


@pytest.mark.parametrize(
    ("name", "grid", "ranks"),
    [
        ("serial", {"p": 1}, 1),
        ("cagnet-1d", {"p": 4}, 4),
        ("cagnet-1.5d", {"row": 2, "col": 2}, 4),
        ("cagnet-2d", {"row": 2, "col": 2}, 4),
        ("cagnet-2d", {"row": 3, "col": 2}, 6),
        ("cagnet-3d", {"row": 2, "col": 2, "fibre": 2}, 8),
        ("cagnet-sa-1d", {"p": 5}, 5),
    ],
)
def test_the_formula_is_what_is_seen(name: str, grid: dict[str, int], ranks: int) -> None:
    it = case(name, grid, ranks)
    for rank in {0, ranks - 1}:
        found = account(
            it.strategy(),
            rank,
            ScipyCounts(it.store()),
            count_replayed(it, rank),
        )
        assert found.balances
        assert all(row["calls"] for row in found.rows)
        back = [row["direction"] is Direction.BACKWARD for row in found.rows]
        assert back == sorted(back)


def test_a_wrong_formula_does_not_balance() -> None:
    it = case(f"{mutants}:WrongFormula", {"p": 2}, 2)
    assert not account(it.strategy(), 0, ScipyCounts(it.store()), count_replayed(it, 0)).balances


def test_unsent_elements_fail_the_account() -> None:
    it = case("cagnet-1d", {"p": 2}, 2)
    found = account(it.strategy(), 0, ScipyCounts(it.store()), {})
    assert not found.balances
    assert {row["seen"] for row in found.rows} == {Sent().words}


def published(name: str, grid: dict[str, int], ranks: int, quantity: Quantity) -> tuple[float, float]:
    """What the paper says and what is counted, on even blocks."""
    it = case(name, grid, ranks)
    found = account(it.strategy(), 0, ScipyCounts(it.store()), count_replayed(it, 0))
    (line,) = [line for line in found.published if line["quantity"] is quantity]
    return line["value"], line["ours"]


def test_1d_sends_the_papers_words_and_one_for_the_loss() -> None:
    paper, ours = published("cagnet-1d", {"p": 4}, 4, Quantity.WORDS)
    assert ours == paper + 1


def test_15d_sends_the_papers_words_and_the_weight_gradients_that_it_drops() -> None:
    paper, ours = published("cagnet-1.5d", {"row": 2, "col": 2}, 4, Quantity.WORDS)
    assert ours == paper + 13 * 8 + 8 * 8 + 8 * 7 + 1


@pytest.mark.parametrize("grid", [{"row": 3, "col": 2}, {"row": 2, "col": 4}])
def test_2d_on_a_rectangular_grid_sends_the_papers_forward_words(grid: dict[str, int]) -> None:
    """In the mean over the ranks, with a nonzero as one word and without the pointers of the stages' rows."""
    ranks, stages = grid["row"] * grid["col"], grid["row"] + grid["col"] - gcd(grid["row"], grid["col"])
    pointers = stages * (96 // grid["row"] + 1)
    it, sent = case("cagnet-2d", grid, ranks), 0.0
    for rank in range(ranks):
        seen = count_replayed(it, rank)
        found = account(it.strategy(), rank, ScipyCounts(it.store()), seen)
        words, calls = found.published
        forward = {key: each for key, each in seen.items() if key.direction == "forward" and key.layer >= 0}
        assert words["ours"] == sum(each.words for each in forward.values())
        assert calls["ours"] == sum(each.calls for each in forward.values())
        for key, each in forward.items():
            sent += (each.words - pointers) / 2 if key.tensor is TensorName.A else each.words
    assert sent / ranks == pytest.approx(words["value"], rel=1e-12)


def test_a_paper_that_speaks_of_cubes_says_nothing_of_other_grids() -> None:
    assert case("cagnet-3d", {"row": 2, "col": 2, "fibre": 1}, 4).strategy().published_costs() == []


def test_partial_products_are_as_many_as_there_are_layers() -> None:
    assert published("cagnet-3d", {"row": 2, "col": 2, "fibre": 2}, 8, Quantity.LAYOUT) == (2, 2)
