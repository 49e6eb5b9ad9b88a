"""The hang detector names ranks that all sleep and ranks that are stopped, and no rank that is only slow."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.runtime.launch import hang_detector
from harness.runtime.launch.hang_detector import CHECKS, TICKS, Hang, HangDetector
from harness.runtime.launch.processes import Ranks, RunEnd
from harness.runtime.launch.time_limits import TimeLimits

pytestmark = pytest.mark.long

PATIENCE = 20.0
STEP = PATIENCE / CHECKS
FIRST, POLLER, WORKER = 0, 1, 2


class Machine:
    """A /proc of ranks with three threads each, and a clock: one sleeps, one polls, one works when it is told to."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, accounts: bool = True) -> None:
        self.proc, self.now, self.accounts = folder, 1000.0, accounts
        self.pids = {rank: 100 * (rank + 1) for rank in range(3)}
        (folder / "self").symlink_to(str(os.getpid()))
        self.threads: dict[tuple[int, int], tuple[str, float, float, int]] = {}
        for rank in self.pids:
            self.set(rank, FIRST, "S", ran=50.0 + rank, slices=900)
            self.set(rank, POLLER, "S", ran=0.1, slices=5000)
            self.set(rank, WORKER, "S", ran=20.0, slices=600)
        patch.setattr(hang_detector, "time", SimpleNamespace(monotonic=lambda: self.now))

    def set(
        self, rank: int, thread: int, state: str, ran: float = 0, waited: float = 0, slices: int = 0
    ) -> None:
        """The state of a thread, and what is added to its account."""
        _, *sums = self.threads.get((rank, thread), ("S", 0.0, 0.0, 0))
        account = (sums[0] + ran, sums[1] + waited, sums[2] + slices)
        self.threads[rank, thread] = (state, *account)
        pid = self.pids[rank]
        folder = self.proc / str(pid) / "task" / str(pid + thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(_stat(state, account[0]))
        if self.accounts:
            (folder / "schedstat").write_text(f"{account[0] * 1e9:.0f} {account[1] * 1e9:.0f} {account[2]}\n")
        total = sum(ran for (of, _), (_, ran, *_) in self.threads.items() if of == rank)
        (self.proc / str(pid) / "stat").write_text(_stat(self.threads[rank, FIRST][0], total))

    def poll(self) -> None:
        """Every rank's poller ran a hundred times, waited for a core each time, and waits for one again."""
        for rank in self.pids:
            self.set(rank, POLLER, "R", ran=0.002, waited=0.4, slices=100)

    def seconds_to_hang(
        self,
        detector: HangDetector,
        each: Callable[[int], object] = lambda _: None,
        steps: int = 2 * CHECKS,
        recording: bool = False,
    ) -> tuple[float, Hang | None]:
        """Return when the detector first found a hang, and the hang. `each` runs between two checks."""
        begun = self.now
        for step in range(steps):
            self.poll()
            each(step)
            if hang := detector.detect_hang(self.pids, recording):
                return self.now - begun, hang
            self.now += STEP
        return self.now - begun, None


def _stat(state: str, seconds: float) -> str:
    return f"1 (a) b) {state} " + "0 " * 10 + f"{seconds * TICKS:.0f} 0 " + "0 " * 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_sleeping_ranks_are_detected_on_a_busy_machine(machine: Machine) -> None:
    seconds, hang = machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc))
    assert hang == Hang(())
    assert PATIENCE <= seconds <= PATIENCE + 3 * STEP


SLOW: dict[str, Callable[[Machine, int], object]] = {
    "runs": lambda machine, _: machine.set(1, FIRST, "S", ran=0.3, slices=9),
    "waits for a core all the time": lambda machine, _: machine.set(1, FIRST, "R"),
    "waits for a core now and then": lambda machine, _: machine.set(
        1, FIRST, "S", ran=1e-5, waited=0.05, slices=2
    ),
    "has a thread that waits for a core": lambda machine, _: machine.set(1, WORKER, "R"),
    "has a thread that is given little": lambda machine, _: machine.set(
        1, WORKER, "S", ran=0.003, waited=0.9, slices=1
    ),
    "waits for a disk": lambda machine, _: machine.set(1, FIRST, "D"),
    "has a thread that waits for a disk": lambda machine, _: machine.set(1, WORKER, "D"),
    "is looked at by a debugger": lambda machine, _: machine.set(1, FIRST, "t"),
    "is shown by nobody": lambda machine, _: shutil.rmtree(machine.proc / str(machine.pids[1])),
    "works every ten seconds": lambda machine, step: machine.set(
        1, FIRST, "S", ran=0.3 * (step % 10 == 0), slices=1
    ),
}


@pytest.mark.parametrize("how", SLOW)
def test_slow_rank_is_not_a_hang(machine: Machine, how: str) -> None:
    _, hang = machine.seconds_to_hang(
        HangDetector(PATIENCE, proc=machine.proc), lambda step: SLOW[how](machine, step)
    )
    assert hang is None


def test_rank_that_leaves_does_not_make_the_others_hang(machine: Machine) -> None:
    """Rank 0 writes tables while the others leave one by one: the sum over living processes falls all the time."""

    def leave(step: int) -> None:
        machine.set(0, FIRST, "S", ran=0.02, slices=5)
        if step in (5, 20):
            del machine.pids[max(machine.pids)]

    _, hang = machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc), leave, steps=3 * CHECKS)
    assert hang is None and list(machine.pids) == [0]


@pytest.mark.parametrize("accounts", [True, False])
def test_polling_threads_do_not_count_as_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounts: bool
) -> None:
    """The state R of a thread that is not the first says little where the kernel keeps no account of it."""
    machine = Machine(tmp_path, monkeypatch, accounts)
    if not accounts:
        poll = lambda: [machine.set(rank, POLLER, "R") for rank in machine.pids]  # noqa: E731
        monkeypatch.setattr(machine, "poll", poll)
    _, hang = machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc))
    assert hang == Hang(())


@pytest.mark.parametrize("by_sleep", [True, False])
def test_stopped_rank_is_detected_whatever_the_others_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, by_sleep: bool
) -> None:
    def spin(_: int) -> None:
        machine.set(0, FIRST, "R", ran=STEP, slices=4)
        for thread in (FIRST, POLLER, WORKER):
            machine.set(2, thread, "T")

    detector = HangDetector(PATIENCE, by_sleep=by_sleep, proc=machine.proc)
    monkeypatch.setattr(machine, "poll", lambda: None)
    seconds, hang = machine.seconds_to_hang(detector, spin)
    assert hang == Hang((2,)) and seconds <= PATIENCE + 2 * STEP


def test_repeatedly_stopped_rank_is_not_a_hang(machine: Machine) -> None:
    """The rank is stopped at every check, but ran in between."""
    _, hang = machine.seconds_to_hang(
        HangDetector(PATIENCE, proc=machine.proc),
        lambda step: machine.set(1, FIRST, "T", ran=1e-4, slices=step % 10 == 0),
    )
    assert hang is None


def test_stops_of_different_ranks_do_not_add_up(machine: Machine) -> None:
    """Each rank is stopped for less than the patience; no rank can do anything for three times as long."""

    def stop(step: int) -> None:
        for rank in machine.pids:
            machine.set(rank, FIRST, "T" if step // 15 == rank else "S")

    assert machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc), stop, steps=45)[1] is None


def test_only_stops_are_detected_if_sleep_is_normal(machine: Machine) -> None:
    detector = HangDetector(PATIENCE, by_sleep=False, proc=machine.proc)
    assert machine.seconds_to_hang(detector)[1] is None


def test_recording_ranks_have_a_separate_patience(machine: Machine) -> None:
    detector = HangDetector(PATIENCE, 4 * PATIENCE, proc=machine.proc)
    seconds, hang = machine.seconds_to_hang(detector, steps=5 * CHECKS, recording=True)
    assert hang == Hang(()) and seconds >= 4 * PATIENCE


def test_time_in_which_the_launcher_was_stopped_does_not_count(machine: Machine) -> None:
    detector = HangDetector(PATIENCE, proc=machine.proc)
    machine.seconds_to_hang(detector, steps=5)
    machine.now += 3600
    assert detector.detect_hang(machine.pids) is None
    assert detector.detect_hang(machine.pids) is None


def test_processes_of_another_namespace_are_ignored(machine: Machine) -> None:
    (machine.proc / "self").unlink()
    assert machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc))[1] is None
    (machine.proc / "self").symlink_to("1")
    assert machine.seconds_to_hang(HangDetector(PATIENCE, proc=machine.proc))[1] is None


# Real processes.

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(1000)"
STARVED = "import os; os.nice(19); os.sched_setaffinity(0, {CORE})\nwhile True: pass"


def start(code: str) -> "subprocess.Popen[bytes]":
    core = min(os.sched_getaffinity(0))
    return subprocess.Popen([sys.executable, "-c", code.replace("CORE", str(core))])


@contextmanager
def busy(burners: int = 12) -> Iterator[None]:
    """One core that is taken by others."""
    with ExitStack() as ended:
        core = min(os.sched_getaffinity(0))
        for _ in range(burners):
            code = f"import os; os.sched_setaffinity(0, {{{core}}})\n{SPIN}"
            burner = subprocess.Popen([sys.executable, "-c", code])
            ended.callback(burner.wait)
            ended.callback(burner.kill)
        yield


def watched(codes: Sequence[str], patience: float, limit: float) -> RunEnd:
    with Ranks(start(code) for code in codes) as ranks:
        return ranks.watch(HangDetector(patience), limit, lambda: None)


def test_starved_rank_is_not_a_hang() -> None:
    with busy():
        ended = watched([STARVED, SLEEP], patience=1.0, limit=3.5)
    assert (ended.hang, ended.expired) == (None, True)


def test_sleeping_ranks_are_detected_next_to_busy_processes() -> None:
    with busy():
        assert watched([SLEEP, SLEEP], patience=1.0, limit=60).hang == Hang(())


def test_stopped_rank_is_detected_next_to_a_spinning_one() -> None:
    with Ranks([start(SPIN), start(SLEEP)]) as ranks:
        (_, second) = ranks._processes
        second.send_signal(signal.SIGSTOP)
        ended = ranks.watch(HangDetector(1.0), 60, lambda: None)
    assert ended.hang == Hang((1,))


@pytest.mark.parametrize("code", ["", "raise SystemExit(3)"])
def test_recording_rank_may_finish_however_the_others_end(code: str, tmp_path: Path) -> None:
    """The rank sleeps longer than the patience and the grace period, as on a slow network file system."""
    record = tmp_path / "record"
    slow = f"import time; time.sleep(2.25); open({str(record)!r}, 'w')"
    with Ranks([start(slow), start(code)], limits=TimeLimits(grace=1.5)) as ranks:
        begun = time.monotonic()
        ended = ranks.watch(HangDetector(0.5, 600.0), 2, lambda: None, lambda: time.monotonic() > begun + 0.5)
    assert record.exists() and ended.hang is None
    assert [death.code for death in ended.deaths] == [3] * bool(code)
