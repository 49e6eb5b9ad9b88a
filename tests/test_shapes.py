"""The registered shapes: each names what it has, and the rule turns the ratios of launches into verdicts."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.shapes import Effect, Option, find_ratios, judge, read_shapes
from tests.synthetic_runs import make_spec

SHAPES = read_shapes()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.number))
def test_registered_effects_name_runs_and_places_that_have_requests(shape: Any) -> None:
    for effect in shape.effects:
        for term in (*effect.times, *effect.over):
            run, _, place = term.rpartition(" at ")
            assert shape.list_requests(run, place), term


def test_ten_shapes_are_registered() -> None:
    assert [shape.number for shape in SHAPES] == list(range(1, 11))


def make_effect(**changes: Any) -> Effect:
    return Effect.model_validate(
        {
            "name": "",
            "times": ["a at 4"],
            "over": ["b at 4"],
            "paper": "below",
            "we expect": "reproduced",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("ratios", "paper", "verdict"),
    [
        ([0.8, 0.9, 0.85, 0.7, 0.95, 0.9], "below", "reproduced"),
        ([0.8, 0.9, 0.85, 0.7, 0.95, 0.9], "above", "reversed"),
        ([1.2, 1.1, 1.3, 1.01, 1.5, 1.2], "above", "reproduced"),
        ([0.8, 0.9, 0.85, 0.7, 0.95, 1.1], "below", "undecided"),
        ([0.8, 0.9, 0.85, 0.7, 0.95], "below", "undecided"),  # five launches have no interval
    ],
)
def test_verdict_follows_from_the_interval(ratios: list[float], paper: str, verdict: str) -> None:
    assert judge(make_effect(paper=paper), pd.Series(ratios))[-1] == verdict


def test_fastest_grid_counts_on_both_sides_and_launches_are_paired() -> None:
    spec = make_spec("cagnet-1d", "tiny-sbm", {"p": 4})
    options = [Option(run, "4", spec, 0.0, 7) for run in ("a", "a", "b")]
    seconds = {0: [9.0, 9.0], 1: [2.0, 4.0], 2: [1.0, 8.0]}
    measured = pd.DataFrame(
        [
            {"launch": launch, "option": option, "seconds": value, "fullest": 7}
            for option, values in seconds.items()
            for launch, value in enumerate(values)
        ]
    )
    assert find_ratios(make_effect(), options, measured).tolist() == [2.0, 0.5]
    assert find_ratios(make_effect(of="fullest"), options, measured).tolist() == [1.0, 1.0]
