"""harness advise: what it concludes from its predictions."""

from dataclasses import replace

import pytest

from harness.commands.advising import AdviseAnswer, advise
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
