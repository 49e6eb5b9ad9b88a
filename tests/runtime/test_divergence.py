"""A run with non-finite values is recorded as diverged, with the epoch and the first such tensor."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.experiment.requests import make_spec
from harness.results.collect import collect
from harness.results.record import Record, read_record
from harness.results.schema import SETTLED
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import launch, launch_in_process
from harness.spec.spec import Spec, canonical_json

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
HUGE = {"lr": 1e30, "optimizer": "sgd"}


def asked(ranks: int = 1, strategy: str = "serial", **training: Any) -> Spec:
    wanted = {"epochs": 4, "warmup": 0, **training}
    return make_spec(
        ROOT, {"strategy": strategy, "dataset": "tiny-sbm", "ranks": ranks, "training": wanted}, "test"
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Spec], Record]:
    return lambda spec: read_record(launch_in_process(spec, ROOT, tmp_path / "results" / "runs"))


def test_training_ends_with_the_first_loss_that_is_not_finite(recorded: Callable[[Spec], Record]) -> None:
    """One step of 1e30 makes weights of about 1e30: a product of two of them is above what float32 holds (3.4e38)."""
    run = recorded(asked(**HUGE))
    assert run.record["status"] == "diverged"
    assert run.record["summary"]["final_loss"] is None
    assert run.record["summary"]["epochs"] == len(run.table("epochs")) == 2
    assert re.search("epoch 1.*`convolve` in layer 1", run.record["error"]["message"])


def test_warmup_that_diverges_is_on_record(recorded: Callable[[Spec], Record]) -> None:
    run = recorded(asked(warmup=3, **HUGE))
    assert run.record["status"] == "diverged"
    assert run.table("epochs").epoch.tolist() == [-3, -2]
    assert "warm-up epoch -2" in run.record["error"]["message"]
    assert "epoch_seconds_median" not in run.record["summary"]


def test_a_finite_loss_hides_nothing(recorded: Callable[[Spec], Record]) -> None:
    """The only loss is that of the first weights; what the step made of them shows in the evaluation alone."""
    run = recorded(asked(epochs=1, **HUGE))
    assert run.table("epochs").loss.notna().all()
    assert run.record["status"] == "diverged"
    assert "`convolve` in layer 1" in run.record["error"]["message"]
    run = recorded(asked(epochs=1, optimizer="sgd", lr=1e38, weight_decay=1e3))
    assert run.record["status"] == "diverged"
    assert "weight" in run.record["error"]["message"]


def test_ranks_agree_on_the_end_of_a_run(tmp_path: Path, fork_server: ForkServer) -> None:
    spec = asked(2, "pipegcn", epochs=6, **HUGE)
    run = read_record(launch(spec, ROOT, tmp_path / "runs", lambda _: None, fork_server=fork_server))
    assert run.record["status"] == "diverged", run.record["error"]
    ends = run.table("epochs").groupby("rank_id").epoch.max()
    assert ends.nunique() == 1 and ends.iloc[0] < 5
    assert run.record["summary"]["elements_payload"] == run.record["summary"]["elements_payload_formula"]


@pytest.mark.usefixtures("ranks_at_hand")
def test_batch_continues_after_divergent_and_invalid_specs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, files = tmp_path / "results" / "runs", [tmp_path / "unreadable.json"]
    files[0].write_bytes(b"\xff\xfe")
    specs = [asked(**HUGE), asked(epochs=2), asked()]
    for number, spec in enumerate(specs):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(canonical_json(spec.model_dump(mode="json")))
    damaged = runs / specs[1].run_id
    damaged.mkdir(parents=True)
    (damaged / "record.json").write_text("{")
    code = main(["run", "--spec", *map(str, files), "--out", str(runs), "--root", str(ROOT)])
    said = capsys.readouterr()
    assert code == 1
    assert str(files[0]) in said.err and specs[1].label in said.err
    shown, _, table = said.out.partition("4 runs: 1 diverged, 1 ok, 2 no record")
    assert shown.index(specs[0].label) < shown.index(specs[2].label)
    assert str(files[0]) in table and specs[1].label in table


def test_it_is_a_failure_and_is_not_repeated(recorded: Callable[[Spec], Record], tmp_path: Path) -> None:
    run = recorded(asked(**HUGE))
    found = collect(run.folder.parent, tmp_path / "results")
    assert not found.is_complete
    (failure,) = found.as_dict()["failures"]
    assert failure["status"] == "diverged" and failure["message"] == run.record["error"]["message"]
    assert run.record["status"] in SETTLED
