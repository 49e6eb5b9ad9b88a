"""A pool of rank processes that stay alive, for the many small worlds of the tests and of `harness check`.

Importing torch costs seconds a process; here it is paid once, in a server from which the ranks are forked. Every job
has a fresh process group, met through a file in a private folder: no fixed ports. Ranks run one thread each and take
warnings for errors. What a job does with its world is its own business.
"""

import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.errors import RunError
from harness.launch.fork_server import how_it_ended
from harness.launch.pool_rank import STACKS, Done, Job, Raised, Reference, serve

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
