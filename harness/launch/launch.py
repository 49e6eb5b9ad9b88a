"""Launches a run, waits, and sees to it that a record exists whatever happened.

The launcher imports no torch: it has ranks started, here or by Slurm (`launch.ways`), and turns the first fault of a
rank into the record when none was written. What the place did to a run, a lost node for one, goes on no record: the run
is to be tried again.
"""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from harness.errors import RunError, UserError
from harness.files import owner_tag, refusals, sweep
from harness.launch.cause import find_cause, nobody_is_to_blame
from harness.launch.fork_server import ForkServer
from harness.launch.hang_detector import HangDetector
from harness.launch.processes import Ranks, Watched
from harness.launch.ways import way
from harness.run.fault import Fault
from harness.run.provenance import COMMAND, command
from harness.spec.spec import Spec, canonical_json

OOM_COUNTERS = {
    Path("/sys/fs/cgroup/memory.events"): "oom_kill",
    Path("/sys/fs/cgroup/memory/memory.oom_control"): "oom_kill",
    Path("/proc/vmstat"): "oom_kill",
}
Progress = Callable[[str], None]


class Patience(NamedTuple):
    """How long a run may take, in seconds."""

    still: float = 20.0
    """After which a rank that is stopped, or ranks on CPUs that all sleep, count as hung (`launch.hang_detector`)."""
    recording: float = 1800.0
    """The same for ranks that sleep when training is over: far more than a slow disk takes."""
    limit: float | None = None
    """After which it is stopped, and recorded as a timeout with the epochs that were finished."""


PATIENCE = Patience()


def launch(
    spec: Spec,
    root: Path,
    runs: Path,
    progress: Progress,
    patience: Patience = PATIENCE,
    fork_server: ForkServer | None = None,
) -> Path:
    """Runs a spec; returns its run folder, which holds a whole record of whatever status.

    Ranks are forked from the fork server, or from one of their own.
    """

    def ranks(scratch: Path) -> Watched:
        with nullcontext(fork_server) if fork_server else ForkServer() as opened:
            return _run_ranks(spec, root, runs, scratch, progress, patience, opened)

    return _recorded(spec, root, runs, ranks)


def launch_here(spec: Spec, root: Path, runs: Path) -> Path:
    """The same in this process, of one rank. The machine card's allocator settings come too late for it."""
    if spec.ranks > 1:
        raise UserError(f"ranks = {spec.ranks}: one process runs one rank. Leave out --in-process.")
    return _recorded(spec, root, runs, lambda scratch: _run_here(root, runs, scratch))


def _recorded(spec: Spec, root: Path, runs: Path, run: Callable[[Path], Watched]) -> Path:
    """Runs in a scratch folder, and sees to the record."""
    with refusals(runs):
        runs.mkdir(parents=True, exist_ok=True)
        sweep(runs)
        sweep(runs.parent)
        folder = tempfile.TemporaryDirectory(prefix=f"launch-{owner_tag()}.", dir=runs.parent)
    with folder as name, _ending_when_told():
        scratch = Path(name)
        with refusals(scratch):
            (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
            (scratch / COMMAND).write_text(command())
        started, killed = time.time(), _out_of_memory_kills()
        watched = run(scratch)
        sweep(runs)
        if not (scratch / "done").exists():
            memory_ran_out = watched.out_of_memory or _out_of_memory_kills() > killed
            fault = find_cause(watched, scratch, spec.ranks, memory_ran_out)
            _record_fault(spec, root, runs, scratch, fault, started)
    return runs / spec.run_id


def _run_ranks(
    spec: Spec,
    root: Path,
    runs: Path,
    scratch: Path,
    progress: Progress,
    patience: Patience,
    fork_server: ForkServer,
) -> Watched:
    folders = {"--scratch": scratch, "--runs": runs, "--meeting": scratch / "meeting"}
    words = [str(word) for option in folders.items() for word in option]
    chosen = way(spec.machine, spec.ranks, root, ["harness.run.rank", *words])
    with Ranks(chosen.start(fork_server, scratch / "log", progress), chosen.ending) as ranks:
        watched = ranks.watch(
            HangDetector(
                patience.still if chosen.here else None,
                patience.recording,
                by_sleep=spec.machine.device == "cpu",
            ),
            patience.limit,
            _Progress(scratch / "progress", progress).pass_on,
            (scratch / "recording").exists,
        )
    if chosen.here or (scratch / "done").exists():
        return watched
    watched = chosen.understand(watched, scratch / "log")
    if nobody_is_to_blame(watched, scratch):
        raise RunError(f"{spec.label} has no record, its ranks were lost: {watched.lost or 'to each other'}")
    return watched


def _run_here(root: Path, runs: Path, scratch: Path) -> Watched:
    from harness.comm.engine import Place
    from harness.run.rank import attempt

    attempt(Place(), root, scratch, runs)
    return Watched()


class _Progress:
    """Passes on what rank 0 says of its progress, each thing once."""

    def __init__(self, file: Path, tell: Progress) -> None:
        self._file, self._tell, self._said = file, tell, ""

    def pass_on(self) -> None:
        now = self._file.read_text() if self._file.exists() else ""
        if now != self._said:
            self._said = now
            self._tell(now)


@contextmanager
def _ending_when_told() -> Iterator[None]:
    """A SIGTERM ends the ranks and cleans up, as an interrupt does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _record_fault(spec: Spec, root: Path, runs: Path, scratch: Path, fault: Fault, started: float) -> None:
    from harness.run.provenance import provenance
    from harness.run.recording import record_unfinished
    from harness.run.unfinished import read_unfinished

    told = {**provenance(root, scratch), "started": started, "finished": time.time()}
    record_unfinished(runs, spec, read_unfinished(scratch, spec.ranks), told, fault)


def _out_of_memory_kills() -> int:
    """How many processes of this machine or container the kernel has killed for want of memory, if it says."""
    for path, field in OOM_COUNTERS.items():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)
            return int(counts.get(field, 0))
    return 0
