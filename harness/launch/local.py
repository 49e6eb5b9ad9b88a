"""Launches a run on this machine, waits, and sees to it that a record exists whatever happened.

The launcher imports no torch: it starts processes with the machine card's settings, which the allocator and the
thread pools read before any Python runs, and turns the first fault of a rank into the record when none was written.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import UserError
from harness.files import owner_tag, refusals, sweep
from harness.launch.cause import find_cause
from harness.launch.processes import Ranks, Watched
from harness.results.record import write_record
from harness.run.fault import Fault
from harness.spec.spec import Spec, canonical_json

PATIENCE = 20.0
"""Seconds in which nobody does anything, after which a run on CPUs counts as hung."""
OOM_COUNTERS = {
    Path("/sys/fs/cgroup/memory.events"): "oom_kill",
    Path("/sys/fs/cgroup/memory/memory.oom_control"): "oom_kill",
    Path("/proc/vmstat"): "oom_kill",
}
Progress = Callable[[str], None]


def launch(
    spec: Spec,
    root: Path,
    runs: Path,
    progress: Progress,
    *,
    in_process: bool = False,
    patience: float = PATIENCE,
) -> Path:
    """Runs a spec; returns its run folder, which holds a whole record of whatever status.

    In this process there can be one rank, and the machine card's allocator settings come too late for it.
    """
    if in_process and spec.ranks > 1:
        raise UserError(f"ranks = {spec.ranks}: one process runs one rank. Leave out --in-process.")
    with refusals(runs):
        runs.mkdir(parents=True, exist_ok=True)
        sweep(runs)
        sweep(runs.parent)
        folder = tempfile.TemporaryDirectory(prefix=f"launch-{owner_tag()}.", dir=runs.parent)
    with folder as name, _ending_when_told():
        scratch = Path(name)
        with refusals(scratch):
            (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
        started, killed = time.time(), _out_of_memory_kills()
        if in_process:
            watched = _run_here(root, runs, scratch)
        else:
            watched = _run_ranks(spec, root, runs, scratch, progress, patience)
        sweep(runs)
        if not (scratch / "done").exists():
            fault = find_cause(watched, scratch, spec.ranks, _out_of_memory_kills() > killed)
            _record_fault(spec, root, runs, fault, started)
    return runs / spec.run_id


def environment(spec: Spec, root: Path, rank: int = 0) -> dict[str, str]:
    """What a rank starts with: its place, and the thread counts and allocator settings of the machine card."""
    threads = str(spec.machine.threads_per_rank)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(spec.ranks)}
    # Ranks of one machine speak through its loopback, whatever its name resolves to.
    link = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return {**os.environ, **link, **fixed, **spec.machine.allocator, **place, "HARNESS_ROOT": str(root)}


def _run_ranks(
    spec: Spec, root: Path, runs: Path, scratch: Path, progress: Progress, patience: float
) -> Watched:
    module = [
        "-m",
        "harness.run.rank",
        "--scratch",
        scratch,
        "--runs",
        runs,
        "--meeting",
        scratch / "meeting",
    ]
    environments = [environment(spec, root, rank) for rank in range(spec.ranks)]
    watched_by_time = patience if spec.machine.device == "cpu" else None
    with Ranks([sys.executable, *map(str, module)], environments, scratch / "log") as ranks:
        return ranks.watch(watched_by_time, _Progress(scratch / "progress", progress).pass_on)


def _run_here(root: Path, runs: Path, scratch: Path) -> Watched:
    from harness.comm.engine import Place
    from harness.run.rank import attempt

    attempt(Place(), root, scratch, runs)
    return Watched([], False, [])


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


def _record_fault(spec: Spec, root: Path, runs: Path, fault: Fault, started: float) -> None:
    from harness.run.provenance import provenance

    record = {
        "run_id": spec.run_id,
        "label": spec.label,
        "status": fault["status"],
        "source": "measured",
        "summary": {},
        "provenance": {**provenance(root), "started": started, "finished": time.time()},
        "error": {key: fault[key] for key in ("rank", "type", "message", "trace")},
    }
    write_record(runs, spec.model_dump(mode="json"), record, {})


def _out_of_memory_kills() -> int:
    """How many processes of this machine or container the kernel has killed for want of memory, if it says."""
    for path, field in OOM_COUNTERS.items():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)
            return int(counts.get(field, 0))
    return 0
