"""The form of an experiment is checked key by key, and the experiment keeps the values as they were written."""

from typing import Any

import pytest

from harness.errors import UserError
from harness.experiment.experiment_file import parse_experiment

ENTRY: dict[str, Any] = {"launch": [0, 1], "strategy": "serial", "dataset": {"name": "tiny-sbm", "seed": 1}}


def parse(*entries: Any, **keys: Any) -> Any:
    return parse_experiment({"name": "few", "runs": list(entries), **keys}, "few.yaml")


def test_entries_keep_their_values_and_the_order_of_their_keys() -> None:
    (entry,) = parse(ENTRY).runs
    assert entry == ENTRY
    assert list(entry) == ["launch", "strategy", "dataset"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rank": 1},
            r"runs\.0\.rank is not a key here\. Did you mean ranks\? Accepted keys: strategy, dataset",
        ),
        ({"strategy": []}, r"runs\.0\.strategy = \[\] is not accepted"),
        ({"dataset": {"seed": 1}}, r"runs\.0\.dataset\.0 = .* is not accepted: a name, or a mapping"),
        ({"ranks": [2, -1]}, r"runs\.0\.ranks\.1 = -1 is not accepted"),
        ({"ranks": True}, r"runs\.0\.ranks\.0 = True is not accepted"),
        ({"grid": 4}, r"runs\.0\.grid\.0 = 4 is not accepted: sizes of the axes"),
        ({"machine": {"device": "cpu"}}, r"runs\.0\.machine\.0 = .* name a card"),
        ({"memory_gb": 0}, r"runs\.0\.memory_gb\.0 = 0 is not accepted"),
        ({"model": "gcn"}, r"runs\.0\.model\.0 = 'gcn' is not accepted"),
        ({"exclude": [{}]}, r"runs\.0\.exclude\.0 = {} is not accepted"),
    ],
)
def test_wrong_entries_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^few\.yaml: {message}") as refusal:
        parse({**ENTRY, **changes})
    assert "\n" not in str(refusal.value)


def test_entries_of_other_scales_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"published\.runs\.0\.rank is not a key here\. Did you mean ranks"):
        parse(ENTRY, published={"runs": [{**ENTRY, "rank": 1}]})
