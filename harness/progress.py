"""Progress of work in counted steps. The work names each step; whoever asked for it shows how much is left."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

T = TypeVar("T")
OnStep = Callable[[int, int, str], None]
"""Is called before each step: with the number of steps done, the number of all, and what this one does."""


def ignore_step(*_: object) -> None:
    """Shows nothing."""


def report_steps(items: Collection[T], name: Callable[[T], str], on_step: OnStep) -> Iterator[T]:
    """The items, each one a step that is announced by its name."""
    for number, item in enumerate(items):
        on_step(number, len(items), name(item))
        yield item
