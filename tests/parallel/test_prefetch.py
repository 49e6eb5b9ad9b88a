"""Items are prefetched in order, each once, while the item before is used."""

import threading

import pytest
import torch

from harness.strategy.parallel.prefetch import BackgroundThread, Prefetcher


def test_next_item_is_prepared_while_an_item_is_used() -> None:
    made, release = [], threading.Event()

    def make(number: int) -> int:
        if number:
            release.wait(10)
        made.append((number, threading.current_thread() is threading.main_thread()))
        return number * number

    ahead = Prefetcher(make, torch.device("cpu"))
    assert ahead.take(0) == 0
    release.set()
    assert [ahead.take(number) for number in (1, 2, 3)] == [1, 4, 9]
    assert made[:4] == [(number, False) for number in range(4)]


def test_item_out_of_order_is_prepared_on_request() -> None:
    ahead = Prefetcher(lambda number: number, torch.device("cpu"))
    assert [ahead.take(number) for number in (4, 5, 9, 9, 0)] == [4, 5, 9, 9, 0]


def test_error_of_the_thread_is_raised_to_the_consumer() -> None:
    ahead = Prefetcher(lambda number: 1 // number, torch.device("cpu"))
    with pytest.raises(ZeroDivisionError):
        ahead.take(0)


def test_each_number_is_started_while_the_previous_one_is_used() -> None:
    begun = [threading.Event() for _ in range(5)]

    def make(number: int) -> int:
        begun[number].set()
        return number * number

    items = []
    for number, made in BackgroundThread(torch.device("cpu")).prefetch_each([3, 0, 4, 1], make):
        items.append((number, made()))
        following = {3: 0, 0: 4, 4: 1}.get(number)
        assert following is None or begun[following].wait(10)
    assert items == [(3, 9), (0, 0), (4, 16), (1, 1)]
    assert not begun[2].is_set()


def test_replay_prepares_each_item_on_request() -> None:
    made = []
    coming = list(BackgroundThread(torch.device("meta")).prefetch_each(range(3), made.append))
    assert not made
    coming[1][1]()
    assert made == [1]


def test_prefetch_of_no_numbers_is_empty() -> None:
    assert list(BackgroundThread(torch.device("cpu")).prefetch_each([], int)) == []
