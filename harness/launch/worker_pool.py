"""A pool of ranks that stay alive, for the many small worlds of the tests and of `harness check`.

Its ranks are forked from a fork server as those of a run are, and each one runs job after job. Every job has a process
group of its own, whose ranks meet through a file in a private folder, so no port is fixed. Ranks run one thread each
and treat warnings as errors.
"""

import importlib.util
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing import connection
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.launchers import RankPlace
from harness.errors import RunError
from harness.files import owner_tag, remove_leftovers, scratch_names
from harness.launch.fork_server import Child, ForkServer, Waiting, how_it_ended
from harness.launch.processes import POLL_SECONDS, STACKS
from harness.run.fault import Fault, describe_error, dump_stacks_on_signal, read_stacks

ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "GLOO_SOCKET_IFNAME": "lo",  # the loopback, whatever the name of this machine resolves to
}
GRACE = 5.0
"""The seconds that the other ranks have to end by themselves after a failure."""
NOTICE = 0.5
"""The seconds by which a death may be noticed later than the errors that it causes in other ranks."""
MAIN, ALIAS = "__main__", "__mp_main__"
"""The main module of the pool's process, and its name for `multiprocessing` in every process."""

Reply = bytes | Fault
"""The answer of a rank to a job: the pickled result, or the fault that ended the job."""


class Reference(NamedTuple):
    """The name of a function at the top level of a module, by which another process can load it."""

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
        module = sys.modules.get(self.module)
        if module is None or (self.module == MAIN and module.__file__ != self.file):
            module = self._by_name() or self._by_file()
        loaded: Callable[..., Any] = attrgetter(self.name)(module)
        return loaded

    def _by_name(self) -> ModuleType | None:
        """The module, if its name leads to the same file in this process; the name of a test's module may not."""
        try:
            spec = importlib.util.find_spec(self.module)
        except ModuleNotFoundError:
            return None
        return importlib.import_module(self.module) if spec and spec.origin == self.file else None

    def _by_file(self) -> ModuleType:
        """A main module is loaded under its alias, so that its program does not run."""
        name = ALIAS if self.module == MAIN else self.module
        spec = importlib.util.spec_from_file_location(name, str(self.file))
        assert spec is not None and spec.loader is not None, self
        sys.modules[self.module] = sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class Job(NamedTuple):
    """The work of one rank. Its arguments are unpickled once the function's module is loaded."""

    rank: int
    world: int
    engine: Engine
    meeting: Path
    patience: float
    path: list[str]
    """The folders of modules that the pool's process knows."""
    function: Reference
    arguments: bytes


# The code of a rank.


def main() -> int:
    """Runs the jobs that come over standard input, until the pool closes the channel. Then the rank ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides what an interrupt means
    folder, number = sys.argv[1:]
    dump_stacks_on_signal(Path(folder), int(number))
    channel = Connection(os.dup(sys.stdin.fileno()))
    with suppress(EOFError), Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        while True:
            job: Job | None = pickle.loads(channel.recv_bytes())
            if job is None:
                engine.leave_world()
            else:
                channel.send_bytes(pickle.dumps(_reply(job)))
    return 0


def _reply(job: Job) -> Reply:
    """Runs one job. The process group of a job that succeeds stays until the pool has heard from every rank.

    A rank that fails leaves the group at once, so that no other rank waits for it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pickle.dumps(_call(job))
    except Exception as error:
        fault = describe_error(job.rank, error)
        engine.leave_world()
        return fault


def _call(job: Job) -> Any:
    place, timeout = RankPlace(job.rank, job.world, job.rank), timedelta(seconds=job.patience)
    engine.join_world(job.engine, place, rendezvous=job.meeting, timeout=timeout)
    sys.path[:] = job.path
    function = job.function.load()
    return function(*pickle.loads(job.arguments))


# The code of the pool.


class RankError(RunError):
    """A job failed: `rank` was the first to fail, `kind` and `message` say how."""

    def __init__(self, world: int, rank: int, kind: str, message: str, trace: str) -> None:
        super().__init__(f"rank {rank} of {world} failed first: {kind}: {message}\n{trace}".rstrip())
        self.rank, self.kind, self.message = rank, kind, message


@dataclass(frozen=True)
class _Worker:
    """The process of a rank and the channel to it."""

    number: int
    process: Child
    channel: Connection

    def send(self, job: Job | None) -> None:
        with suppress(OSError):  # the rank died while it was idle; `reply` will say so
            self.channel.send_bytes(pickle.dumps(job))

    def reply(self, rank: int) -> Reply:
        """The answer to a job. The death of the rank is a fault too."""
        try:
            reply: Reply = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            at, deadline = time.time(), time.monotonic() + GRACE
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            ending = how_it_ended(self.process.poll())
            return {"rank": rank, "type": "died", "message": ending, "trace": "", "time": at - NOTICE}
        return reply

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.channel.close()


class Pool:
    """Ranks for jobs, started when they are first needed.

    `patience` is the limit of a job in seconds, and `waiting` the limit of a start. `engine` carries the messages.
    """

    def __init__(
        self,
        *,
        patience: float = 120.0,
        waiting: Waiting = Waiting(),  # noqa: B008
        engine: Engine = Engine.GLOO,
    ) -> None:
        self._patience, self._waiting, self._engine = patience, waiting, engine
        self._server, self._environment = ForkServer(), {**os.environ, **ENVIRONMENT}
        self._workers: list[_Worker] = []
        remove_leftovers(
            Path(tempfile.gettempdir()), scratch_names("ranks-")
        )  # which pools that were killed have left
        self._temporary = tempfile.TemporaryDirectory(
            prefix=f"ranks-{owner_tag()}.", ignore_cleanup_errors=True
        )
        self._folder = Path(self._temporary.name)
        self._numbers = count()

    def __enter__(self) -> "Pool":
        self._server.prepare(self._environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every rank, and the fork server."""
        self._end(self._workers)
        self._server.close()
        self._temporary.cleanup()

    def run(
        self, world: int, function: Callable[..., Any], *arguments: Any, patience: float | None = None
    ) -> list[Any]:
        """The results of `function(*arguments)` on every rank of a world, in rank order.

        The function stands at the top level of a module. Raises RankError for the rank that failed first in time, or
        with every rank's stack when some are still busy after `patience` seconds. The pool can be used afterwards.
        """
        patience = patience or self._patience
        call = Reference.to(function), pickle.dumps(arguments)
        workers = self._take(world)
        replies: dict[int, Reply] = {}
        try:
            meeting = self._folder / f"meeting-{next(self._numbers)}"
            for rank, worker in enumerate(workers):
                worker.send(Job(rank, world, self._engine, meeting, patience + 2 * GRACE, sys.path, *call))
            _listen(workers, replies, time.monotonic() + patience)
            busy = [rank for rank in range(world) if rank not in replies]
            failure = _failure(replies, busy, world) or self._timeout(workers, busy, patience)
        finally:
            self._release(workers, replies)
        if failure:
            raise failure
        return [pickle.loads(result) for _, result in sorted(replies.items()) if isinstance(result, bytes)]

    def _take(self, world: int) -> list[_Worker]:
        """As many living ranks as the world has. The channel of an idle rank is readable only if closed."""
        self._end([worker for worker in self._workers if worker.channel.poll()])
        while len(self._workers) < world:
            self._workers.append(self._start(next(self._numbers)))
        return self._workers[:world]

    def _start(self, number: int) -> _Worker:
        channel, remote = connection.Pipe()
        with remote:
            streams = remote.fileno(), 1, 2  # a rank prints where this process prints
            program = [__name__, str(self._folder), str(number)]
            (process,) = self._server.start(program, [self._environment], streams, self._waiting)
        return _Worker(number, process, channel)

    def _release(self, workers: Sequence[_Worker], replies: Mapping[int, Reply]) -> None:
        """Lets ranks leave their world. All ranks of a world in which one failed, or did not reply, are ended.

        A connection that gloo had half made would otherwise meet the listeners of the next world, which then may hang.
        """
        if len(replies) < len(workers) or any(isinstance(reply, dict) for reply in replies.values()):
            self._end(workers)
            return
        for worker in workers:
            worker.send(None)

    def _end(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            worker.end()
        self._workers = [worker for worker in self._workers if worker not in workers]

    def _timeout(self, workers: Sequence[_Worker], busy: Sequence[int], patience: float) -> RankError | None:
        """The error of a job that took too long, with the stack of every rank that is still busy."""
        if not busy:
            return None
        for rank in busy:
            workers[rank].process.send_signal(STACKS)
        time.sleep(NOTICE)
        stacks = "\n".join(
            f"The stack of rank {rank}:\n{read_stacks(self._folder, workers[rank].number)}" for rank in busy
        )
        message = f"ranks {_listed(busy)} still busy after {patience:g} s"
        return RankError(len(workers), busy[0], "timeout", message, stacks)


def _listen(workers: Sequence[_Worker], replies: dict[int, Reply], deadline: float) -> None:
    """Gathers replies until every rank has replied, or until the deadline, which a failure brings nearer."""
    waiting = {worker.channel: rank for rank, worker in enumerate(workers)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for channel in connection.wait(list(waiting), left):
            rank = waiting.pop(channel)  # type: ignore[call-overload]
            replies[rank] = workers[rank].reply(rank)
            if isinstance(replies[rank], dict):
                deadline = min(deadline, time.monotonic() + GRACE)


def _failure(replies: Mapping[int, Reply], busy: Sequence[int], world: int) -> RankError | None:
    """The first failure in time: later ones are mostly its consequences."""
    faults = [reply for reply in replies.values() if isinstance(reply, dict)]
    if not faults:
        return None
    first = min(faults, key=lambda fault: (fault["time"], fault["rank"]))
    after = f"Still busy {GRACE:.0f} s later, and ended: ranks {_listed(busy)}." if busy else ""
    return RankError(world, first["rank"], first["type"], first["message"], first["trace"] + after)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
