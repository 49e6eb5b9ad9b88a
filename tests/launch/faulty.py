"""A strategy in which one rank comes to grief, in a way and at a moment of one's choice."""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from harness.strategies.cagnet.oned import OneD, WholeRows
from harness.strategy import Context

Way = Literal[
    "raise",
    "exit",
    "kill",
    "segfault",
    "abort",
    "memory",
    "hang",
    "stop",
    "link",
    "write",
    "linger",
    "swallow",
    "slow",
]


class Grief(OneD.Params):
    way: Way
    rank: int = 1
    call: int = 0
    """At which activation; an epoch of three layers has two."""


class FaultyRows(WholeRows):
    def __init__(self, ctx: Context, strategy: "Faulty") -> None:
        super().__init__(ctx, strategy)
        self.grief, self.calls = strategy.params, count()  # which the operators of all steps share

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        if next(self.calls) == self.grief.call and self.over.index == self.grief.rank:
            WAYS[self.grief.way]()
        return super().activate(layer, Z_NH)


class Faulty(OneD):
    Params = Grief
    params: Grief

    def operators(self, ctx: Context) -> WholeRows:
        return FaultyRows(ctx, self)


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def leave() -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def ask_for_too_much() -> None:
    torch.empty(1 << 50)


def hang() -> None:
    """For ever; leaves a sign of it where somebody asks for one."""
    if sign := os.environ.get("FAULTY_SIGN"):
        Path(sign).touch()
    time.sleep(1e6)


def swallow() -> None:
    """Takes memory and uses it, until somebody minds."""
    held = []
    while True:
        held.append(torch.ones(1 << 26))
        time.sleep(0.1)


def cut_links() -> None:
    for handle in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(handle.name))) as link:
                link.getpeername()  # not one that only listens
                link.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def die_while_writing() -> None:
    """The record's second file is the last thing that this rank writes."""
    from harness.base import files

    real, written = os.fsync, []

    def sync(handle: int) -> None:
        real(handle)
        written.append(handle)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    files.os.fsync = sync  # type: ignore[attr-defined]


def linger_while_writing() -> None:
    """The disk of the record takes 3.5 seconds, in which the rank sleeps: some network file systems let it."""
    from harness.base import files

    real, slept = os.fsync, []

    def sync(handle: int) -> None:
        if not slept:
            slept.append(handle)
            time.sleep(3.5)
        real(handle)

    files.os.fsync = sync  # type: ignore[attr-defined]


WAYS: dict[str, Callable[[], object]] = {
    "raise": fail,
    "exit": leave,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "memory": ask_for_too_much,
    "hang": hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "link": cut_links,
    "write": die_while_writing,
    "linger": linger_while_writing,
    "swallow": swallow,
    "slow": lambda: time.sleep(8),
}
