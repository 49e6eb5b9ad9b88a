"""A launched run always ends in a whole record: of what was measured, or of why it was not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.comm.launchers import RankPlace
from harness.experiment.requests import make_spec
from harness.ledger import COMPUTING, MOVING, Op
from harness.results.record import Record, read_record
from harness.runtime.fault import read_faults
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import launch, launch_in_process
from harness.runtime.rank import run_and_report_faults
from harness.spec.spec import Spec, canonical_json

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def spec(strategy: str, ranks: int, **more: Any) -> Spec:
    training = {"epochs": 4, "warmup": 1, "evaluate_every": 2}
    asked = {"strategy": strategy, "dataset": "tiny-sbm", "ranks": ranks, "training": training}
    return make_spec(ROOT, {**asked, "precision": "float64", **more}, "test")


def ignore(_: str) -> None: ...


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> dict[str, Record]:
    runs = tmp_path_factory.mktemp("results") / "runs"
    watched = spec("cagnet-1d", 2, measure={"utilisation_ms": 1})
    specs = {"serial": spec("serial", 1), "parallel": watched}
    return {
        name: read_record(launch(one, ROOT, runs, ignore, fork_server=fork_server))
        for name, one in specs.items()
    }


def test_record_is_complete(records: dict[str, Record]) -> None:
    record = records["parallel"].record
    assert record["status"] == "ok", record["error"]
    assert set(records["parallel"].table("epochs").epoch) == {-1, 0, 1, 2, 3}
    assert set(records["parallel"].table("ledger").rank_id) == {0, 1}
    assert list(records["parallel"].table("accuracy").epoch.unique()) == [1, 3]
    memory = records["parallel"].table("memory")
    assert {"A", "X", "W", ""} <= set(memory.tensor)
    assert record["summary"]["elements_payload"] == record["summary"]["elements_payload_formula"] > 0
    vertices = record["summary"]["vertices_per_second"] * record["summary"]["epoch_seconds_median"]
    assert vertices == pytest.approx(307)
    machine = spec("serial", 1).machine
    assert machine.allocator.items() <= record["provenance"]["allocator"].items()
    assert record["provenance"]["threads"] == machine.threads_per_rank
    assert record["provenance"]["scheduling"] == "batch", "gloo's threads would interrupt each other"
    assert not [path for path in records["parallel"].folder.parent.parent.iterdir() if "launch-" in path.name]


def test_losses_and_accuracies_are_those_of_serial_training(records: dict[str, Record]) -> None:
    losses = {name: record.table("epochs").groupby("epoch").loss for name, record in records.items()}
    assert (losses["parallel"].nunique() == 1).all(), "every rank knows the same loss"
    pd.testing.assert_series_equal(losses["parallel"].first(), losses["serial"].first(), rtol=1e-12)
    columns = ["epoch", "split", "accuracy"]
    accuracy = {name: record.table("accuracy")[columns] for name, record in records.items()}
    pd.testing.assert_frame_equal(accuracy["parallel"], accuracy["serial"])


def test_entries_of_an_epoch_add_up_to_it(records: dict[str, Record]) -> None:
    for record in records.values():
        told = record.table("ledger").groupby(["epoch", "rank_id"]).seconds.sum()
        taken = record.table("epochs").groupby(["epoch", "rank_id"]).seconds.sum()
        assert ((told - taken).abs() <= 0.02 * taken + 5e-4).all()


def test_utilisation_windows_add_up_to_the_ledger(records: dict[str, Record]) -> None:
    assert not (records["serial"].folder / "utilisation.parquet").exists()
    windows, ledger = (records["parallel"].table(name) for name in ("utilisation", "ledger"))
    at = ["epoch", "rank_id"]
    summed = windows.groupby(at)[["seconds", "computing_seconds", "communicating_seconds"]].sum()
    for column, ops in {
        "seconds": set(Op),
        "computing_seconds": COMPUTING,
        "communicating_seconds": MOVING,
    }.items():
        spent = ledger[ledger.op.isin(ops)].groupby(at).seconds.sum()
        np.testing.assert_allclose(summed[column], spent, rtol=1e-9)
    assert (windows.seconds <= 0.001 + 1e-12).all() and windows.device_percent.isna().all()
    summary = records["parallel"].record["summary"]
    timed = summed[summed.index.get_level_values("epoch") >= 0].sum()
    assert summary["computing_share"] == pytest.approx(timed.computing_seconds / timed.seconds)
    assert summary["communicating_share"] == pytest.approx(timed.communicating_seconds / timed.seconds)


@pytest.mark.parametrize("world", [1, 3])
def test_a_world_of_another_size_is_refused(world: int, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(canonical_json(spec("cagnet-1d", 2).model_dump(mode="json")))
    assert run_and_report_faults(RankPlace(0, world, 0), ROOT, tmp_path, tmp_path / "runs") == 1
    (fault,) = read_faults(tmp_path)
    assert fault["status"] == "refused"
    assert f"{world} ranks" in fault["message"] and "2" in fault["message"]
    assert not (tmp_path / "runs").exists()


def test_card_for_predictions_only_is_refused(tmp_path: Path) -> None:
    """Ranks compute where their engine is, and gloo's is the host, so the record of such a run would be wrong."""
    with pytest.raises(UserError, match=r"perlmutter-gloo .*cuda.*gloo"):
        launch(spec("cagnet-1d", 2, machine="perlmutter-gloo"), ROOT, tmp_path / "runs", ignore)
    assert not (tmp_path / "runs").exists()


def test_a_run_in_this_process_leaves_the_same_kind_of_record(tmp_path: Path) -> None:
    folder = launch_in_process(spec("serial", 1), ROOT, tmp_path / "runs")
    assert json.loads((folder / "record.json").read_text())["status"] == "ok"


def test_torchrun_can_start_the_ranks_too(tmp_path: Path) -> None:
    asked = spec("cagnet-1d", 2)
    (tmp_path / "spec.json").write_text(canonical_json(asked.model_dump(mode="json")))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    rank = ["-m", "harness.runtime.rank", "--scratch", str(tmp_path), "--runs", str(tmp_path / "runs")]
    environ = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *torchrun, *rank],
        env={**environ, "HARNESS_ROOT": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    record = read_record(tmp_path / "runs" / asked.run_id).record
    assert (record["status"], record["provenance"]["engine"]) == ("ok", "gloo")
