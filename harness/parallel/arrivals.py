"""What arrives stage by stage, in turn or with the next stage already under way."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Call = Callable[..., Any]
"""`call(stage, later=...)`: a collective of this stage as an axis makes it, or a tuple of several."""


def arrivals(call: Call, stages: Iterable[Any], *, overlap: bool) -> Iterator[Any]:
    """What each stage's call brings. With `overlap` the next stage leaves before it is handed out."""
    if not overlap:
        for stage in stages:
            yield call(stage, later=False)
        return
    under_way: list[Any] = []
    for stage in stages:
        under_way.append(call(stage, later=True))
        if len(under_way) > 1:
            yield _landed(under_way.pop(0))
    for last in under_way:
        yield _landed(last)


def _landed(pending: Any) -> Any:
    return tuple(one.wait() for one in pending) if isinstance(pending, tuple) else pending.wait()
