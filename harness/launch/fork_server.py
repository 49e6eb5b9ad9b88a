"""A fork server imports torch once; every rank is forked from that process in milliseconds.

The server starts with the settings of the machine card, because allocators and thread pools read theirs before any
Python runs. Each rank is a grandchild of the server. Its parent ends at once, so the kernel hands the rank to the
launcher, which can then wait for it and read its exit status. Ranks and server die with the launcher.

The server reports the package that is being imported, its readiness, and the process id of each rank. Reports travel
over a channel of their own, so that modules may print anything. The end of the server's output is kept for the message
of a start that fails.
"""

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL, byref, c_int
from importlib import import_module
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, NamedTuple, NoReturn

from harness.children import die_with_parent
from harness.comm.launchers import LAUNCHED, OTHER_VISIBLE_DEVICES, STARTED, VISIBLE_DEVICES
from harness.errors import RunError

IMPORTED = ("harness.run.rank", "harness.run.recording", "harness.results.parquet", "harness.kernels.tiles")
"""The modules that take seconds to import."""
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", LAUNCHED, STARTED, *VISIBLE_DEVICES, *OTHER_VISIBLE_DEVICES}
)
OF_LAUNCHERS = ("SLURM", "FLUX_", "PALS_", "PMI_", "PMIX_", "OMPI_", "JSM_", "MPI_LOCAL")
"""Variables that are read by Python code alone, and by drivers when a rank first asks for a GPU; prefixes of more of
them. Their values may differ from those of the fork server."""
TELL_SECONDS = 5.0
"""The interval at which a slow start reports its stage."""
ENDING_SECONDS = 5.0
"""The time that a process has to end once its channel is closed."""
OUTPUT_KEPT = 2000
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

Report = tuple[str, str]
"""The kind of a report (`stage`, `ready`, `pid` or `failed`) and its text."""


def how_it_ended(code: int | None) -> str:
    """An exit code in words. The code is negative for a signal, and None while the process lives."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):  # real-time signals have no names
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Waiting(NamedTuple):
    """The limit of a start in seconds, the way to raise the limit, and the receiver of messages about a slow start."""

    seconds: float = 120.0
    way_out: str = ""
    progress: Callable[[str], None] = lambda _: None


class Child:
    """A rank as its launcher sees it, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the rank lives."""
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
    """`with ForkServer() as server: server.start(...)`: the process starts with its first rank or in `prepare`."""

    def __init__(self) -> None:
        self._process: _ServerProcess | None = None
        self._settings: Mapping[str, str] = {}

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        program: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        streams: Sequence[int],
        waiting: Waiting = Waiting(),  # noqa: B008
        cores: Collection[int] = (),
    ) -> Iterator[Child]:
        """Starts `main` of a module once in each environment; `program` is the module's name and its arguments.

        `streams` are the descriptors of its standard input, output and error, and `cores` those that the rank may use
        if they are not those of this process.
        """
        with _adopting():
            for environment in environments:
                order = {"program": [*program], "environment": {**environment}, "cores": [*cores]}
                try:
                    self.prepare(environment)
                    yield Child(self._ready(waiting).fork(order, streams, waiting))
                except RunError:
                    self.close()
                    raise

    def close(self) -> None:
        """Ends the server; its ranks live on."""
        if self._process:
            self._process.close()
            self._process = None

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Lets the server import while its caller is busy, unless a server with these settings exists."""
        settings = _settings(environment)
        if self._process and self._settings != settings:
            self.close()
        if self._process is None:
            self._settings, self._process = settings, _ServerProcess(settings)

    def _ready(self, waiting: Waiting) -> "_ServerProcess":
        """The process, once it can fork."""
        assert self._process is not None
        if not self._process.ready:
            self._process.await_ready(waiting)
        return self._process


def alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """True if ranks of both environments can be forked from one server."""
    return _settings(one) == _settings(other)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        key: text
        for key, text in environment.items()
        if key not in RANK_VARIABLES and not key.startswith(OF_LAUNCHERS)
    }


class _ServerProcess:
    """The process of a fork server, as its launcher sees it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.ready = False
        self._stage = "starting Python"
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed with the process
        self._channel, remote = Pipe()
        with remote:
            self._popen = subprocess.Popen(
                # -P: a file of the working directory must not be imported in place of a module.
                [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(remote.fileno())],
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[remote.fileno()],
                preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509  the launcher has no threads of its own
            )

    def await_ready(self, waiting: Waiting) -> None:
        """Returns when everything is imported; the output of the imports goes to standard error."""
        self._await("ready", waiting)
        self.ready = True
        self._stage = "forking a rank"
        if output := self._last_output():
            print(output, file=sys.stderr)

    def fork(self, order: dict[str, Any], streams: Sequence[int], waiting: Waiting) -> int:
        """The process id of a new rank."""
        with suppress(OSError):  # the server has ended, and its last report says how
            self._channel.send(order)
            for stream in streams:
                send_handle(self._channel, stream, self._popen.pid)
        return int(self._await("pid", waiting))

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._channel.close()
        self._output.close()

    def _await(self, wanted: str, waiting: Waiting) -> str:
        """The text of the next report of a kind; reports of stages may come first."""
        begun = reported = time.monotonic()
        while True:
            kind, text = self._report(TELL_SECONDS / 10)
            now = time.monotonic()
            if kind == wanted:
                return text
            if kind == "stage":
                self._stage = text
            elif kind == "failed":
                raise self._failure(text)
            elif kind == "end":
                raise self._failure(f"{self._ending()} while it was {self._stage}")
            if now - begun > waiting.seconds:
                raise self._failure(f"was still {self._stage} after {waiting.seconds:g} s{waiting.way_out}")
            if now - reported > TELL_SECONDS:
                reported = now
                waiting.progress(f"waiting for ranks to start: {self._stage}, {now - begun:.0f} s")

    def _report(self, seconds: float) -> Report:
        """The next report: empty if none comes within the time, `end` if the channel is closed."""
        try:
            report: Report = self._channel.recv() if self._channel.poll(seconds) else ("", "")
        except (EOFError, OSError):
            return "end", ""
        return report

    def _ending(self) -> str:
        """The end of the server in words, after its last report."""
        try:
            return how_it_ended(self._popen.wait(ENDING_SECONDS))
        except subprocess.TimeoutExpired:
            return "closed the channel of its reports"

    def _failure(self, reason: str) -> RunError:
        output = self._last_output()
        return RunError(
            f"Ranks could not be started: the fork server, from which ranks are forked, {reason}. "
            + (f"The end of its output:\n{output}" if output else "It printed nothing.")
        )

    def _last_output(self) -> str:
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(self._output.tell() - OUTPUT_KEPT, 0))
        return self._output.read().decode(errors="replace").strip()


@contextmanager
def _adopting() -> Iterator[None]:
    """A context in which this process becomes the parent of descendants whose own parents have ended."""
    libc, before = CDLL(None), c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, byref(before))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)


# The code below runs in the fork server and in its ranks.


def main() -> int:
    """Forks a rank for every order that comes over the channel, until the launcher closes it."""
    launcher, channel = int(sys.argv[1]), Connection(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.meta_path.insert(0, announcer := _Announcer(channel))
    gc.disable()  # imports leave little garbage, and the search for it takes a tenth of their time
    for module in IMPORTED:
        import_module(module)
    import_module("harness.kernels.jit").warm_up_compiler()
    sys.meta_path.remove(announcer)
    gc.freeze()
    gc.enable()
    channel.send(("ready", ""))
    with suppress(EOFError):
        while True:
            order, streams = channel.recv(), [recv_handle(channel) for _ in range(3)]
            if _forked_away(launcher, channel):
                channel.send(("pid", str(os.getpid())))
                channel.close()
                _be_rank(order, streams)
            for stream in streams:
                os.close(stream)
    return 0


class _Announcer(MetaPathFinder):
    """A finder that finds nothing and reports which package is being imported."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._announced = channel, ""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        package = fullname.partition(".")[0]
        if package not in {self._announced, *sys.stdlib_module_names}:
            self._announced = package
            self._channel.send(("stage", f"importing {package}"))


def _forked_away(launcher: int, channel: Connection) -> bool:
    """Forks a grandchild that belongs to the launcher; True in the grandchild, False in the server."""
    between = _fork(channel)
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if _fork(channel):
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    if os.getppid() != launcher:
        with suppress(OSError):  # the launcher may have ended
            parent = f"the kernel gave one to process {os.getppid()}"
            channel.send(("failed", f"cannot give ranks to the launcher: {parent}"))
        os._exit(1)
    die_with_parent(launcher)()
    return True


def _fork(channel: Connection) -> int:
    try:
        return os.fork()
    except OSError as error:
        channel.send(("failed", f"cannot fork: {error}"))
        os._exit(1)


def _be_rank(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Runs the program and exits at once: taking the imported modules apart would cost time and gain nothing."""
    code = 1
    try:
        module, *sys.argv[1:] = order["program"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(order["environment"])
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        code = import_module(module).main()
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            code = error.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
