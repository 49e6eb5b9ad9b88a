"""Recorded runs on the command line: listed as their records are, shown by the beginning of an id, and removed."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.files import owner_tag
from harness.cli import main
from harness.results.record import find_run, read_record, remove_run
from harness.spec.spec import Spec

OLD, NEW = 1_700_000_000.0, 1_790_000_000.0
"""14 November 2023 and 21 September 2026."""


@pytest.fixture
def runs(synthetic: SimpleNamespace, tmp_path: Path) -> Path:
    """Two runs that went well, three that did not, a predicted number, and two folders that are no runs."""
    folder = tmp_path / "results" / "runs"
    for strategy, ended in (("serial", OLD), ("cagnet-1d", NEW)):
        spec = synthetic.make_spec(strategy, "tiny", {"p": 1 if strategy == "serial" else 2})
        synthetic.write_ok(folder, spec, 1.0, 0.2, provenance=synthetic.provenance(finished=ended))
    for ranks, status in ((4, "failed"), (8, "oom"), (16, "refused")):
        spec = synthetic.make_spec("cagnet-1d", "other", {"p": ranks})
        synthetic.write_failed(folder, spec, status, "MemoryError", f"out of memory at {ranks} ranks")
    synthetic.write_quoted(folder, synthetic.make_spec("plexus", "tiny", {"x": 2}), 0.5, "predicted")
    (folder / "notes").mkdir()
    (folder / "notes" / "why.txt").write_text("not a run")
    (folder / "0123456789abcdef").mkdir()
    (folder / "0123456789abcdef" / "record.json").write_text("{")
    return folder


def asked(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["runs", *map(str, words), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capsys.readouterr()
    assert main(["runs", *map(str, words)]) == 2
    return " ".join(capsys.readouterr().err.split())


def present(runs: Path) -> set[str]:
    return {path.name for path in runs.iterdir()}


def test_the_list_has_every_readable_record_and_the_latest_last(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = asked(capsys, "list", "--runs", runs)
    assert len(rows) == 6
    assert [row["ended"] for row in rows] == sorted(row["ended"] for row in rows)
    for row in rows:
        folder = Path(row["folder"])
        record = json.loads((folder / "record.json").read_text())
        assert (row["run_id"], row["label"], row["status"]) == tuple(
            record[key] for key in ("run_id", "label", "status")
        )
        assert row["epoch_seconds_median"] == record["summary"].get("epoch_seconds_median")
        assert row["elements_received"] == record["summary"].get("elements_received")
        assert row["bytes"] == sum(len(path.read_bytes()) for path in folder.iterdir())
    assert main(["runs", "list", "--runs", str(runs)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 1 + 6 + 2
    assert lines[0].startswith("6 runs, ") and lines[1] == ""
    assert lines[2].startswith("run ")
    assert all(
        title in lines[2] for title in ("status", "epoch", "received", "ended (UTC)", "size", "--grid")
    )
    last = rows[-1]
    assert lines[-1].startswith(last["run_id"][:8])
    assert f"{datetime.fromtimestamp(last['ended'], UTC):%Y-%m-%d %H:%M}" in lines[-1]
    assert "2 folders were left out. The first: " in err and "0123456789abcdef" in err


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--strategy", "cagnet-1d"], 4),
        (["--strategy", "serial,plexus"], 2),
        (["--dataset", "other"], 3),
        (["--status", "oom,failed"], 2),
        (["--status", "ok", "--strategy", "cagnet-1d"], 1),
        (["--dataset", "nothing"], 0),
    ],
)
def test_filters_leave_the_runs_of_all_filters(
    words: list[str], count: int, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(asked(capsys, "list", "--runs", runs, *words)) == count


def test_a_status_that_no_run_can_have_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--status fine is not accepted" in refusal(capsys, "list", "--runs", runs, "--status", "fine")
    assert "does not exist" in refusal(capsys, "list", "--runs", runs / "nowhere")


def test_an_id_is_shortened_only_where_one_run_begins_so(runs: Path, synthetic: SimpleNamespace) -> None:
    """A whole id stands for its run even where it is the beginning of another."""
    one = synthetic.make_spec("serial", "tiny", {"p": 1}).run_id
    shutil.copytree(runs / one, runs / f"{one}00")
    assert find_run(runs, one) == runs / one
    assert find_run(runs, f"{one}0") == runs / f"{one}00"
    assert find_run(runs, str(runs / one)) == runs / one
    with pytest.raises(
        ValueError, match=rf"{one[:8]} is the beginning of 2 run ids .*{one} \(tiny-serial"
    ) as error:
        find_run(runs, one[:8])
    assert f"{one}00" in str(error.value)
    for name in (one[:3], "ffff", "no/such", "", "*"):
        with pytest.raises(UserError, match=r"is not a run: .* begins with it"):
            find_run(runs, name)


def test_an_empty_folder_of_runs_has_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of 0 run ids"):
        find_run(tmp_path / "nowhere", "0123")


def test_a_run_is_shown_with_what_is_not_the_default(
    runs: Path, synthetic: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}).run_id
    capsys.readouterr()
    assert main(["runs", "show", run_id[:6], "--runs", str(runs)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "model.hidden 128" in lines and "ranks 2" in lines and "grid p=2" in lines
    assert not [line for line in lines if line.startswith(("model.layers", "training.", "seed", "launch "))]
    summary = json.loads((runs / run_id / "record.json").read_text())["summary"]
    assert f"elements received {summary['elements_received']:,.0f}" in lines
    assert "tensor A 16.8 MB" in lines
    (repeat,) = (line for line in lines if line.startswith("harness run "))
    spec = Spec.model_validate(json.loads(Path(repeat.split()[3]).read_text()))
    assert repeat.startswith("harness run --spec ") and spec.run_id == run_id


def test_a_failure_is_shown_with_its_cause_and_the_end_of_its_log(
    runs: Path, synthetic: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = synthetic.make_spec("cagnet-1d", "other", {"p": 8}).run_id
    assert main(["runs", "show", run_id, "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "rank 3: MemoryError: out of memory at 8 ranks" in out
    assert "Traceback: ..." in out and str(runs / run_id / "record.json") in out
    assert main(["runs", "show", "ffff", "--runs", str(runs)]) == 2
    assert "other-cagnet-1d" in capsys.readouterr().err


def test_pruning_is_dry_unless_it_is_confirmed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = present(runs)
    assert main(["runs", "prune", "--failed", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "Would remove 2 runs" in out and "Nothing was removed" in out
    assert present(runs) == before
    rows = asked(capsys, "prune", "--failed", "--runs", runs, "--yes")
    assert {row["status"] for row in rows if row["removed"]} == {"failed", "refused"}
    assert before - present(runs) == {row["run_id"] for row in rows}
    assert {"notes", "0123456789abcdef"} < present(runs)


@pytest.mark.parametrize(
    ("words", "statuses"),
    [
        (["--before", "2023-11-15"], ["failed", "ok", "oom", "refused"]),
        (["--before", "2023-11-14T22:13:20"], ["failed", "oom", "refused"]),
        (["--before", "2023-11-15", "--strategy", "serial"], ["ok"]),
        (["--status", "oom"], ["oom"]),
        (["--dataset", "other", "--failed"], ["failed", "refused"]),
    ],
)
def test_all_options_of_pruning_must_choose_a_run(
    words: list[str], statuses: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = asked(capsys, "prune", "--runs", runs, "--yes", *words)
    assert sorted(row["status"] for row in rows) == statuses
    assert all(not Path(row["folder"]).exists() for row in rows)
    assert len(asked(capsys, "list", "--runs", runs)) == 6 - len(statuses)


def test_pruning_everything_and_strange_dates_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "never removes all runs" in refusal(capsys, "prune", "--runs", runs, "--yes")
    assert "a date such as 2026-11-24" in refusal(capsys, "prune", "--runs", runs, "--before", "yesterday")
    assert len(present(runs)) == 8


Begin = Callable[[Path, Spec, int], Path]


def begin_execution(runs: Path, spec: Spec, process: int) -> Path:
    """The scratch folder of a launch by a process."""
    scratch = runs.parent / f"launch-{owner_tag().replace(f'-{os.getpid()}-', f'-{process}-')}.ab12cd34"
    scratch.mkdir()
    (scratch / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
    return scratch


def begin_record(runs: Path, spec: Spec, process: int) -> Path:
    """The hidden folder of a record that a process writes."""
    tag = owner_tag().replace(f"-{os.getpid()}-", f"-{process}-")
    partial = runs / f".{spec.run_id}.{tag}.0123abcd.part"
    partial.mkdir()
    return partial


@pytest.mark.parametrize("begin", [begin_execution, begin_record])
def test_a_run_under_way_is_kept_and_the_remains_of_the_dead_protect_nothing(
    begin: Begin, runs: Path, synthetic: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = synthetic.make_spec("cagnet-1d", "other", {"p": 4})
    alive = begin(runs, spec, os.getpid())
    rows = asked(capsys, "prune", "--runs", runs, "--status", "failed", "--yes")
    assert [(row["run_id"], row["removed"]) for row in rows] == [(spec.run_id, False)]
    assert "in progress" in rows[0]["why"]
    assert (runs / spec.run_id / "record.json").is_file()
    shutil.rmtree(alive)
    begin(runs, spec, 2**22 + 1)  # above the largest process id of Linux
    (row,) = asked(capsys, "prune", "--runs", runs, "--status", "failed", "--yes")
    assert row["removed"] and not (runs / spec.run_id).exists()


def test_a_link_a_copy_and_a_newer_record_are_not_removed(
    runs: Path, synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    spec = synthetic.make_spec("cagnet-1d", "other", {"p": 4})
    folder = runs / spec.run_id
    old = read_record(folder)
    copy = Path(shutil.copytree(folder, runs / "my-copy"))
    assert not remove_run(read_record(copy)) and copy.is_dir()
    synthetic.write_ok(runs, spec, 1.0)
    assert not remove_run(old) and read_record(folder).record["status"] == "ok"
    elsewhere = tmp_path / spec.run_id
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert not remove_run(read_record(folder)) and (elsewhere / "record.json").is_file()
