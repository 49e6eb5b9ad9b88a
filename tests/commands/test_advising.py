"""harness advise: what it concludes from its predictions."""

from dataclasses import replace

import pytest

from harness.cli.commands.advising import AdviseAnswer, advise
from harness.prediction import card_status
from harness.prediction.advice import TunedOption


@pytest.fixture(scope="module")
def answer() -> AdviseAnswer:
    return advise("tiny-sbm", 2, accuracy="exact")


@pytest.mark.parametrize("times_as_long", [1.0, 100.0])
def test_measurements_are_compared_with_their_intervals(answer: AdviseAnswer, times_as_long: float) -> None:
    best = answer.advice.full_graph[0]
    seconds = best.prediction.seconds.value
    tuned = TunedOption(best.strategy.name, best.grid, seconds, times_as_long * seconds, "")
    assert ("1 of 1 measurement" in str(replace(answer, tuned=[tuned]))) is (times_as_long > 1)


def test_best_option_has_the_command_that_trains_it(answer: AdviseAnswer) -> None:
    best = answer.advice.full_graph[0]
    command = f"harness run --strategy {best.strategy.name} --dataset tiny-sbm --ranks 2 --grid {best.grid}"
    assert command in str(answer)


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
