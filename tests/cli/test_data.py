"""harness data: a partitioned store is built, verified and described from the command line."""

import json
import re
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
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading == "tiny-sbm: 307 vertices, 3.21 k nonzeros"
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("part  ")) + 1 :]
    parts = [list(map(int, line.replace(",", "").split())) for line in table]
    assert [row[0] for row in parts] == list(range(8))
    assert sum(row[1] for row in parts) == 307
    assert sum(row[2] for row in parts) == 3213


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


def test_facts_of_a_graph_follow_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "reddit"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("reddit: 232,965 vertices, about 115 M nonzeros, not built\n")
    assert page.endswith("\n  harness data fetch reddit\n  harness data build reddit\n")
    answer(capsys, "build")
    assert main(["data", "info", "tiny-sbm"]) == 0
    page = capsys.readouterr().out
    assert "harness data build" not in page
    splits = dict(re.findall(r"^(train|valid|test) +(\d+)", page, re.M))
    assert sum(map(int, splits.values())) == 307
    assert splits == {name: str(n) for name, n in answer(capsys, "info")["split"].items()}  # type: ignore[attr-defined]


def test_info_lists_the_card_and_the_manifest_with_v_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "tiny-sbm"]) == 0
    assert "card.source.homophily" not in capsys.readouterr().out
    assert main(["data", "info", "tiny-sbm", "-v"]) == 0
    assert re.search(r"card.source.homophily +0.8", capsys.readouterr().out)


def test_the_needs_of_strategies_are_answered_by_advise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "tiny-sbm", "--ranks", "4"]) == 2
    assert "harness advise --dataset D --ranks P --all" in capsys.readouterr().err


def test_a_build_says_what_it_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "build", "tiny-sbm"]) == 0
    assert re.match(
        r"tiny-sbm is built: 307 vertices, 3,213 nonzeros, [\d.]+ kB in \d+ files\n", capsys.readouterr().out
    )
    assert main(["data", "verify", "tiny-sbm"]) == 0
    assert capsys.readouterr().out.startswith("tiny-sbm is sound: 307 vertices, ")
    assert main(["data", "build", "tiny-sbm", "--partition", "random", "--parts", "2,4"]) == 0
    assert capsys.readouterr().out.startswith("tiny-sbm: 2 stores are built\n")


def test_a_share_of_a_build_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "build", "tiny-sbm", "--share", "scatter:0/2"]) == 0
    assert capsys.readouterr().out.startswith("tiny-sbm has the share scatter:0/2 of its build\n")


def test_info_of_an_unbuilt_graph_names_the_commands_that_build_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["data", "info", "reddit"]) == 0
    printed = capsys.readouterr().out
    assert "harness data fetch reddit\n  harness data build reddit\n" in printed
    assert "unknown" not in printed
    assert main(["data", "info", "osm-shape"]) == 0
    assert "data fetch" not in capsys.readouterr().out


def test_balance_shows_every_order_and_the_law_of_loops(capsys):
    assert main(["data", "balance", "tiny-lattice", "--shards", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["most_over_mean"]) == {"none", "single", "double", "single, loops apart"}
    assert min(found["most_over_mean"].values()) >= 1
    assert 1 < found["law_of_loops"] < 2
    assert main(["data", "balance", "tiny-lattice"]) == 0
    assert capsys.readouterr().out.startswith("tiny-lattice in 8 x 8 shards: the fullest has ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--permutation", "single"], "--permutation is not an option of harness data balance."),
        (["--shards", "0"], "--shards 0 is not accepted: a whole number from 1 to 4096."),
    ],
)
def test_what_balance_cannot_do_is_refused(options, told, capsys):
    assert main(["data", "balance", "tiny-lattice", *options]) == 2
    assert told in capsys.readouterr().err
