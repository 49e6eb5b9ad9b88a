"""The ids of recorded runs stay: what a later version adds to a spec is left out of it while it has its default."""

from pathlib import Path

import pytest

from harness.base.validation import added_later, list_settings
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import MessageParams

RECORDED = Path(__file__).with_name("run_ids.txt")
"""What `harness plan --experiment workflows/experiments/every-choice.yaml` printed, with run ids and labels."""


def test_runs_of_every_strategy_keep_the_ids_that_were_recorded() -> None:
    """If this fails after a field was added to a spec or to parameters, declare it with `added_later(DEFAULT)`."""
    root = find_root()
    specs = expand(root, load_experiment(root / "workflows/experiments/every-choice.yaml"))
    labels = {spec.run_id: spec.label for spec in specs}
    recorded = dict(line.split() for line in RECORDED.read_text().splitlines())
    assert len(recorded) > 200
    assert {run_id: labels.get(run_id) for run_id in recorded} == recorded


class OneMoreParam(MessageParams):
    depth: int = added_later(2, ge=1)
    """How deep."""


def params_of(**chosen: int) -> dict[str, object]:
    return OneMoreParam(**chosen).model_dump(mode="json")


def id_with(params: dict[str, object], **model: str) -> str:
    spec = {
        "strategy": {"name": "cagnet-1d", "params": params},
        "dataset": "tiny-sbm",
        "ranks": 4,
        "grid": {"p": 4},
        "model": model,
        "machine": {"name": "local"},
    }
    return Spec.model_validate(spec).run_id


def test_the_order_is_a_part_of_every_id() -> None:
    """So no run by the default has the id of a run that was recorded under another default."""
    ids = {order: id_with({}, order=order) for order in ("aggregate_first", "combine_first", "best")}
    assert len(set(ids.values())) == 3
    assert id_with({}) == ids["best"]


def test_a_parameter_added_later_changes_an_id_only_when_it_is_set() -> None:
    before = id_with(MessageParams().model_dump(mode="json"))
    assert id_with(params_of()) == id_with(params_of(depth=2)) == before
    assert id_with(params_of(depth=3)) != before
    assert OneMoreParam.model_validate(params_of(depth=3)).depth == 3
    assert OneMoreParam.model_validate({"wire": "full"}).depth == 2


def test_a_parameter_added_later_is_listed_and_checked_like_any_other() -> None:
    (setting,) = [each for each in list_settings(OneMoreParam) if each.key == "depth"]
    assert (setting.default, setting.meaning) == ("2", "How deep.")
    with pytest.raises(ValueError, match="depth"):
        OneMoreParam(depth=0)
