"""A pool of rank processes that stay alive, for the many small worlds of the tests and of `harness check`.

Importing torch costs seconds a process; here it is paid once, in a server from which the ranks are forked. Every job
has a fresh process group, met through a file in a private folder: no fixed ports. Ranks run one thread each and take
warnings for errors. What a job does with its world is its own business.
"""

import faulthandler
import importlib.util
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import attrgetter, itemgetter
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import torch

from harness.comm import engine
from harness.comm.engine import Engine, Place
from harness.errors import RunError
from harness.launch.fork_server import how_it_ended

# The other end of a pool: a process that runs one job after another as some rank of some world.
#
# The parent sends jobs through a pipe and gets one reply to each. When the pipe closes the process ends at
# once, even in the middle of a job: no rank outlives its parent.

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
        threading.Thread(target=_put_jobs_into, args=(connection, inbox), daemon=True).start()
        while True:
            job = inbox.get()
            if job is None:
                engine.stop()
            else:
                connection.send_bytes(pickle.dumps(_run(job)))


def _put_jobs_into(connection: Connection, inbox: "SimpleQueue[Job | None]") -> None:
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


PRELOADED = ["torch", "torch._dynamo", "torch.distributed.device_mesh", "numpy"]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
GRACE = 5.0
"""Seconds that the other ranks have after a failure, to end by themselves."""
NOTICE = 0.5
"""Seconds by which a death may be noticed later than the errors it causes elsewhere."""


class RankError(RunError):
    """A job failed: `rank` was the first to, `kind` and `message` say how."""

    def __init__(self, rank: int, world: int, kind: str, message: str, trace: str) -> None:
        super().__init__(f"rank {rank} of {world} failed first: {kind}: {message}\n{trace}".rstrip())
        self.rank, self.kind, self.message = rank, kind, message


@dataclass(frozen=True)
class _Rank:
    """A process and the pipe to it."""

    process: BaseProcess
    pipe: Connection
    stacks: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "started"
        return self.process.pid

    def tell(self, job: Job | None) -> None:
        with suppress(OSError):  # it died while idle; whoever listens will see that
            self.pipe.send_bytes(pickle.dumps(job))

    def hear(self) -> Done | Raised:
        """Its reply; the cause of its death is a reply too."""
        try:
            reply: Done | Raised = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            at = time.monotonic() - NOTICE
            self.process.join(GRACE)
            return Raised(at, "died", how_it_ended(self.process.exitcode), "")
        return reply

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Pool:
    """Ranks for jobs, started when they are first needed."""

    def __init__(self, *, patience: float = 120.0) -> None:
        self._patience = patience
        self._ranks: list[_Rank] = []
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._names = count()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every rank."""
        self._end(self._ranks)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self, world: int, function: Callable[..., Any], *arguments: Any, patience: float | None = None
    ) -> list[Any]:
        """The results of `function(*arguments)` on every rank of a world, in rank order.

        The function stands at the top level of a module. Raises RankError for the rank that failed first in time, or
        with every rank's stack when some are still busy after `patience` seconds. The pool serves on.
        """
        patience = patience or self._patience
        sent = Reference.to(function), pickle.dumps(arguments)
        ranks = self._take(world)
        replies: dict[int, Done | Raised] = {}
        try:
            self._start(ranks, *sent, patience)
            _listen(ranks, replies, time.monotonic() + patience)
            busy = [i for i in range(world) if i not in replies]
            failure = _failure(replies, busy, world) or _timeout(ranks, busy, patience)
        finally:
            self._release(ranks, replies)
        if failure:
            raise failure
        return [pickle.loads(reply.result) for _, reply in sorted(replies.items()) if isinstance(reply, Done)]

    def _take(self, world: int) -> list[_Rank]:
        """As many living ranks as the world has. An idle rank has nothing to say but that its pipe is closed."""
        self._end([rank for rank in self._ranks if rank.pipe.poll()])
        while len(self._ranks) < world:
            self._ranks.append(_fork(self._folder / f"stacks-{next(self._names)}"))
        return self._ranks[:world]

    def _start(self, ranks: Sequence[_Rank], function: Reference, arguments: bytes, patience: float) -> None:
        meeting = self._folder / f"meeting-{next(self._names)}"
        for i, rank in enumerate(ranks):
            rank.tell(Job(i, len(ranks), meeting, patience + 2 * GRACE, function, arguments))

    def _release(self, ranks: Sequence[_Rank], replies: Mapping[int, Done | Raised]) -> None:
        """Lets ranks leave their world. A world in which one failed, or did not reply, is ended whole.

        What gloo had half connected would otherwise meet the next world's listeners, and rarely, that one hangs.
        """
        if len(replies) < len(ranks) or any(isinstance(reply, Raised) for reply in replies.values()):
            self._end(ranks)
            return
        for rank in ranks:
            rank.tell(None)

    def _end(self, ranks: Sequence[_Rank]) -> None:
        for rank in ranks:
            rank.end()
        self._ranks = [rank for rank in self._ranks if rank not in ranks]


def _fork(stacks: Path) -> _Rank:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with _environment(ONE_THREAD):
        forkserver.ensure_running()
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, stacks), daemon=True)
    try:
        process.start()
    except (EOFError, OSError) as error:
        raise RunError(
            f"No rank of the pool could be started: its fork server ended ({type(error).__name__}) while it imported "
            f"{', '.join(PRELOADED)}, or could not fork. What it printed stands above."
        ) from error
    finally:
        theirs.close()
    return _Rank(process, ours, stacks)


def _listen(ranks: Sequence[_Rank], replies: dict[int, Done | Raised], deadline: float) -> None:
    """Gathers replies until all have replied, or until the deadline, which a failure brings nearer."""
    waiting = {rank.pipe: i for i, rank in enumerate(ranks)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for pipe in connection.wait(list(waiting), left):
            i = waiting.pop(pipe)  # type: ignore[call-overload]
            replies[i] = ranks[i].hear()
            if isinstance(replies[i], Raised):
                deadline = min(deadline, time.monotonic() + GRACE)


def _failure(replies: Mapping[int, Done | Raised], busy: Sequence[int], world: int) -> RankError | None:
    """The first failure in time: the later ones are mostly its consequences."""
    failures = [(reply.at, i, reply) for i, reply in replies.items() if isinstance(reply, Raised)]
    if not failures:
        return None
    _, rank, first = min(failures, key=itemgetter(0, 1))
    after = f"Still busy {GRACE:.0f} s later, and ended: ranks {_listed(busy)}." if busy else ""
    return RankError(rank, world, first.kind, first.message, first.trace + after)


def _timeout(ranks: Sequence[_Rank], busy: Sequence[int], patience: float) -> RankError | None:
    """Where the ranks are that nobody hears from."""
    if not busy:
        return None
    for i in busy:
        with suppress(ProcessLookupError):
            os.kill(ranks[i].pid, STACKS)
    time.sleep(NOTICE)
    stacks = "\n".join(f"Rank {i} is here:\n{ranks[i].stacks.read_text()}" for i in busy)
    return RankError(
        busy[0], len(ranks), "timeout", f"ranks {_listed(busy)} still busy after {patience:g} s", stacks
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that a process started inside inherits: thread pools read them before any Python runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
