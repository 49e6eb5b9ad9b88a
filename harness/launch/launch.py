"""Launches runs, one or a series, and makes sure that each run leaves a record, whatever its end.

The launcher imports no torch: it starts ranks, on this machine or by Slurm (`launch.rank_starter`), and watches them
(`launch.processes`). If no rank wrote the record, the launcher writes one with the first fault. A fault of the machine,
such as a lost node, goes on no record, and the run can be tried again.
"""

import json
import os
import platform
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache, partial
from itertools import count
from math import inf
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from harness.children import ending_on_sigterm
from harness.comm.hosts import is_single_machine
from harness.comm.launchers import RankPlace, read_place
from harness.errors import RunError, UserError
from harness.files import (
    SCRATCH,
    SCRATCH_NAMES,
    explain_os_errors,
    is_own,
    naming_full_disk,
    owner_tag,
    remove_leftovers,
)
from harness.launch.fork_server import ForkServer
from harness.launch.hang_detector import HangDetector
from harness.launch.processes import Ranks, Watched, find_cause, nobody_is_to_blame
from harness.launch.rank_starter import rank_starter
from harness.locks import acquire_lock, try_lock
from harness.results.record import read_record
from harness.results.schema import SETTLED
from harness.run.fault import Fault, read_faults, write_fault
from harness.run.provenance import BLOCK_PLACE, COMMAND, BlockPlace, command_line
from harness.slurm.jobs import RunHistory, RunMinutes, estimate_run_minutes
from harness.slurm.resources import OUTAGE_SECONDS, RETRY_SECONDS, load_site, load_slurm
from harness.slurm.srun import find_scheduler, read_seconds_left
from harness.spec.machine_card import Machine
from harness.spec.spec import Spec, canonical_json
from harness.validation import format_value

OOM_COUNTERS = {
    Path("/sys/fs/cgroup/memory.events"): "oom_kill",
    Path("/sys/fs/cgroup/memory/memory.oom_control"): "oom_kill",
    Path("/proc/vmstat"): "oom_kill",
}
Progress = Callable[[str], None]
NOTHING: Mapping[str, float | None] = {}


class TimeLimits(NamedTuple):
    """The limits of a run and of its standstills, in seconds."""

    still: float = 20.0
    """The time after which a stopped rank, or ranks on CPUs that all sleep, count as hung (`launch.hang_detector`)."""
    recording: float = 1800.0
    """The same for ranks that sleep when training is over: far more than a slow disk takes."""
    run: float | None = None
    """The time after which a run is stopped and recorded as a timeout, with its finished epochs."""
    job: float | None = None
    """The time that the job has for the run. A run that is stopped by this one has no record."""


LIMITS = TimeLimits()


def launch(
    spec: Spec,
    root: Path,
    runs: Path,
    progress: Progress,
    limits: TimeLimits = LIMITS,
    fork_server: ForkServer | None = None,
    turn: BlockPlace | None = None,
) -> Path:
    """Runs a spec; returns its run folder, which holds a whole record of whatever status.

    Ranks are forked from the given fork server, or from a new one. In a world that another launcher started, they are
    the processes of this world.
    """
    if world := joined_world():
        return _recorded(spec, root, runs, partial(world.lead, spec, root, runs))

    def ranks(scratch: Path) -> Watched:
        with nullcontext(fork_server) if fork_server else ForkServer() as opened:
            deadline = time.monotonic() + OUTAGE_SECONDS
            while True:
                watched = _run_ranks(spec, root, runs, scratch, progress, limits, opened)
                if not watched.never_started:
                    return watched
                if time.monotonic() > deadline:
                    raise RunError(
                        f"{spec.label} has no record: no Slurm controller answered for {OUTAGE_SECONDS:.0f} s."
                    )
                progress("No Slurm controller answers; the step is started again.")
                (scratch / "log").unlink()
                time.sleep(RETRY_SECONDS)

    return _recorded(spec, root, runs, ranks, turn)


@contextmanager
def exclusive(spec: Spec, runs: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a run, so that equal runs of several processes run one after the other.

    A record that is read within the block belongs to the caller's own run.
    """
    with ExitStack() as held:
        with explain_os_errors(runs):
            lock = acquire_lock(
                runs / f".{spec.run_id}.lock",
                wait=lambda: progress(
                    f"{spec.label}: another process has this run under way. Waiting for its end."
                ),
            )
            held.enter_context(lock)
        yield


def _remove_free_locks(runs: Path) -> None:
    """Remove the lock files of `exclusive` that killed processes have left."""
    for path in runs.glob(".*.lock"):
        with try_lock(path) as is_free:
            if is_free:
                path.unlink(missing_ok=True)


def prepare(fork_server: ForkServer, machine: Machine, root: Path) -> None:
    """Lets the fork server import with the settings of a machine, if it will start the ranks there."""
    starter = rank_starter(machine, 1, root, [])
    if starter.here:
        fork_server.prepare(starter.environments[0])


def launch_here(spec: Spec, root: Path, runs: Path) -> Path:
    """Runs a spec of one rank in this process, too late for the allocator settings of the machine card."""
    if spec.ranks > 1:
        raise UserError(f"ranks = {spec.ranks}: one process runs one rank. Leave out --in-process.")
    return _recorded(spec, root, runs, lambda scratch: _run_here(root, runs, scratch))


def _recorded(
    spec: Spec, root: Path, runs: Path, run: Callable[[Path], Watched], turn: BlockPlace | None = None
) -> Path:
    """Runs in a scratch folder, and writes the record if no rank did."""
    with explain_os_errors(runs):
        runs.mkdir(parents=True, exist_ok=True)
        remove_leftovers(runs)
        remove_leftovers(runs.parent)
        _remove_free_locks(runs)
        folder = tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{owner_tag()}.", dir=runs.parent)
    with folder as name, naming_full_disk(runs.parent), ending_on_sigterm():
        scratch = Path(name)
        with explain_os_errors(scratch):
            (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")), encoding="utf-8")
            (scratch / COMMAND).write_text(command_line(), encoding="utf-8")
            if turn:
                (scratch / BLOCK_PLACE).write_text(json.dumps(turn._asdict()), encoding="utf-8")
        started, begun, killed = time.time(), time.monotonic(), _out_of_memory_kills()
        watched = run(scratch) if _prepare_dataset(spec, root, scratch) else Watched()
        remove_leftovers(runs)
        if not (scratch / "done").exists():
            memory_ran_out = watched.out_of_memory or _out_of_memory_kills() > killed
            fault = find_cause(watched, scratch, spec.ranks, memory_ran_out)
            times = {"started": started, "finished": started + time.monotonic() - begun}
            _record_fault(spec, root, runs, scratch, fault, times)
    return runs / spec.run_id


def _prepare_dataset(spec: Spec, root: Path, scratch: Path) -> bool:
    """Compute what ranks must not compute (`store.datasets`); return False and write a fault if it is impossible.

    Only a partition computed from edges needs this, so other runs do not import torch here.
    """
    if not spec.dataset.is_computed_from_edges:
        return True
    from harness.store.datasets import prepare_dataset

    try:
        prepare_dataset(root, spec.dataset)
    except (UserError, RunError) as error:
        write_fault(scratch, 0, error)
        return False
    return True


def _run_ranks(
    spec: Spec,
    root: Path,
    runs: Path,
    scratch: Path,
    progress: Progress,
    limits: TimeLimits,
    fork_server: ForkServer,
) -> Watched:
    folders = {"--scratch": scratch, "--runs": runs, "--meeting": scratch / "meeting"}
    words = [str(word) for option in folders.items() for word in option]
    starter = rank_starter(spec.machine, spec.ranks, root, ["harness.run.rank", *words])
    if starter.here:  # nobody asks the ranks of a step
        starter = starter._replace(program=[*starter.program, "--stacks"])
    processes = starter.start(fork_server, scratch / "log", progress)
    with closing(starter), Ranks(processes, starter.ending) as ranks:
        watched = ranks.watch(
            HangDetector(
                limits.still if starter.here else None,
                limits.recording,
                by_sleep=spec.machine.device == "cpu",
            ),
            min(limits.run or inf, limits.job or inf),
            partial(starter.attend, _Progress(scratch / "progress", progress).pass_on),
            (scratch / "recording").exists,
        )
    if (scratch / "done").exists():
        return watched
    if watched.expired and limits.job and limits.run and limits.job < limits.run:
        raise RunError(
            f"{spec.label} has no record: its job ends, after {limits.job:.0f} s of the {limits.run:.0f} s that the "
            "run may take: left for another job"
        )
    if starter.here:
        return watched
    watched = starter.understand(watched, scratch / "log")
    if not watched.never_started and nobody_is_to_blame(watched, scratch):
        reason = watched.lost or "they lost the connections to each other, and no rank failed by itself"
        raise RunError(f"{spec.label} has no record, because its ranks were lost: {reason}")
    return watched


def _run_here(root: Path, runs: Path, scratch: Path) -> Watched:
    from harness.run.rank import run_and_report_faults

    run_and_report_faults(RankPlace(), root, scratch, runs)
    return Watched()


# Ranks that another launcher started, each of them as the same command of the harness.
#
# Every process of the machine or of the network may write to the store of such a launcher, so nothing in it leads to
# code: an order is the name of a folder, which a rank seeks among its own results and accepts from its own user alone.


class JoinedWorld:
    """A world whose rank 0 leads. The others follow: each run is an order, a key of the store that all ranks share."""

    def __init__(self, at: RankPlace) -> None:
        from harness.comm.engine import external_store

        if is_single_machine(os.environ):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the machine's name resolves to
        self.at, self._orders = at, count()
        self._store = external_store(at)

    def lead(self, spec: Spec, root: Path, runs: Path, scratch: Path) -> Watched:
        """Runs the spec in the scratch folder on all ranks."""
        if spec.ranks != self.at.world:
            raise UserError(
                f"ranks = {spec.ranks}: the launcher started {self.at.world}. Ask for equally many by --ranks."
            )
        order = self._next()
        self._store.set(order, scratch.name)
        self._run(order, root, scratch, runs)
        told = read_faults(scratch)
        ended = any(fault["type"] in ("SystemExit", "KeyboardInterrupt") for fault in told)
        if not (scratch / "done").exists() and (ended or nobody_is_to_blame(Watched(), scratch)):
            raise RunError(
                f"{spec.label} has no record: its launcher ended the ranks, and its output says why."
            )
        return Watched()

    def follow(self, root: Path, runs: Path) -> None:
        """Runs what rank 0 orders, until rank 0 has nothing left, in the folders that this rank's command names."""
        order = self._next()
        while name := self._await(order):
            following = self._next()
            with suppress(FileNotFoundError):  # rank 0 has ended the run, and no fault can be left
                scratch = self._find_scratch(runs, name, following)
                self._run(order, root, scratch, runs)
            order = following

    def dismiss(self) -> None:
        """Lets the others end."""
        self._store.set(self._next(), "")

    def _next(self) -> str:
        return f"order {next(self._orders)}"

    def _await(self, order: str) -> str:
        """The text of an order, once rank 0 has given it; empty if there is nothing left to run."""
        self._store.wait([order], timedelta(days=7))
        text: str = self._store.get(order).decode(errors="replace")
        return text

    def _find_scratch(self, runs: Path, name: str, following: str) -> Path:
        """The scratch folder of an order: a folder of this user among the results of this rank's own command.

        Raises FileNotFoundError if it is gone because rank 0 has ended the run, which the following order shows.
        """
        if not SCRATCH_NAMES.fullmatch(name):
            raise UserError(
                f"{REFUSED_ORDER} names {format_value(name)}, which is not a scratch folder. {TAMPERED}"
            )
        scratch, deadline = runs.absolute().parent / name, time.monotonic() + VISIBLE_WITHIN
        while not is_own(scratch, S_ISDIR) or not is_own(scratch / "spec.json", S_ISREG):
            if self._store.check([following]):
                raise FileNotFoundError(scratch)
            if time.monotonic() > deadline:
                raise UserError(
                    f"{REFUSED_ORDER} names the folder {scratch}, which is not there or does not belong to you. Start "
                    "all ranks as one user, by the same command, with the same HARNESS_* variables, in a file system "
                    f"that all machines share. {TAMPERED}"
                )
            # Network file systems show a new folder only to processes that list its parent.
            any(scratch.parent.glob("launch-*"))
            time.sleep(0.05)
        return scratch

    def _run(self, order: str, root: Path, scratch: Path, runs: Path) -> None:
        """Runs an order as this rank."""
        import torch
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        from harness.comm.engine import make_file_store
        from harness.run.rank import run_and_report_faults

        machine = json.loads((scratch / "spec.json").read_text(encoding="utf-8"))["machine"]
        torch.set_num_threads(machine["threads_per_rank"])
        here = is_single_machine(os.environ)
        store = (
            make_file_store(scratch / "meeting", self.at.world) if here else PrefixStore(order, self._store)
        )
        run_and_report_faults(self.at, root, scratch, runs, store)


VISIBLE_WITHIN = 30.0
"""The seconds within which a folder that rank 0 has made is visible on other machines."""
REFUSED_ORDER = "The order of rank 0, from a store to which every process of the network can write,"
TAMPERED = "If this repeats, another user may be writing to the store: docs/security.md."


@cache
def joined_world() -> JoinedWorld | None:
    """The world that another launcher started, with this process as one of its ranks; None without one."""
    at = read_place(os.environ)
    return JoinedWorld(at) if at.world > 1 else None


class _Progress:
    """Passes on each message that rank 0 leaves in a file, once."""

    def __init__(self, file: Path, tell: Progress) -> None:
        self._file, self._tell, self._last = file, tell, ""

    def pass_on(self) -> None:
        now = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        if now != self._last:
            self._last = now
            self._tell(now)


def _record_fault(
    spec: Spec, root: Path, runs: Path, scratch: Path, fault: Fault, times: Mapping[str, float]
) -> None:
    from harness.run.provenance import provenance
    from harness.run.rank_tables import read_unfinished_tables
    from harness.run.recording import record_unfinished

    origin = {**provenance(root, scratch), **times}
    record_unfinished(runs, spec, read_unfinished_tables(scratch, spec.ranks), origin, fault)


def _out_of_memory_kills() -> int:
    """The processes that the kernel has killed for want of memory, by all counters at hand.

    One of them does not do: that of a control group has no processes of the groups within, nor that of a container
    those outside. So a kill may count twice, and what tells is that the sum grew.
    """
    kills = 0
    for path, field in OOM_COUNTERS.items():
        with suppress(OSError, ValueError):
            counts = dict(
                line.split()
                for line in path.read_text(encoding="utf-8").splitlines()
                if len(line.split()) == 2
            )
            kills += int(counts.get(field, 0))
    return kills


# Runs one after the other, in the time that their job has. Runs that have a result are left alone.
#
# A run is started only if the job has the time that was asked for it, and may then take all that the job has left, up
# to its own limit. So a timeout is the run's own, and never the fault of earlier runs or of a slow day. The others are
# left to another job, which asks for their limits.


class Outcome(NamedTuple):
    """The folder of a run's record, or the reason why the run has none."""

    spec: Spec
    folder: Path | None
    cached: bool = False
    why: str = ""


def series(
    specs: Sequence[Spec],
    root: Path,
    runs: Path,
    progress: Progress,
    *,
    fresh: bool = False,
    predicted: Mapping[str, float | None] = NOTHING,
) -> Iterator[Outcome]:
    """Yields every run's outcome as soon as possible. A run that leaves no record does not stop the others.

    `predicted` has the seconds that runs are predicted to take at most, by run id.
    """
    clock, history = _clock(), RunHistory(runs)
    with ForkServer() as fork_server:
        for spec, turn in zip(specs, turns(specs), strict=True):
            with ExitStack() as turn_taken:  # until the caller has read the record
                try:
                    minutes, left = _minutes(spec, root, history, predicted.get(spec.run_id)), clock()
                    asked = 60 * minutes.asked if minutes else 0.0
                    if not fresh and settled(runs / spec.run_id):
                        outcome = Outcome(spec, runs / spec.run_id, cached=True)
                    elif left is not None and left < asked:
                        needs = f"{asked:.0f} s are asked for the run"
                        outcome = Outcome(
                            spec, None, why=f"the job has {left:.0f} s left and {needs}: left for another job"
                        )
                    else:
                        limits = TimeLimits(run=60 * minutes.limit, job=left) if minutes else LIMITS
                        turn_taken.enter_context(exclusive(spec, runs, progress))
                        cached = not fresh and settled(runs / spec.run_id)
                        if not cached:
                            launch(spec, root, runs, progress, limits, fork_server, turn)
                        outcome = Outcome(spec, runs / spec.run_id, cached)
                except Exception as error:
                    outcome = Outcome(spec, None, why=named_reason(error))
                yield outcome


def turns(specs: Sequence[Spec]) -> list[BlockPlace]:
    """The turn of each run: the runs of one launch that this process starts are a block."""
    job = os.environ.get("SLURM_JOB_ID")
    allocation = f"job-{job}" if job else f"{platform.node()}-{os.getpid()}-{time.time():.0f}"
    taken = Counter[int]()
    found = []
    for spec in specs:
        found.append(BlockPlace(f"{allocation}-launch-{spec.launch}", taken[spec.launch]))
        taken[spec.launch] += 1
    return found


def named_reason(error: Exception) -> str:
    """An error in one paragraph. A defect of the harness is named with its type and place."""
    if isinstance(error, RunError | UserError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"


def settled(folder: Path) -> bool:
    """True if a run folder exists, is whole, and has a result."""
    return folder.is_dir() and read_record(folder).record["status"] in SETTLED


def _clock() -> Callable[[], float | None]:
    """A clock of the seconds that the job has left; the scheduler is asked once."""
    left, asked = read_seconds_left(os.environ), time.monotonic()
    return lambda: None if left is None else left - (time.monotonic() - asked)


def _minutes(spec: Spec, root: Path, history: RunHistory, predicted: float | None) -> RunMinutes | None:
    """The time of a run in a job of its machine's scheduler. Outside of one a run has no limit."""
    scheduler = find_scheduler(os.environ)
    slurm = load_slurm(root, spec.machine.name, load_site(root)) if scheduler else None
    if slurm is None or slurm.scheduler != scheduler:
        return None
    return estimate_run_minutes(spec.model_dump(mode="json"), slurm, history, predicted)
