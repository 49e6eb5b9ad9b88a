"""harness words: formula, run and paper side by side."""

import json
import re
from dataclasses import replace

import pytest

from harness.cli.commands.counting import WordsAnswer, words
from harness.cli.commands.output import EVERYTHING, View
from harness.cli.commands.rendering import render_text


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
    assert f"{total:,.0f} elements" in page(answer).splitlines()[0]
    assert re.search(rf"received +{answer.received:,.0f}\b", page(answer))
    assert 0 < answer.received < total  # the rank owns half of every broadcast


def test_a_difference_is_counted_and_its_row_comes_first(answer: WordsAnswer) -> None:
    *rows, last = answer.account.rows
    wrong = replace(answer.account, rows=[*rows, {**last, "formula": last["formula"] + 1}])
    lines = page(replace(answer, account=wrong)).splitlines()
    assert f"1 of {len(wrong.rows)} rows" in lines[0]
    first = next(number for number, line in enumerate(lines) if line.startswith("pass"))
    assert lines[first + 1].endswith("DIFFERS")
    assert sum("DIFFERS" in line for line in lines) == 1
    assert replace(answer, account=wrong).exit_code == 1


def test_reasons_for_differences_from_the_paper_are_behind_why(answer: WordsAnswer) -> None:
    published = answer.account.published
    reasons = [line["because"] for line in published if line["because"] and line["ours"] != line["value"]]
    brief, whole = (" ".join(page(answer, view).split()) for view in (View(), EVERYTHING))
    assert len(reasons) == 2
    assert all(reason in whole and reason not in brief for reason in reasons)
    assert "CAG-008, CAG-009" in brief
