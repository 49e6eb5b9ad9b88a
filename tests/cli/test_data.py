"""harness data: a partitioned store is built, verified and described from the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ROOT", str(ROOT))
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))


def answer(capsys: pytest.CaptureFixture[str], action: str, *order: str) -> dict[str, Any]:
    assert main(["data", action, "tiny-sbm", *order, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_partitioned_store_is_built_verified_and_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ("--partition", "metis", "--parts", "8")
    built = answer(capsys, "build", *order)
    (store,) = built["stores"]
    assert Path(store["folder"]).parent == tmp_path / "store"
    assert answer(capsys, "verify", *order) == built
    described = answer(capsys, "info", *order)
    assert described["folder"] == store["folder"]
    assert len(described["cut"]["parts"]) == 8


def test_several_orders_are_built_and_verified_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    order = ("--partition", "metis", "--parts", "2,4", "--seed", "0,1,1")
    built = answer(capsys, "build", *order)
    assert answer(capsys, "verify", *order) == built
    each = [
        answer(capsys, "verify", "--partition", "metis", "--parts", parts, "--seed", seed)["stores"][0]
        for parts in "24"
        for seed in "01"
    ]
    assert built["stores"] == each


@pytest.mark.parametrize(
    ("name", "steps"), [("reddit", ["fetch", "build"]), ("osm-shape", ["build"]), ("tiny-sbm", [])]
)
def test_info_of_an_unbuilt_graph_names_the_commands_that_build_it(
    name: str, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "info", name]) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^  harness data (\w+) (\S+)$", page, re.M) == [(step, name) for step in steps]


def test_info_lists_the_card_and_the_manifest_with_v_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "tiny-sbm"]) == 0
    assert "card.source.homophily" not in capsys.readouterr().out
    assert main(["data", "info", "tiny-sbm", "-v"]) == 0
    assert re.search(r"card.source.homophily +0.8", capsys.readouterr().out)


def test_a_share_of_a_build_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "build", "--share", "scatter:0/2")
    assert not list((tmp_path / "store").glob("tiny-sbm*"))


def test_balance_shows_every_order_and_the_law_of_loops(capsys):
    assert main(["data", "balance", "tiny-lattice", "--shards", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["most_over_mean"]) == {"none", "single", "double", "single, loops apart"}
    assert min(found["most_over_mean"].values()) >= 1
    assert 1 < found["law_of_loops"] < 2
