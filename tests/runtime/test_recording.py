"""What a record says of all ranks together."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.experiment.requests import make_spec
from harness.ledger import Amounts, AxisName, Direction, Key, Op, Phase
from harness.registry import load_strategy
from harness.results.record import read_record
from harness.runtime.launch.launch import launch_in_process
from harness.runtime.ledger_rows import LedgerRows
from harness.runtime.rank_tables import RankTables
from harness.runtime.recording import cache_hit_rate, check_elements_received
from harness.spec.root import find_root
from harness.strategy import RemoteRows


def test_a_cache_is_worth_what_it_had_of_all_that_was_needed() -> None:
    """Ranks count by what they needed; where nobody needed anything there is no rate."""
    ranks = [
        RankTables(rank, remote=remote) for rank, remote in enumerate([RemoteRows(30, 3), RemoteRows(10, 9)])
    ]
    assert cache_hit_rate(ranks) == 12 / 40
    assert cache_hit_rate([RankTables(0)]) is None


FIRST_CALL = Key(Phase.CONVOLVE, 0, Direction.FORWARD, Op.ALL_REDUCE, AxisName.P)


def tables_of(rank: int, words: dict[int, float], least: float) -> RankTables:
    """The tables of a rank that received these words in each epoch, in two calls, and sent a thousand in each."""
    moved = LedgerRows()
    for epoch, received in words.items():
        half = Amounts(elements_received=received / 2, elements_payload=1000.0)
        moved.add_epoch(epoch, {FIRST_CALL: half, FIRST_CALL._replace(layer=1): half})
    return RankTables(rank, [{"epoch": epoch} for epoch in words], moved, least_words=least)


@pytest.mark.parametrize(
    ("words", "least", "by_memory", "rank", "numbers"),
    [
        ([{0: 40, 1: 40}, {0: 8, 1: 6}], [40, 6], 40, None, ()),
        ([{0: 40, 1: 40}, {0: 8, 1: 5}], [40, 6], 0, 1, ("epoch 1", " 5 ", " 6,")),
        ([{-1: 0, 0: 40}, {-1: 0, 0: 6}], [40, 6], 0, None, ()),
        ([{0: 40}, {0: 50}], [0, 0], 51, 1, ("epoch 0", " 50 ", " 51,")),
        ([{}, {}], [1, 1], 1, None, ()),
    ],
    ids=["reached", "one rank in one epoch", "in warm-up alone", "below the bound by memory", "no epoch"],
)
def test_timed_epoch_below_its_lower_bound_is_a_fault(
    words: list[dict[int, float]],
    least: list[float],
    by_memory: float,
    rank: int | None,
    numbers: Sequence[str],
) -> None:
    ranks = [tables_of(number, *each) for number, each in enumerate(zip(words, least, strict=True))]
    fault = check_elements_received("g3", ranks, by_memory)
    assert (fault["rank"] if fault else None) == rank
    assert not fault or all(number in fault["message"] for number in numbers)


def test_run_below_its_lower_bound_is_recorded_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank alone receives nothing; the planted bound is one word."""
    spec = make_spec(find_root(), {"strategy": "serial", "dataset": "tiny-sbm", "ranks": 1}, "test")
    monkeypatch.setattr(load_strategy("serial"), "words_lower_bound", lambda *_: 1.0)
    record = read_record(launch_in_process(spec, find_root(), tmp_path / "runs")).record
    assert (record["status"], record["error"]["type"]) == ("failed", "WordsBelowBound")
    assert record["summary"]["elements_bound"] == 1.0 and record["summary"]["elements_received"] == 0.0
