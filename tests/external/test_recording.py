"""Runs of other programs are recorded next to ours: when the harness runs them, in tables, figures and commands."""

import json
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.cli import main
from harness.experiment.requests import make_spec
from harness.report.figures.panels import SETTINGS, split_panels
from harness.report.result_tables import tabulate_panel
from harness.results.collect import collect
from harness.results.record import write_record
from harness.spec.root import find_root
from tests.external import logs
from tests.external.conftest import only
from tests.folder_contents import read_files

# Next to our runs.


def test_unknown_settings_are_never_drawn_with_known_ones(
    read_as: Callable[..., int], tmp_path: Path
) -> None:
    """Logs that say nothing next to runs of ours with exactly our defaults, and with a parameter that is unknown."""
    assert read_as("bns-gcn", logs.whole(None), "--dataset", "reddit", "--set", "machine=local") == 0
    assert read_as("bns-gcn", logs.whole(logs.BNS | {"n_layers": None})) == 0
    asked = {"strategy": "bns-gcn", "dataset": {"name": "reddit", "partition": "metis"}, "ranks": 2}
    for p in (1.0, "unknown"):
        spec = make_spec(find_root(), asked, "a test").model_dump(mode="json")
        spec["strategy"]["params"]["p"] = p
        record = {"run_id": str(p), "label": str(p), "status": "ok", "source": "measured", "provenance": {}}
        write_record(tmp_path / "runs", spec, record | {"summary": {"epoch_seconds_median": 1.0}}, {})
    collect(tmp_path / "runs", tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    found = split_panels(runs)
    drawn = [run for panel in found for curve in panel.curves for run in curve.runs.run_id]
    assert sorted(drawn) == sorted(runs.run_id)
    for panel in found:
        assert {panel.runs[name].nunique(dropna=False) for name in SETTINGS if name in panel.runs} == {1}
    titles = " ".join(panel.title for panel in found)
    assert all(f"{name} unknown" in titles for name in ("hidden", "kind", "machine", "layers", "norm"))
    (mine,) = [panel for panel in found if len(panel.runs) == 2]
    assert {curve.label for curve in mine.curves} == {"bns-gcn (p 1.0)", "bns-gcn (p unknown)"}
    cells = [cell for panel in found for row in tabulate_panel(panel).rows for cell in row]
    assert any("p unknown" in cell for cell in cells) and not any("nan" in cell for cell in cells)


def test_reading_a_log_twice_writes_one_record(read_as: Callable[..., int], tmp_path: Path) -> None:
    text = logs.whole(logs.BNS)
    for log in (text, text, f"{text}(another launch)\n"):
        assert read_as("bns-gcn", log) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    collect(tmp_path / "runs", tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    assert set(runs.source) == {"external"}
    assert json.loads(runs.extra[0])["external.program"] == "BNS-GCN"


@pytest.mark.parametrize(
    ("program", "text", "time", "meaning"),
    [("sancus", logs.sancus(), "500 ms", "mean"), ("adaqp", logs.adaqp(), "1.20 s", "median")],
)
def test_shown_run_names_its_time_and_what_is_unknown(
    program: str, text: str, time: str, meaning: str, read_as: Callable[..., int], tmp_path: Path, capsys: Any
) -> None:
    assert read_as(program, text, "--dataset", "reddit") == 0
    capsys.readouterr()
    run_id = only(tmp_path).record["run_id"]
    assert main(["runs", "show", run_id, "--runs", str(tmp_path / "runs")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert time in shown and f"{meaning} of a log" in shown and "model.hidden" in shown
    assert all(words in shown for words in only(tmp_path).record["external"]["beyond"].values())
    assert "harness external run" in shown and "harness run --spec" not in shown


@pytest.mark.parametrize("losses", [(2.0, float("nan")), (2.0, 1.0)])
def test_failed_run_of_another_program_is_not_repeated_by_a_spec(
    losses: tuple[float, ...], read_as: Callable[..., int], tmp_path: Path, capsys: Any
) -> None:
    assert read_as("sancus", logs.sancus(losses, finished=False)) == 1
    capsys.readouterr()
    assert main(["collect", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "run that program again: `harness external run`" in said
    assert "harness run --spec" not in said and "--fresh" not in said
    assert list(pd.read_parquet(tmp_path / "runs.parquet").source) == ["external"]


def test_record_of_another_program_is_not_emulated(
    read_as: Callable[..., int], tmp_path: Path, capsys: Any
) -> None:
    assert read_as("sancus", logs.sancus()) == 0
    capsys.readouterr()
    assert main(["runs", "emulate", str(next((tmp_path / "runs").iterdir()))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "record of another program's run" in said and "harness run --spec" not in said


# Running the program.


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run(command)`: the exit code of `harness external run`."""
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))

    def act(*command: str) -> int:
        return main(["external", "run", "--format", "bns-gcn", "--cwd", str(tmp_path), "--", *command])

    return act


def test_command_is_run_and_recorded(run: Any, tmp_path: Path) -> None:
    text = logs.whole(logs.BNS)
    assert run(sys.executable, "-c", f"print({text!r})") == 0
    provenance = only(tmp_path).record["provenance"]
    assert provenance["command"].startswith(sys.executable)
    assert provenance["finished"] >= provenance["started"]
    (log,) = (tmp_path / "external").iterdir()
    assert log.read_text().strip() == text.strip()


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("sys.exit(3)", "failed", "exit code 3"),
        ("print('RuntimeError: CUDA out of memory.')", "oom", "0, 1 reported no epoch.*out of memory"),
    ],
)
def test_failing_program_is_recorded_as_failed(
    ending: str, status: str, reason: str, run: Any, tmp_path: Path
) -> None:
    assert run(sys.executable, "-c", f"import sys; print({logs.options(logs.BNS)!r}); {ending}") == 1
    record = only(tmp_path).record
    assert record["status"] == status
    assert re.search(reason, " ".join(record["error"]["message"].split()))


def test_program_without_a_report_leaves_no_record(run: Any, capsys: Any, tmp_path: Path) -> None:
    assert run(sys.executable, "-c", "import sys; print('no such option'); sys.exit(2)") == 1
    said = capsys.readouterr().err
    assert "exit code 2" in said and said.rstrip().endswith("no such option")
    assert not (tmp_path / "runs").exists()


def test_missing_command_is_refused(run: Any, capsys: Any, tmp_path: Path) -> None:
    assert run("no-such-program") == 2
    assert "no-such-program cannot be started" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "moment",
    [
        "harness.results.record.write_synced",
        "harness.base.files.sync_folder",
        "harness.base.files.publish_folder",
    ],
)
def test_signal_while_the_record_is_written_leaves_no_partial_record(
    moment: str, before: bool, number: signal.Signals, run: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    words = (sys.executable, "-c", f"print({logs.whole(logs.BNS)!r})")
    if before:
        assert run(*words) == 0
    old, act = read_files(tmp_path / "runs"), pkgutil.resolve_name(moment)

    def signalled(*given: Any, **more: Any) -> Any:
        os.kill(os.getpid(), number)
        return act(*given, **more)

    monkeypatch.setattr(moment, signalled)
    capsys.readouterr()
    if number == signal.SIGTERM:
        with pytest.raises(SystemExit) as ending:
            run(*words)
        assert ending.value.code == 128 + number
    else:
        assert run(*words) == 130
    said = capsys.readouterr().err
    log = max((tmp_path / "external").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert f"harness external read {log} --format bns-gcn" in said
    assert said.endswith("harness: interrupted\n") == (number == signal.SIGINT)
    assert read_files(tmp_path / "runs") == old
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_options_are_read_from_the_command(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    (tmp_path / "train.py").write_text(f"print({logs.plexus()!r})")
    typed = ["external", "run", "--format", "plexus", "--dataset", "reddit", "--cwd", str(tmp_path), "--"]
    assert main([*typed, sys.executable, "train.py", "--G_intra_d", "4", "--num_epochs", "3"]) == 0
    record = only(tmp_path)
    assert record.spec["grid"] == {"x": 1, "y": 1, "z": 4} and record.spec["training"]["lr"] == 0.003
