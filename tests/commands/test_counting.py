"""harness words: formula, run and paper side by side."""

import json
import re
from dataclasses import replace

import pytest

from harness.cli import main
from harness.commands.counting import WordsAnswer, words
from harness.commands.output import EVERYTHING, View
from harness.commands.rendering import render_text


@pytest.fixture(scope="module")
def answer() -> WordsAnswer:
    return words("cagnet-1.5d", "tiny-sbm", 2, grid="2x1", rank=1)


def page(answer: WordsAnswer, view: View = View()) -> str:  # noqa: B008
    return render_text(answer.lay_out(view), view)


def test_formula_run_and_paper_are_side_by_side(answer: WordsAnswer) -> None:
    found = answer.to_document()
    json.dumps(found)
    assert found["rank"] == 1
    assert all(row["formula"] == row["seen"] > 0 for row in found["rows"])
    assert {line["quantity"] for line in found["published"]} == {"words", "messages", "layout"}
    assert answer.exit_code == 0


def test_the_first_line_says_how_many_elements_agree(answer: WordsAnswer) -> None:
    total = sum(row["seen"] for row in answer.account.rows)
    assert page(answer).splitlines()[0] == (
        f"cagnet-1.5d on tiny-sbm, row=2,col=1, rank 1: formula and run agree on {total:,.0f} elements"
    )
    assert re.search(rf"received +{answer.received:,.0f} elements", page(answer))
    assert 0 < answer.received < total  # the rank owns half of every broadcast


def test_a_difference_is_counted_and_its_row_comes_first(answer: WordsAnswer) -> None:
    *rows, last = answer.account.rows
    wrong = replace(answer.account, rows=[*rows, {**last, "formula": last["formula"] + 1}])
    lines = page(replace(answer, account=wrong)).splitlines()
    assert f"formula and run differ in 1 of {len(wrong.rows)} rows" in lines[0]
    first = next(number for number, line in enumerate(lines) if line.startswith("pass"))
    assert lines[first + 1].endswith("DIFFERS")
    assert sum("DIFFERS" in line for line in lines) == 1
    assert replace(answer, account=wrong).exit_code == 1


def test_reasons_for_differences_from_the_paper_are_behind_why(answer: WordsAnswer) -> None:
    assert "2 quantities differ from the paper (--why)." in page(answer)
    assert "which the paper drops" not in page(answer)
    assert "which the paper drops" in page(answer, EVERYTHING)
    assert "CAG-008, CAG-009" in page(answer)


def test_a_rank_that_the_run_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["words", "--strategy", "cagnet-1.5d", "--dataset", "tiny-sbm", "--ranks", "2", "--rank", "2"]
    assert main(asked) == 2
    assert "--rank 2 is not accepted: the ranks of this run are 0 to 1" in capsys.readouterr().err
