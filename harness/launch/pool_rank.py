"""The other end of a pool: a process that runs one job after another as some rank of some world.

The parent sends jobs through a pipe and gets one reply to each. When the pipe closes the process ends at once, even
in the middle of a job: no rank outlives its parent.
"""

import faulthandler
import importlib.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

import torch

from harness.comm import engine
from harness.comm.engine import Engine, Place

STACKS = signal.SIGUSR1
"""Asks a rank where it stands."""


class Reference(NamedTuple):
    """A function of a module's top level, to be found again in another process."""

    module: str
    file: str | None
    name: str

    @classmethod
    def to(cls, function: Callable[..., Any]) -> "Reference":
        assert "<" not in function.__qualname__, (
            f"{function.__qualname__} is not at the top level of a module"
        )
        file = getattr(sys.modules[function.__module__], "__file__", None)
        return cls(function.__module__, file, function.__qualname__)

    def load(self) -> Callable[..., Any]:
        module = sys.modules.get(self.module) or self._by_name() or self._by_file()
        loaded: Callable[..., Any] = attrgetter(self.name)(module)
        return loaded

    def _by_name(self) -> ModuleType | None:
        """The module, if its name leads to the same file here: a test's name may lead nowhere, or elsewhere."""
        try:
            spec = importlib.util.find_spec(self.module)
        except ModuleNotFoundError:
            return None
        return importlib.import_module(self.module) if spec and spec.origin == self.file else None

    def _by_file(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self.module, str(self.file))
        assert spec is not None and spec.loader is not None, self
        sys.modules[self.module] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True)
class Job:
    """What one rank is to do. The arguments are unpickled once the function's module is there."""

    rank: int
    world: int
    meeting: Path
    patience: float
    function: Reference
    arguments: bytes


@dataclass(frozen=True)
class Done:
    """The pickled result of a job."""

    result: bytes


@dataclass(frozen=True)
class Raised:
    """Why a job failed, and when by the clock that all processes of a machine share."""

    at: float
    kind: str
    message: str
    trace: str


def serve(connection: Connection, stacks: Path) -> None:
    """The life of a pool's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine's name resolves to
    torch.set_num_threads(1)
    with stacks.open("w") as file:
        faulthandler.register(STACKS, file=file, all_threads=True)
        inbox: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
        while True:
            job = inbox.get()
            if job is None:
                engine.stop()
            else:
                connection.send_bytes(pickle.dumps(_run(job)))


def _listen(connection: Connection, inbox: "SimpleQueue[Job | None]") -> None:
    """Hands jobs on, and ends the process with its parent."""
    while True:
        try:
            inbox.put(pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)


def _run(job: Job) -> Done | Raised:
    """One job. The group of a job that succeeds stays until the parent has heard of every rank.

    A rank that fails leaves at once, so that no other waits for it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return Done(pickle.dumps(_call(job)))
    except Exception as error:
        at = time.monotonic()
        trace = traceback.format_exc()
        engine.stop()
        return Raised(at, type(error).__name__, str(error), trace)


def _call(job: Job) -> Any:
    place, timeout = Place(job.rank, job.world, job.rank), timedelta(seconds=job.patience)
    engine.start(Engine.GLOO, place, meeting=job.meeting, timeout=timeout)
    function = job.function.load()
    return function(*pickle.loads(job.arguments))
