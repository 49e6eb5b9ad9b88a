"""What arrives stage by stage, in turn or with the next stage already under way."""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from harness.comm.call import Call
from harness.comm.pending import Pending


def arrivals(stages: Iterable[Sequence[Call[Tensor]]], *, overlap: bool) -> Iterator[list[Tensor]]:
    """What the calls of each stage bring. With `overlap` the next stage leaves before one is handed out."""
    if not overlap:
        for calls in stages:
            yield [call.now() for call in calls]
        return
    under_way: list[list[Pending[Tensor]]] = []
    for calls in stages:
        under_way.append([call.later() for call in calls])
        if len(under_way) > 1:
            yield [pending.wait() for pending in under_way.pop(0)]
    for last in under_way:
        yield [pending.wait() for pending in last]
