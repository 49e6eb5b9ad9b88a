"""harness words shows a balance, of a run and of a replay, and refuses what is not there."""

import json

import pytest

from harness.cli import main

ASKED = ["words", "--strategy", "cagnet-1.5d", "--dataset", "tiny-sbm", "--ranks", "2", "--grid", "2x1"]


@pytest.mark.parametrize("how", [["--replay"], []])
def test_formula_and_sight_and_paper_side_by_side(how: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *how, "--rank", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rank"] == 1
    assert all(row["formula"] == row["seen"] > 0 for row in found["rows"])
    assert {line["quantity"] for line in found["published"]} == {"words", "messages", "layout"}


def test_the_page_names_claims_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--replay"]) == 0
    page = capsys.readouterr().out
    assert "CAG-008, CAG-009" in page
    assert "which the paper drops" in page


def test_a_rank_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--rank", "2"]) == 2
    assert "--rank 2 is not accepted: the ranks of this run are 0 to 1" in capsys.readouterr().err
