"""A strategy's account balances, and stands beside the totals that its paper gives."""

import pytest

from harness.check.account import Sent, account, seen_in_replay
from harness.check.case import Case
from harness.check.counts import ScipyCounts
from harness.ledger import Direction
from harness.spec.spec import Spec
from harness.strategy import Quantity
from tests.check.mutants import __file__ as mutants


def case(name: str, grid: dict[str, int], ranks: int) -> Case:
    spec = {"strategy": name, "dataset": "check", "ranks": ranks, "grid": grid, "machine": {"name": "test"}}
    return Case("test", Spec.model_validate({**spec, "model": {"hidden": 8}}), vertices=96)


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
            it.strategy(), rank, ScipyCounts(it.store()), seen_in_replay(it.strategy(), rank, it.store())
        )
        assert found.balances
        assert all(row["calls"] for row in found.rows)
        back = [row["direction"] is Direction.BACKWARD for row in found.rows]
        assert back == sorted(back)


def test_a_wrong_formula_does_not_balance() -> None:
    it = case(f"{mutants}:WrongFormula", {"p": 2}, 2)
    assert not account(
        it.strategy(), 0, ScipyCounts(it.store()), seen_in_replay(it.strategy(), 0, it.store())
    ).balances


def test_what_nobody_sent_does_not_balance() -> None:
    it = case("cagnet-1d", {"p": 2}, 2)
    found = account(it.strategy(), 0, ScipyCounts(it.store()), {})
    assert not found.balances
    assert {row["seen"] for row in found.rows} == {Sent().words}


def published(name: str, grid: dict[str, int], ranks: int, quantity: Quantity) -> tuple[float, float]:
    """What the paper says and what is counted, on even blocks."""
    it = case(name, grid, ranks)
    found = account(it.strategy(), 0, ScipyCounts(it.store()), seen_in_replay(it.strategy(), 0, it.store()))
    (line,) = [line for line in found.published if line["quantity"] is quantity]
    return line["value"], line["ours"]


def test_1d_sends_the_papers_words_and_one_for_the_loss() -> None:
    paper, ours = published("cagnet-1d", {"p": 4}, 4, Quantity.WORDS)
    assert ours == paper + 1


def test_15d_sends_the_papers_words_and_the_weight_gradients_that_it_drops() -> None:
    paper, ours = published("cagnet-1.5d", {"row": 2, "col": 2}, 4, Quantity.WORDS)
    assert ours == paper + 13 * 8 + 8 * 8 + 8 * 7 + 1


def test_a_paper_that_speaks_of_square_grids_says_nothing_of_others() -> None:
    assert case("cagnet-2d", {"row": 3, "col": 2}, 6).strategy().published() == []
    assert case("cagnet-3d", {"row": 2, "col": 2, "fibre": 1}, 4).strategy().published() == []


def test_partial_products_are_as_many_as_there_are_layers() -> None:
    assert published("cagnet-3d", {"row": 2, "col": 2, "fibre": 2}, 8, Quantity.LAYOUT) == (2, 2)
