"""The form of an experiment is checked key by key, and the experiment keeps the values as they were written."""

from typing import Any

import pytest

from harness.base.errors import UserError
from harness.experiment.experiment_file import parse_experiment

ENTRY: dict[str, Any] = {"launch": [0, 1], "strategy": "serial", "dataset": {"name": "tiny-sbm", "seed": 1}}


def parse(*entries: Any, **keys: Any) -> Any:
    return parse_experiment({"name": "few", "runs": list(entries), **keys}, "few.yaml")


def test_entries_keep_their_values_and_the_order_of_their_keys() -> None:
    (entry,) = parse(ENTRY).runs
    assert entry == ENTRY
    assert list(entry) == ["launch", "strategy", "dataset"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 1}, ["runs.0.rank", "ranks", "strategy, dataset"]),
        ({"strategy": []}, ["runs.0.strategy"]),
        ({"dataset": {"seed": 1}}, ["runs.0.dataset.0", "name"]),
        ({"ranks": [2, -1]}, ["runs.0.ranks.1 = -1"]),
        ({"ranks": True}, ["runs.0.ranks.0 = True"]),
        ({"ranks": "two"}, ["runs.0.ranks.0 = 'two'"]),
        ({"ranks": None}, ["runs.0.ranks.0 = None"]),
        ({"grid": 4}, ["runs.0.grid.0 = 4", "2x2"]),
        ({"machine": {"device": "cpu"}}, ["runs.0.machine.0", "config/machines/"]),
        ({"memory_gb": 0}, ["runs.0.memory_gb.0 = 0"]),
        ({"model": "gcn"}, ["runs.0.model.0 = 'gcn'"]),
        ({"exclude": [{}]}, ["runs.0.exclude.0 = {}"]),
        ({"exclude": ["serial"]}, ["runs.0.exclude.0 = 'serial'"]),
    ],
)
def test_wrong_entries_are_refused_in_one_line(changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        parse({**ENTRY, **changes})
    message = str(refusal.value)
    assert message.startswith("few.yaml: ") and "\n" not in message
    assert all(word in message for word in said)


def test_entries_of_other_scales_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"published\.runs\.0\.rank"):
        parse(ENTRY, published={"runs": [{**ENTRY, "rank": 1}]})
