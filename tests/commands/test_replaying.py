"""harness words --replay: a page for people, and the same as JSON for programs."""

import json

import pytest

from harness.base.formatting import format_bytes, format_si
from harness.cli.commands.counting import words
from harness.cli.commands.output import EVERYTHING, View
from harness.cli.commands.rendering import render_text
from harness.cli.commands.replaying import ReplayAnswer

N, WIDTHS = 131072, [64, 16, 16, 16]
SENT = N * (sum(WIDTHS[:-1]) + sum(WIDTHS[1:]))
"""The elements of the broadcasts of cagnet-1d: rows of H forward, rows of G backward."""
AGGREGATES_FIRST = {"model.order": "aggregate_first"}


@pytest.fixture(scope="module")
def answer() -> ReplayAnswer:
    replayed = words(
        "cagnet-1d", "rmat-17", 64, rank=63, replay=True, from_card=True, settings=AGGREGATES_FIRST
    )
    assert isinstance(replayed, ReplayAnswer)
    return replayed


def page(answer: ReplayAnswer, view: View = View()) -> str:  # noqa: B008
    return render_text(answer.lay_out(view), view)


def test_entries_and_events_have_the_elements_of_the_algorithm(answer: ReplayAnswer) -> None:
    data = json.loads(json.dumps(answer.to_document()))
    assert data["facts"]["exact"] is False
    for rows in (data["entries"], data["events"]):
        assert sum(row["elements_payload"] for row in rows if row["op"] == "broadcast") == SENT
    assert data["persistent_bytes"]["X"] == 2048 * 64 * 4
    assert data["peak_bytes"] > sum(data["persistent_bytes"].values()) + 3 * 2048 * 16 * 4


def test_page_leads_with_elements_flop_and_peak(answer: ReplayAnswer) -> None:
    data = answer.to_document()
    flops = sum(row["flops"] for row in data["entries"])
    first = page(answer).splitlines()[0]
    for amount in (format_si(data["elements_received"]), format_si(flops), format_bytes(data["peak_bytes"])):
        assert amount in first
    assert f"{N * 64:,}" not in page(answer)
    assert f"{N * 64:,}" in page(answer, EVERYTHING)


def test_formula_is_next_to_every_collective(answer: ReplayAnswer) -> None:
    rows = [row for row in answer.list_entries() if row["elements_payload"]]
    assert rows
    assert all(row["elements_formula"] == row["elements_payload"] for row in rows)
    assert "formula agrees" in page(answer)


def test_a_wrong_formula_is_seen(answer: ReplayAnswer) -> None:
    key = next(iter(answer.formula))
    wrong = ReplayAnswer(
        answer.spec, answer.facts, answer.replayed, {**answer.formula, key: 7}, answer.lower_bound
    )
    assert "formula agrees" not in page(wrong)
    assert "differ in 1 collective" in page(wrong)


def test_elements_that_only_the_formula_has_get_a_row(answer: ReplayAnswer) -> None:
    key = next(iter(answer.formula))._replace(layer=9)
    wrong = ReplayAnswer(
        answer.spec, answer.facts, answer.replayed, {**answer.formula, key: 7}, answer.lower_bound
    )
    (row,) = (row for row in wrong.list_entries() if row["layer"] == 9)
    assert (row["elements_formula"], row["elements_payload"]) == (7, None)
