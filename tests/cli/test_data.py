"""harness data: a partitioned store is built, verified and described from the command line."""

import json
from pathlib import Path

import pytest

from harness.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ROOT", str(ROOT))
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))


def answer(capsys: pytest.CaptureFixture[str], action: str, *order: str) -> dict[str, object]:
    assert main(["data", action, "tiny-sbm", *order, "--json"]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


def test_a_partitioned_store_is_built_verified_and_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ("--partition", "metis", "--parts", "8")
    built = answer(capsys, "build", *order)
    assert Path(str(built["store"])).parent == tmp_path / "store"
    assert answer(capsys, "verify", *order) == built
    described = answer(capsys, "info", *order)
    assert described["folder"] == built["store"]
    assert set(described["cut"]) == {"vertices", "nonzeros", "rows_needed", "parts"}  # type: ignore[call-overload]
    assert main(["data", "info", "tiny-sbm", *order]) == 0
    assert "rows_needed:" in capsys.readouterr().out


def test_several_orders_are_built_and_verified_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    order = ("--partition", "metis", "--parts", "2,4", "--seed", "0,1,1")
    built = answer(capsys, "build", *order)
    assert answer(capsys, "verify", *order) == built
    each = [
        answer(capsys, "verify", "--partition", "metis", "--parts", parts, "--seed", seed)["store"]
        for parts in "24"
        for seed in "01"
    ]
    assert built == {"stores": each}
    assert main(["data", "info", "tiny-sbm", *order]) == 2
    assert "info takes one order" in capsys.readouterr().err


def test_a_partition_is_another_store_than_a_permutation(capsys: pytest.CaptureFixture[str]) -> None:
    orders = [(), ("--permutation", "double"), ("--partition", "random", "--parts", "2")]
    assert len({str(answer(capsys, "build", *order)["store"]) for order in orders}) == 3


def test_info_says_what_every_strategy_needs_built_or_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    order = ("--partition", "metis", "--parts", "8")
    answer(capsys, "build", *order)
    for words in (["tiny-sbm", *order], ["reddit"]):
        assert main(["data", "info", *words, "--ranks", "4", "--json"]) == 0
        needs = {needed["strategy"]: needed for needed in json.loads(capsys.readouterr().out)["needs"]}
        assert needs["cagnet-2d"]["grids"] == 3
        assert needs["cagnet-2d"]["elements_received"] <= needs["cagnet-2d"]["worst_elements_received"]
        assert needs["plexus"]["persistent_bytes"] > 0
        assert "refused" in needs["serial"]
    assert main(["data", "info", "tiny-lattice", "--ranks", "4"]) == 2
    assert "harness data build tiny-lattice" in capsys.readouterr().err


def test_balance_shows_every_order_and_the_law_of_loops(capsys):
    assert main(["data", "balance", "tiny-lattice", "--shards", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["most_over_mean"]) == {"none", "single", "double", "single, loops apart"}
    assert min(found["most_over_mean"].values()) >= 1
    assert 1 < found["law_of_loops"] < 2
    assert main(["data", "balance", "tiny-lattice"]) == 0
    assert "8 x 8 shards" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--permutation", "single"], "unrecognized arguments: --permutation"),
        (["--shards", "0"], "argument --shards: 0"),
    ],
)
def test_what_balance_cannot_do_is_refused(options, told, capsys):
    assert main(["data", "balance", "tiny-lattice", *options]) == 2
    assert told in capsys.readouterr().err
