"""Whole runs on fake GPUs, as a user starts them: recorded, refused, out of memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

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


@pytest.mark.parametrize(
    ("strategy", "batch"), [("cagnet-1d", 0), ("plexus", 0), ("scalegnn", 64), ("distdgl", 64)]
)
def test_a_run_is_that_of_cpus(with_gpus: Environment, tmp_path: Path, strategy: str, batch: int) -> None:
    told = ["--strategy", strategy, "--set", f"training.batch={batch}"]
    runs = {
        machine: run_on(machine, with_gpus, tmp_path / machine, *told) for machine in ("local", "local-gpu")
    }
    losses, words = (
        {
            machine: pd.read_parquet(folder / f"{table}.parquet")[column].tolist()
            for machine, (_, folder) in runs.items()
        }
        for table, column in (("epochs", "loss"), ("ledger", "words_payload"))
    )
    assert losses["local-gpu"] == pytest.approx(losses["local"], rel=1e-5)
    assert sum(words["local-gpu"]) == sum(words["local"])
    record, folder = runs["local-gpu"]
    assert (record["status"], record["provenance"]["gpu"], record["provenance"]["engine"]) == (
        "ok",
        "fake",
        "nccl",
    )
    assert pd.read_parquet(folder / "memory.parquet").device_peak_bytes.max() > 0


def test_two_ranks_need_two_gpus(with_gpus: Environment, tmp_path: Path) -> None:
    record, _ = run_on("local-gpu", with_gpus, tmp_path, "--strategy", "cagnet-1d", FAKE_GPUS="1")
    assert record["status"] == "refused"
    assert "Local rank 1 has no GPU: this machine shows 1." in json.dumps(record)


def test_a_check_has_a_rank_for_each_gpu(with_gpus: Environment) -> None:
    told = ("check", "cagnet-1d", "--quick", "--machine", "local-gpu")
    assert "cagnet-1d: conforms" in harness(with_gpus, *told, FAKE_GPUS="1").stdout
    refused = harness(with_gpus, *told, FAKE_GPUS="0")
    assert (refused.returncode, "needs a GPU" in refused.stderr) == (2, True), refused.stderr


def test_a_device_without_memory_is_on_record(with_gpus: Environment, tmp_path: Path) -> None:
    record, _ = run_on("local-gpu", with_gpus, tmp_path, "--strategy", "cagnet-1d", FAKE_GPU_BYTES="60000")
    assert record["status"] == "oom"
    assert "Tried to allocate" in json.dumps(record)


def test_links_between_gpus_are_measured(with_gpus: Environment) -> None:
    done = harness(with_gpus, "doctor", "--links", "--machine", "local-gpu", "--ranks", "2")
    assert done.returncode == 0, done.stdout + done.stderr


def run_list(environment: Environment, *parts: str, **more: str) -> list[str]:
    """The lines that parts of the run list of a GPU print, on the smallest graphs."""
    command = [sys.executable, "benchmarks/gpu.py", "--quick", *parts]
    environment = {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}", **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_run_list_of_a_gpu_works(with_gpus: Environment) -> None:
    lines = run_list(with_gpus, "waits", "products", "epochs", "samples")
    assert {"| cagnet-3d | 0 |  |", "| plexus | 0 |  |"} <= set(lines)
    assert ["\n".join(lines).count(title) for title in ("GFLOP/s", "serial, ms", "sampled")] == [1, 1, 1]


def test_a_gpu_is_held_against_the_fake_ones(with_gpus: Environment) -> None:
    """The fake GPUs agree with themselves, by torch's own count of waits."""
    actions = [line for line in run_list(with_gpus, "rules") if line.endswith(("True |", "False |"))]
    assert len(actions) > 20
    assert not [line for line in actions if line.endswith("False |")]


def test_ranks_that_share_a_gpu_keep_every_law(with_gpus: Environment) -> None:
    """Up to four of them, whose messages go through the host: reductions, all-to-alls and messages to one member."""
    (row,) = [line for line in run_list(with_gpus, "worlds", "--only", "g3", FAKE_GPUS="1") if "g3" in line]
    _, strategy, laws, broken, *_ = (cell.strip() for cell in row.split("|"))
    assert (strategy, int(laws) > 100, broken) == ("g3", True, "0"), row
