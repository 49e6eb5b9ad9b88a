"""Logs of Plexus, SANCUS and AdaQP are read into records, and records name how their runs differ from ours."""

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pandas as pd
import pytest

from harness.cli import main
from harness.commands.recording_programs import ProgramName
from harness.experiment.requests import make_spec
from harness.external.log_options import parse_command
from harness.external.programs import PROGRAMS
from harness.registry import load_strategy
from harness.results.record import Record
from harness.spec.root import find_root
from tests.external.conftest import only

LOGS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("logs.py"))))
NAN, INF = float("nan"), float("inf")
TREE = ("--dataset", "reddit", "--set", "grid=2x1x2")


def known_parameters(record: Record) -> dict[str, Any]:
    params = record.spec["strategy"]["params"]
    return {key: value for key, value in params.items() if value != "unknown"}


def sum_seconds(record: Record) -> dict[str, float]:
    ledger = record.table("ledger")
    return {op: float(seconds) for op, seconds in ledger.groupby("op").seconds.sum().items()}


def test_format_option_and_page_list_every_program() -> None:
    page = (find_root() / "docs" / "how-to" / "other-programs.md").read_text()
    listed = re.findall(r"^\| `([a-z][\w-]*)` \|", page, flags=re.MULTILINE)
    assert set(get_args(ProgramName)) == set(PROGRAMS) == set(listed)


def test_programs_only_name_keys_that_a_spec_has() -> None:
    """A misspelt key would be dropped without an error where it is lost, and refused where it has a value."""
    spec = make_spec(find_root(), {"strategy": "bns-gcn", "dataset": "tiny-sbm"}, "a test").model_dump()
    known = {f"{section}.{key}" for section, keys in spec.items() if isinstance(keys, dict) for key in keys}
    known |= spec.keys()
    strategies = ("bns-gcn", "pipegcn", "plexus", "sancus", "adaqp")
    known |= {
        f"strategy.params.{name}" for each in strategies for name in load_strategy(each).Params.model_fields
    }
    for program in PROGRAMS.values():
        named = {*program.map_keys({}), *program.needed, *(each.key for each in program.beyond if each.key)}
        assert named <= known


# Plexus.


def test_plexus_grid_follows_from_the_echoed_command(read_as: Any, tmp_path: Path) -> None:
    """Its x, y and z are --G_intra_r, --G_intra_c and --G_intra_d (plexus.init), and so are ours (the roles agree)."""
    command = LOGS.plexus_command((2, 1, 3), "--lr 0.5", "--hidden_size=64", "--tune_gemms")
    assert read_as("plexus", LOGS.plexus(command=command), "--dataset", "reddit") == 0
    record = only(tmp_path)
    spec = record.spec
    assert (spec["grid"], spec["ranks"]) == ({"x": 2, "y": 1, "z": 3}, 6)
    assert (spec["training"]["lr"], spec["model"]["hidden"], spec["model"]["layers"]) == (0.5, 64, 3)
    assert (spec["training"]["epochs"], spec["protocol"], spec["training"]["features"]) == (
        3,
        "faithful",
        True,
    )
    assert known_parameters(record) == {
        "wire": "full",
        "loops": "in_A",
        "aggregation": "whole",
        "weight_gradient": "measured",
    }
    assert spec["dataset"]["permutation"] is None, "the data folder decides"


def test_plexus_times_are_those_of_the_timed_epochs(read_as: Any, tmp_path: Path) -> None:
    assert read_as("plexus", LOGS.plexus(), *TREE) == 0
    record = only(tmp_path)
    epochs = record.table("epochs")
    assert list(epochs.loss) == [3.5, 3.25, 3.0]
    assert list(epochs.seconds.fillna(0)) == [0, 0.110, 0.120], "the slowest process"
    assert record.record["summary"]["epoch_seconds_median"] == pytest.approx(0.115)
    assert "final_loss" not in record.record["summary"], "its weights do not train"
    seconds = sum_seconds(record)
    assert seconds["all_reduce"] == pytest.approx(2 * 0.010)
    assert seconds["spmm"] == pytest.approx(2 * (0.015 + 0.008))
    assert seconds["gemm"] == pytest.approx(2 * 0.005)
    assert sum(seconds.values()) == pytest.approx(0.230), "the rest is other work"


def test_plexus_without_timers_of_collectives_claims_none(read_as: Any, tmp_path: Path) -> None:
    """The released AxoNN does not time its collectives."""
    assert read_as("plexus", LOGS.plexus(collectives=False), *TREE) == 0
    assert "all_reduce" not in sum_seconds(only(tmp_path))


def test_plexus_overlapped_sums_are_no_products(read_as: Any, tmp_path: Path) -> None:
    text = LOGS.plexus(aggregation="AGG = A * H and All-Reduce AGG")
    assert read_as("plexus", text, *TREE) == 0
    record = only(tmp_path)
    assert record.spec["strategy"]["params"]["aggregation"] == "overlapped"
    assert record.spec["strategy"]["params"]["blocks"] == "unknown"
    assert sum_seconds(record)["spmm"] == pytest.approx(2 * 0.008), "only that of the backward pass"


def test_plexus_names_weights_that_do_not_train(read_as: Any, tmp_path: Path, capsys: Any) -> None:
    split = LOGS.plexus(command=LOGS.plexus_command((1, 2, 1)))
    assert read_as("plexus", split, "--dataset", "reddit") == 0
    beyond = only(tmp_path).record["external"]["beyond"]
    assert "Net.layers is a plain list" in beyond["weights"] and "labels" in beyond
    assert "Net.layers is a plain list" in " ".join(capsys.readouterr().out.split())
    rows = LOGS.plexus(command=LOGS.plexus_command((2, 1, 1)))
    assert "labels" not in PROGRAMS["plexus"].read(make_log(rows)).options
    described = {each.name: each.describe for each in PROGRAMS["plexus"].beyond}
    assert described["labels"](PROGRAMS["plexus"].read(make_log(rows)).options) is None


def make_log(text: str) -> Any:
    from harness.external.program import ProgramLog

    return ProgramLog(text, "a log")


# SANCUS.


def test_sancus_describes_itself(read_as: Any, tmp_path: Path) -> None:
    assert read_as("sancus", LOGS.sancus()) == 0
    record = only(tmp_path)
    spec, summary = record.spec, record.record["summary"]
    assert (spec["strategy"]["name"], spec["dataset"]["name"], spec["ranks"]) == ("sancus", "reddit", 2)
    assert known_parameters(record) == {"wire": "full", "overlap": False, "stale": 0}
    assert (spec["model"]["layers"], spec["model"]["hidden"], spec["training"]["epochs"]) == (2, None, 12)
    assert record.record["provenance"]["engine"] == "gloo"
    assert summary["epoch_seconds_median"] == pytest.approx(6.0 / 12), "a mean over all epochs"
    assert "final_loss" not in summary, "that of the first rank's vertices alone"
    accuracy = record.table("accuracy")
    assert list(accuracy.epoch) == 3 * [0] + 3 * [10] + 3 * [11] and accuracy.accuracy.iloc[-1] == 0.81
    seconds = sum_seconds(record)
    assert seconds["broadcast"] == pytest.approx(0.25) and seconds["spmm"] == pytest.approx(0.1)
    assert sum(seconds.values()) == pytest.approx(0.5)


@pytest.mark.parametrize(("cached", "stale", "named"), [(False, 0, "caches"), (True, "unknown", "schedule")])
def test_sancus_counts_of_broadcasts_show_its_caches(
    cached: bool, stale: Any, named: str, read_as: Any, tmp_path: Path
) -> None:
    assert read_as("sancus", LOGS.sancus(cached=cached)) == 0
    record = only(tmp_path)
    assert record.spec["strategy"]["params"]["stale"] == stale
    assert record.record["external"]["beyond"].keys() == {named, "loss", "features"}


# AdaQP.


@pytest.mark.parametrize(
    ("mode", "strategy", "known"),
    [
        ("Vanilla", "bns-gcn", {"p": 1.0, "precompute": False, "wire": "full", "overlap": False}),
        ("AdaQP-p", "bns-gcn", {"p": 1.0, "precompute": False, "wire": "full", "overlap": True}),
        ("AdaQP-q", "adaqp", {"overlap": False}),
        ("AdaQP", "adaqp", {"overlap": True}),
    ],
)
def test_adaqp_mode_follows_from_its_times(
    mode: str, strategy: str, known: dict[str, Any], read_as: Any, tmp_path: Path
) -> None:
    assert read_as("adaqp", LOGS.adaqp(mode), "--dataset", "reddit") == 0
    record = only(tmp_path)
    assert (record.spec["strategy"]["name"], record.spec["ranks"]) == (strategy, 4)
    assert known_parameters(record) == known
    assert ("bfloat16 parameters" in record.record["external"]["beyond"]) is (strategy == "adaqp")
    epochs, ledger = record.table("epochs"), record.table("ledger")
    assert list(epochs.epoch) == [9, 19, 29], "the program counts from 1"
    assert ledger.seconds.sum() == pytest.approx(epochs.seconds.sum())
    exchange = ledger[ledger.op == "all_to_all"]
    assert bool(exchange.seconds.sum() == 0) is known["overlap"], (
        "overlapping seconds are not part of the epoch"
    )
    assert exchange.in_flight_seconds.sum() == pytest.approx(1.5 * known["overlap"])


def test_adaqp_results_are_those_of_all_vertices(read_as: Any, tmp_path: Path) -> None:
    assert read_as("adaqp", LOGS.adaqp(), "--dataset", "reddit", "--set", "strategy.params.bits=8") == 0
    record = only(tmp_path)
    summary = record.record["summary"]
    assert summary["epoch_seconds_median"] == pytest.approx(1.2), "the median of the printed epochs"
    assert (summary["final_loss"], summary["accuracy_test"]) == (0.3333, 0.835)
    assert record.spec["strategy"]["params"]["bits"] == 8
    assert len(record.table("accuracy")) == 9


def test_adaqp_scores_of_several_labels_are_read(read_as: Any, tmp_path: Path) -> None:
    assert read_as("adaqp", LOGS.adaqp(metric="F1 micro"), "--dataset", "reddit") == 0
    assert only(tmp_path).record["summary"]["accuracy_valid"] == 0.91


@pytest.mark.parametrize(
    ("scheme", "words"), [("adaptive", "chooses the bit width"), ("random", "for each row anew")]
)
def test_adaqp_schemes_that_no_spec_has_leave_the_bits_unknown(
    scheme: str, words: str, read_as: Any, tmp_path: Path, capsys: Any
) -> None:
    text = LOGS.adaqp(scheme=scheme)
    assert read_as("adaqp", text, "--dataset", "reddit", "--set", "strategy.params.bits=8") == 2
    assert "strategy.params.bits has no value for this run (assign_scheme" in " ".join(
        capsys.readouterr().err.split()
    )
    assert read_as("adaqp", text, "--dataset", "reddit") == 0
    record = only(tmp_path)
    assert record.spec["strategy"]["params"]["bits"] == "unknown"
    assert words in record.record["external"]["beyond"]["assign_scheme"]


# Logs that are not whole.

MESSAGES = [
    ("plexus", LOGS.plexus(), ("--set", "grid=1x1x1"), "does not say which graph.*--dataset"),
    ("plexus", LOGS.plexus(), ("--dataset", "reddit"), "--set grid=XxYxZ, where X is --G_intra_r"),
    ("plexus", LOGS.plexus(), ("--dataset", "reddit", "--set", "ranks=4"), "--set grid=XxYxZ"),
    ("plexus", LOGS.plexus() + LOGS.plexus(), TREE, "epoch 0 of process 0 more than once"),
    ("plexus", LOGS.sancus(), TREE, r"no report of an epoch in the format of Plexus.*--format sancus"),
    ("sancus", LOGS.plexus(), (), r"no report of an epoch in the format of SANCUS.*--format plexus"),
    ("sancus", LOGS.adaqp(), (), r"no report.*--format adaqp"),
    ("sancus", LOGS.sancus() + LOGS.sancus(), (), r"more than once.*all_log_RANK\.txt"),
    (
        "sancus",
        LOGS.sancus(()) + LOGS.sancus(ranks=4),
        (),
        r"options of several runs, which differ in nprocs",
    ),
    ("sancus", LOGS.sancus(graph="redit"), (), "Did you mean"),
    ("sancus", LOGS.sancus().replace("<DistEnv", "<"), (), "does not say how many processes.*--set ranks=N"),
    ("adaqp", LOGS.sancus(), ("--dataset", "reddit"), r"no report.*--format sancus"),
    ("adaqp", LOGS.whole(LOGS.BNS), (), r"no report.*--format bns-gcn"),
    ("bns-gcn", LOGS.adaqp(), (), r"no report.*--format adaqp"),
    ("adaqp", LOGS.adaqp(), (), "does not say which graph"),
    (
        "adaqp",
        2 * LOGS.adaqp(),
        ("--dataset", "reddit"),
        r"epoch 9 of process 0 more than once.*trainer\.log",
    ),
    (
        "adaqp",
        LOGS.adaqp(),
        ("--dataset", "reddit", "--set", "model.norm=true"),
        "model.norm has no value.*Leave it out",
    ),
    ("adaqp", LOGS.adaqp(), ("--dataset", "reddit", "--set", "ranks=2"), "ranks = 4.*say 2"),
    ("plexus", "nothing\n", TREE, "is this the log of another program.*nothing"),
]


@pytest.mark.parametrize(
    ("program", "text", "options", "reason"),
    MESSAGES,
    ids=[f"{each[0]}-{number}" for number, each in enumerate(MESSAGES)],
)
def test_logs_that_are_not_one_whole_run_are_refused(
    program: str, text: str, options: tuple[str, ...], reason: str, read_as: Any, capsys: Any, tmp_path: Path
) -> None:
    assert read_as(program, text, *options) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(reason, said), said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("program", "text", "options", "status", "reason"),
    [
        (
            "plexus",
            LOGS.plexus(losses=(3.5, NAN, NAN)),
            TREE,
            "diverged",
            "In epoch 1 the loss of process 0 was nan",
        ),
        ("plexus", LOGS.plexus(timed=()), TREE, "failed", "came to epoch 2 and did not print the tree"),
        (
            "plexus",
            LOGS.plexus(losses=(3.5, 3.4), timed=(), command=LOGS.plexus_command((1, 1, 2), epochs=5))
            + "torch.OutOfMemoryError: CUDA out of memory.\n",
            ("--dataset", "reddit"),
            "oom",
            "came to epoch 1 of 5",
        ),
        (
            "sancus",
            LOGS.sancus(finished=False),
            (),
            "failed",
            "came to epoch 11 and did not print its timer summary",
        ),
        ("sancus", LOGS.sancus((2.0, INF)), (), "diverged", "In epoch 1 the loss of process 0 was inf"),
        ("adaqp", LOGS.adaqp(finished=False), ("--dataset", "reddit"), "failed", "came to epoch 29"),
        ("adaqp", LOGS.adaqp(loss=NAN), ("--dataset", "reddit"), "diverged", "In epoch 9 the loss"),
        (
            "adaqp",
            LOGS.adaqp(finished=False),
            ("--dataset", "reddit", "--set", "training.epochs=500"),
            "failed",
            "came to epoch 29 of 500",
        ),
    ],
)
def test_runs_that_did_not_end_well_are_recorded_as_such(
    program: str, text: str, options: tuple[str, ...], status: str, reason: str, read_as: Any, tmp_path: Path
) -> None:
    assert read_as(program, text, *options) == 1
    record = only(tmp_path).record
    assert (record["status"], record["summary"]) == (status, {})
    assert reason in record["error"]["message"]


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "node07: "])
@pytest.mark.parametrize(
    ("program", "text", "options"),
    [
        ("plexus", LOGS.plexus(), TREE),
        ("sancus", LOGS.sancus(), ()),
        ("adaqp", LOGS.adaqp(), ("--dataset", "reddit")),
    ],
)
def test_prefixes_of_lines_hide_nothing(
    program: str, text: str, options: tuple[str, ...], prefix: str, read_as: Any, tmp_path: Path
) -> None:
    plain = PROGRAMS[program].read(make_log(text))
    assert plain.reports
    prefixed = "".join(f"{prefix}{line}\r\n" for line in text.splitlines())
    assert repr(PROGRAMS[program].read(make_log(prefixed))) == repr(plain)


def test_command_that_the_harness_runs_gives_the_options(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    (tmp_path / "train.py").write_text(f"print({LOGS.plexus()!r})")
    typed = ["external", "run", "--format", "plexus", "--dataset", "reddit", "--cwd", str(tmp_path), "--"]
    assert main([*typed, sys.executable, "train.py", "--G_intra_d", "4", "--num_epochs", "3"]) == 0
    record = only(tmp_path)
    assert record.spec["grid"] == {"x": 1, "y": 1, "z": 4} and record.spec["training"]["lr"] == 0.003


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python main.py --epoch 5 --backend=gloo", {"epoch": 5, "backend": "gloo", "seed": 0}),
        ("python main.py --use-pp --epoch 5 > log.txt 2>&1", {"use_pp": True, "epoch": 5, "seed": 0}),
        ('  File "/a/main.py", line 3, in <module>', {}),
        ("edit main.py first", {}),
        ("python main.py --name 'not closed", {"name": "'not", "seed": 0}),
        ("", {}),
    ],
)
def test_arguments_are_those_of_the_called_script(command: str, options: dict[str, Any]) -> None:
    assert parse_command(command, "main.py", {"seed": 0}) == options


# Showing and collecting.


def test_shown_run_names_its_mean_and_what_is_unknown(read_as: Any, tmp_path: Path, capsys: Any) -> None:
    assert read_as("sancus", LOGS.sancus()) == 0
    capsys.readouterr()
    run_id = only(tmp_path).record["run_id"]
    assert main(["runs", "show", run_id, "--runs", str(tmp_path / "runs")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "500 ms an epoch (mean of a log)" in shown and "epoch, mean of a log 500 ms" in shown
    assert "median" not in shown
    assert "model.hidden" in shown and "averages the loss over its own training vertices" in shown
    assert "harness external run" in shown and "harness run --spec" not in shown


def test_median_of_a_log_is_called_a_median(read_as: Any, tmp_path: Path, capsys: Any) -> None:
    assert read_as("adaqp", LOGS.adaqp(), "--dataset", "reddit") == 0
    capsys.readouterr()
    assert main(["runs", "show", only(tmp_path).record["run_id"], "--runs", str(tmp_path / "runs")]) == 0
    assert "epoch, median of a log" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("losses", [(2.0, NAN), (2.0, 1.0)])
def test_failed_run_of_another_program_is_not_repeated_by_a_spec(
    losses: tuple[float, ...], read_as: Any, tmp_path: Path, capsys: Any
) -> None:
    assert read_as("sancus", LOGS.sancus(losses, finished=False)) == 1
    capsys.readouterr()
    assert main(["collect", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "run that program again: `harness external run`" in said
    assert "harness run --spec" not in said and "--fresh" not in said
    assert list(pd.read_parquet(tmp_path / "runs.parquet").source) == ["external"]


def test_record_of_another_program_is_not_emulated(read_as: Any, tmp_path: Path, capsys: Any) -> None:
    assert read_as("sancus", LOGS.sancus()) == 0
    capsys.readouterr()
    assert main(["runs", "emulate", str(next((tmp_path / "runs").iterdir()))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "record of another program's run" in said and "harness run --spec" not in said
