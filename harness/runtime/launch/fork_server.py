"""A fork server imports torch once, and forks every rank from that process in milliseconds.

The server starts with the settings of the machine card, because allocators and thread pools read their settings before
Python starts. Each rank is a grandchild of the server. Its parent exits at once, so that the kernel makes the launcher
its parent, which can then wait for the rank and read its exit status. Ranks and server die with the launcher.

The server reports the package that it is importing, that it is ready, and the process id of each rank. Reports have a
separate channel, so that modules may print anything. The error message of a failed start has the end of the server's
output.
"""

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL, byref, c_int
from importlib import import_module
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO, Any, NoReturn

from harness.base.children import die_with_parent
from harness.base.errors import RunError
from harness.comm.launchers import LAUNCHED, OTHER_VISIBLE_DEVICES, STARTED, VISIBLE_DEVICES
from harness.runtime.launch.time_limits import START_LIMITS, StartLimits

PRELOADED_MODULES = (
    "harness.runtime.rank",
    "harness.runtime.recording",
    "harness.results.parquet",
    "harness.kernels.tiles",
)
"""The modules that the ranks of a run need and whose import takes seconds."""
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", LAUNCHED, STARTED, *VISIBLE_DEVICES, *OTHER_VISIBLE_DEVICES}
)
LAUNCHER_PREFIXES = ("SLURM", "FLUX_", "PALS_", "PMI_", "PMIX_", "OMPI_", "JSM_", "MPI_LOCAL")
"""Names and prefixes of variables whose values may differ between the ranks of one fork server: only Python code reads
them, or a driver when a rank first uses a GPU."""
TORCH_VARIABLES = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""The variable that torch sets in its own process when it imports its compiler, as a replay does."""
CALL = "harness.runtime.launch.forked_call"
"""The program of a process that calls one function."""
OUTPUT_BYTES_KEPT = 2000
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

Report = tuple[str, str]
"""The kind of a report (`stage`, `ready`, `pid` or `failed`) and its text."""


def describe_exit(code: int | None) -> str:
    """Describe an exit code, which is negative for a signal, and None while the process runs."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):  # real-time signals have no names
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def select_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that must be equal for all ranks of one fork server.

    Allocators, thread pools and libraries may have read them when the server started.
    """
    return {
        key: text
        for key, text in environment.items()
        if key not in RANK_VARIABLES | TORCH_VARIABLES and not key.startswith(LAUNCHER_PREFIXES)
    }


class Child:
    """The launcher's handle of a forked process, with methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = Lock()
        """Held while a thread reads the exit code, which the kernel gives away once."""

    def poll(self) -> int | None:
        """Return the exit code, which is negative for a signal, or None while the process runs."""
        with self._lock:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while deadline is not None and self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code

    def send_signal(self, sig: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts ranks: `with ForkServer() as server: server.start(...)`.

    The process of the server starts with the first rank, or in `prepare`, and imports `modules`.
    """

    def __init__(self, modules: Sequence[str] = PRELOADED_MODULES) -> None:
        self._modules = modules
        self._process: _ServerProcess | None = None
        self._settings: Mapping[str, str] = {}
        """The settings with which the server started last."""

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
        limits: StartLimits = START_LIMITS,
        cores: Collection[int] = (),
    ) -> Iterator[Child]:
        """Start one rank in each environment. `program` is the name of a module with a `main`, and its arguments.

        `streams` are the descriptors of standard input, output and error. `cores` are the cores that the ranks may use,
        by default all cores of this process.
        """
        with _adopt_orphans():
            for environment in environments:
                order = {"program": [*program], "environment": {**environment}, "cores": [*cores]}
                try:
                    self.prepare(environment)
                    yield Child(self._ready_process(limits).fork(order, streams, limits))
                except RunError:
                    self.close()
                    raise

    def call(self, function: str, *arguments: Any) -> Any:
        """Return the result of a function, given as module:name, in a process that is forked from the server.

        So this process need not import what the function imports. The server must have been prepared. Raises the error
        of the function, with the traceback as a note.
        """
        channel, remote = Pipe()
        with channel, remote:
            streams = remote.fileno(), 1, 2
            (child,) = self.start([CALL, function], [self._settings], streams)
            remote.close()
            try:
                channel.send(arguments)
                error, result = channel.recv()
            except (EOFError, ConnectionError):
                raise RunError(
                    f"{function} was not completed: its process {describe_exit(child.wait())}"
                ) from None
        child.wait()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the server. Its ranks go on."""
        if self._process:
            self._process.close()
            self._process = None

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Make the server import in the background, unless a server with these settings already runs."""
        settings = select_settings(environment)
        if self._process and self._settings != settings:
            self.close()
        if self._process is None:
            self._settings = settings
            self._process = _start_server(settings, self._modules)

    def _ready_process(self, limits: StartLimits) -> "_ServerProcess":
        """Return the server's process, once it can fork."""
        assert self._process is not None
        if not self._process.ready:
            self._process.wait_until_ready(limits)
        return self._process


def can_share_server(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return True if ranks of both environments can be forked from one server."""
    return select_settings(one) == select_settings(other)


class _ServerProcess:
    """The launcher's handle of a fork server's process."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Connection, output: IO[bytes]) -> None:
        self.ready = False
        self._stage = "starting Python"
        self._process, self._channel, self._output = process, channel, output

    def wait_until_ready(self, limits: StartLimits) -> None:
        """Wait until all modules are imported, and print the output of the imports to standard error."""
        self._wait_for_report("ready", limits)
        self.ready = True
        self._stage = "forking a rank"
        if output := self._read_output_end():
            print(output, file=sys.stderr)

    def fork(self, order: dict[str, Any], streams: Sequence[int], limits: StartLimits) -> int:
        """Fork a rank, and return its process id."""
        with suppress(OSError):  # the server has ended, and its last report says why
            self._channel.send(order)
            for stream in streams:
                send_handle(self._channel, stream, self._process.pid)
        return int(self._wait_for_report("pid", limits))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()
        self._output.close()

    def _wait_for_report(self, wanted: str, limits: StartLimits) -> str:
        """Return the text of the next report of a kind. Reports of stages may come first."""
        begun = reported = time.monotonic()
        while True:
            kind, text = self._receive_report(limits.report_interval / 10)
            now = time.monotonic()
            if kind == wanted:
                return text
            if kind == "stage":
                self._stage = text
            elif kind == "failed":
                raise self._make_error(text)
            elif kind == "end":
                raise self._make_error(f"{self._describe_end(limits)} while it was {self._stage}")
            if now - begun > limits.seconds:
                raise self._make_error(f"was still {self._stage} after {limits.seconds:g} s{limits.way_out}")
            if now - reported > limits.report_interval:
                reported = now
                limits.progress(f"waiting for ranks to start: {self._stage}, {now - begun:.0f} s")

    def _receive_report(self, timeout: float) -> Report:
        """Return the next report: empty if none comes within the timeout, `end` if the channel is closed."""
        try:
            report: Report = self._channel.recv() if self._channel.poll(timeout) else ("", "")
        except (EOFError, OSError):
            return "end", ""
        return report

    def _describe_end(self, limits: StartLimits) -> str:
        """Describe how the server ended after its last report."""
        try:
            return describe_exit(self._process.wait(limits.ending))
        except subprocess.TimeoutExpired:
            return "closed the channel of its reports"

    def _make_error(self, reason: str) -> RunError:
        output = self._read_output_end()
        return RunError(
            f"Ranks could not be started: the fork server, from which ranks are forked, {reason}. "
            + (f"The end of its output:\n{output}" if output else "It printed nothing.")
        )

    def _read_output_end(self) -> str:
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(self._output.tell() - OUTPUT_BYTES_KEPT, 0))
        return self._output.read().decode(errors="replace").strip()


def _start_server(settings: Mapping[str, str], modules: Sequence[str]) -> _ServerProcess:
    """Start a server that imports modules."""
    output: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed with the handle
    channel, remote = Pipe()
    with remote:
        process = subprocess.Popen(
            # -P: a file of the working directory must not be imported in place of a module.
            [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(remote.fileno()), *modules],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[remote.fileno()],
            preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509  the launcher has one thread
        )
    return _ServerProcess(process, channel, output)


@contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Make this process the parent of descendants whose own parents have exited, within the block."""
    libc, before = CDLL(None), c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, byref(before))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)


# The code of the fork server and its ranks.


def main() -> int:
    """Import modules, and fork a rank for every order that the channel delivers."""
    launcher, channel, modules = int(sys.argv[1]), Connection(int(sys.argv[2])), sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.meta_path.insert(0, reporter := _ImportReporter(channel))
    _import_modules(modules)
    sys.meta_path.remove(reporter)
    _serve_orders(launcher, channel)
    return 0


def _import_modules(modules: Sequence[str]) -> None:
    """Import modules and the compiler of kernels, and keep all of it out of garbage collection."""
    gc.disable()  # imports leave little garbage, and collection takes a tenth of their time
    for module in modules:
        import_module(module)
    import_module("harness.kernels.jit").warm_up_compiler()
    gc.freeze()
    gc.enable()


def _serve_orders(launcher: int, channel: Connection) -> None:
    """Fork a rank for every order that the channel delivers, until the launcher closes it."""
    channel.send(("ready", ""))
    with suppress(EOFError):
        while True:
            order, streams = channel.recv(), [recv_handle(channel) for _ in range(3)]
            if _fork_rank(launcher, channel):
                channel.send(("pid", str(os.getpid())))
                channel.close()
                run_rank(order, streams)
            for stream in streams:
                os.close(stream)


class _ImportReporter(MetaPathFinder):
    """A finder that reports which package is being imported, and leaves the import to the next finder."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._reported = channel, ""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        package = fullname.partition(".")[0]
        if package not in {self._reported, *sys.stdlib_module_names}:
            self._reported = package
            self._channel.send(("stage", f"importing {package}"))


def _fork_rank(launcher: int, channel: Connection) -> bool:
    """Fork a grandchild whose parent becomes the launcher. Return True in the grandchild, False in the server."""
    middle = _fork_or_report(channel)
    if middle:
        os.waitpid(middle, 0)
        return False
    middle = os.getpid()
    if _fork_or_report(channel):
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(0.0005)
    if os.getppid() != launcher:
        with suppress(OSError):  # the launcher may have ended
            parent = f"the kernel gave one to process {os.getppid()}"
            channel.send(("failed", f"cannot give ranks to the launcher: {parent}"))
        os._exit(1)
    die_with_parent(launcher)()
    return True


def _fork_or_report(channel: Connection) -> int:
    """Fork this process, or report the failure and exit."""
    try:
        return os.fork()
    except OSError as error:
        channel.send(("failed", f"cannot fork: {error}"))
        os._exit(1)


def run_rank(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run the program as a rank, and exit at once: Python's finalization would take time and is not needed."""
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
