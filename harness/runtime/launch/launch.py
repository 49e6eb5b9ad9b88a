"""Launches a run, and makes sure that every launched run leaves a record.

The launcher imports no torch: it starts ranks, on this machine or by Slurm (`runtime.launch.rank_starter`), and watches
them (`runtime.launch.processes`). If no rank wrote the record, the launcher writes one with the first fault. A failure
of the machine, such as a lost node, is not recorded, so that the run can be tried again.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path

from harness.base.children import exit_on_signals
from harness.base.errors import RunError, UserError
from harness.base.files import (
    SCRATCH,
    explain_full_disk,
    explain_os_errors,
    owner_tag,
    remove_leftovers,
)
from harness.base.locks import acquire_lock, try_lock
from harness.comm.launchers import RankPlace
from harness.results.record import read_record
from harness.results.schema import SETTLED
from harness.runtime.fault import Fault, write_fault
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.hang_detector import HangDetector
from harness.runtime.launch.joined_world import find_joined_world
from harness.runtime.launch.processes import Ranks, RunEnd, find_cause, is_infrastructure_failure
from harness.runtime.launch.rank_starter import RankStarter, make_rank_starter
from harness.runtime.launch.time_limits import LIMITS, TimeLimits
from harness.runtime.provenance import BLOCK_PLACE, COMMAND, BlockPlace, command_line
from harness.runtime.slurm.resources import OUTAGE_SECONDS, RETRY_SECONDS
from harness.spec.machine_card import Machine
from harness.spec.spec import Spec, canonical_json

OOM_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)
OOM_FIELD = "oom_kill"
"""The files with the number of processes that the kernel has killed for lack of memory, and its name in them."""
PREPARE, BUILD = "harness.graph.store.datasets:prepare_dataset", "harness.graph.store.building:build_store"
"""The functions that prepare a dataset for ranks and build its store, as module:name."""
Progress = Callable[[str], None]


def launch(
    spec: Spec,
    root: Path,
    runs: Path,
    progress: Progress,
    limits: TimeLimits = LIMITS,
    fork_server: ForkServer | None = None,
    turn: BlockPlace | None = None,
) -> Path:
    """Run a spec, and return its run folder, which holds a complete record of any status.

    Ranks are forked from the given fork server, or from a new one. If another launcher started this process as a rank,
    the run uses the ranks of that launcher.
    """
    if world := find_joined_world():
        return _run_and_record(spec, root, runs, partial(world.lead_run, spec, root, runs))

    with nullcontext(fork_server) if fork_server else ForkServer() as server:

        def run(scratch: Path) -> RunEnd:
            start = partial(_run_ranks, spec, root, runs, scratch, progress, limits, server)
            return _start_through_outages(start, spec.label, scratch / "log", progress)

        return _run_and_record(spec, root, runs, run, turn, server)


def launch_in_process(spec: Spec, root: Path, runs: Path) -> Path:
    """Run a spec of one rank in this process, and return its run folder.

    The allocator settings of the machine card do not apply, because Python has already started.
    """
    if spec.ranks > 1:
        raise UserError(f"ranks = {spec.ranks}: one process runs one rank. Leave out --in-process.")

    def run(scratch: Path) -> RunEnd:
        from harness.runtime.rank import run_and_report_faults

        run_and_report_faults(RankPlace(), root, scratch, runs)
        return RunEnd()

    return _run_and_record(spec, root, runs, run)


@contextmanager
def ensure_result(
    spec: Spec, runs: Path, progress: Progress, start: Callable[[], object], *, fresh: bool = False
) -> Iterator[bool]:
    """Call `start` to run a spec, unless the run has a result and need not be fresh. Yields True if it had one.

    Equal runs of several processes run one after the other, so a record that is read within the block belongs to the
    caller's own run.
    """
    folder = runs / spec.run_id
    with ExitStack() as held:
        cached = not fresh and has_result(folder)
        if not cached:
            message = f"{spec.label}: another process has this run under way. Waiting for its end."
            with explain_os_errors(runs):
                lock = acquire_lock(runs / f".{spec.run_id}.lock", wait=partial(progress, message))
                held.enter_context(lock)
            cached = not fresh and has_result(folder)  # an equal run of another process may have finished
        if not cached:
            start()
        yield cached


def has_result(folder: Path) -> bool:
    """Return True if a run folder exists, is complete, and has a result."""
    return folder.is_dir() and read_record(folder).record["status"] in SETTLED


def _remove_free_locks(runs: Path) -> None:
    """Remove the lock files of `ensure_result` that killed processes have left."""
    for path in runs.glob(".*.lock"):
        with try_lock(path) as is_free:
            if is_free:
                path.unlink(missing_ok=True)


def prepare_fork_server(fork_server: ForkServer, machine: Machine, root: Path) -> bool:
    """Make the fork server import with the settings of a machine. Return False if ranks are not forked from it."""
    starter = make_rank_starter(machine, 1, root, [])
    if starter.is_local:
        fork_server.prepare(starter.environments[0])
    return starter.is_local


def _run_and_record(
    spec: Spec,
    root: Path,
    runs: Path,
    run: Callable[[Path], RunEnd],
    turn: BlockPlace | None = None,
    fork_server: ForkServer | None = None,
) -> Path:
    """Run in a scratch folder, write the record if no rank did, and return the run folder."""
    machine = spec.machine
    if machine.device != "cpu" and machine.engine == "gloo":
        raise UserError(
            f"The card {machine.name} has device {machine.device} and engine gloo, which is only for predictions: with "
            "gloo, ranks compute on the host. Choose a card with engine nccl, or with device cpu."
        )
    with explain_os_errors(runs):
        runs.mkdir(parents=True, exist_ok=True)
        remove_leftovers(runs)
        remove_leftovers(runs.parent)
        _remove_free_locks(runs)
        folder = tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{owner_tag()}.", dir=runs.parent)
    with folder as name, explain_full_disk(runs.parent), exit_on_signals():
        scratch = Path(name)
        with explain_os_errors(scratch):
            (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")), encoding="utf-8")
            (scratch / COMMAND).write_text(command_line(), encoding="utf-8")
            if turn:
                (scratch / BLOCK_PLACE).write_text(json.dumps(turn._asdict()), encoding="utf-8")
        started, begun, killed = time.time(), time.monotonic(), _count_oom_kills()
        end = run(scratch) if _prepare_dataset(spec, root, scratch, fork_server) else RunEnd()
        remove_leftovers(runs)
        if not (scratch / "done").exists():
            memory_ran_out = end.out_of_memory or _count_oom_kills() > killed
            fault = find_cause(end, scratch, spec.ranks, memory_ran_out)
            times = {"started": started, "finished": started + time.monotonic() - begun}
            _record_fault(spec, root, runs, scratch, fault, times)
    return runs / spec.run_id


def build_small_store(spec: Spec, root: Path, fork_server: ForkServer) -> None:
    """Build the store of a graph that ranks would make in memory, unless it is built."""
    from harness.graph.cards.catalog import load_card
    from harness.graph.store.location import find_sound_store, fits_in_memory

    is_small = fits_in_memory(load_card(root, spec.dataset.name))
    if is_small and not find_sound_store(root, spec.dataset):
        _call_on_dataset(BUILD, spec, root, fork_server)


def _prepare_dataset(spec: Spec, root: Path, scratch: Path, fork_server: ForkServer | None) -> bool:
    """Compute what ranks must not compute (`graph.store.datasets`); return False and write a fault if it is impossible.

    Only a partition computed from edges needs this.
    """
    if not spec.dataset.is_computed_from_edges:
        return True
    try:
        _call_on_dataset(PREPARE, spec, root, fork_server)
    except (UserError, RunError) as error:
        write_fault(scratch, 0, error)
        return False
    return True


def _call_on_dataset(function: str, spec: Spec, root: Path, fork_server: ForkServer | None) -> None:
    """Call a function on the dataset of a spec.

    It runs in a process of the fork server, so that this process does not import torch, unless ranks start elsewhere.
    """
    if fork_server and prepare_fork_server(fork_server, spec.machine, root):
        fork_server.call(function, root, spec.dataset)
    else:
        module, _, name = function.partition(":")
        getattr(import_module(module), name)(root, spec.dataset)


def _start_through_outages(start: Callable[[], RunEnd], label: str, log: Path, progress: Progress) -> RunEnd:
    """Start the ranks, again and again while no Slurm controller answers, and return how they ended."""
    deadline = time.monotonic() + OUTAGE_SECONDS
    while True:
        end = start()
        if not end.never_started:
            return end
        if time.monotonic() > deadline:
            raise RunError(f"{label} has no record: no Slurm controller answered for {OUTAGE_SECONDS:.0f} s.")
        progress("No Slurm controller answers; the step is started again.")
        log.unlink()
        time.sleep(RETRY_SECONDS)


def _run_ranks(
    spec: Spec,
    root: Path,
    runs: Path,
    scratch: Path,
    progress: Progress,
    limits: TimeLimits,
    fork_server: ForkServer,
) -> RunEnd:
    """Start the ranks once, watch them until they have ended, and return how they ended.

    Raises RunError if the run must not be recorded, because its job or its machine ended it.
    """
    folders = {"--scratch": scratch, "--runs": runs, "--meeting": scratch / "meeting"}
    words = [str(word) for option in folders.items() for word in option]
    starter = make_rank_starter(spec.machine, spec.ranks, root, ["harness.runtime.rank", *words])
    if starter.is_local:  # the launcher cannot signal the ranks of a step
        starter = starter._replace(program=[*starter.program, "--stacks"])
    messages = _ProgressFile(scratch / "progress", progress)

    def serve_ranks() -> None:
        starter.serve_rendezvous()
        messages.relay()

    processes = starter.start(fork_server, scratch / "log", progress)
    with closing(starter), Ranks(processes, starter.ending_signal, limits) as ranks:
        patience = limits.still if starter.is_local else None
        detector = HangDetector(patience, limits.recording, by_sleep=spec.machine.device == "cpu")
        limit = min(limits.run or inf, limits.job or inf)
        end = ranks.watch(detector, limit, serve_ranks, (scratch / "recording").exists)
    if (scratch / "done").exists():
        return end
    if end.expired and limits.job and limits.run and limits.job < limits.run:
        raise RunError(
            f"{spec.label} has no record: its job ends, after {limits.job:.0f} s of the {limits.run:.0f} s that the "
            "run may take: left for another job"
        )
    return end if starter.is_local else _check_step_end(starter, end, scratch, spec)


def _check_step_end(starter: RankStarter, end: RunEnd, scratch: Path, spec: Spec) -> RunEnd:
    """Return the end of a step's ranks by the messages of srun. Raises RunError if the ranks were lost."""
    end = starter.read_srun_errors(end, scratch / "log")
    if not end.never_started and is_infrastructure_failure(end, scratch):
        reason = end.lost or "they lost the connections to each other, and no rank failed by itself"
        raise RunError(f"{spec.label} has no record, because its ranks were lost: {reason}")
    return end


class _ProgressFile:
    """Relays each message that rank 0 writes to a file, once."""

    def __init__(self, file: Path, progress: Progress) -> None:
        self._file, self._progress, self._last = file, progress, ""

    def relay(self) -> None:
        """Report the message in the file, if it is new."""
        message = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        if message != self._last:
            self._last = message
            self._progress(message)


def _record_fault(
    spec: Spec, root: Path, runs: Path, scratch: Path, fault: Fault, times: Mapping[str, float]
) -> None:
    """Write the record of a run that failed with this fault."""
    from harness.runtime.provenance import collect_provenance
    from harness.runtime.rank_tables import read_unfinished_tables
    from harness.runtime.recording import record_unfinished

    origin = {**collect_provenance(root, scratch), **times}
    record_unfinished(runs, spec, read_unfinished_tables(scratch, spec.ranks), origin, fault)


def _count_oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory, summed over all counters.

    No counter sees every kill: a control group's leaves out nested groups, a container's leaves out its host. A kill
    may count twice, so only an increase is meaningful.
    """
    kills = 0
    for path in OOM_COUNTERS:
        with suppress(OSError, ValueError):
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
            counts = dict(words for words in lines if len(words) == 2)
            kills += int(counts.get(OOM_FIELD, 0))
    return kills
