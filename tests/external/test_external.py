"""Logs of other programs are read into our tables and marked, and all other files are refused."""

import json
import os
import pkgutil
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from harness.cli import main
from harness.experiment.requests import make_spec
from harness.figures.panels import SETTINGS, split_panels
from harness.report.result_tables import tabulate_panel
from harness.report.summary import list_warnings
from harness.results.collect import collect
from harness.results.record import write_record
from harness.spec.root import find_root
from tests.external.conftest import only
from tests.folder_contents import read_files

LOGS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("logs.py"))))
ANOTHER = "epoch 3 loss 0.4\n"


@pytest.fixture
def read(read_as: Callable[..., int]) -> Any:
    """`read(text, *options)`: the exit code of `harness external read`, of a log of BNS-GCN or another program."""
    return lambda text, *options, program="bns-gcn": read_as(program, text, *options)


def test_a_log_becomes_a_record_that_says_where_it_is_from(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.whole(LOGS.BNS | {"partition_obj": "cut"})) == 0
    found = only(tmp_path)
    spec, summary = found.spec, found.record["summary"]
    assert (found.record["source"], found.record["status"]) == ("external", "ok")
    assert spec["strategy"] == {
        "name": "bns-gcn",
        "params": {"wire": "full", "p": 0.1, "precompute": True, "overlap": False},
    }
    assert spec["dataset"]["name"] == "reddit"
    assert (spec["dataset"]["partition"], spec["dataset"]["parts"], spec["ranks"]) == ("metis", 2, 2)
    told = {key: spec["model"][key] for key in ("kind", "layers", "hidden", "dropout")}
    assert told == {"kind": "sage", "layers": 4, "hidden": 256, "dropout": 0.5}
    assert (spec["training"]["epochs"], spec["training"]["warmup"], spec["seed"]) == (30, 0, 7)
    assert summary["epoch_seconds_median"] == 0.339, "the last mean of the slowest process"
    assert summary["vertices_per_second"] == pytest.approx(232965 / 0.339)
    assert (summary["accuracy_valid"], summary["accuracy_test"]) == (0.929, 0.9721)
    assert found.record["provenance"]["engine"] == "gloo"
    assert found.record["external"]["options"]["partition_obj"] == "cut"


def test_heads_are_those_of_attention(read: Any, tmp_path: Path) -> None:
    """The program has an option for them whatever it trains."""
    assert read(LOGS.whole(LOGS.BNS | {"model": "gat", "heads": 2})) == 0
    model = only(tmp_path).spec["model"]
    assert (model["kind"], model["heads"]) == ("gat", 2)


def test_its_tables_are_the_lines_of_the_log(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.whole(LOGS.BNS)) == 0
    found = only(tmp_path)
    epochs, ledger = found.table("epochs"), found.table("ledger")
    assert list(zip(epochs.rank_id, epochs.epoch, epochs.seconds, strict=True)) == [
        (rank, number, round(0.3 + 0.01 * rank + number / 1000, 4))
        for rank in (0, 1)
        for number in (9, 19, 29)
    ]
    assert list(epochs.loss[epochs.rank_id == 1]) == [1.1, 1.05, 1.0333]
    sums = ledger.groupby("op").seconds.sum()
    assert sums["all_to_all"] == pytest.approx(6 * 0.2)
    assert sums["all_reduce"] == pytest.approx(6 * 0.01)
    assert ledger.seconds.sum() == pytest.approx(epochs.seconds.sum())
    accuracy = found.table("accuracy")
    assert list(accuracy.accuracy) == [0.909, 0.919, 0.929]
    assert accuracy.train_seconds.iloc[-1] == pytest.approx(30 * 0.339)
    assert list(found.table("memory").device_peak_bytes) == [int(1997.5 * 2**20), int(1998.5 * 2**20)]


def test_means_of_nothing_are_no_times(read: Any, tmp_path: Path) -> None:
    """Before the sixth epoch the programs average over nothing."""
    text = LOGS.options(LOGS.BNS | {"n_epochs": 4}) + "".join(
        LOGS.epoch(rank, 3, float("nan"), float("nan"), float("nan")) for rank in (0, 1)
    )
    assert read(text) == 0
    found = only(tmp_path)
    assert found.record["summary"]["epoch_seconds_median"] is None
    assert found.table("ledger").empty and found.table("epochs").seconds.isna().all()


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        (
            {},
            {
                "name": "pipegcn",
                "params": {"wire": "full", "precompute": True, "features": 0.95, "gradients": 0.0},
            },
        ),
        (
            {"use_pp": False},
            {
                "name": "pipegcn",
                "params": {"wire": "full", "precompute": False, "features": 0.95, "gradients": 0.0},
            },
        ),
        (
            {"enable_pipeline": False},
            {"name": "bns-gcn", "params": {"wire": "full", "p": 1.0, "precompute": True, "overlap": False}},
        ),
    ],
)
def test_pipegcn_without_its_pipeline_is_the_whole_boundary(
    changes: dict, strategy: dict, read: Any, tmp_path: Path
) -> None:
    assert read(LOGS.whole(LOGS.PIPE | changes), program="pipegcn") == 0
    assert only(tmp_path).spec["strategy"] == strategy


def test_a_log_without_its_options_is_told_them(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.whole(None), "--dataset", "reddit", "--set", "strategy.params.p=0.5") == 0
    spec = only(tmp_path).spec
    assert (spec["ranks"], spec["strategy"]["params"]["p"]) == (2, 0.5)


def leaves(data: Any, at: str = "") -> dict[str, Any]:
    """Every value of a spec by its dotted key."""
    if not isinstance(data, dict) or not data:
        return {at: data}
    return {
        name: value for key, inner in data.items() for name, value in leaves(inner, f"{at}.{key}").items()
    }


def test_what_a_log_does_not_say_is_unknown_and_no_default(read: Any, tmp_path: Path) -> None:
    """Of a log without its options there remain what every run of the program has, and what its lines show."""
    assert read(LOGS.whole(None), "--dataset", "reddit") == 0
    found = only(tmp_path)
    known = {key: value for key, value in leaves(found.spec).items() if value not in (None, "unknown")}
    assert known == {
        ".strategy.name": "bns-gcn",
        ".strategy.params.overlap": False,
        ".strategy.params.precompute": True,
        ".strategy.params.wire": "full",
        ".dataset.name": "reddit",
        ".dataset.permutation": "none",
        ".ranks": 2,
        ".grid.p": 2,
        ".model.order": "aggregate_first",
        ".model.projection": False,
        ".model.activation": "relu",
        ".model.residual": False,
        ".training.warmup": 0,
        ".training.optimizer": "adam",
        ".training.features": False,
        ".training.batch": 0,
        ".training.target": 0.0,
        ".measure.utilisation_ms": 0,
        ".protocol": "corrected",
        ".precision": "float32",
        ".launch": 0,
    }
    unknown = found.record["external"]["unknown"]
    assert {"strategy.params.p", "model.hidden", "training.epochs", "machine", "seed"} <= set(unknown)
    assert found.spec["strategy"]["params"]["p"] == "unknown" and found.spec["machine"]["name"] is None


@pytest.mark.parametrize(
    "prefix",
    ["0: ", " 3: ", "node07: ", "[1,0]<stdout>:", "2026-11-22 19:30:00,123 INFO ", "[19:30:00] options: "],
)
def test_what_stands_before_a_line_hides_nothing(prefix: str, read: Any, tmp_path: Path) -> None:
    """As `srun -l`, mpirun and loggers put ranks and times there."""
    assert read(LOGS.whole(LOGS.BNS)) == 0
    plain = only(tmp_path)
    epochs = plain.table("epochs")
    shutil.rmtree(tmp_path / "runs")
    text = "".join(f"{prefix}{line}\r\n" for line in LOGS.whole(LOGS.BNS).splitlines())
    assert read(text) == 0
    found = only(tmp_path)
    assert found.spec == plain.spec and found.record["summary"] == plain.record["summary"]
    assert found.record["external"]["options"] == LOGS.BNS
    assert len(epochs) == 6 and found.table("epochs").equals(epochs)


STRANGE = {
    "graph_name": "reddit-2-metis",
    "path": "/scratch/some one/a,b/c",
    "folder": "PosixPath('/tmp/a, b')",
    "device": "device(type='cuda', index=0)",
    "loss": "<function cross_entropy at 0x7f12>",
    "words": "it's a (b",
    "empty": "",
}


def test_options_that_are_no_literals_are_texts(read: Any, tmp_path: Path) -> None:
    numbers = {"clip": float("inf"), "floor": float("-inf"), "sizes": [1, 2], "none": None}
    words = {key: value for key, value in STRANGE.items() if key not in ("words", "empty")}
    assert read(LOGS.unquoted(LOGS.BNS | words | numbers) + LOGS.whole(None)) == 0
    found = only(tmp_path)
    told = found.record["external"]["options"]
    assert {key: told[key] for key in words} == words
    assert [told[key] for key in numbers] == ["inf", "-inf", [1, 2], None]
    assert {key: told[key] for key in LOGS.BNS} == LOGS.BNS
    assert found.spec["dataset"]["name"] == "reddit"


def test_options_in_quotes_are_told_apart_by_these(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.whole(LOGS.BNS | STRANGE)) == 0
    assert only(tmp_path).record["external"]["options"] == LOGS.BNS | STRANGE


PLAIN = {"norm": "none", "model": "gat", "dropout": 0.0, "partition_obj": "cut", "sampling_rate": 1.0}
"""Options without anything that only some runs have beyond a spec."""


@pytest.mark.parametrize(
    ("changes", "lost", "words"),
    [
        ({"norm": "batch"}, "model.norm", "batch normalisation"),
        ({"norm": "layer"}, "model.norm", "layer normalisation"),
        ({"n_linear": 1}, "model.layers", "last 1 layers have no A"),
        ({"inductive": True}, None, "training vertices alone"),
        ({"model": "graphsage"}, None, "includes the vertex itself"),
        ({"model": "gcn"}, None, "degrees of other vertices"),
        ({"dropout": 0.5}, None, "elements of the features"),
        ({"partition_obj": "vol"}, "dataset.partition", "objective vol"),
        ({"sampling_rate": 0.1}, None, "rounded down"),
        ({"model": "gat", "heads": 2}, None, "averaged in every layer"),
    ],
    ids=str,
)
def test_what_no_spec_can_say_is_named(
    changes: dict, lost: str | None, words: str, read: Any, tmp_path: Path, capsys: Any
) -> None:
    assert read(LOGS.whole(LOGS.BNS | PLAIN | changes)) == 0
    found = only(tmp_path)
    named = found.record["external"]["beyond"]
    (differing,) = named.keys() - {"bias", "reducer"}  # every run has these two
    assert words in named[differing] and words in capsys.readouterr().out
    absent = {key for key, value in leaves(found.spec).items() if value is None}
    assert (f".{lost}" in absent) is (lost is not None)
    assert (found.record["summary"]["vertices_per_second"] is None) is ("inductive" in changes)
    collect(tmp_path / "runs", tmp_path)
    assert any(words in note for note in list_warnings(pd.read_parquet(tmp_path / "runs.parquet")))


def test_a_model_without_normalisation_is_known_to_have_none(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.whole(LOGS.BNS | {"norm": None})) == 0
    found = only(tmp_path)
    assert found.spec["model"]["norm"] is False and "norm" not in found.record["external"]["beyond"]


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_no_success(loss: str, read: Any, tmp_path: Path) -> None:
    lines = "".join(
        LOGS.epoch(rank, number, 0.3, loss=float(loss) if number > 9 and rank else 0.5) + "\n"
        for number in (9, 19, 29)
        for rank in (0, 1)
    )
    assert read(LOGS.options(LOGS.BNS) + lines) == 1
    record = only(tmp_path).record
    assert (record["status"], record["summary"]) == ("diverged", {})
    assert f"In epoch 19 the loss of process 1 was {loss}" in record["error"]["message"]


def test_nodes_that_draw_their_own_seeds_leave_it_unknown(read: Any, tmp_path: Path) -> None:
    assert read(LOGS.options(LOGS.BNS | {"seed": 8, "node_rank": 1}) + LOGS.whole(LOGS.BNS)) == 0
    assert only(tmp_path).spec["seed"] is None


def test_unknown_settings_are_never_drawn_with_known_ones(read: Any, tmp_path: Path) -> None:
    """Logs that say nothing beside runs of ours with exactly our defaults, and with a parameter that is unknown."""
    assert read(LOGS.whole(None), "--dataset", "reddit", "--set", "machine=local") == 0
    assert read(LOGS.whole(LOGS.BNS | {"n_layers": None})) == 0
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


def test_reading_twice_is_one_record_and_another_log_is_another(read: Any, tmp_path: Path) -> None:
    text = LOGS.whole(LOGS.BNS)
    assert [read(text), read(text), read(text + "(another launch)\n")] == [0, 0, 0]
    assert len(list((tmp_path / "runs").iterdir())) == 2
    collect(tmp_path / "runs", tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    assert set(runs.source) == {"external"}
    assert json.loads(runs.extra[0])["external.program"] == "BNS-GCN"


def test_processes_that_stop_early_make_a_failed_run(read: Any, tmp_path: Path) -> None:
    text = LOGS.whole(LOGS.BNS | {"n_epochs": 200})
    assert read(text) == 1
    error = only(tmp_path).record["error"]
    assert "came to epoch 29 of 200" in error["message"] and "97.21%" in error["message"]


@pytest.mark.parametrize(
    ("text", "options", "program", "reason"),
    [
        (ANOTHER, (), "bns-gcn", "no report of an epoch in the format of BNS-GCN.*epoch 3 loss 0.4"),
        (LOGS.whole(LOGS.PIPE), (), "bns-gcn", "not a log of BNS-GCN.*--format pipegcn"),
        (LOGS.whole(LOGS.BNS), (), "pipegcn", "not a log of PipeGCN.*--format bns-gcn"),
        (LOGS.whole(None), (), "bns-gcn", "--dataset"),
        (LOGS.whole(LOGS.BNS), ("--dataset", "redit"), "bns-gcn", "Did you mean"),
        (LOGS.whole(LOGS.BNS), ("--set", "model.hidden=64"), "bns-gcn", "model.hidden = 256.* say 64"),
        (LOGS.whole(LOGS.BNS), ("--set", "model={hidden: 64}"), "bns-gcn", "model.hidden = 256.* say 64"),
        (LOGS.whole(LOGS.BNS | {"n_partitions": 40}), (), "bns-gcn", r"\[0, 1\], but the run had 40"),
        (2 * LOGS.whole(LOGS.BNS), (), "bns-gcn", "epoch 9 of process 0 more than once"),
        (
            LOGS.options(LOGS.BNS | {"lr": 0.5}) + LOGS.whole(LOGS.BNS),
            (),
            "bns-gcn",
            "several runs.*differ in lr",
        ),
        (LOGS.whole(LOGS.BNS | {"lr": float("inf")}), (), "bns-gcn", "training.lr = inf"),
        (LOGS.whole(LOGS.BNS | {"n_layers": "four"}), (), "bns-gcn", "model.layers"),
        (LOGS.whole(None), ("--dataset", "reddit"), "pipegcn", "strategy.name=pipegcn"),
    ],
)
def test_what_is_no_such_log_is_refused(
    text: str, options: tuple[str, ...], program: str, reason: str, read: Any, capsys: Any, tmp_path: Path
) -> None:
    assert read(text, *options, program=program) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(reason, said), said
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run(command)`: the exit code of `harness external run`."""
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))

    def act(*command: str) -> int:
        return main(["external", "run", "--format", "bns-gcn", "--cwd", str(tmp_path), "--", *command])

    return act


def test_a_command_is_run_and_recorded(run: Any, tmp_path: Path) -> None:
    text = LOGS.whole(LOGS.BNS)
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
def test_a_program_that_fails_is_a_result(
    ending: str, status: str, reason: str, run: Any, tmp_path: Path
) -> None:
    assert run(sys.executable, "-c", f"import sys; print({LOGS.options(LOGS.BNS)!r}); {ending}") == 1
    record = only(tmp_path).record
    assert record["status"] == status
    assert re.search(reason, " ".join(record["error"]["message"].split()))


def test_a_program_that_says_nothing_leaves_no_record(run: Any, capsys: Any, tmp_path: Path) -> None:
    assert run(sys.executable, "-c", "import sys; print('no such option'); sys.exit(2)") == 1
    said = capsys.readouterr().err
    assert "exit code 2" in said and said.rstrip().endswith("no such option")
    assert not (tmp_path / "runs").exists()


def test_a_command_that_is_not_there_is_refused(run: Any, capsys: Any, tmp_path: Path) -> None:
    assert run("no-such-program") == 2
    assert "no-such-program cannot be started" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "moment",
    ["harness.results.record.write_synced", "harness.files.sync_folder", "harness.files.publish_folder"],
)
def test_a_signal_while_the_record_is_written_leaves_nothing_half_written(
    moment: str, before: bool, number: signal.Signals, run: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    words = (sys.executable, "-c", f"print({LOGS.whole(LOGS.BNS)!r})")
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
