"""Whole runs on fake GPUs, as a user starts them: recorded, refused, out of memory."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.doctor.self_test import find_local_faults
from harness.comm import engine
from harness.experiment.requests import make_spec
from harness.kernels import random, spmm
from harness.results.record import Record, read_record
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import launch
from harness.spec.spec import Spec

Environment = dict[str, str]
ROOT = Path(__file__).parents[2]


def harness(environment: Environment, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=120)


def run_on(machine: str, environment: Environment, out: Path, *words: str, **more: str) -> tuple[Any, Path]:
    """The record of a run of two ranks on the smallest graph, and its folder."""
    told = ["--dataset", "tiny-sbm", "--ranks", "2", "--set", f"machine={machine}", *words]
    done = harness(environment, "run", *told, "--out", str(out), **more)
    folders = list(out.iterdir()) if out.exists() else []
    assert len(folders) == 1, done.stdout + done.stderr
    return json.loads((folders[0] / "record.json").read_text()), folders[0]


RUNS: dict[str, dict[str, Any]] = {
    "cagnet-1d": {"strategy": "cagnet-1d"},
    "plexus": {"strategy": "plexus"},
    "plexus, bf16 on the wire": {"strategy": {"name": "plexus", "params": {"wire": "bf16"}}},
    "scalegnn": {"strategy": "scalegnn", "training": {"batch": 64}},
    "distdgl": {"strategy": "distdgl", "training": {"batch": 64}},
}
"""What is asked of runs that train on GPUs as on CPUs."""


def spec_of(machine: str, asked: dict[str, Any]) -> Spec:
    training = {"epochs": 3, **asked.get("training", {})}
    usual = {"dataset": "tiny-sbm", "ranks": 2, "machine": machine}
    return make_spec(ROOT, {**usual, **asked, "training": training}, "test")


def launched(
    environment: Environment, machine: str, runs: Path, asked: dict[str, dict[str, Any]], **more: str
) -> dict[str, Record]:
    """The records of some runs; one fork server starts their ranks, and imports torch once."""
    with pytest.MonkeyPatch.context() as patch, ForkServer() as server:
        for name, text in {**environment, **more}.items():
            patch.setenv(name, text)
        specs = {name: spec_of(machine, each) for name, each in asked.items()}
        return {
            name: read_record(launch(spec, ROOT, runs, lambda _: None, fork_server=server))
            for name, spec in specs.items()
        }


def test_runs_are_those_of_cpus(with_gpus: Environment, tmp_path: Path) -> None:
    on_cpus, on_gpus = (
        launched(with_gpus, machine, tmp_path / machine, RUNS) for machine in ("local", "local-gpu")
    )
    for name in RUNS:
        losses, words = (
            [each.table(table)[column].tolist() for each in (on_cpus[name], on_gpus[name])]
            for table, column in (("epochs", "loss"), ("ledger", "elements_payload"))
        )
        assert losses[1] == pytest.approx(losses[0], rel=1e-2 if "bf16" in name else 1e-5)
        assert sum(words[1]) == sum(words[0])
        record = on_gpus[name].record
        made_by = record["provenance"]["gpu"], record["provenance"]["engine"]
        assert (record["status"], *made_by) == ("ok", "fake", "nccl"), record["error"]
        memory = on_gpus[name].table("memory").groupby("rank_id")
        assert (memory.device_peak_bytes.max() > memory.persistent_bytes.sum()).all()
        assert (memory.persistent_bytes.sum() > 0).all()


def test_a_run_with_a_cuda_graph_is_one_without(with_gpus: Environment, tmp_path: Path) -> None:
    """The whole loop of a rank: warm-up, evaluations between replays, checksums, windows of utilisation."""
    asked = {
        name: {
            "strategy": "plexus",
            "training": {"warmup": 2, "evaluate_every": 2, "cuda_graph": name == "graph"},
            "measure": {"utilisation_ms": 5},
        }
        for name in ("plain", "graph")
    }
    plain, graph = launched(with_gpus, "local-gpu", tmp_path, asked).values()
    assert [each.record["status"] for each in (plain, graph)] == ["ok", "ok"], graph.record["error"]
    for table, columns in (
        ("epochs", ["epoch", "loss"]),
        ("ledger", ["epoch", "op", "calls", "elements_payload", "bytes"]),
    ):
        one, other = (each.table(table)[columns] for each in (plain, graph))
        assert one.equals(other), table


def test_two_ranks_need_two_gpus(with_gpus: Environment, tmp_path: Path) -> None:
    record, _ = run_on("local-gpu", with_gpus, tmp_path, "--strategy", "cagnet-1d", FAKE_GPUS="1")
    assert record["status"] == "refused"


def test_a_check_has_a_rank_for_each_gpu(with_gpus: Environment) -> None:
    told = ("check", "cagnet-1d", "--quick", "--machine", "local-gpu")
    assert harness(with_gpus, *told, FAKE_GPUS="1").stdout.startswith("PASS cagnet-1d: ")
    refused = harness(with_gpus, *told, FAKE_GPUS="0")
    assert (refused.returncode, "needs a GPU" in refused.stderr) == (2, True), refused.stderr


def test_a_run_without_memory_says_so_and_leaves_the_next_a_clean_gpu(
    with_gpus: Environment, tmp_path: Path
) -> None:
    asked = {name: {"strategy": "cagnet-1d", "model": {"hidden": int(name)}} for name in ("2048", "16")}
    wide, usual = launched(with_gpus, "local-gpu", tmp_path, asked, FAKE_GPU_BYTES="1000000").values()
    memory = r"Tried to allocate \d+ bytes. GPU \d has a total capacity of 1000000 bytes of which \d+ bytes are free"
    assert wide.record["status"] == "oom" and re.search(memory, wide.record["error"]["message"])
    assert usual.record["status"] == "ok", usual.record["error"]


def test_a_call_that_hangs_is_on_record(with_gpus: Environment, tmp_path: Path) -> None:
    told = "--strategy", f"{Path(__file__).parent / 'planted.py'}:Hanging"
    record, _ = run_on("local-gpu", with_gpus, tmp_path, *told, FAKE_NCCL_SECONDS="8")
    assert record["status"] == "timeout", record["error"]
    assert re.search(r"BROADCAST.* 8 s", record["error"]["message"])


def test_doctor_tests_the_gpus(with_gpus: Environment, tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho fake\necho fake\n")
    driver.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = harness(with_gpus, "doctor", FAKE_GPUS="2", FAKE_CUDA="13.0", PATH=path)
    assert "2 GPUs" in done.stdout, done.stderr


def with_a_bad_kernel() -> list[str]:
    """The findings on two GPUs, of which one multiplies wrongly and draws a mask of zeros."""
    with pytest.MonkeyPatch.context() as patch:
        if engine.rank():
            by_library = spmm.multiply_library
            patch.setattr(spmm, "multiply_library", lambda A, H, add_to: 1.01 * by_library(A, H, add_to))
            patch.setattr(random, "_mask_kernel", lambda: lambda rows, cols, **_: 0 * (rows + cols))
        return find_local_faults()


def test_doctor_says_what_is_wrong_with_a_gpu(on_gpus: Callable[..., list[Any]]) -> None:
    right, wrong = on_gpus(2, with_a_bad_kernel)
    assert not right
    products = ("sparse product", "gradient of a sparse product")
    expected = [f"{what} in {dtype}" for dtype in ("float32", "float64") for what in products]
    assert [each.partition(": ")[2].partition(": ")[0] for each in wrong] == [*expected, "dropout mask"]
    assert all(each.startswith("GPU 1: ") for each in wrong)
    assert "1.0e-02" in wrong[0]


def test_links_between_gpus_are_measured(with_gpus: Environment) -> None:
    done = harness(with_gpus, "doctor", "--links", "--machine", "local-gpu", "--ranks", "2")
    assert done.returncode == 0, done.stdout + done.stderr
