"""A process that has imported what ranks need: they are forked from it, and nobody waits for torch again.

It starts with the settings of the machine card, which allocators and thread pools read before any Python runs. A rank
is a child's child whose parent has gone, so that the kernel gives it to the launcher, which sees itself how it ended.
Ranks and fork server die with the launcher.

The fork server reports through a pipe of its own what it imports, that it is ready, and each rank's process id; so
whatever modules print does no harm. What it prints is kept for the error of a start that fails.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL, byref, c_int
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, NamedTuple, NoReturn

from harness.errors import RunError

IMPORTED = ("harness.run.rank", "harness.run.recording", "torch._dynamo")
"""What takes seconds."""
PLACE = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""Variables that are read by Python, and so may differ from those of the fork server."""
TELL_SECONDS = 5.0
"""How often a start that takes long says what it waits for."""
ENDING_SECONDS = 5.0
"""How long a process takes to end at most once its pipes are closed."""
WORDS_KEPT = 2000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37


def how_it_ended(code: int | None) -> str:
    """An exit code in words; it is negative for a signal, and None while a process lives."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):  # signals of real time have no names
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Waiting(NamedTuple):
    """How long a start may take, what is said of this limit, and who is told what it waits for."""

    seconds: float = 120.0
    way_out: str = ""
    progress: Callable[[str], None] = lambda _: None


class Child:
    """A rank as its launcher sees it: what `subprocess.Popen` tells of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def send_signal(self, what: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, what)


class ForkServer:
    """`with ForkServer() as server: server.start(...)`: its process is started when it is first needed."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._settings: Mapping[str, str] = {}

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def start(
        self,
        program: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        log: Path,
        waiting: Waiting = Waiting(),  # noqa: B008
    ) -> Iterator[Child]:
        """A module with a `main` and its words, once in each environment."""
        with _adopting():
            for environment in environments:
                settings = {key: text for key, text in environment.items() if key not in PLACE}
                order = {"program": [*program], "environment": {**environment}, "log": str(log)}
                try:
                    yield Child(self._with(settings, waiting).fork(order, waiting))
                except RunError:
                    self._close()
                    raise

    def _with(self, settings: Mapping[str, str], waiting: Waiting) -> "_Process":
        """The process with these settings, when it is ready."""
        if self._process and self._settings != settings:
            self._close()
        if self._process is None:
            self._settings, self._process = settings, _Process(settings)
            self._process.await_ready(waiting)
        return self._process

    def _close(self) -> None:
        if self._process:
            self._process.close()
            self._process = None


class _Process:
    """The process of a fork server, as its launcher sees it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._stage = "starting Python"
        self._unread: list[str] = []
        self._words: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed with the process
        self._reports, theirs = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), str(theirs)],
                env=settings,
                stdin=subprocess.PIPE,
                stdout=self._words,
                stderr=self._words,
                text=True,
                pass_fds=[theirs],
                preexec_fn=tie(os.getpid(), signal.SIGKILL),  # noqa: PLW1509  the launcher has no threads of its own
            )
        finally:
            os.close(theirs)

    def await_ready(self, waiting: Waiting) -> None:
        """Returns when everything is imported; what modules printed meanwhile goes where it would have gone."""
        self._await("ready", waiting)
        self._stage = "forking a rank"
        if words := self._last_words():
            print(words, file=sys.stderr)

    def fork(self, order: dict[str, Any], waiting: Waiting) -> int:
        """The process id of a new rank."""
        assert self._popen.stdin, "a pipe"
        with suppress(BrokenPipeError):  # it ended, and the pipe of its reports has too
            self._popen.stdin.write(json.dumps(order) + "\n")
            self._popen.stdin.flush()
        return int(self._await("pid", waiting))

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()
        os.close(self._reports)
        self._words.close()

    def _await(self, wanted: str, waiting: Waiting) -> str:
        """The rest of the next report that begins so; those before it say what the fork server is doing."""
        begun = told = time.monotonic()
        while True:
            kind, _, rest = self._report(TELL_SECONDS / 10).partition(" ")
            now = time.monotonic()
            if kind == wanted:
                return rest
            if kind == "stage":
                self._stage = rest
            elif kind == "failed":
                raise self._failure(rest)
            elif kind == "end":
                raise self._failure(f"{self._ending()} while it was {self._stage}")
            if now - begun > waiting.seconds:
                raise self._failure(f"was still {self._stage} after {waiting.seconds:g} s{waiting.way_out}")
            if now - told > TELL_SECONDS:
                told = now
                waiting.progress(f"waiting for ranks to start: {self._stage}, {now - begun:.0f} s")

    def _report(self, seconds: float) -> str:
        """The next line of its reports; nothing if there is none within that time."""
        if not self._unread and select.select([self._reports], [], [], seconds)[0]:
            self._unread = os.read(self._reports, 1 << 20).decode().splitlines() or ["end"]
        return self._unread.pop(0) if self._unread else ""

    def _ending(self) -> str:
        """How it ended, after its last report."""
        try:
            return how_it_ended(self._popen.wait(ENDING_SECONDS))
        except subprocess.TimeoutExpired:
            return "closed the pipe of its reports"

    def _failure(self, what: str) -> RunError:
        words = self._last_words()
        return RunError(
            f"Ranks could not be started: the fork server, from which they are forked, {what}. "
            + (f"The last that it printed:\n{words}" if words else "It printed nothing.")
        )

    def _last_words(self) -> str:
        self._words.seek(0, os.SEEK_END)
        self._words.seek(max(self._words.tell() - WORDS_KEPT, 0))
        return self._words.read().decode(errors="replace").strip()


@contextmanager
def _adopting() -> Iterator[None]:
    """Inside, children whose parents are gone become this process's own."""
    libc, before = CDLL(None), c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, byref(before))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)


def tie(parent: int, ending: signal.Signals) -> Callable[[], None]:
    """What a child does first: ask the kernel to end it when its parent dies, which may have happened already."""
    libc = CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os._exit(1)

    return ask


# What follows runs in the fork server.

Tell = Callable[[str], None]


def main() -> int:
    """Forks a rank for every line that it reads."""
    launcher, channel = map(int, sys.argv[1:])

    def tell(report: str) -> None:
        os.write(channel, f"{report}\n".encode())

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.meta_path.insert(0, announcer := _Announcer(tell))
    for module in IMPORTED:
        import_module(module)
    sys.meta_path.remove(announcer)
    gc.freeze()
    tell("ready")
    for line in iter(sys.stdin.readline, ""):
        if _forked_away(launcher, tell):
            tell(f"pid {os.getpid()}")
            os.close(channel)
            _be(json.loads(line))
    return 0


class _Announcer(MetaPathFinder):
    """Finds nothing, and tells which package is being imported."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._told = tell, ""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        package = fullname.partition(".")[0]
        if package not in {self._told, *sys.stdlib_module_names}:
            self._told = package
            self._tell(f"stage importing {package}")


def _forked_away(launcher: int, tell: Tell) -> bool:
    """True in the rank, False here."""
    between = _fork(tell)
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if _fork(tell):
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    if os.getppid() != launcher:  # nobody hears this if the launcher has ended
        with suppress(OSError):
            tell(f"failed cannot give ranks to the launcher: the kernel gave one to process {os.getppid()}")
        os._exit(1)
    tie(launcher, signal.SIGKILL)()
    return True


def _fork(tell: Tell) -> int:
    try:
        return os.fork()
    except OSError as error:
        tell(f"failed cannot fork: {error}")
        os._exit(1)


def _be(order: dict[str, Any]) -> NoReturn:
    """The rank, to its end: at once, without taking apart module by module what was imported."""
    code = 1
    try:
        module, *sys.argv[1:] = order["program"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(order["environment"])
        _redirect(order["log"])
        code = import_module(module).main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    """Standard streams as a process has them that nobody talks to."""
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target, stream in enumerate((nothing, file, file)):
        os.dup2(stream, target)
    os.close(nothing)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
