"""A pool of ranks that stay alive between jobs, for the many small worlds of the tests and of `harness check`.

The ranks are forked from a fork server, as in a run, and each rank runs one job after the other. Every job has its own
process group, whose ranks meet through a file in a private folder, so that no port is fixed. Ranks run one thread each
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
from threading import Lock
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from harness.base.errors import RunError
from harness.base.files import owner_tag, remove_leftovers, scratch_names
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.launchers import RankPlace
from harness.runtime.fault import Fault, describe_error, dump_stacks_on_signal, read_stacks
from harness.runtime.launch.fork_server import PRELOADED_MODULES, Child, ForkServer, describe_exit
from harness.runtime.launch.processes import STACKS_SIGNAL
from harness.runtime.launch.time_limits import POOL_LIMITS, START_LIMITS, StartLimits, TimeLimits

ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "GLOO_SOCKET_IFNAME": "lo",  # the loopback, whatever the machine's name resolves to
}
NOTICE_DELAY = 0.5
"""The seconds by which a death may be noticed later than the errors that it causes in other ranks."""
MAIN, ALIAS = "__main__", "__mp_main__"
"""The name of the main module in the pool's process, and its name for `multiprocessing` in other processes."""

Reply = bytes | Fault
"""A rank's reply to a job: the pickled result, or the fault that ended the job."""


class Reference(NamedTuple):
    """The name of a top-level function of a module, by which another process can load it."""

    module: str
    file: str | None
    name: str

    @classmethod
    def to(cls, function: Callable[..., Any]) -> "Reference":
        """Return the reference to a function."""
        assert "<" not in function.__qualname__, (
            f"{function.__qualname__} is not at the top level of a module"
        )
        file = getattr(sys.modules[function.__module__], "__file__", None)
        return cls(function.__module__, file, function.__qualname__)

    def load(self) -> Callable[..., Any]:
        """Return the function, after importing its module."""
        module = sys.modules.get(self.module)
        if module is None or (self.module == MAIN and module.__file__ != self.file):
            module = self._import_by_name() or self._import_from_file()
        loaded: Callable[..., Any] = attrgetter(self.name)(module)
        return loaded

    def _import_by_name(self) -> ModuleType | None:
        """Import the module by its name. Return None if the name means another file here, as for modules of tests."""
        try:
            spec = importlib.util.find_spec(self.module)
        except ModuleNotFoundError:
            return None
        return importlib.import_module(self.module) if spec and spec.origin == self.file else None

    def _import_from_file(self) -> ModuleType:
        """Import the module from its file. A main module gets its alias, so that its program does not run."""
        name = ALIAS if self.module == MAIN else self.module
        spec = importlib.util.spec_from_file_location(name, str(self.file))
        assert spec is not None and spec.loader is not None, self
        sys.modules[self.module] = sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class Job(NamedTuple):
    """The job of one rank. Its arguments are unpickled once the function's module is loaded."""

    rank: int
    world: int
    engine: Engine
    meeting: Path
    patience: float
    path: list[str]
    """`sys.path` of the pool's process."""
    function: Reference
    arguments: bytes


# The code of a rank.


def main() -> int:
    """Run the jobs that arrive over standard input, until the pool closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles interrupts
    folder, number = sys.argv[1:]
    dump_stacks_on_signal(Path(folder), int(number))
    channel = Connection(os.dup(sys.stdin.fileno()))
    with suppress(EOFError), Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), sys.stdin.fileno())
        while True:
            job: Job | None = pickle.loads(channel.recv_bytes())
            if job is None:
                engine.leave_world()
            else:
                channel.send_bytes(pickle.dumps(_run_job(job)))
    return 0


def _run_job(job: Job) -> Reply:
    """Run a job, and return the reply. After success, the process group stays until all ranks have replied.

    A rank that fails leaves the group at once, so that no other rank waits for it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pickle.dumps(_call_function(job))
    except Exception as error:
        fault = describe_error(job.rank, error)
        engine.leave_world()
        return fault


def _call_function(job: Job) -> Any:
    """Join the job's world, and return the result of its function."""
    place, timeout = RankPlace(job.rank, job.world, job.rank), timedelta(seconds=job.patience)
    engine.join_world(job.engine, place, rendezvous=job.meeting, timeout=timeout)
    sys.path[:] = job.path
    function = job.function.load()
    return function(*pickle.loads(job.arguments))


# The code of the pool.


class RankError(RunError):
    """A job failed: `rank` failed first, with an error of type `kind`."""

    def __init__(self, world: int, rank: int, kind: str, message: str, trace: str) -> None:
        super().__init__(f"rank {rank} of {world} failed first: {kind}: {message}\n{trace}".rstrip())
        self.rank, self.kind, self.message = rank, kind, message


@dataclass(frozen=True)
class _Worker:
    """The process of a rank and the channel to it."""

    number: int
    process: Child
    channel: Connection
    limits: TimeLimits

    def send_job(self, job: Job | None) -> None:
        """Send a job, or None to leave the world of the last one."""
        with suppress(OSError):  # the rank died while it was idle, which `receive_reply` reports
            self.channel.send_bytes(pickle.dumps(job))

    def receive_reply(self, rank: int) -> Reply:
        """Return the reply to a job, or a fault if the rank has died."""
        try:
            reply: Reply = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            at, deadline = time.time(), time.monotonic() + self.limits.grace
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(self.limits.poll)
            message, dated = describe_exit(self.process.poll()), at - NOTICE_DELAY
            return {"rank": rank, "type": "died", "message": message, "trace": "", "time": dated}
        return reply

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.channel.close()


class Pool:
    """Ranks for jobs. A rank is started when it is first needed.

    `patience` is the time limit of a job in seconds. `engine` is the communication library. `modules` are imported
    before the ranks are forked; each rank imports the others that its jobs need.
    """

    def __init__(
        self,
        *,
        patience: float = 120.0,
        engine: Engine = Engine.GLOO,
        limits: TimeLimits = POOL_LIMITS,
        start_limits: StartLimits = START_LIMITS,
        modules: Sequence[str] = PRELOADED_MODULES,
    ) -> None:
        self._patience, self._engine = patience, engine
        self._limits, self._start_limits = limits, start_limits
        self._server, self._environment = ForkServer(modules), {**os.environ, **ENVIRONMENT}
        self._workers: list[_Worker] = []
        remove_leftovers(Path(tempfile.gettempdir()), scratch_names("ranks-"))  # of killed pools
        prefix = f"ranks-{owner_tag()}."
        self._temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self._numbers = count()
        self._lock = Lock()
        """Held while a job runs."""

    def __enter__(self) -> "Pool":
        self._server.prepare(self._environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all ranks and the fork server. A job in another thread fails first."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGKILL)
        with self._lock:
            self._kill_workers(self._workers)
            self._server.close()
            self._temporary.cleanup()

    def run(
        self, world: int, function: Callable[..., Any], *arguments: Any, patience: float | None = None
    ) -> list[Any]:
        """Return the results of `function(*arguments)` on every rank of a world, in rank order.

        The function must be at the top level of a module. Raises RankError for the rank that failed first, or with
        the stacks of the ranks that are still busy after `patience` seconds. The pool can be used afterwards.
        """
        call = Reference.to(function), pickle.dumps(arguments)
        with self._lock:
            return self._run(world, call, patience or self._patience)

    def _run(self, world: int, call: tuple[Reference, bytes], patience: float) -> list[Any]:
        workers = self._take_workers(world)
        replies: dict[int, Reply] = {}
        try:
            meeting = self._folder / f"meeting-{next(self._numbers)}"
            for rank, worker in enumerate(workers):
                timeout = patience + 2 * self._limits.grace
                worker.send_job(Job(rank, world, self._engine, meeting, timeout, sys.path, *call))
            _gather_replies(workers, replies, time.monotonic() + patience, self._limits.grace)
            busy = [rank for rank in range(world) if rank not in replies]
            failure = _find_first_failure(replies, busy, world, self._limits.grace)
            failure = failure or self._find_timeout(workers, busy, patience)
        finally:
            self._release_workers(workers, replies)
        if failure:
            raise failure
        return [pickle.loads(result) for _, result in sorted(replies.items()) if isinstance(result, bytes)]

    def _take_workers(self, world: int) -> list[_Worker]:
        """Return the workers of a world, and replace dead ones: an idle rank's channel is readable only if closed."""
        self._kill_workers([worker for worker in self._workers if worker.channel.poll()])
        while len(self._workers) < world:
            self._workers.append(self._start_worker(next(self._numbers)))
        return self._workers[:world]

    def _start_worker(self, number: int) -> _Worker:
        channel, remote = connection.Pipe()
        with remote:
            streams = remote.fileno(), 1, 2  # a rank prints where this process prints
            program = [__name__, str(self._folder), str(number)]
            (process,) = self._server.start(program, [self._environment], streams, self._start_limits)
        return _Worker(number, process, channel, self._limits)

    def _release_workers(self, workers: Sequence[_Worker], replies: Mapping[int, Reply]) -> None:
        """Make the ranks leave their world. If one failed or did not reply, all ranks of the world are killed.

        Otherwise a half-open connection of gloo could reach the listeners of the next world and make it hang.
        """
        if len(replies) < len(workers) or any(isinstance(reply, dict) for reply in replies.values()):
            self._kill_workers(workers)
            return
        for worker in workers:
            worker.send_job(None)

    def _kill_workers(self, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            worker.kill()
        self._workers = [worker for worker in self._workers if worker not in workers]

    def _find_timeout(
        self, workers: Sequence[_Worker], busy: Sequence[int], patience: float
    ) -> RankError | None:
        """Return the error of a job that took too long, with the stack of every busy rank, or None."""
        if not busy:
            return None
        for rank in busy:
            workers[rank].process.send_signal(STACKS_SIGNAL)
        time.sleep(self._limits.stack_dump)
        stacks = "\n".join(
            f"The stack of rank {rank}:\n{read_stacks(self._folder, workers[rank].number)}" for rank in busy
        )
        message = f"ranks {_format_ranks(busy)} still busy after {patience:g} s"
        return RankError(len(workers), busy[0], "timeout", message, stacks)


def _gather_replies(
    workers: Sequence[_Worker], replies: dict[int, Reply], deadline: float, grace: float
) -> None:
    """Gather replies until every rank has replied or the deadline has passed. After a failure, `grace` s remain."""
    waiting = {worker.channel: rank for rank, worker in enumerate(workers)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for channel in connection.wait(list(waiting), left):
            rank = waiting.pop(channel)  # type: ignore[call-overload]
            replies[rank] = workers[rank].receive_reply(rank)
            if isinstance(replies[rank], dict):
                deadline = min(deadline, time.monotonic() + grace)


def _find_first_failure(
    replies: Mapping[int, Reply], busy: Sequence[int], world: int, grace: float
) -> RankError | None:
    """Return the earliest failure, or None. Later failures are mostly its consequences."""
    faults = [reply for reply in replies.values() if isinstance(reply, dict)]
    if not faults:
        return None
    first = min(faults, key=lambda fault: (fault["time"], fault["rank"]))
    after = f"Still busy {grace:g} s later, and ended: ranks {_format_ranks(busy)}." if busy else ""
    return RankError(world, first["rank"], first["type"], first["message"], first["trace"] + after)


def _format_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
