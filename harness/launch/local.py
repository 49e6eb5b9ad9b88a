"""Launches a run on this machine, waits, and sees to it that a record exists whatever happened.

The launcher imports no torch: it starts processes with the machine card's settings, which the allocator and the
thread pools read before any Python runs, and turns the first fault of a rank into the record when none was written.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.results.files import refusals
from harness.results.record import write_record
from harness.run.fault import first_fault
from harness.spec.spec import Spec, canonical_json

POLL_SECONDS = 0.05
LOG_KEPT = 4000
Progress = Callable[[str], None]


def launch(spec: Spec, root: Path, runs: Path, progress: Progress, *, in_process: bool = False) -> Path:
    """Runs a spec; returns its run folder, which holds a whole record of whatever status.

    In this process there can be one rank, and the machine card's allocator settings come too late for it.
    """
    if in_process and spec.ranks > 1:
        raise UserError(f"ranks = {spec.ranks}: one process runs one rank. Leave out --in-process.")
    with refusals(runs):
        runs.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="launch-", dir=runs.parent)
    with folder as name:
        scratch = Path(name)
        with refusals(scratch):
            (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
        started = time.time()
        here = (root, runs, scratch)
        code = _run_here(*here) if in_process else _run_ranks(spec, *here, progress)
        if not (scratch / "done").exists():
            _record_fault(spec, root, runs, scratch, code, started)
    return runs / spec.run_id


def environment(spec: Spec, root: Path) -> dict[str, str]:
    """What every rank starts with: thread counts and allocator settings of the machine card."""
    threads = str(spec.machine.threads_per_rank)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    return {**os.environ, **fixed, **spec.machine.allocator, "HARNESS_ROOT": str(root)}


def _run_ranks(spec: Spec, root: Path, runs: Path, scratch: Path, progress: Progress) -> int:
    module = ["-m", "harness.run.rank", "--scratch", str(scratch), "--runs", str(runs)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={spec.ranks}"]
    command = [sys.executable, *(torchrun if spec.ranks > 1 else []), *module]
    with (scratch / "log").open("wb") as log:
        ranks = subprocess.Popen(
            command, env=environment(spec, root), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            return _wait(ranks, scratch / "progress", progress)
        finally:
            _end(ranks)


def _run_here(root: Path, runs: Path, scratch: Path) -> int:
    from harness.comm.engine import Place
    from harness.run.rank import attempt

    return attempt(Place(), root, scratch, runs)


def _wait(ranks: subprocess.Popen[bytes], file: Path, progress: Progress) -> int:
    """Passes on what rank 0 says of its progress until the ranks are done."""
    said = ""
    while True:
        code = ranks.poll()
        now = file.read_text() if file.exists() else ""
        if now != said:
            said = now
            progress(now)
        if code is not None:
            return code
        time.sleep(POLL_SECONDS)


def _end(ranks: subprocess.Popen[bytes]) -> None:
    """No rank outlives its launcher's wait, not even when that is interrupted."""
    if ranks.poll() is None:
        ranks.terminate()
        try:
            ranks.wait(timeout=10)
        except subprocess.TimeoutExpired:
            ranks.kill()
            ranks.wait()


def _record_fault(spec: Spec, root: Path, runs: Path, scratch: Path, code: int, started: float) -> None:
    from harness.run.provenance import provenance

    fault: dict[str, Any] = first_fault(scratch) or {
        "rank": -1,
        "type": "Exit",
        "message": f"the ranks ended with code {code} and left no reason; `trace` has the end of their log",
        "status": "failed",
        "trace": _end_of(scratch / "log"),
    }
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


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_KEPT:] if log.exists() else ""
