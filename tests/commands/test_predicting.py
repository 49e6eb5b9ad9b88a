"""harness predict: what limits an epoch has a name, and a prediction is a frame in Python."""

import pytest

from harness.cli.commands import predicting
from harness.prediction import card_status
from harness.prediction.pricing import list_constants
from harness.spec.machine_card import list_machines, load_machine_card
from harness.spec.root import find_root


def test_every_constant_of_a_card_has_a_name_for_people() -> None:
    root = find_root()
    cards = [load_machine_card(root, name) for name in list_machines(root)]
    constants = {name for card in cards if card.rates and card.links for name in list_constants(card)}
    assert constants <= predicting.CONSTANT_NAMES.keys()


def test_prediction_is_a_frame_with_a_row_for_each_number_of_ranks() -> None:
    frame = predicting.predict("cagnet-1d", "tiny-sbm", (2, 4)).to_frame()
    assert frame["ranks"].tolist() == [2, 4]
    assert frame["grid"].tolist() == ["p=2", "p=4"]
    assert (frame["epoch_seconds_low"] < frame["epoch_seconds"]).all()
    assert (frame["epoch_seconds"] < frame["epoch_seconds_high"]).all()


def test_all_grids_are_predicted_the_fastest_first() -> None:
    answer = predicting.predict("cagnet-2d", "tiny-sbm", 4, grid="all")
    seconds = [epoch.predicted.seconds.value for epoch in answer.epochs]
    assert len(seconds) + len(answer.refused) == 3
    assert seconds == sorted(seconds)
    assert "--why" in str(answer) or not answer.refused


@pytest.mark.parametrize("cores", [2, 64])
def test_card_of_another_machine_is_named(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there = load_machine_card(find_root(), "local").measured_on
    assert there and there.cores == 2
    here = there.model_copy(update={"cores": cores})
    monkeypatch.setattr(card_status, "describe_machine", lambda _: here)
    page = " ".join(str(predicting.predict("cagnet-1d", "tiny-sbm", 2)).split())
    assert ("64 cores" in page) is (cores == 64)
