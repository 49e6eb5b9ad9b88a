"""Logs of other programs are read into records that name how their runs differ from ours; other files are refused."""

import re
import shutil
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.experiment.external.log_options import parse_command
from harness.report.summary import list_warnings
from harness.results.collect import collect
from tests.external import logs
from tests.external.conftest import Example, check_values, list_values, only

REDDIT = ("--dataset", "reddit")
TREE = (*REDDIT, "--set", "grid=2x1x2")
HALF, BITS = (*REDDIT, "--set", "strategy.params.p=0.5"), (*REDDIT, "--set", "strategy.params.bits=8")
MEANS = "".join(logs.epoch(rank, 3, nan, nan, nan) for rank in (0, 1))
UNTIMED = logs.options(logs.BNS | {"n_epochs": 4}) + MEANS
"""A log of means over no epoch, as before the sixth one."""
OTHER_SEED = logs.options(logs.BNS | {"seed": 8, "node_rank": 1})
PLEXUS_OPTIONS = ("--lr 0.5", "--hidden_size=64", "--tune_gemms", "--weight_decay 1")

BNS_RECORD = """
source: external
status: ok
provenance: { engine: gloo }
strategy: { name: bns-gcn, params: { wire: full, p: 0.1, precompute: true, overlap: false } }
dataset: { name: reddit, partition: metis, parts: 2 }
model: { kind: sage, layers: 4, hidden: 256, dropout: 0.5, norm: null }
training: { epochs: 30, warmup: 0, evaluate_every: 10 }
ranks: 2
seed: 7
external: { options: { partition_obj: cut } }
summary: # the time is the last mean of the slowest process
  { epoch_seconds_median: 0.339, vertices_per_second: 687212.39, accuracy_valid: 0.929, accuracy_test: 0.9721,
    final_loss: null }
epochs:
  { rank_id: [0, 0, 0, 1, 1, 1], epoch: [9, 19, 29, 9, 19, 29], seconds: [0.309, 0.319, 0.329, 0.319, 0.329, 0.339],
    loss: [0.1, 0.05, 0.0333, 1.1, 1.05, 1.0333] }
seconds.all_to_all: 1.2
seconds.all_reduce: 0.06
seconds: 1.944
accuracy: { accuracy: [0.909, 0.919, 0.929], train_seconds: [3.19, 6.58, 10.17] }
memory: { device_peak_bytes: [2094530560, 2095579136] }
"""
PIPE_RECORD = """
strategy: { name: pipegcn, params: { wire: full, precompute: true, features: 0.95, gradients: 0.0 } }
"""
WHOLE_RECORD = """
strategy: { name: bns-gcn, params: { wire: full, p: 1.0, precompute: true, overlap: false } }
"""
PLEXUS_RECORD = """
strategy: { params: { wire: full, loops: in_A, aggregation: whole, weight_gradient: measured } }
grid: { x: 2, y: 1, z: 3 }
ranks: 6
model: { hidden: 64, layers: 3 }
training: { lr: 0.5, epochs: 3, features: true, weight_decay: null }
dataset: { permutation: null } # the data folder decides
protocol: faithful
"""
PLEXUS_TIMES = """
epochs: { loss: [3.5, 3.25, 3.0], seconds: [.nan, 0.11, 0.12] }
summary: { epoch_seconds_median: 0.115, final_loss: null }
seconds.all_reduce: 0.02
seconds.spmm: 0.046
seconds.gemm: 0.01
seconds: 0.23
"""
OVERLAP_RECORD = """
strategy: { params: { aggregation: overlapped, blocks: unknown } }
seconds.spmm: 0.016 # only that of the backward pass
"""
SANCUS_RECORD = """
strategy: { name: sancus, params: { wire: full, overlap: false, stale: 0 } }
dataset: { name: reddit }
ranks: 2
model: { kind: gcn, layers: 2, hidden: null }
training: { epochs: 12 }
provenance: { engine: gloo }
summary: { epoch_seconds_median: 0.5, final_loss: null, accuracy_test: 0.81 }
accuracy: { epoch: [0, 0, 0, 10, 10, 10, 11, 11, 11] }
external: { options: { skipped: 0 } }
seconds.broadcast: 0.25
seconds.spmm: 0.1
seconds.gemm: 0.05
seconds: 0.5
"""
CACHE_RECORD = """
strategy: { params: { stale: unknown } }
external: { options: { skipped: 22 } }
"""
ADAQP_RECORD = """
strategy: { params: { bits: 8 } }
summary: { epoch_seconds_median: 1.2, final_loss: 0.3333, accuracy_test: 0.835 }
epochs: { epoch: [9, 19, 29] }
accuracy: { epoch: [9, 9, 9, 19, 19, 19, 29, 29, 29] }
"""
MODE_RECORD = """
strategy: {{ name: {strategy}, params: {{ overlap: {overlap} }} }}
external: {{ options: {{ mode: {mode} }} }}
ranks: 4
seconds: 3.6
seconds.all_to_all: {seconds}
in_flight_seconds.all_to_all: {in_flight}
"""
MODES = [
    {"mode": "Vanilla", "strategy": "bns-gcn", "overlap": "false", "seconds": 1.5, "in_flight": 0.0},
    {"mode": "AdaQP-p", "strategy": "bns-gcn", "overlap": "true", "seconds": 0.0, "in_flight": 1.5},
    {"mode": "AdaQP-q", "strategy": "adaqp", "overlap": "false", "seconds": 1.5, "in_flight": 0.0},
    {"mode": "AdaQP", "strategy": "adaqp", "overlap": "true", "seconds": 0.0, "in_flight": 1.5},
]
BNS_UNKNOWN = """
strategy: { name: bns-gcn, params: { wire: full, p: unknown, precompute: true, overlap: false } }
dataset: { partition: null, permutation: none }
model: { order: aggregate_first, kind: null, hidden: null }
training: { warmup: 0, epochs: null }
measure: { utilisation_ms: 0 }
machine: { name: null }
ranks: 2
grid: { p: 2 }
seed: null
"""
RECORDS = [
    ("bns-gcn", logs.whole(logs.BNS | {"partition_obj": "cut"}), (), BNS_RECORD),
    ("bns-gcn", logs.whole(logs.BNS | {"model": "gat", "heads": 2}), (), "model: { kind: gat, heads: 2 }"),
    ("bns-gcn", logs.whole(logs.BNS | {"norm": None}), (), "model: { norm: false }"),
    ("bns-gcn", logs.whole(logs.BNS | {"eval": False}), (), "training: { evaluate_every: 0 }"),
    ("bns-gcn", UNTIMED, (), "epochs: { seconds: [.nan, .nan] }\nseconds: 0"),
    ("bns-gcn", logs.whole(None), HALF, "ranks: 2\nstrategy: { params: { p: 0.5 } }"),
    ("bns-gcn", logs.whole(None), REDDIT, BNS_UNKNOWN),
    ("bns-gcn", f"{OTHER_SEED}{logs.whole(logs.BNS)}", (), "seed: null\nmodel: { layers: 4 }"),
    ("pipegcn", logs.whole(logs.PIPE), (), PIPE_RECORD),
    ("pipegcn", logs.whole(logs.PIPE | {"use_pp": False}), (), PIPE_RECORD.replace("true", "false")),
    ("pipegcn", logs.whole(logs.PIPE | {"enable_pipeline": False}), (), WHOLE_RECORD),
    ("plexus", logs.plexus(command=logs.plexus_command((2, 1, 3), *PLEXUS_OPTIONS)), REDDIT, PLEXUS_RECORD),
    ("plexus", logs.plexus(), TREE, PLEXUS_TIMES),
    ("plexus", logs.plexus(collectives=False), TREE, "seconds.all_reduce: null"),
    ("plexus", logs.plexus(aggregation="AGG = A * H and All-Reduce AGG"), TREE, OVERLAP_RECORD),
    ("sancus", logs.sancus(), (), SANCUS_RECORD),
    ("sancus", logs.sancus(cached=True), (), CACHE_RECORD),
    ("adaqp", logs.adaqp(), BITS, ADAQP_RECORD),
    ("adaqp", logs.adaqp(metric="F1 micro"), REDDIT, "summary: { accuracy_valid: 0.91 }"),
    *(("adaqp", logs.adaqp(mode["mode"]), REDDIT, MODE_RECORD.format(**mode)) for mode in MODES),
]


@pytest.mark.parametrize("log", [Example(*row) for row in RECORDS])
def test_log_becomes_a_record(log: Example, read_as: Callable[..., int], tmp_path: Path) -> None:
    assert read_as(log.program, log.text, *log.options) == 0
    check_values(only(tmp_path), log.expected)


def test_settings_that_a_log_does_not_show_are_listed(read_as: Callable[..., int], tmp_path: Path) -> None:
    assert read_as("bns-gcn", logs.whole(None), *REDDIT) == 0
    unknown = set(only(tmp_path).record["external"]["unknown"])
    assert {"strategy.params.p", "model.hidden", "training.epochs", "machine", "seed"} <= unknown


TABLES = ("epochs", "ledger", "accuracy", "memory")
PREFIXES = [
    "0: ",
    " 3: ",
    "[1,0]<stdout>:",
    "node07: ",
    "2026-11-22 19:30:00,123 INFO ",
    "[19:30:00] options: ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("program", "text", "options"),
    [
        ("bns-gcn", logs.whole(logs.BNS), ()),
        ("plexus", logs.plexus(), TREE),
        ("sancus", logs.sancus(), ()),
        ("adaqp", logs.adaqp(), REDDIT),
    ],
)
def test_prefixes_of_lines_hide_nothing(
    program: str,
    text: str,
    options: tuple[str, ...],
    prefix: str,
    read_as: Callable[..., int],
    tmp_path: Path,
) -> None:
    assert read_as(program, text, *options) == 0
    plain, tables = only(tmp_path), [only(tmp_path).table(name) for name in TABLES]
    shutil.rmtree(tmp_path / "runs")
    assert read_as(program, "".join(f"{prefix}{line}\r\n" for line in text.splitlines()), *options) == 0
    found = only(tmp_path)
    assert found.spec == plain.spec and found.record["summary"] == plain.record["summary"]
    assert found.record["external"]["options"] == plain.record["external"]["options"]
    assert all(found.table(name).equals(table) for name, table in zip(TABLES, tables, strict=True))


# Options.

STRANGE = {
    "graph_name": "reddit-2-metis",
    "path": "/scratch/some one/a,b/c",
    "folder": "PosixPath('/tmp/a, b')",
    "device": "device(type='cuda', index=0)",
    "loss": "<function cross_entropy at 0x7f12>",
}
NUMBERS = {"clip": inf, "floor": -inf, "sizes": [1, 2], "none": None}
QUOTED = STRANGE | {"words": "it's a (b", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (logs.unquoted(logs.BNS | STRANGE | NUMBERS), STRANGE | NUMBERS | {"clip": "inf", "floor": "-inf"}),
        (logs.options(logs.BNS | QUOTED), QUOTED),
    ],
)
def test_options_that_are_not_literals_are_texts(
    text: str, expected: dict[str, Any], read_as: Callable[..., int], tmp_path: Path
) -> None:
    assert read_as("bns-gcn", text + logs.whole(None)) == 0
    assert only(tmp_path).record["external"]["options"] == logs.BNS | expected


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


# Differences.

PLAIN = {"norm": "none", "model": "gat", "dropout": 0.0, "partition_obj": "cut", "sampling_rate": 1.0}
"""Options without anything that only some runs have beyond a spec."""
DIFFERENCES = [
    *(
        ("bns-gcn", logs.whole(logs.BNS | PLAIN | changes), (), (words, unknown))
        for changes, words, unknown in (
            ({"norm": "batch"}, {"norm": "batch normalisation"}, "model.norm"),
            ({"norm": "layer"}, {"norm": "layer normalisation"}, "model.norm"),
            ({"norm": "instance"}, {"norm": "instance"}, "model.norm"),
            ({"n_linear": 1}, {"n_linear": "last 1 layers have no A"}, "model.layers"),
            ({"inductive": True}, {"inductive": "training vertices alone"}, "vertices_per_second"),
            ({"model": "graphsage"}, {"self loops": "includes the vertex itself"}, ""),
            ({"model": "gcn"}, {"degrees": "degrees of other vertices"}, ""),
            ({"dropout": 0.5}, {"dropout": "features and attention weights"}, ""),
            ({"partition_obj": "vol"}, {"partition_obj": "objective vol"}, "dataset.partition"),
            ({"sampling_rate": 0.1}, {"sampling_rate": "rounded down.*attention"}, ""),
            ({"heads": 2}, {"heads": "2 heads, averaged"}, ""),
        )
    ),
    ("plexus", logs.plexus(), TREE, ({"labels": "if an axis splits", "weights": "a plain list"}, "seed")),
    (
        "plexus",
        logs.plexus(command=logs.plexus_command((1, 2, 1))),
        REDDIT,
        ({"labels": "^shifts the labels"}, ""),
    ),
    ("plexus", logs.plexus(command=logs.plexus_command((2, 1, 1))), REDDIT, ({}, "")),
    ("sancus", logs.sancus(), (), ({"caches": "no broadcast was skipped"}, "")),
    ("sancus", logs.sancus(cached=True), (), ({"schedule": "all ranks skip"}, "")),
    (
        "adaqp",
        logs.adaqp(),
        REDDIT,
        ({"overlap": "meanwhile", "bfloat16 parameters": "biases the row"}, "model.norm"),
    ),
    (
        "adaqp",
        logs.adaqp(scheme="adaptive"),
        REDDIT,
        ({"assign_scheme": "chooses the bit width"}, "model.norm"),
    ),
    ("adaqp", logs.adaqp(scheme="random"), REDDIT, ({"assign_scheme": "for each row anew"}, "model.norm")),
]
OF_ALL = {
    "bns-gcn": {"bias", "reducer"},
    "plexus": {"weights", "padding", "features"},
    "sancus": {"loss", "features"},
    "adaqp": {"bias", "norm", "bfloat16 parameters", "overlap"},
}
"""The differences of all these runs."""


@pytest.mark.parametrize("log", [Example(*row) for row in DIFFERENCES])
def test_differences_are_named_and_their_keys_unknown(
    log: Example, read_as: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_as(log.program, log.text, *log.options) == 0
    (words, unknown), shown = log.expected, " ".join(capsys.readouterr().out.split())
    values, beyond = list_values(only(tmp_path)), only(tmp_path).record["external"]["beyond"]
    assert beyond.keys() == OF_ALL[log.program] | words.keys()
    may_be_unknown = ("model.norm", "model.layers", "dataset.partition", "summary.vertices_per_second")
    if log.program == "bns-gcn":
        assert [key for key in may_be_unknown if values[key] is None and not key.endswith(unknown)] == []
    assert not unknown or values.get(unknown) is None
    collect(tmp_path / "runs", tmp_path)
    warnings = list_warnings(pd.read_parquet(tmp_path / "runs.parquet"))
    for name, pattern in words.items():
        assert re.search(pattern, beyond[name])
        assert beyond[name] in shown and any(beyond[name] in warning for warning in warnings)


# Logs that are refused, and runs that did not end well.

REFUSED = [
    ("bns-gcn", "epoch 3 loss 0.4\n", (), r"no report .*BNS-GCN.*epoch 3 loss 0\.4"),
    ("bns-gcn", logs.whole(logs.PIPE), (), "not a log of BNS-GCN.*--format pipegcn"),
    ("pipegcn", logs.whole(logs.BNS), (), "not a log of PipeGCN.*--format bns-gcn"),
    ("plexus", logs.sancus(), TREE, "--format sancus"),
    ("sancus", logs.plexus(), (), "--format plexus"),
    ("sancus", logs.adaqp(), (), "--format adaqp"),
    ("adaqp", logs.sancus(), REDDIT, "--format sancus"),
    ("adaqp", logs.whole(logs.BNS), (), "--format bns-gcn"),
    ("bns-gcn", logs.adaqp(), (), "--format adaqp"),
    ("plexus", "nothing\n", TREE, "log of another program.*nothing"),
    ("bns-gcn", logs.whole(None), (), "--dataset"),
    ("plexus", logs.plexus(), ("--set", "grid=1x1x1"), "--dataset"),
    ("adaqp", logs.adaqp(), (), "--dataset"),
    ("plexus", logs.plexus(), REDDIT, "--set grid=XxYxZ, where X is --G_intra_r"),
    ("plexus", logs.plexus(), (*REDDIT, "--set", "ranks=4"), "--set grid=XxYxZ"),
    ("sancus", logs.sancus().replace("<DistEnv", "<"), (), "--set ranks=N"),
    ("pipegcn", logs.whole(None), REDDIT, "strategy.name=pipegcn"),
    ("bns-gcn", logs.whole(logs.BNS), ("--dataset", "redit"), "Did you mean"),
    ("sancus", logs.sancus(graph="redit"), (), "Did you mean"),
    ("bns-gcn", logs.whole(logs.BNS), ("--set", "model.hidden=64"), "model.hidden = 256.* 64"),
    ("bns-gcn", logs.whole(logs.BNS), ("--set", "model={hidden: 64}"), "model.hidden = 256.* 64"),
    ("adaqp", logs.adaqp(), (*REDDIT, "--set", "ranks=2"), "ranks = 4.* 2"),
    ("adaqp", logs.adaqp(), (*REDDIT, "--set", "model.norm=true"), "model.norm has no value"),
    (
        "adaqp",
        logs.adaqp(scheme="random"),
        (*REDDIT, "--set", "strategy.params.bits=8"),
        "strategy.params.bits has no value.*assign_scheme",
    ),
    ("bns-gcn", logs.whole(logs.BNS | {"n_partitions": 40}), (), r"\[0, 1\].* 40"),
    ("bns-gcn", 2 * logs.whole(logs.BNS), (), "epoch 9 of process 0 more than once"),
    ("plexus", 2 * logs.plexus(), TREE, "epoch 0 of process 0 more than once"),
    ("sancus", 2 * logs.sancus(), (), "epoch 0 of process 0 more than once"),
    ("adaqp", 2 * logs.adaqp(), REDDIT, "epoch 9 of process 0 more than once"),
    ("bns-gcn", logs.options(logs.BNS | {"lr": 0.5}) + logs.whole(logs.BNS), (), "several runs.* lr"),
    ("sancus", logs.sancus(()) + logs.sancus(ranks=4), (), "several runs.* nprocs"),
    ("bns-gcn", logs.whole(logs.BNS | {"lr": inf}), (), "training.lr = inf"),
    ("bns-gcn", logs.whole(logs.BNS | {"n_layers": "four"}), (), "model.layers"),
    *(
        ("bns-gcn", logs.whole(logs.BNS) + line, (), reason)
        for line, reason in (
            ("Epoch 00000 | Accuracy 1.2.3%\n", r"valid = 1\.2\.3 .*fraction.*Epoch 00000 \| Accuracy"),
            ("Epoch 00000 | Validation Accuracy .% | Test Accuracy ..%\n", r"valid = \. "),
            ("Epoch 00000 | Accuracy 101%\n", "valid = 101 "),
            ("(rank 0) memory stats: current 1.0MB, peak 1.2.3MB\n", r"device_peak = 1\.2\.3 .*bytes"),
            ("(rank 0) memory stats: current 1.0MB, peak nanMB\n", "device_peak = nan"),
            (logs.epoch(0, 0, 1).replace("Epoch 00000", f"Epoch {'9' * 30}"), "epoch = 9999.*whole number"),
            (logs.epoch(0, 0, 1).replace("Epoch 00000", f"Epoch {'9' * 5000}"), "epoch = 9999.*whole number"),
            (logs.epoch(0, 0, -1), r"seconds = -1\.0000"),
        )
    ),
    ("adaqp", logs.adaqp().replace("00010", "00000"), REDDIT, "epoch = 00000 .*first_epoch"),
]


@pytest.mark.parametrize("log", [Example(*row) for row in REFUSED])
def test_logs_that_are_not_one_run_of_the_program_are_refused(
    log: Example, read_as: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert read_as(log.program, log.text, *log.options) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(log.expected, said), said
    assert not (tmp_path / "runs").exists()


def diverging(loss: float) -> str:
    """A log of two processes, of which the second one has this loss from epoch 19 on."""
    return logs.options(logs.BNS) + "".join(
        logs.epoch(rank, number, 0.3, loss=loss if number > 9 and rank else 0.5) + "\n"
        for number in (9, 19, 29)
        for rank in (0, 1)
    )


LOST = (nan, inf, -inf)
CUT = logs.plexus(losses=(3.5, 3.4), timed=(), command=logs.plexus_command((1, 1, 2), epochs=5))
UNFINISHED = logs.adaqp(finished=False)
FAILED = [
    *(
        ("bns-gcn", diverging(loss), (), ("diverged", f"epoch 19 the loss of process 1 was {loss}"))
        for loss in LOST
    ),
    (
        "plexus",
        logs.plexus(losses=(3.5, nan, nan)),
        TREE,
        ("diverged", "epoch 1 the loss of process 0 was nan"),
    ),
    ("sancus", logs.sancus((2.0, inf)), (), ("diverged", "epoch 1 the loss of process 0 was inf")),
    ("adaqp", logs.adaqp(loss=nan), REDDIT, ("diverged", "epoch 9 the loss")),
    ("bns-gcn", logs.whole(logs.BNS | {"n_epochs": 200}), (), ("failed", "epoch 29 of 200.*97.21%")),
    ("plexus", logs.plexus(timed=()), TREE, ("failed", "epoch 2 and did not print.*Load Imbalance")),
    ("plexus", f"{CUT}torch.OutOfMemoryError: CUDA out of memory.\n", REDDIT, ("oom", "epoch 1 of 5")),
    ("sancus", logs.sancus(finished=False), (), ("failed", "epoch 11 and did not print.*timer summary")),
    ("adaqp", UNFINISHED, REDDIT, ("failed", "came to epoch 29")),
    ("adaqp", UNFINISHED, (*REDDIT, "--set", "training.epochs=500"), ("failed", "epoch 29 of 500")),
]


@pytest.mark.parametrize("log", [Example(*row) for row in FAILED])
def test_runs_that_did_not_end_well_are_recorded_as_such(
    log: Example, read_as: Callable[..., int], tmp_path: Path
) -> None:
    assert read_as(log.program, log.text, *log.options) == 1
    record, (status, reason) = only(tmp_path).record, log.expected
    assert (record["status"], record["summary"]) == (status, {})
    assert re.search(reason, " ".join(record["error"]["message"].split()))
