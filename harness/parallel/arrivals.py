"""What arrives stage by stage, in turn or with the next stage already under way."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

Call = Callable[..., Any]
"""`call(stage, later=...)`: a collective of this stage, as an axis makes it."""


def arrivals(call: Call, stages: Iterable[Any], *, overlap: bool) -> Iterator[Tensor]:
    """The result of each stage's call. With `overlap` the next call leaves before the result is used."""
    if not overlap:
        for stage in stages:
            yield call(stage, later=False)
        return
    under_way: list[Any] = []
    for stage in stages:
        under_way.append(call(stage, later=True))
        if len(under_way) > 1:
            yield under_way.pop(0).wait()
    for last in under_way:
        yield last.wait()
