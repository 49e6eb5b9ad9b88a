"""Progress reports: long work announces its steps, and the caller displays them."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

T = TypeVar("T")
Log = Callable[[str], None]
"""Receives a progress message."""
OnStep = Callable[[int, int, str], None]
"""Called before each step with the number of completed steps, the total number, and a description of the step."""


def ignore_step(*_: object) -> None:
    """Do not show progress."""


def report_steps(items: Collection[T], name: Callable[[T], str], on_step: OnStep) -> Iterator[T]:
    """Yield the items, and announce each one as a step before it is yielded."""
    for number, item in enumerate(items):
        on_step(number, len(items), name(item))
        yield item
