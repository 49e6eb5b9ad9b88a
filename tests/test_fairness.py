"""Published comparisons of strategies hold no strategy to worse settings than others."""

import json
import re
from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import comparison, compose, launches, network, received
from benchmarks.fairness import Comparison, Competitor, Request, find_best, find_unequal
from benchmarks.measuring import card_of_hosts
from benchmarks.pages import PAGES
from benchmarks.registry import Hosts
from harness.base.validation import validate
from harness.experiment.defaults import read_choice
from harness.experiment.expand import combine
from harness.experiment.experiment_file import load_experiment
from harness.registry import is_built_in, load_strategy, registered_strategies
from harness.spec.spec import Spec
from tests.cases import make_case

ROOT = Path(__file__).parents[1]
EXPERIMENTS = sorted((ROOT / "workflows" / "experiments").glob("*.yaml"))
NO_COMPARISONS = {
    "smoke": "tests the workflow",
    "every-choice": "tests every choice of every setting",
}
"""Experiments whose results are not compared."""
NEEDS_MORE = {"pyg"}
"""Strategies that need a library that the test environment does not have."""


def list_comparisons() -> dict[str, Comparison]:
    return {
        "received": received.COMPARISON,
        "comparison": comparison.read_comparison(),
        "compose": compose.make_comparison(compose.EXACT, 2, 128),
        "inexact": compose.make_comparison(compose.INEXACT, 2, 128),
    }


def list_requests(compared: Comparison) -> list[Request]:
    return [
        request
        for competitor in compared.competitors
        for request in compared.list_requests(competitor, "tiny-sbm", 4)
    ]


@pytest.mark.parametrize("name", list_comparisons())
def test_published_comparison_has_equal_terms(name: str) -> None:
    assert find_unequal(list_requests(list_comparisons()[name])) == []


def test_pipelines_of_g3_and_the_halo_exchange_have_equal_terms() -> None:
    requests = network.list_pipelines({"name": "tiny-sbm", "partition": "metis", "parts": 4}, {"hidden": 16})
    assert find_unequal(requests) == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiment_that_reproduces_no_paper_has_equal_terms(path: Path) -> None:
    experiment = load_experiment(path)
    requests = [request for entry in experiment.runs for request in combine(entry, experiment.name)]
    strategies = {read_choice(request, "strategy", experiment.name)["name"] for request in requests}
    if experiment.reproduces or experiment.name in NO_COMPARISONS or len(strategies) == 1:
        return
    assert find_unequal(requests) == []


def request(strategy: str, **settings: Any) -> Request:
    return {"strategy": strategy, "dataset": "tiny-sbm", "ranks": 4, "grid": "best", **settings}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": {"order": "aggregate_first"}}, "cagnet-2d is held to model.order=aggregate_first"),
        ({"model": {"order": "combine_first"}}, "cagnet-2d is held to model.order=combine_first"),
        ({"model": {"hidden": 32}}, "model.hidden differs: 32 for cagnet-2d; 16 for rdm"),
        ({"training": {"evaluate_every": 4}}, "training.evaluate_every differs: 4 for cagnet-2d; 0 for rdm"),
        ({"training": {"optimizer": "sgd"}}, "training.optimizer differs"),
        ({"precision": "float64"}, "precision differs"),
        ({"machine": "ethernet"}, "machine differs"),
        ({"grid": "2x2"}, "cagnet-2d on 4 ranks has 3 grids"),
        ({"grid": None}, "cagnet-2d on 4 ranks has 3 grids"),
        (
            {"strategy": {"name": "cagnet-2d", "params": {"wire": "bf16"}}},
            "strategy.params.wire differs: bf16 for cagnet-2d; full for rdm",
        ),
    ],
    ids=str,
)
def test_unequal_setting_is_found(settings: dict[str, Any], reason: str) -> None:
    found = find_unequal([request("cagnet-2d") | settings, request("rdm")])
    assert [reason in sentence for sentence in found] == [True], found


def test_strategy_without_the_partition_of_others_is_found() -> None:
    metis = {"dataset": {"name": "tiny-sbm", "partition": "metis"}}
    found = find_unequal([request("bns-gcn"), request("cagnet-sa-1d", **metis)])
    assert found == ["bns-gcn takes a partition and has none, unlike cagnet-sa-1d"]
    assert find_unequal([request("rdm"), request("cagnet-sa-1d", **metis)]) == []


def test_strategy_that_can_only_aggregate_first_may_say_so() -> None:
    order = {"model": {"order": "aggregate_first"}}
    assert find_unequal([request("g3", **order), request("plexus", **order)]) == []


def test_batches_may_differ_between_mini_batches_and_the_full_graph() -> None:
    assert find_unequal([request("graphsage", training={"batch": 32}), request("rdm")]) == []


def test_caption_names_model_widths_and_strategies_that_only_aggregate_first() -> None:
    compared = Comparison("seconds", (Competitor("g3"), Competitor("rdm")), {"layers": 2, "hidden": 64})
    caption = compared.describe()
    assert "GCN, 2 layers of hidden width 64" in caption
    assert "(g3: only (A H) W)" in caption


def test_comparison_of_all_strategies_has_all_that_train_on_several_ranks() -> None:
    compared = {each.strategy for each in comparison.read_comparison().competitors}
    built_in = [point.name for point in registered_strategies() if is_built_in(point.name)]
    assert compared == {name for name in built_in if load_strategy(name).grids(4)} - NEEDS_MORE


def test_every_page_of_measurements_is_named_on_the_page_of_fairness() -> None:
    text = (ROOT / "docs" / "evidence" / "fairness.md").read_text()
    table = text.partition("## Which pages compare strategies")[2].partition("\n## ")[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1])
    }
    recorded = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    assert named == set(PAGES) | recorded


def test_launches_have_their_own_seeds_and_another_first_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for emulated hosts measures the ranks of a spec as its seconds."""
    begun = list[list[tuple[int, int, int]]]()

    def measure(_name: str, _hosts: Hosts, path: Path, *_options: object) -> pd.DataFrame:
        documents = json.loads(path.read_text())
        begun.append([(each["ranks"], each["seed"], each["launch"]) for each in documents])
        seconds = [float(each["ranks"]) for each in documents]
        return pd.DataFrame({"spec": range(len(documents)), "seconds": seconds})

    monkeypatch.setattr(launches, "measure_on_hosts", measure)
    specs = [make_case("cagnet-1d", {"p": ranks}).spec for ranks in (1, 2, 3)]
    rows = launches.measure_launches(specs, Hosts(4), launches=4)
    assert begun[:3] == [
        [(1, 0, 0), (2, 0, 0), (3, 0, 0)],
        [(2, 1, 1), (3, 1, 1), (1, 1, 1)],
        [(3, 2, 2), (1, 2, 2), (2, 2, 2)],
    ]
    assert (rows.seconds == rows.spec + 1).all()
    assert (rows.over_first == rows.seconds).all()
    assert all(set(specs) == {0, 1, 2} for _, specs in rows.groupby("launch").spec)

    specs = [make_case("cagnet-1d", {"p": ranks}).spec for ranks in (8, 1, 4)]
    rows = launches.measure_launches(specs, Hosts(4), launches=6)
    assert rows.spec.value_counts(sort=False).to_dict() == {0: 6, 1: 6, 2: 6}, "the first has all launches"
    specs.append(make_case("cagnet-1d", {"p": 16}).spec)
    rows = launches.measure_launches(specs, Hosts(4), launches=6)
    assert rows.spec.value_counts(sort=False).to_dict() == {0: 6, 1: 6, 2: 6, 3: 4}
    far = rows[rows.spec == 3].over_first
    assert launches.format_ratios(far, launches=6, comparisons=1) == "at least 2 in each of 4 launches"


def make_rows(seconds: dict[str, list[float]]) -> pd.DataFrame:
    """Return recorded rows of strategies with these seconds to the target, by launch; NaN if it was not reached."""
    return pd.DataFrame(
        {
            **{"graph": "g", "machine": "m", "ranks": 4, "grid": "p=4", "options": "", "accuracy": 0.9},
            **{"strategy": name, "launch": launch, "seconds": 1.0, "epochs_to_target": value},
            **{"seconds_to_target": value, "elements_to_target": value},
        }
        for name, values in seconds.items()
        for launch, value in enumerate(values)
    )


def test_choice_that_misses_the_target_in_one_launch_has_no_time_to_it() -> None:
    summary = comparison.summarize_launches(make_rows({"a": [3.0, nan], "b": [5.0, 19.0]}))
    assert list(summary.strategy) == ["b", "a"]
    assert summary.seconds_to_target[0] == 12
    assert isnan(summary.seconds_to_target[1])


def test_strategies_are_ranked_by_their_launches_and_ties_are_named() -> None:
    launches = {"near": [10.0 + each for each in range(10)], "first": [9.5 + each for each in range(10)]}
    summary = comparison.summarize_launches(
        make_rows({**launches, "far": [30.0 + each for each in range(10)]})
    )
    assert list(summary.strategy) == ["first", "near", "far"]
    assert list(summary.verdict) == ["", "within noise", "slower"]
    few = comparison.summarize_launches(make_rows({"first": [1.0], "far": [30.0]}))
    assert list(few.verdict) == ["", "undecided"]


def test_a_strategy_that_is_always_far_behind_is_launched_a_few_times_only() -> None:
    summary = comparison.summarize_launches(
        make_rows({"first": [10.0 + each for each in range(10)], "far": [190.0, 195.0, 200.0, 210.0]})
    )
    assert list(summary.verdict) == ["", "at least 10 times in each of 4 launches"]


def test_far_strategies_are_left_out_of_later_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for emulated hosts and for training: the ranks of a spec are its seconds, and its epochs are two."""

    def measure(specs: Sequence[Spec], _hosts: Hosts, launch: int, _epochs: int) -> pd.DataFrame:
        amounts = dict.fromkeys(("received", "held", "setup_seconds", "setup_received"), 1)
        rows = [{"spec": n, "launch": launch, "seconds": s.ranks, **amounts} for n, s in enumerate(specs)]
        return pd.DataFrame(rows)

    class Trained:
        def __enter__(self) -> "Trained":
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, _ranks: int, _job: object, specs: Sequence[Spec], **_: object) -> list[object]:
            return [[(2, 0.95) if spec.ranks < 16 else (None, 0.5) for spec in specs]]

    monkeypatch.setattr(comparison, "measure_launch", measure)
    monkeypatch.setattr(comparison, "Pool", Trained)
    specs = [make_case("cagnet-1d", {"p": ranks}).spec for ranks in (1, 2, 8, 16)]
    rows = pd.DataFrame(comparison.measure_choices(specs, Hosts(4), 10, 3, {}))
    assert rows.grid.value_counts(sort=False).tolist() == [10, 10, 4, 4]


def test_caption_of_the_first_figure_has_the_settings_of_its_comparison() -> None:
    caption = " ".join((ROOT / "README.md").read_text().split())
    model = received.COMPARISON.model
    assert f"{model['layers']} layers of hidden width {model['hidden']}" in caption
    for setting in ("best order of products", "best grid of 64 ranks", "best partition", "fairness.md"):
        assert setting in caption


@pytest.mark.long
def test_search_finds_the_best_of_all_settings() -> None:
    card = card_of_hosts(200)
    settings: list[dict[str, Any]] = [{"overlap": True}, {}, {"weight_gradient": "T"}]

    def search(*tried: dict[str, Any]) -> float:
        compared = Comparison("seconds", (Competitor("cagnet-sa-1d", tried),), {"layers": 2, "hidden": 16})
        (option,) = find_best(compared, "tiny-sbm", 2, card).options
        return option.prediction.seconds.value

    assert search(*settings) == search(*reversed(settings)) == min(search(each) for each in settings)


def test_competitor_that_cannot_run_is_named() -> None:
    compared = Comparison("seconds", (Competitor("graphsage", batch=10_000),), {"layers": 2, "hidden": 16})
    found = find_best(compared, "tiny-sbm", 2, card_of_hosts(200))
    assert found.options == []
    assert "graphsage: graphsage cannot run on tiny-sbm: training.batch = 10000" in next(found.describe())


@pytest.mark.parametrize("competitors", [compose.EXACT, compose.INEXACT], ids=["exact", "inexact"])
def test_every_setting_of_a_competitor_is_accepted(competitors: tuple[Competitor, ...]) -> None:
    for competitor in competitors:
        for params in competitor.settings:
            kind = load_strategy(competitor.strategy)
            validate(kind.Params, params, competitor.strategy)
