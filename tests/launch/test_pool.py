"""A pool returns the results of every rank, names the first that failed, and stays usable after any failure."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from harness.base.errors import RunError
from harness.base.files import owner_tag
from harness.comm import engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName
from harness.runtime.launch.time_limits import StartLimits
from harness.runtime.launch.worker_pool import Pool, RankError
from tests.processes import is_alive
from tests.python_path import CHECKOUT, with_python_path

pytestmark = pytest.mark.long

P, COUNT = AxisName.P, TensorName.COUNT


@dataclass(frozen=True)
class Parcel:
    """A class of this file, which ranks must be able to load and return."""

    weight: int


def meet() -> None:
    """Wait for all ranks; raises if one never arrives."""
    Grid.build({P: engine.world_size()}, Ledger()).world.barrier()


def add_up(parcel: Parcel) -> tuple[int, Parcel, int]:
    axis = Grid.build({P: engine.world_size()}, Ledger())[P]
    total = axis.all_reduce(torch.tensor([parcel.weight * (1 + axis.index)]), tensor=COUNT)
    return os.getpid(), Parcel(int(total)), torch.get_num_threads()


def check_next_job(pool: Pool, world: int = 3) -> list[int]:
    """Check the results of another job, and return the process ids of its ranks."""
    results = pool.run(world, add_up, Parcel(2))
    assert [parcel for _, parcel, _ in results] == [Parcel(world * (world + 1))] * world
    return [pid for pid, _, _ in results]


def test_results_come_in_rank_order_from_processes_that_stay(pool: Pool) -> None:
    first = check_next_job(pool, 3)
    again = check_next_job(pool, 2)
    assert again == first[:2]
    assert check_next_job(pool, 1) == first[:1]
    assert os.getpid() not in first
    assert len(set(first)) == 3


def test_a_rank_has_one_thread(pool: Pool) -> None:
    assert [threads for *_, threads in pool.run(2, add_up, Parcel(1))] == [1, 1]


def carry(load: torch.Tensor) -> torch.Tensor:
    return load + engine.rank()


def test_large_arguments_and_results_pass(pool: Pool) -> None:
    load = torch.arange(2_000_000)
    first, second = pool.run(2, carry, load)
    assert torch.equal(first, load)
    assert torch.equal(second, load + 1)


def fail_at(rank: int, how: str) -> None:
    if engine.rank() != rank:
        return meet()  # waits for a rank that never arrives
    if how == "raise":
        raise KeyError("lost")
    if how == "exit":
        sys.exit(3)
    if how == "vanish":
        os._exit(4)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return warnings.warn("careful", stacklevel=1)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raise", "KeyError", "lost"),
        ("exit", "died", "exited with code 3"),
        ("vanish", "died", "exited with code 4"),
        ("kill", "died", "killed by SIGKILL"),
        ("warn", "UserWarning", "careful"),
    ],
)
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_first_failed_rank_is_named_and_the_pool_stays_usable(
    pool: Pool, how: str, kind: str, message: str, rank: int
) -> None:
    before = check_next_job(pool)
    with pytest.raises(RankError) as caught:
        pool.run(3, fail_at, rank, how, patience=60)
    assert (caught.value.rank, caught.value.kind) == (rank, kind)
    assert message in caught.value.message
    if kind != "died":
        assert "in fail_at" in str(caught.value)
    assert not set(before) & set(check_next_job(pool)), "ranks of a failed world were reused"


def fail_in_turn(first: int) -> None:
    """Fail on all ranks, on one of them first."""
    if engine.rank() != first:
        time.sleep(0.5)
    raise ValueError(f"rank {engine.rank()}")


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_earliest_of_many_failures_is_raised(pool: Pool, first: int) -> None:
    with pytest.raises(RankError, match=f"rank {first}") as caught:
        pool.run(3, fail_in_turn, first)
    assert caught.value.rank == first


def never_arrive(rank: int) -> None:
    world = Grid.build({P: engine.world_size()}, Ledger()).world
    if engine.rank() == rank:
        sleep_too_long()
    world.barrier()


def sleep_too_long() -> None:
    time.sleep(600)


def test_hung_job_raises_with_the_stacks_of_all_ranks(pool: Pool) -> None:
    before = check_next_job(pool)
    with pytest.raises(RankError) as caught:
        pool.run(3, never_arrive, 1, patience=1.5)
    assert caught.value.kind == "timeout"
    message = str(caught.value)
    assert "in sleep_too_long" in message
    assert message.count("in barrier") >= 2, "the stacks of waiting ranks are missing"
    after = check_next_job(pool)
    assert not set(before) & set(after), "ranks of a hung world were reused"


def test_a_rank_that_dies_while_idle_is_replaced(pool: Pool) -> None:
    before = check_next_job(pool)
    os.kill(before[1], signal.SIGKILL)
    time.sleep(1)  # the kernel closes its pipe when the last of its threads has ended
    after = check_next_job(pool)
    assert (after[0], before[1] in after) == (before[0], False)


def test_interrupt_ends_the_busy_ranks(pool: Pool) -> None:
    before = check_next_job(pool)
    main = threading.main_thread().ident
    threading.Timer(1.0, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(3, never_arrive, 0)
    assert not set(before) & set(check_next_job(pool))


def give_a_lock_back() -> Any:
    return threading.Lock()


def test_unpicklable_result_is_an_error_of_its_rank(pool: Pool) -> None:
    with pytest.raises(RankError, match="cannot pickle"):
        pool.run(2, give_a_lock_back)
    check_next_job(pool)


def test_only_functions_of_a_module_can_be_sent(pool: Pool) -> None:
    with pytest.raises(AssertionError, match="top level"):
        pool.run(1, lambda: None)
    check_next_job(pool)


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[list[int]]:
    """Return the ranks of a pool whose process was killed during a job."""
    (tmp_path / "away.py").write_text(
        dedent("""
        import os, pathlib, sys, time
        from harness.runtime.launch.worker_pool import Pool

        def work(folder):
            pathlib.Path(folder, f"{os.getpid()}.pid").touch()
            time.sleep(600)

        if __name__ == "__main__":
            Pool().run(2, work, sys.argv[1])
        """)
    )
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "away.py", tmp_path], env=with_python_path(CHECKOUT)
    )
    pids: list[int] = []
    try:
        deadline = time.monotonic() + 60
        while len(pids) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
        parent.kill()
        parent.wait()
        yield pids
    finally:
        parent.kill()
        for pid in pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_no_rank_outlives_its_parent(abandoned: list[int]) -> None:
    assert len(abandoned) == 2
    deadline = time.monotonic() + 20
    while any(map(is_alive, abandoned)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, abandoned))


def test_pool_removes_its_folder_and_those_of_dead_pools(tmp_path: Path) -> None:
    """A killed process leaves its folder. One that exits without closing its pool does not."""
    alive = f"ranks-{owner_tag()}.leftover"
    dead = re.sub(r"-\d+-\d+\.", "-4000000-1.", alive)
    for name in (dead, alive):
        (tmp_path / name).mkdir()
    code = (
        "import os; from harness.runtime.launch.worker_pool import Pool; "
        "p = Pool(); print(*os.listdir(os.environ['HERE']))"
    )
    place = with_python_path(CHECKOUT, TMPDIR=str(tmp_path), HERE=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True)
    assert len(done.stdout.split()) == 2, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [alive]


def test_pool_reports_a_server_that_cannot_start(tmp_path: Path) -> None:
    """The fork server is killed while it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        dedent("""
        import os, sys
        if "harness.runtime.launch.fork_server" in sys.orig_argv:
            os.kill(os.getpid(), 9)
        """)
    )
    code = "import os; from harness.runtime.launch.worker_pool import Pool; Pool().run(1, os.getpid)"
    place = with_python_path(tmp_path, CHECKOUT)
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True)
    assert re.search(r"RunError: .*SIGKILL.*starting Python", done.stderr)


def test_start_limit_ends_a_server_that_hangs_in_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", with_python_path(tmp_path)["PYTHONPATH"])
    limits = StartLimits(2.5, "; raise start_seconds")
    with Pool(start_limits=limits) as pool, pytest.raises(RunError) as caught:
        pool.run(2, os.getpid)
    assert re.search(r"torch.* 2\.5 s.*start_seconds", str(caught.value))


def test_pool_runs_functions_of_a_main_module(tmp_path: Path) -> None:
    """The ranks import the program as a module, and do not run it."""
    (tmp_path / "beside.py").write_text("FACTOR = 3")
    (tmp_path / "program.py").write_text(
        dedent("""
        from dataclasses import dataclass
        from beside import FACTOR
        from harness.runtime.launch.worker_pool import Pool

        @dataclass(frozen=True)
        class Parcel:
            weight: int

        def heavier(parcel):
            return Parcel(FACTOR * parcel.weight)

        if __name__ == "__main__":
            with Pool() as pool:
                print(*(pool.run(2, heavier, Parcel(2)) == [Parcel(6)] * 2 for _ in range(2)))
        """)
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=with_python_path(CHECKOUT),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True True\n", done.stderr


def speak() -> None:
    print("a word of a rank", flush=True)


def test_closed_pool_ends_a_job_of_another_thread() -> None:
    with ThreadPoolExecutor(1) as thread:
        with Pool() as pool:
            pids = check_next_job(pool, 2)
            job = thread.submit(pool.run, 2, never_arrive, 0)
            time.sleep(0.5)
        with pytest.raises(RankError, match="killed by SIGKILL"):
            job.result(timeout=60)
    assert not any(is_alive(pid) for pid in pids)


def list_imported(*names: str) -> list[bool]:
    return [name in sys.modules for name in names]


def test_ranks_start_with_the_modules_of_their_pool(tmp_path: Path) -> None:
    with Pool(modules=["harness.comm.engine", "wave"]) as pool:
        assert pool.run(1, list_imported, "wave", "harness.runtime.rank") == [[True, False]]


def test_ranks_print_where_the_process_of_the_pool_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool() as pool:
        pool.run(1, speak)
    assert "a word of a rank" in capfd.readouterr().out
