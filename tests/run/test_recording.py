"""What a record says of all ranks together."""

from harness.run.rank_tables import RankTables
from harness.run.recording import hit_rate
from harness.strategy import RemoteRows


def test_a_cache_is_worth_what_it_had_of_all_that_was_needed() -> None:
    """Ranks count by what they needed; where nobody needed anything there is no rate."""
    ranks = [
        RankTables(rank, remote=remote) for rank, remote in enumerate([RemoteRows(30, 3), RemoteRows(10, 9)])
    ]
    assert hit_rate(ranks) == 12 / 40
    assert hit_rate([RankTables(0)]) is None
