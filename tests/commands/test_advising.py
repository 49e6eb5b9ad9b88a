"""harness advise: what it concludes from its predictions."""

from dataclasses import replace

import pytest

from harness.commands.advising import AdviseAnswer, advise
from harness.prediction import card_status
from harness.prediction.advice import TunedOption


@pytest.fixture(scope="module")
def answer() -> AdviseAnswer:
    return advise("tiny-sbm", 2, accuracy="exact")


@pytest.mark.parametrize(
    ("times_as_long", "said"),
    [
        (1.0, "All measurements are within their intervals."),
        (
            100.0,
            "1 of 1 measurement outside the interval of the prediction: the machine was busy, or the card",
        ),
    ],
)
def test_measurements_are_compared_with_their_intervals(
    answer: AdviseAnswer, times_as_long: float, said: str
) -> None:
    best = answer.advice.full_graph[0]
    seconds = best.prediction.seconds.value
    tuned = TunedOption(best.strategy.name, best.grid, seconds, times_as_long * seconds, "")
    assert said in str(replace(answer, tuned=[tuned]))


def test_best_option_has_the_command_that_trains_it(answer: AdviseAnswer) -> None:
    best = answer.advice.full_graph[0]
    page = str(answer)
    assert f"Fastest       {best.strategy.name} --grid {best.grid}: " in page
    assert (
        f"  harness run --strategy {best.strategy.name} --dataset tiny-sbm --ranks 2 --grid {best.grid}"
        in page
    )
    assert "Fewer ranks   1 rank " in page


@pytest.mark.parametrize(
    ("ranks", "said"),
    [(2, None), (8, "8 ranks with 1 thread each on 2 cores: they share cores, so the times")],
)
def test_ranks_that_share_the_cores_of_the_card_are_named(
    answer: AdviseAnswer, ranks: int, said: str | None
) -> None:
    assert answer.card.rates and answer.card.rates.cores_per_node == 2
    page = " ".join(str(replace(answer, request=replace(answer.request, ranks=ranks))).split())
    assert said in page if said else "share cores" not in page


@pytest.mark.parametrize("cores", [2, 64])
def test_card_of_another_machine_is_named(
    answer: AdviseAnswer, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = answer.card.measured_on
    assert there and there.cores == 2
    here = there.model_copy(update={"cores": cores})
    monkeypatch.setattr(card_status, "describe_machine", lambda _: here)
    page = " ".join(str(answer).split())
    assert ("run harness doctor --calibrate; it was calibrated on" in page) is (cores == 64)
    assert answer.to_document()["card"]["kind"] == "calibrated"
