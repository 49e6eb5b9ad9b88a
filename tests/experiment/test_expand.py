"""An experiment file expands to exactly its specs, each once, and errors name its mistakes."""

from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.experiment import requests
from harness.experiment.expand import expand, plan
from harness.experiment.experiment_file import Experiment, load_experiment
from harness.experiment.requests import make_spec

ROOT = Path(__file__).parents[2]


def experiment(*runs: dict[str, Any]) -> Experiment:
    return validate(Experiment, {"name": "test", "runs": list(runs)}, "test")


def test_an_entry_is_the_cross_product_of_its_lists_less_what_it_excludes() -> None:
    entry = {
        "strategy": ["serial", "cagnet-1d"],
        "dataset": "tiny-sbm",
        "ranks": [1, 2, 4],
        "launch": [0, 1],
        "exclude": [{"strategy": "serial", "ranks": 2}, {"strategy": "serial", "ranks": 4}],
    }
    specs = expand(ROOT, experiment(entry))
    found = sorted((spec.strategy.name, spec.ranks, spec.launch) for spec in specs)
    wished = [("cagnet-1d", ranks, launch) for ranks in (1, 2, 4) for launch in (0, 1)]
    assert found == sorted([*wished, ("serial", 1, 0), ("serial", 1, 1)])


def test_a_spec_wished_for_twice_is_run_once() -> None:
    entry = {"strategy": "serial", "dataset": "tiny-sbm"}
    assert len(expand(ROOT, experiment(entry, entry))) == 1


def test_unknown_graph_is_not_planned() -> None:
    entry = {"strategy": "serial", "dataset": "\uff41"}
    with pytest.raises(UserError, match="dataset"):
        plan(ROOT, experiment(entry))


def test_all_grids_are_those_of_the_strategy() -> None:
    entry = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": 3, "grid": "all"}
    assert [spec.grid for spec in expand(ROOT, experiment(entry))] == [{"p": 3}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exclude": [{"rank": 2}]}, ["exclude", "rank"]),
        ({"strategy": {"name": "serial", "params": {"c": 2}}}, ["parameters of serial", "c"]),
        ({"machine": "lokal"}, ["lokal", "local"]),
        (
            {"strategy": "cagnet-2d", "dataset": {"name": "tiny-sbm", "partition": "metis"}, "ranks": 4},
            ["partition = 'metis'", "cagnet-2d"],
        ),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        expand(ROOT, experiment({"strategy": "serial", "dataset": "tiny-sbm", **changes}))
    assert all(word in str(refusal.value) for word in said), str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("strategy", value) for value in (None, [], {}, 3, {"name": None}, {"name": "x", "params": 3})),
        *(("dataset", value) for value in (None, [], {}, 3, {"name": None})),
        *(("grid", value) for value in (True, 4, 2.5, [2, 2])),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(key: str, value: object) -> None:
    asked = {"strategy": "serial", "dataset": "tiny-sbm", "grid": "all", key: value}
    with pytest.raises(UserError, match=rf"here: ({key}|params) = "):
        make_spec(ROOT, asked, "here")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("runs: [")
    with pytest.raises(UserError, match=r"broken\.yaml"):
        load_experiment(tmp_path / "broken.yaml")


def test_without_a_number_of_ranks_a_run_has_those_of_its_grid() -> None:
    entry = {
        "strategy": "cagnet-1.5d",
        "dataset": "tiny-sbm",
        "grid": ["2x2", "row=8,col=2", {"row": 3, "col": 1}],
    }
    assert [spec.ranks for spec in expand(ROOT, experiment(entry))] == [4, 16, 3]
    word = {"strategy": "cagnet-1.5d", "dataset": "tiny-sbm", "grid": "all"}
    assert [spec.ranks for spec in expand(ROOT, experiment(word))] == [1]


def test_launches_share_the_best_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    best_grid = requests.choose_best_grid

    def counted(root: Path, asked: dict[str, Any], where: str) -> dict[str, Any]:
        searched.append(asked["ranks"])
        return best_grid(root, asked, where)

    monkeypatch.setattr(requests, "choose_best_grid", counted)
    entry = {"strategy": "plexus", "dataset": "reddit", "machine": "frontier", "grid": "best"}
    specs = expand(ROOT, experiment({**entry, "ranks": [4, 8], "launch": [0, 1, 2]}))
    assert len(specs) == 6
    assert searched == [4, 8]
    assert len({(spec.ranks, *spec.grid.values()) for spec in specs}) == 2


def test_a_partition_has_as_many_parts_as_the_grid_splits_the_rows_into() -> None:
    dataset = {"name": "tiny-sbm", "partition": "metis"}
    wished = [
        {"strategy": "cagnet-1d", "dataset": dataset, "ranks": 4},
        {"strategy": "cagnet-sa-1.5d", "dataset": dataset, "ranks": 6, "grid": "3x2"},
        {"strategy": "cagnet-1d", "dataset": {**dataset, "parts": 2}, "ranks": 4},
    ]
    assert [spec.dataset.parts for spec in expand(ROOT, experiment(*wished))] == [4, 3, 2]
