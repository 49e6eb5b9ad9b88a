"""harness advise: what it concludes from its predictions."""

from dataclasses import replace

import pytest

from harness.cli.commands.advising import AdviseAnswer, advise
from harness.prediction import card_status
from harness.prediction.advice import TunedOption, choose_ranks


@pytest.fixture(scope="module")
def answer() -> AdviseAnswer:
    return advise("tiny-sbm", 2, accuracy="exact")


@pytest.mark.parametrize("times_as_long", [1.0, 100.0])
def test_measurements_are_compared_with_their_intervals(answer: AdviseAnswer, times_as_long: float) -> None:
    best = answer.advice.full_graph[0]
    seconds = best.prediction.seconds.value
    tuned = TunedOption(best.strategy.name, best.grid, seconds, times_as_long * seconds, "")
    assert ("1 of 1 measurement" in str(replace(answer, tuned=[tuned]))) is (times_as_long > 1)


def test_the_first_line_is_the_decision_with_the_command_that_trains_it(answer: AdviseAnswer) -> None:
    """On a tiny graph, one rank is faster than two."""
    first, _, command, *_ = str(answer).splitlines()
    (one,) = answer.advice.fewer_ranks
    assert one.option and one.speedup and one.speedup < 1
    assert first.startswith(f"Train on 1 rank with {one.option.strategy.name}: ")
    trained = f"harness run --strategy {one.option.strategy.name} --dataset tiny-sbm --ranks 1 "
    assert command.strip().startswith(trained)


def test_of_ranks_that_are_too_close_to_call_the_fewest_are_chosen(answer: AdviseAnswer) -> None:
    best, (one,) = answer.advice.full_graph[0], answer.advice.fewer_ranks
    assert one.option

    def decide(factor: float) -> int:
        """Return the ranks that are chosen if one rank takes `factor` times as long as two."""
        wanted = factor * best.prediction.seconds.value
        seconds = replace(one.option.prediction.seconds, value=wanted)  # type: ignore[union-attr]
        option = replace(one.option, prediction=replace(one.option.prediction, seconds=seconds))  # type: ignore
        return choose_ranks([best, option], answer.card).strategy.spec.ranks

    assert [decide(factor) for factor in (0.5, 1.01, 100.0)] == [1, 1, 2]


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_share_the_cores_of_the_card_are_named(answer: AdviseAnswer, ranks: int) -> None:
    assert answer.card.rates and answer.card.rates.cores_per_node == 2
    page = str(replace(answer, request=replace(answer.request, ranks=ranks)))
    assert ("8 ranks with 1 thread each on 2 cores" in " ".join(page.split())) is (ranks == 8)


@pytest.mark.parametrize("cores", [2, 64])
def test_card_of_another_machine_is_named(
    answer: AdviseAnswer, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = answer.card.measured_on
    assert there and there.cores == 2
    here = there.model_copy(update={"cores": cores})
    monkeypatch.setattr(card_status, "describe_machine", lambda _: here)
    page = " ".join(str(answer).split())
    assert ("harness doctor --calibrate" in page) is (cores == 64)
    assert answer.to_document()["card"]["kind"] == "calibrated"
