"""Ranks played against each other: who waits for whom, how long, and what cores and links allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.prediction.timeline import Slice, WorkItem, simulate_ranks


def ends(*ranks: list[WorkItem], cores: int | None = None) -> list[list[float]]:
    return [each.ends for each in simulate_ranks(ranks, cores)]


def test_work_follows_work() -> None:
    (alone,) = simulate_ranks([[WorkItem(1.0), WorkItem(0.0), WorkItem(2.0)]])
    assert alone.ends == [1, 1, 3]
    assert alone.slices == [Slice(0, 1.0, False), Slice(2, 2.0, False)]


def test_a_collective_starts_with_its_last_member() -> None:
    early, late = [WorkItem(1.0, [("c", 0.5)], ["c"])], [WorkItem(3.0, [("c", 0.5)], ["c"])]
    first, second = simulate_ranks([early, late])
    assert first.ends == second.ends == [3.5]
    assert first.slices == [Slice(0, 1.0, False), Slice(0, 2.5, True)]


def test_the_longest_share_of_a_call_counts() -> None:
    assert ends([WorkItem(0.0, [("c", 0.5)], ["c"])], [WorkItem(0.0, [("c", 2.0)], ["c"])]) == [[2.0], [2.0]]


def test_work_hides_a_call_that_is_waited_for_later() -> None:
    rank = [WorkItem(1.0, [("c", 2.0)]), WorkItem(1.5), WorkItem(0.0, (), ["c"]), WorkItem(1.0)]
    assert ends(rank) == [[1.0, 2.5, 3.0, 4.0]]


def test_the_work_of_a_call_is_done_while_its_message_travels() -> None:
    """The call takes the longer of both, and no shorter time than its last member needs to come."""
    called = [WorkItem(0.0, [("c", 3.0)], ["c"], handling=1.0), WorkItem(1.0)]
    late = [WorkItem(0.5), WorkItem(0.0, [("c", 3.0)], ["c"], handling=4.0)]
    assert ends(called, late) == [[3.5, 4.5], [0.5, 4.5]]
    assert ends([WorkItem(2.0, [("c", 3.0)], ["c"], handling=1.0)]) == [[5.0]]
    assert ends([WorkItem(2.0, [("c", 3.0)], handling=1.0), WorkItem(0.0, (), ["c"])]) == [[3.0, 5.0]]


def test_the_links_of_a_rank_carry_one_message_at_a_time() -> None:
    rank = [WorkItem(0.0, [("a", 2.0)]), WorkItem(0.0, [("b", 1.0)]), WorkItem(0.0, (), ["b"])]
    assert ends(rank) == [[0.0, 0.0, 3.0]]


def test_a_receiver_waits_for_its_sender_alone() -> None:
    sender, receiver = [WorkItem(2.0, [("m", 1.0)]), WorkItem(5.0)], [WorkItem(0.5, (), ["m"])]
    assert ends(sender, receiver) == [[2.0, 7.0], [3.0]]


def test_ranks_share_cores_only_while_they_work() -> None:
    """Four ranks on two cores take twice as long; a rank that waits leaves its core to the others."""
    assert ends(*[[WorkItem(1.0)]] * 4, cores=2) == [[2.0]] * 4
    busy, waits = [WorkItem(3.0)], [WorkItem(1.0, [("c", 10.0)], ["c"])]
    assert ends(busy, waits, cores=1) == [pytest.approx([4.0]), pytest.approx([12.0])]


def test_a_background_thread_works_beside_its_rank() -> None:
    """It begins with the item, does one piece after the other, and the rank waits for what is not done."""
    begins = WorkItem(1.0, background=[("a", 2.0), ("b", 1.5)])
    waits = [WorkItem(seconds, (), [piece]) for seconds, piece in ((3.0, "a"), (0.0, "b"), (0.0, "a"))]
    (rank,) = simulate_ranks([[WorkItem(0.5), begins, *waits]])
    assert rank.ends == [0.5, 1.5, 4.5, 4.5, 4.5]
    (rank,) = simulate_ranks([[begins, WorkItem(0.0, (), ["b"])]])
    assert rank.ends == [1.0, 3.5]
    assert rank.slices == [Slice(0, 1.0, False), Slice(1, 2.5, True)]


def test_slices_add_up_to_the_end() -> None:
    ranks = [
        [WorkItem(0.1 * (i + j), [((i // 2, j), 0.3)], [(i // 2, j)]) for j in range(7)] for i in range(4)
    ]
    for each in simulate_ranks(ranks, cores=3):
        assert sum(part.seconds for part in each.slices) == pytest.approx(each.ends[-1])


def test_unposted_message_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no rank posts"):
        simulate_ranks([[WorkItem(1.0, (), ["never"])]])


# Hosts that issue the work of a device.


def test_device_waits_where_the_host_issues_more_slowly() -> None:
    """The host needs 4 s for four items. The device has done the last one by then, except for what comes after."""
    (rank,) = simulate_ranks([[WorkItem(0.25, issue=1.0)] * 4 + [WorkItem(3.0, issue=0.5)]])
    assert rank.ends == [1.0, 2.0, 3.0, 4.0, 7.0]
    assert rank.slices[:2] == [Slice(0, 0.25, False), Slice(0, 0.75, False, is_issuing=True)]
    assert not rank.slices[-1].is_issuing and sum(each.seconds for each in rank.slices) == 7.0


def test_host_that_issues_faster_costs_nothing() -> None:
    items = [WorkItem(0.5), WorkItem(1.0, [("c", 2.0)], ["c"]), WorkItem(0.5)]
    issued = [item._replace(issue=0.25) for item in items]
    assert simulate_ranks([issued]) == simulate_ranks([items])


def test_message_of_a_device_that_waits_for_its_host_is_late() -> None:
    slow, fast = [WorkItem(0.0, [("c", 1.0)], ["c"], issue=2.0)], [WorkItem(0.0, [("c", 1.0)], ["c"])]
    assert ends(slow, fast) == [[3.0], [3.0]]


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=12),
)
def test_no_item_ends_before_it_is_issued_or_before_the_device_has_done_it(
    items: list[tuple[float, float]],
) -> None:
    """Judge: end[i] = max(end[i - 1] + work, issued[i])."""
    (rank,) = simulate_ranks([[WorkItem(work, issue=issue) for work, issue in items]])
    end = issued = 0.0
    for found, (work, issue) in zip(rank.ends, items, strict=True):
        issued += issue
        end = max(end + work, issued)
        assert found == pytest.approx(end, abs=1e-9)
    assert sum(each.seconds for each in rank.slices) == pytest.approx(end, abs=1e-9)
