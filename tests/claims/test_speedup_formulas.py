"""Formulas of speed-ups select the runs that the papers compare, and combine their epochs as the papers say."""

from math import isclose
from pathlib import Path
from typing import Any

import pytest

from harness.claims import Evidence, read_claims
from harness.claims.estimates import EpochTime, EpochTimes, Estimate, average
from harness.claims.evidence import has_many_bins
from harness.claims.selection import Selection, select
from harness.ledger import Direction, Key, Op, Phase
from harness.prediction.epoch import PredictedSeconds, Prediction

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}
MODELS = {"sage": 1.0, "gcn": 2.0, "gat": 4.0}
SYSTEMS = {"g3": 1.0, "distdgl": 3.0, "bns-gcn": 5.0, "neutronstar": 7.0}
GRAPHS = {"ogbn-products": 1.0, "graphsaint-amazon": 1.5, "ogbn-papers100m": 2.0, "twitter-2010": 2.5}


class InventedTimes(Evidence):
    """Evidence whose epochs are products of invented factors, one for each setting."""

    def time_epoch(self, runs: Selection) -> EpochTimes:
        (point,) = self.list_points(runs, "strategy", "dataset", "ranks", "kind", "pipeline")
        system, dataset, ranks, kind, pipeline = point.values()
        graph = GRAPHS[str(dataset).partition("@")[0]]
        seconds = invent_seconds(str(system), graph, int(str(ranks)), str(kind))
        return EpochTimes({(): EpochTime(seconds * (6.0 * graph if pipeline == "sequential" else 1.0))})


def invent_seconds(system: str, graph: float, ranks: int, kind: str) -> float:
    """Return the seconds of an epoch; a slower system gains less from more ranks, and differs more on larger graphs."""
    factor = SYSTEMS[system]
    seconds: float = factor**graph * MODELS[kind] ** (factor / 2) * ranks ** (-1 / factor)
    return seconds


@pytest.fixture(scope="module")
def invented() -> Evidence:
    return InventedTimes(ROOT)


def speedup(system: str, dataset: str, ranks: int, kind: str) -> float:
    times = [invent_seconds(each, GRAPHS[dataset], ranks, kind) for each in (system, "g3")]
    return times[0] / times[1]


def gain(system: str, dataset: str, kind: str) -> float:
    times = [invent_seconds(system, GRAPHS[dataset], ranks, kind) for ranks in (8, 16)]
    return times[0] / times[1]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


PRODUCTS, AMAZON, PAPERS, TWITTER = GRAPHS
COUNTS = (2, 4, 8, 16)
FULL_GRAPH = [
    speedup(system, dataset, 16, kind)
    for system in ("bns-gcn", "neutronstar")
    for dataset in (PRODUCTS, AMAZON)
    for kind in ("sage", "gat")
]
EXPECTED: dict[str, float] = {
    "G3-062": max(speedup("distdgl", PAPERS, ranks, kind) for ranks in COUNTS for kind in MODELS),
    "G3-069": mean([speedup("distdgl", AMAZON, 16, kind) for kind in MODELS]),
    "G3-064": max(gain("distdgl", PAPERS, kind) for kind in MODELS),
    "G3-066": mean([gain("g3", TWITTER, kind) for kind in MODELS]),
    "G3-072": min(speedup("distdgl", each, 16, kind) for each in GRAPHS for kind in ("sage", "gcn")),
    "G3-075": max(speedup("distdgl", each, 16, "gat") for each in GRAPHS),
    "G3-076": min(FULL_GRAPH),
    "G3-077": max(FULL_GRAPH),
    "G3-080": mean([speedup("neutronstar", each, 16, "sage") for each in (PRODUCTS, AMAZON)]),
    "G3-112": speedup("distdgl", AMAZON, 16, "sage"),
    "G3-118": 9.0,
}


@pytest.mark.parametrize("claim", EXPECTED)
def test_speedups_of_g3_are_those_of_the_runs_that_the_paper_compares(claim: str, invented: Evidence) -> None:
    formula = CLAIMS[claim].formula
    assert formula
    ours = formula(invented)
    assert isinstance(ours, Estimate)
    assert isclose(ours.least if ours.is_range else ours.value, EXPECTED[claim], rel_tol=1e-9)


def test_gain_over_dgl_is_a_range_over_what_g3_counts(invented: Evidence) -> None:
    """Labelled vertices, as DGL; or all of them, 12.5 for each labelled one of ogbn-products."""
    formula = CLAIMS["G3-068"].formula
    assert formula
    ours = formula(invented)
    assert isinstance(ours, Estimate)
    assert isclose(ours.largest / ours.least, 2_449_029 / 196_615, rel_tol=1e-9)


def test_average_of_numbers_averages_the_ends_of_their_intervals() -> None:
    assert average([Estimate(2, 1, 4), Estimate(4, 3, 5)]) == Estimate(3, 2, 4.5)


def make_epoch(seconds: dict[tuple[Phase, Direction], float]) -> EpochTimes:
    entries = {Key(phase, -1, direction, Op.COPY): each for (phase, direction), each in seconds.items()}
    total = sum(seconds.values())
    prediction = Prediction(0, PredictedSeconds(total, total, total), entries, 0.0, 0.0, 0, {})
    return EpochTimes({(): EpochTime(total, None, prediction)})


def test_sampled_evaluation_is_the_forward_part_for_all_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reddit has 232,965 vertices, of which 153,431 train."""
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    epoch = make_epoch(
        {
            (Phase.SAMPLE, forward): 1.0,
            (Phase.FETCH, forward): 2.0,
            (Phase.CONVOLVE, forward): 3.0,
            (Phase.CONVOLVE, backward): 40.0,
            (Phase.SYNC, backward): 50.0,
            (Phase.OPTIMIZE, forward): 60.0,
        }
    )
    evidence = Evidence(ROOT)
    monkeypatch.setattr(evidence, "time_epoch", lambda _: epoch)
    formula = CLAIMS["SGN-086"].formula
    assert formula
    seconds: Any = formula(evidence)
    assert seconds.value == pytest.approx(6.0 * 232_965 / 153_431)


def test_only_graphs_with_very_many_bins_are_extrapolated() -> None:
    evidence = Evidence(ROOT)
    for dataset, many in ((PRODUCTS, False), (AMAZON, False), (PAPERS, True), (TWITTER, True)):
        figure = {PRODUCTS: 7, AMAZON: 8, PAPERS: 9, TWITTER: 10}[dataset]
        runs = select(f"g3-figure-{figure}", strategy="g3", ranks=16)
        strategy = evidence._admit_run(evidence.list_runs(runs)[0])
        assert has_many_bins(strategy) == many
