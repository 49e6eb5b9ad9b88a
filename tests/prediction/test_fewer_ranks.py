"""Advice on fewer ranks, other partitions, and replays that end early give the predictions of `harness predict`."""

from collections.abc import Collection, Iterator
from functools import cache
from math import inf

import pytest

from harness.experiment.candidates import AdviceQuery, list_candidates, make_admission
from harness.experiment.known_graph import GraphLookup, KnownGraph, look_up_graph
from harness.experiment.requests import admit_on_all_grids
from harness.graph.store.building import build_store
from harness.prediction.advice import Advice, advise, compare_options, find_ties
from harness.prediction.epoch import CachingPredictor, predict
from harness.prediction.fewer_ranks import find_fewer_ranks, list_fewer_ranks
from harness.prediction.partition_choice import compare_partitions
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.strategy import Candidate, Promise, Ready, admit

pytestmark = pytest.mark.long

ROOT = find_root()
LOCAL, PERLMUTTER = load_machine_card(ROOT, "local"), load_machine_card(ROOT, "perlmutter")


def from_card() -> GraphLookup:
    return cache(lambda choice: look_up_graph(ROOT, choice, from_card=True))


def advise_by_card(dataset: str, ranks: int, names: Collection[str], memory_gb: float | None = 40) -> Advice:
    """Advice on perlmutter with fewer ranks, from the card of the graph."""
    look_up, request = from_card(), {"dataset": {"name": dataset}, "ranks": ranks, "machine": "perlmutter"}
    facts, query = look_up(DatasetChoice(name=dataset)).facts, AdviceQuery(set(Promise), names=names)
    card = PERLMUTTER.model_copy(update={"memory_gb": memory_gb})
    advice = advise(list_candidates(ROOT, request, look_up, facts, query), card)
    return find_fewer_ranks(advice, ranks, make_admission(ROOT, request, look_up, facts, query))


def test_counts_are_quarters_a_node_and_one_rank() -> None:
    assert list_fewer_ranks(1024, PERLMUTTER) == [256, 64, 16, 4, 1]
    assert list_fewer_ranks(48, PERLMUTTER) == [12, 4, 3, 1]
    assert list_fewer_ranks(4, LOCAL) == [1]
    assert list_fewer_ranks(1, LOCAL) == []


def test_times_on_fewer_ranks_are_those_of_predict() -> None:
    advice = advise_by_card("reddit", 16, ["compose", "serial", "graphsage"])
    assert {(each.ranks, each.mini_batches) for each in advice.fewer_ranks} >= {(4, False), (4, True)}
    for each in advice.fewer_ranks:
        if each.option is None:
            assert each.reason
            continue
        assert each.option.strategy.spec.ranks == each.ranks
        assert each.option.prediction == predict(each.option.ready, PERLMUTTER)
        first = (advice.mini_batch if each.mini_batches else advice.full_graph)[0]
        assert each.speedup == each.option.cost / first.cost
        assert each.is_tied == compare_options(first, each.option, PERLMUTTER)[0]
        assert each.is_tied == list(find_ties([first, each.option], PERLMUTTER))[1]


def test_fewer_ranks_have_the_fastest_option_that_advice_finds_there() -> None:
    names = ["cagnet-1.5d", "rdm"]
    advice = advise_by_card("reddit", 16, names)
    (four,) = [each for each in advice.fewer_ranks if each.ranks == 4]
    direct = advise_by_card("reddit", 4, names).full_graph[0]
    assert four.option
    assert (four.option.grid, four.option.prediction) == (direct.grid, direct.prediction)


def test_reason_says_how_much_memory_is_missing() -> None:
    advice = advise_by_card("reddit", 16, ["rdm", "serial"], memory_gb=0.2)
    (one,) = [each for each in advice.fewer_ranks if each.ranks == 1]
    assert one.option is None and one.reason is not None
    assert "0.2" in one.reason and one.reason in one.describe(16)


@pytest.fixture(scope="module")
def tiny() -> KnownGraph:
    return build_known("block", 0)


def build_known(partition: str, parts: int) -> KnownGraph:
    choice = DatasetChoice(name="tiny-sbm", partition=partition, parts=parts)
    build_store(ROOT, choice)
    return look_up_graph(ROOT, choice)


def candidates_on(graph: KnownGraph, ranks: int, names: Collection[str]) -> Iterator[Candidate]:
    request = {"dataset": {"name": "tiny-sbm"}, "ranks": ranks, "machine": "local"}
    for name in names:
        yield admit_on_all_grids(ROOT, name, request, lambda _: graph, "here")


def test_one_rank_is_faster_than_four_on_a_tiny_graph_of_two_cores(tiny: KnownGraph) -> None:
    names = ["cagnet-1d", "serial"]
    advice = advise(candidates_on(tiny, 4, names), LOCAL)
    advice = find_fewer_ranks(advice, 4, lambda ranks, some: candidates_on(tiny, ranks, sorted(some)))
    (one,) = advice.fewer_ranks
    assert one.ranks == 1 and one.option and one.speedup is not None
    assert one.option.prediction.seconds.value < advice.full_graph[0].prediction.seconds.value
    assert one.speedup < 1 and not one.is_tied
    assert f"{1 / one.speedup:.2g} times" in one.describe(4)


@pytest.mark.parametrize("work", [0.0, 1e6])
def test_work_decides_what_is_predicted_on_fewer_ranks(tiny: KnownGraph, work: float) -> None:
    advice = advise(candidates_on(tiny, 4, ["cagnet-1d"]), LOCAL)
    advice = find_fewer_ranks(
        advice, 4, lambda ranks, some: candidates_on(tiny, ranks, sorted(some)), work=work
    )
    (fewer,) = advice.fewer_ranks
    assert (fewer.option is not None) is (work > 0)
    assert (fewer.reason == "cagnet-1d: not predicted (--exhaustive)") is (work == 0)


# Partitions.


def test_built_partition_is_compared_and_a_missing_one_names_its_command(tiny: KnownGraph) -> None:
    advice = advise(candidates_on(tiny, 4, ["cagnet-sa-1d", "rdm"]), LOCAL)
    other = build_known("random", 4)
    built = compare_partitions(advice, lambda _: other, others=["random"]).partitions
    assert [(each.strategy, each.assumed, each.other) for each in built] == [
        ("cagnet-sa-1d", "block", "random")
    ]
    option = built[0].option
    assert option and option.strategy.spec.dataset == DatasetChoice(
        name="tiny-sbm", partition="random", parts=4
    )
    strategy = option.strategy
    again = Ready(admit(type(strategy), strategy.spec, other.facts), other.blocks)
    assert option.prediction == predict(again, LOCAL)
    (before,) = [each for each in advice.full_graph if each.strategy.name == "cagnet-sa-1d"]
    assert built[0].speedup == before.cost / option.cost
    (missing,) = compare_partitions(advice, lambda _: None).partitions
    assert missing.option is None and missing.reason
    assert "harness data build tiny-sbm --partition metis --parts 4" in missing.reason


def test_the_better_of_two_built_partitions_is_named(tiny: KnownGraph) -> None:
    advice = advise(candidates_on(tiny, 4, ["cagnet-sa-1d"]), LOCAL)
    built = {name: build_known(name, 4) for name in ("random", "metis")}

    def look_up(choice: DatasetChoice) -> KnownGraph | None:
        return built.get(choice.partition)

    speedups = {
        name: compare_partitions(advice, look_up, others=[name]).partitions[0].speedup for name in built
    }
    assert speedups["metis"] > speedups["random"]
    for others in (["random", "metis"], ["metis", "random"], ["hypergraph", "random", "metis"]):
        (best,) = compare_partitions(advice, look_up, others=others).partitions
        assert (best.other, best.speedup) == ("metis", speedups["metis"])


# Replays that end early.


@pytest.mark.parametrize(
    "name", [pytest.param("cagnet-3d", marks=pytest.mark.slow), "scalegnn", "plexus", "bulk-sage", "rdm"]
)
def test_replay_ends_early_only_if_the_epoch_takes_longer(name: str) -> None:
    look_up = from_card()
    request = {"dataset": {"name": "reddit"}, "ranks": 12, "machine": "perlmutter"}
    if name in ("scalegnn", "bulk-sage"):
        request["training"] = {"batch": 1024}
    candidate, predictor = admit_on_all_grids(ROOT, name, request, look_up, "here"), CachingPredictor()
    ended = 0
    for ready in candidate.ready[:4]:
        expected = predict(ready, PERLMUTTER, ranks=[0])
        seconds = expected.seconds.value
        for limit in (inf, 1.001 * seconds, seconds):
            assert predictor.predict_first_rank(ready, PERLMUTTER, limit) == expected
        ended += predictor.predict_first_rank(ready, PERLMUTTER, seconds / 10) is None
        assert predictor(ready, PERLMUTTER) == predict(ready, PERLMUTTER)
    assert ended
