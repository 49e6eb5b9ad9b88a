"""Printed ratios, ends of scaling and ends of axes have a place in figures, or a reason why they have none."""

from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.claims import Evidence, read_claims
from harness.claims.claims import Comparator
from harness.claims.printed_marks import BOUNDS, COLUMNS, PrintedMark, list_marks
from harness.claims.printed_runs import find_printed_value
from harness.claims.selection import get_value, select
from harness.spec.spec import canonical_json

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}

WITHOUT_A_PLACE = {
    "a statement in words": ["CAG-053", "CAG-055", "CAG-070", "CAG-071", "MBS-045", "MBS-046", "MBS-048"],
    "two numbers of ranks, 121 and 125": ["CAG-086"],
    "at most 1 for every run": ["CAG-076"],
    "no formula": ["PLX-175", "PLX-185", "MBS-002", "MBS-004"],
    "no formula that divides epochs": ["G3-071"],
    "a product, not an epoch": ["PLX-199"],
    "a share of an epoch": ["MBS-043"],
    "the time of communication": ["CAG-084", "CAG-085"],
    "a bandwidth": ["CAG-087"],
    "bytes": ["MBS-044"],
    "no runs, as the paper does not say which": ["MBS-040", "MBS-041", "MBS-042", "PLX-002"],
    "counts of vertices": ["PLX-190", "PLX-191"],
}
"""The results without a mark in the figures below, by the reason."""
FIGURES = (
    "plexus-fig8",
    "plexus-fig9",
    "plexus-fig10",
    "cagnet-fig",
    "g3-fig7",
    "g3-fig8",
    "g3-fig9",
    "g3-fig10",
    "mbs-fig",
)


@cache
def marks_of(claim: str, evidence: Evidence) -> list[PrintedMark]:
    return list_marks(CLAIMS[claim], evidence)


def test_every_result_of_these_figures_is_drawn_or_has_a_reason(evidence: Evidence) -> None:
    results = [each for each in CLAIMS.values() if each.role == "result" and each.figure.startswith(FIGURES)]
    drawn = {
        each.id
        for each in results
        if marks_of(each.id, evidence) or find_printed_value(each, evidence) is not None
    }
    undrawn = {claim: reason for reason, claims in WITHOUT_A_PLACE.items() for claim in claims}
    assert drawn.isdisjoint(undrawn) and len(drawn) > 40
    assert drawn | set(undrawn) == {each.id for each in results}
    assert {each.figure for each in results if each.id in drawn} >= {
        *(
            "plexus-fig8a",
            "plexus-fig8b",
            "plexus-fig8c",
            "plexus-fig9",
            "plexus-fig10-left",
            "plexus-fig10-right",
        ),
        *(f"cagnet-fig{name}" for name in ("1a", "1b", "1c", "2a", "2b", "3a", "3b")),
        *("g3-fig7", "g3-fig8", "g3-fig9", "g3-fig10"),
    }


def summarize(mark: PrintedMark) -> tuple[Any, ...]:
    """The strategies and ranks that a mark compares, its number and its bound."""
    pairs = [(each["strategy.name"], each.get("ranks")) for each in (mark.runs, mark.relative_to) if each]
    return (
        *(part for names, ranks in pairs for part in (*names, *(ranks or ()))),
        round(mark.number, 3),
        mark.bound,
    )


@pytest.mark.parametrize(
    ("claim", "marks"),
    [
        ("PLX-177", [("plexus", 32, "bns-gcn", 32, 6.0, "")]),
        ("PLX-178", [("plexus", 128, "cagnet-sa-1.5d", "cagnet-sa-1d", 128, 9.0, "")]),
        ("PLX-174", [("plexus", 128.0, "")]),
        ("CAG-054", [("cagnet-1.5d", 4, 0.05, "at most")]),
        ("G3-068", [("g3", 16, "distdgl", 16, 2.04, "")] * 3),
        ("G3-008", [("distdgl", 16, "distdgl", 2, 1.4, "at most")]),
        ("SGN-019", [("scalegnn", 8, "scalegnn", 8, 1.316, "")]),
    ],
)
def test_mark_compares_the_runs_of_the_formula(claim: str, marks: list[Any], evidence: Evidence) -> None:
    """An epoch that is 24 % shorter is faster by 1 / 0.76."""
    assert [*map(summarize, marks_of(claim, evidence))] == marks


def test_mean_of_models_says_of_how_many(evidence: Evidence) -> None:
    marks = marks_of("G3-068", evidence)
    assert {mark.mean_of for mark in marks} == {3}
    assert sorted(mark.runs["model.kind"][0] for mark in marks) == ["gat", "gcn", "sage"]
    assert {mark.mean_of for mark in marks_of("G3-060", evidence)} == {1}, "a bound holds for each"


def test_marked_runs_are_runs_of_the_figures_experiment(evidence: Evidence) -> None:
    """The settings are values of the columns of the table of runs."""
    specs = evidence.list_runs(select("plexus-figure-8"), any_grid=True)
    (mark,) = marks_of("PLX-178", evidence)
    assert set(mark.runs) == set(COLUMNS)
    for settings, count in ((mark.runs, 3), (mark.relative_to or {}, 9)):

        def has(spec: Any, settings: Any = settings) -> bool:
            values = {name: get_value(spec, name) for name in settings}
            values["strategy.params"] = canonical_json(values["strategy.params"])
            return all(values[name] in settings[name] for name in settings)

        assert len([spec for spec in specs if has(spec)]) == count, "three launches, two grids of 1.5D"


def test_printed_ratio_is_that_of_the_printed_epochs(evidence: Evidence) -> None:
    """Figure 7 of ScaleGNN prints both the epochs and their ratio."""
    for ratio, slow, fast in (("SGN-100", "SGN-120", "SGN-121"), ("SGN-108", "SGN-122", "SGN-123")):
        (mark,) = marks_of(ratio, evidence)
        slow_value, fast_value = (find_printed_value(CLAIMS[name], evidence) for name in (slow, fast))
        assert slow_value and fast_value
        assert mark.number == pytest.approx(slow_value.value / fast_value.value, rel=0.01)
        assert mark.runs["ranks"] == [fast_value.spec.ranks]
        assert mark.relative_to and mark.relative_to["ranks"] == [slow_value.spec.ranks]


@pytest.mark.parametrize(
    ("claim", "read"),
    [
        ("CAG-063", "axis"),
        ("PLX-177", "ratio"),
        ("SGN-087", "table"),
        ("SGN-120", "text"),
        ("G3-082", "figure"),
        ("PLX-192", "axis"),
    ],
)
def test_claim_says_how_its_number_was_read(claim: str, read: str) -> None:
    assert CLAIMS[claim].read == read


def test_every_comparator_is_a_bound_or_a_number() -> None:
    assert set(get_args(Comparator)) == {"=", "approx", *BOUNDS}
