"""Equal runs of several processes at the same time take turns, and each reports the record of its own run."""

import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import harness.runtime.launch.series
from harness.base.files import atomic_folder, list_complete_folders
from harness.experiment.requests import make_spec
from harness.results.record import read_record
from harness.runtime.launch.series import launch_series

ROOT = Path(__file__).parents[2]
SPEC = make_spec(ROOT, {"strategy": "serial", "dataset": "tiny-sbm", "ranks": 1}, "test")


def run_twice_at_once(
    runs: Path, synthetic: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *, fresh: bool
) -> tuple[list[str], list[tuple[bool, int]], list[str]]:
    """Who trained, in order; whether each was cached and the epoch time that it reports; and what was said."""
    both_wrote, trained, said = threading.Barrier(2), list[str](), list[str]()
    reported = dict[str, tuple[bool, int]]()

    def launch(spec: Any, *_: Any) -> None:
        """Writes a record of the thread's own epoch time, and lets the other write, if it is there."""
        trained.append(threading.current_thread().name)
        synthetic.write_ok(runs, spec, float(trained[-1]))
        with suppress(threading.BrokenBarrierError):
            both_wrote.wait(0.5)

    def work() -> None:
        for outcome in launch_series([SPEC], ROOT, runs, said.append, fresh=fresh):
            summary = read_record(outcome.folder).record["summary"]
            reported[threading.current_thread().name] = outcome.cached, round(summary["epoch_seconds_median"])

    monkeypatch.setattr(harness.runtime.launch.series, "launch", launch)
    threads = [threading.Thread(target=work, name=name) for name in ("1", "2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return trained, [reported["1"], reported["2"]], said


def test_fresh_runs_report_their_own_records(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, reported, said = run_twice_at_once(tmp_path, synthetic, monkeypatch, fresh=True)
    assert sorted(trained) == ["1", "2"]
    assert reported == [(False, 1), (False, 2)]
    (waiting,) = said
    assert SPEC.label in waiting
    assert [path.name for path in tmp_path.iterdir()] == [SPEC.run_id]


def test_a_run_that_waited_for_an_equal_run_takes_its_record(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, reported, _ = run_twice_at_once(tmp_path, synthetic, monkeypatch, fresh=False)
    (winner,) = trained
    assert sorted(reported) == [(False, int(winner)), (True, int(winner))]


def test_folder_of_a_faster_writer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two renames of a writer another puts its folder there."""
    rename, folder = Path.rename, tmp_path / "run"
    faster = [b"first", b"second"]

    def renamed(path: Path, target: Path) -> Path:
        if target == folder and faster:
            folder.mkdir()
            (folder / "last").write_bytes(faster.pop())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    with atomic_folder(folder, "last", replace=True) as partial:
        (partial / "last").write_bytes(b"mine")
    assert (folder / "last").read_bytes() == b"mine"
    assert list_complete_folders(tmp_path) == list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("at", [1, 2])
def test_a_signal_between_the_renames_brings_the_old_folder_back(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, folder, calls = Path.rename, tmp_path / "run", []
    folder.mkdir()
    (folder / "last").write_bytes(b"old")

    def renamed(path: Path, target: Path) -> Path:
        calls.append(target)
        if at == 1 and len(calls) == 1:
            rename(path, target)
            raise KeyboardInterrupt
        if at == 2 and len(calls) == 2:
            raise SystemExit(143)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    with (
        pytest.raises((KeyboardInterrupt, SystemExit)),
        atomic_folder(folder, "last", replace=True) as partial,
    ):
        (partial / "last").write_bytes(b"new")
    assert (folder / "last").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [folder]
