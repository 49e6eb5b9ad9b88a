"""harness predict and harness advise, as a user types them: no store, no torch.distributed, no run."""

import json
import re
from pathlib import Path

import pytest

from harness.cli import main
from harness.experiment.known_graph import facts_of_card
from harness.graph.cards.catalog import load_card
from harness.prediction import epoch as prediction
from harness.prediction.advice import Advice, PartialSearch
from harness.prediction.epoch import predict, replay_ranks
from harness.registry import load_strategy
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.results.record import read_record
from harness.spec.machine_card import load_machine, load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Ready, admit

pytestmark = pytest.mark.long

PLEXUS = [
    "predict",
    "--strategy",
    "plexus",
    "--dataset",
    "ogbn-products",
    "--machine",
    "perlmutter",
    "--from-card",
]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_predictions_are_a_row_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    page = answer(capsys, *PLEXUS, "--ranks", "4,64", "--set", "model.hidden=128", "-v")
    assert [line.split()[0] for line in page.splitlines()[2:5]] == ["ranks", "4", "64"]
    _, *parts = page.split("on 4 ranks", 1)  # those of both numbers of ranks add up to the epoch
    assert sum(map(int, re.findall(r"(?m)(\d+) %$", "".join(parts)))) == pytest.approx(200, abs=10)


def test_the_best_grid_is_at_least_as_fast_as_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first, best = (
        json.loads(answer(capsys, *PLEXUS, "--ranks", "16", "--json", *more))["predicted"][0]["seconds"][
            "value"
        ]
        for more in ([], ["--grid", "best"])
    )
    assert best <= first


def test_a_prediction_becomes_a_record_that_tables_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written twice it is one run; too large for the memory, it is out of memory."""
    for _ in range(2):
        answer(
            capsys, *PLEXUS, "--ranks", "4,8", "--set", "model.hidden=512", "--out", str(tmp_path / "runs")
        )
    runs = collect(tmp_path / "runs", tmp_path / "tables").runs
    assert runs.source.tolist() == ["predicted"] * 2
    assert set(runs.status) <= {"ok", "oom"}
    ledger = tmp_path / "tables" / "ledger.parquet"
    assert ledger.exists()


def test_out_of_memory_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--strategy", "plexus", "--dataset", "ogbn-papers100m", "--machine", "g3-cluster"]
    answer(capsys, *asked, "--from-card", "--ranks", "4", "--out", str(tmp_path / "runs"))
    assert collect(tmp_path / "runs", tmp_path / "tables").runs.status.tolist() == ["oom"]


def test_advice_ranks_strategies_and_says_what_limits_them(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "--dataset", "tiny-sbm", "--machine", "perlmutter", "--ranks", "2", "--from-card"]
    assert "pipegcn" not in answer(capsys, *asked, "--accuracy", "exact")
    data = json.loads(answer(capsys, *asked, "--json"))
    assert not data["full_graph"][0]["ties_with_the_first"]
    times = [option["seconds"]["value"] for option in data["full_graph"]]
    assert times == sorted(times)
    assert data["mini_batch"]


def test_advice_leaves_out_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "--dataset", "tiny-sbm", "--machine", "perlmutter", "--ranks", "2", "--from-card"]
    data = json.loads(answer(capsys, *asked, "--memory", "0.00001", "--accuracy", "exact", "--json"))
    assert data["full_graph"] == [] and data["too_large"]


@pytest.mark.usefixtures("ranks_at_hand")
def test_tuning_sets_what_was_measured_beside_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    asked = [
        "advise",
        "--dataset",
        "tiny-sbm",
        "--ranks",
        "2",
        "--tune",
        "1",
        "--accuracy",
        "exact",
        "--json",
    ]
    (tuned,) = json.loads(answer(capsys, *asked))["tuned"]
    assert tuned["predicted"] > 0
    assert tuned["measured"] > 0


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A paper's runs: two launches of one, and one whose words the edges decide."""
    graph = {"name": "ogbn-products", "permutation": "double"}
    plexus = {"strategy": "plexus", "dataset": graph, "grid": ["2x2x2"], "launch": [0, 1]}
    sampled = {"strategy": "salient", "dataset": "ogbn-products", "ranks": 8}
    published = {"machine": "perlmutter", "runs": [plexus, sampled]}
    laptop = [{"strategy": "serial", "dataset": "tiny-sbm"}]
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"name": "mine", "runs": laptop, "published": published}))
    return path


def test_the_runs_of_an_experiment_are_predicted_once_for_all_launches(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that a card cannot predict says why, and the others are recorded."""
    out = tmp_path / "records"
    data = json.loads(answer(capsys, "predict", "--experiment", str(experiment), "--out", str(out), "--json"))
    assert [(run["machine"], run["ranks"]) for run in data["predicted"]] == [("perlmutter", 8)]
    (refused,) = data["refused"].items()
    assert "salient" in refused[0]
    statuses = {
        record.spec["strategy"]["name"]: (record.record["status"], record.record["source"])
        for record in map(read_record, out.iterdir())
    }
    assert statuses == {"plexus": ("ok", "predicted"), "salient": ("refused", "predicted")}


def test_runs_that_are_alike_on_several_machines_share_their_replays(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is what it would be alone: the same ranks, priced by its own card."""
    mine, replayed, root = json.loads(experiment.read_text()), list[Spec](), find_root(None)
    del mine["published"]["machine"], mine["published"]["runs"][1]
    mine["published"]["runs"][0] |= {"machine": ["perlmutter", "frontier"], "grid": ["2x2x2", "4x2x1"]}
    experiment.write_text(json.dumps(mine))

    def counted(ready: Ready, *more: object, **settings: bool) -> list[prediction.RankEpoch]:
        replayed.append(ready.strategy.spec)
        return replay_ranks(ready, *more, **settings)

    monkeypatch.setattr(prediction, "replay_ranks", counted)
    data = json.loads(answer(capsys, "predict", "--experiment", str(experiment), "--json"))
    assert [list(spec.grid.values()) for spec in replayed] == [[2, 2, 2], [4, 2, 1]]
    assert [run["machine"] for run in data["predicted"]] == ["perlmutter", "frontier"] * 2
    facts = facts_of_card(load_card(root, "ogbn-products"))
    for run in data["predicted"]:
        on = {"machine": load_machine(root, run["machine"]), "grid": run["grid"]}
        strategy = admit(load_strategy("plexus"), replayed[0].model_copy(update=on), facts)
        alone = predict(Ready(strategy), load_machine_card(root, run["machine"]))
        assert run["seconds"] == vars(alone.seconds)


def test_an_experiment_of_refused_runs_leaves_their_reasons(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workflow waits for the folder, and tables and figures say which runs of the paper are missing, and why."""
    mine, out = json.loads(experiment.read_text()), tmp_path / "records"
    del mine["published"]["runs"][0]
    experiment.write_text(json.dumps(mine))
    answer(capsys, "predict", "--experiment", str(experiment), "--out", str(out))
    (folder,) = out.iterdir()
    record = read_record(folder).record
    assert record["status"] == "refused" and "salient" in record["label"]
    assert record["error"]["message"] and not record["summary"]
    assert main(["collect", "--runs", str(out), "--out", str(tmp_path / "tables")]) == 0
    (failure,) = read_collected(tmp_path / "tables", "failures").to_dict("records")
    assert (failure["status"], failure["message"]) == ("refused", record["error"]["message"])


def test_advice_names_strategies_that_were_predicted_in_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Advice([], [], [], [], {"plexus": 70.0, "rdm": 9.0}, {"plexus": PartialSearch(4, 10)})
    monkeypatch.setattr("harness.prediction.advice.advise", lambda *_: found)
    monkeypatch.setattr("harness.prediction.fewer_ranks.find_fewer_ranks", lambda advice, *_: advice)
    asked = ["advise", "--dataset", "tiny-sbm", "--machine", "perlmutter", "--ranks", "8", "--from-card"]
    page = answer(capsys, *asked, "--why")
    assert re.search(r"^plexus .*4 of 10 grids.*60 s of work", page, re.MULTILINE)
    assert re.search(r"^rdm .*9.00 s", page, re.MULTILINE)
    assert page.endswith("--from-card --exhaustive\n")
    data = json.loads(answer(capsys, *asked, "--json"))
    assert data["partly"] == [{"strategy": "plexus", "predicted": 4, "of": 10}]
    assert [each["strategy"] for each in data["too_slow"]] == ["plexus", "rdm"]
