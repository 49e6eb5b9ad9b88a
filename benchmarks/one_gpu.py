"""Several ranks on one GPU, which NCCL refuses: gloo carries their messages through the host's memory.

    Pool(engine=Engine.GLOO).run(world, on_one_gpu, function, *arguments)

Every rank computes on the first GPU. Times mean nothing: the ranks share the GPU, and each message is copied twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.base.device import use_gpu
from harness.comm import collectives

ALL_GATHER_SINGLE = collectives._all_gather_single


def on_one_gpu(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function on one rank of a world of gloo, all of whose ranks share the first GPU."""
    through = ThroughHost()
    with (
        patch.object(collectives, "dist", through),
        patch.object(collectives, "_all_gather_single", through.all_gather_single),
        patch("harness.comm.engine.select_device", lambda _engine, _local_rank: use_gpu(0)),
    ):
        return function(*arguments)


class Landing(dist.Work):
    """A call under way on copies; the results are copied to the GPU when it is waited for."""

    def __init__(self, work: dist.Work, land: Callable[[], object]) -> None:
        super().__init__()
        self._work, self._land, self._landed = work, land, False

    def wait(self, timeout: Any = None) -> bool:
        if not self._landed:
            self._work.wait()
            with _disable_current_modes():  # copies of this library are no kernels of a rank
                self._land()
            self._landed = True
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def get_future(self) -> Any:
        raise RuntimeError("the end of a message through the host cannot be dated")


class ThroughHost:
    """torch.distributed for tensors of a GPU, as `harness.comm.collectives` calls it; all else is the library's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, x: Tensor, op: Any, *, group: Any, async_op: bool) -> dist.Work | None:
        return _through(
            [x], [x], async_op, lambda sent, _: dist.all_reduce(sent[0], op, group, async_op=True)
        )

    def broadcast(self, x: Tensor, *, group: Any, group_src: int, async_op: bool) -> dist.Work | None:
        call = partial(dist.broadcast, group=group, group_src=group_src, async_op=True)
        return _through([x], [x], async_op, lambda sent, _: call(sent[0]))

    def all_gather_single(self, out: Tensor, x: Tensor, *, group: Any, async_op: bool) -> dist.Work | None:
        call = partial(ALL_GATHER_SINGLE, group=group, async_op=True)
        return _through([x], [out], async_op, lambda sent, landed: call(landed[0], sent[0]))

    def all_to_all_single(
        self, out: Tensor, x: Tensor, receive: list[int], send: list[int], *, group: Any, async_op: bool
    ) -> dist.Work | None:
        call = partial(dist.all_to_all_single, group=group, async_op=True)
        return _through([x], [out], async_op, lambda sent, landed: call(landed[0], sent[0], receive, send))

    def batch_isend_irecv(self, calls: list[dist.P2POp]) -> list[dist.Work]:
        works = []
        for each in calls:
            x = each.tensor
            arriving = [x] if each.op is dist.irecv else []

            def start(sent: Sequence[Tensor], _: Any, each: dist.P2POp = each) -> Any:
                return each.op(sent[0], each.peer, each.group, each.tag)

            works.append(_through([x], arriving, True, start))
        return [work for work in works if work is not None]


def _through(
    leaving: Sequence[Tensor],
    arriving: Sequence[Tensor],
    later: bool,
    start: Callable[[Sequence[Tensor], Sequence[Tensor]], Any],
) -> dist.Work | None:
    """Starts a call on the host's copies of tensors; a tensor that both leaves and arrives has one copy."""
    with _disable_current_modes():
        copies = {id(x): x.cpu() for x in (*leaving, *arriving)}
    sent, landed = ([copies[id(x)] for x in tensors] for tensors in (leaving, arriving))

    def land() -> None:
        for x, copy in zip(arriving, landed, strict=True):
            x.data.copy_(copy)  # a call of the library changes no version of a tensor either

    work = Landing(start(sent, landed), land)
    if later:
        return work
    work.wait()
    return None
