"""run: one quotable line, then facts that agree with the tables of the record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import harness
from harness.base.errors import UserError
from harness.base.formatting import format_seconds
from harness.cli import main
from harness.cli.commands.output import EVERYTHING, Command, FactList, Headline, View
from harness.cli.commands.run_facts import name_metric
from harness.cli.commands.running import RunAnswer

pytestmark = pytest.mark.usefixtures("ranks_at_hand")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, ranks_at_hand: None) -> RunAnswer:
    runs = tmp_path_factory.mktemp("results") / "runs"
    settings = {"training.epochs": 3, "training.warmup": 1}
    return harness.run("cagnet-2d", "tiny-sbm", 2, settings=settings, out=runs)


def facts_of(answer: RunAnswer, view: View) -> dict[str, str]:
    return {
        name: text
        for block in answer.lay_out(view)
        if isinstance(block, FactList)
        for name, text in block.pairs
    }


def test_first_line_has_the_median_of_the_timed_epochs(answer: RunAnswer) -> None:
    epochs = answer.record.table("epochs")
    timed = epochs[epochs.epoch >= 0].groupby("epoch").seconds.max()
    assert len(timed) == 3
    assert answer.epoch_seconds == pytest.approx(timed.median())
    first = next(answer.lay_out(View()))
    assert isinstance(first, Headline)
    assert format_seconds(answer.epoch_seconds) in first.text


def test_received_elements_and_bytes_are_those_of_the_ledger(answer: RunAnswer) -> None:
    ledger = answer.record.table("ledger")
    received = ledger[ledger.epoch >= 0].groupby(["epoch", "rank_id"]).elements_received.sum().max()
    (row,) = answer.to_frame().to_dict("records")
    assert row["elements_received"] == received > 0
    counted = answer.record.make_runs_row().iloc[0]
    assert counted.bytes_received == pytest.approx(4 * received)  # fp32 on every message
    assert counted.contradiction == ""


@pytest.mark.parametrize("cores", [2, 1])
def test_ranks_that_share_cores_are_named(answer: RunAnswer, cores: int) -> None:
    (run,) = answer.runs
    provenance = {**run.record.record["provenance"], "ranks_on_host": 2, "threads": 1, "cores": cores}
    record = replace(run.record, record={**run.record.record, "provenance": provenance})
    facts = facts_of(replace(answer, runs=[replace(run, record=record)]), View())
    assert ("Cores" in facts) is (cores == 1)


def test_details_are_settings_that_differ_and_phases_that_fill_the_epoch(answer: RunAnswer) -> None:
    verbose = facts_of(answer, EVERYTHING)
    assert verbose["training.epochs"] == "3" and "training.lr" not in verbose
    assert "training.epochs" not in facts_of(answer, View())
    phases = answer.runs[0].record
    assert phases is answer.record
    tables = [block for block in answer.lay_out(EVERYTHING) if hasattr(block, "rows")]
    assert sum(row["seconds"] for row in tables[0].rows) == pytest.approx(answer.epoch_seconds)


def test_next_commands_can_be_typed(answer: RunAnswer, capsys: pytest.CaptureFixture[str]) -> None:
    show, collect = (block.text for block in answer.lay_out(View()) if isinstance(block, Command))
    assert main(show.split()[1:]) == 0
    assert "cagnet-2d on tiny-sbm" in capsys.readouterr().out
    assert collect == f"harness collect --runs {answer.record.folder.parent} && harness report"


def test_document_names_amounts_as_the_tables_do(answer: RunAnswer) -> None:
    document = json.loads(json.dumps(answer.to_document()))
    assert document["run_id"] == answer.record.record["run_id"] and not document["cached"]
    names = {"elements_received", "elements_payload", "elements_bound", "elements_payload_formula"}
    assert names <= document["summary"].keys() and not any("words" in key for key in document["summary"])
    assert answer.record.record["summary"]["elements_received"] == document["summary"]["elements_received"]


def test_second_request_is_answered_by_the_record(answer: RunAnswer) -> None:
    settings = {"training.epochs": 3, "training.warmup": 1}
    again = harness.run("cagnet-2d", "tiny-sbm", 2, settings=settings, out=answer.record.folder.parent)
    assert again.runs[0].is_cached
    assert "--fresh" in str(again)


def test_refused_run_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="serial"):
        harness.run("serial", "tiny-sbm", 2, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("judge", "name"), [("ogb rocauc", "ROC-AUC"), ("ogb acc", "accuracy"), ("", "accuracy")]
)
def test_score_has_the_name_of_its_metric(judge: str, name: str) -> None:
    assert name_metric({"accuracy_by": judge} if judge else {}) == name
