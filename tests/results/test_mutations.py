"""A record that is damaged, in whatever way, costs its own row: no verb fails, and its folder is named."""

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.cli import main
from tests.untrusted.test_thrown import nested

WRONG: list[Any] = [
    *(None, True, -1, 0, 2**40, 2**63, -(10**30), 10**400, 1.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x" * 5000, "../../etc/passwd", "é\u202e\x1b[2J", "nul\0", "\ud800", "{", "[]", "1e400"),
    *([], {}, [[]], {"a": {"b": 1}}, [1, "a", None], {"": ""}, {"run_id": "another"}),
]
"""Values of every kind; a deep one is made where it is used."""


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document."""
    if at:
        yield at
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*at, key))


def with_a_wrong_value(document: Any, rng: random.Random) -> Any:
    """The document with one value replaced, removed, or added next to it."""
    changed = copy.deepcopy(document)
    *above, last = rng.choice(list(places(changed)))
    inner = changed
    for key in above:
        inner = inner[key]
    way = rng.randrange(6)
    if way == 0 and isinstance(inner, dict):
        del inner[last]
    elif way == 1 and isinstance(inner, dict):
        inner[rng.choice(["run_id", "status", "ranks", "dataset.name", "new", "graph"])] = rng.choice(WRONG)
    else:
        inner[last] = nested(rng.choice([30, 200])) if way == 2 else rng.choice(WRONG)
    return changed


def damage_text(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    ways: list[Callable[[], bytes]] = [
        lambda: data[: rng.randrange(len(data))],
        lambda: b"",
        lambda: rng.randbytes(500),
        lambda: b"[" * 100_000,
        lambda: b'{"a":' * 100_000,
        lambda: data.replace(b'"', b"'", 1),
        lambda: data[: len(data) // 2] + bytes([rng.randrange(256)]) + data[len(data) // 2 + 1 :],
        lambda: data.replace(b": 1", b": " + b"9" * 5000, 1),
        lambda: b"\xff\xfe" + data,
    ]
    path.write_bytes(rng.choice(ways)())


def damage_kind(path: Path, rng: random.Random) -> None:
    """Something else than a file stands in the place of the file."""
    path.unlink(missing_ok=True)
    way = rng.randrange(5)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to("/dev/zero")
    elif way == 2:
        path.symlink_to(path.name)
    elif way == 3:
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 33)


def mutate(folder: Path, rng: random.Random) -> None:
    """Damages one file of a run folder."""
    way = rng.random()
    if way < 0.7:
        path = folder / rng.choice(["record.json", "record.json", "spec.json"])
        path.write_text(json.dumps(with_a_wrong_value(json.loads(path.read_text()), rng)))
    elif way < 0.85:
        damage_text(rng.choice(sorted(folder.iterdir())), rng)
    else:
        damage_kind(rng.choice(sorted(folder.iterdir())), rng)


@pytest.fixture
def study_of(
    synthetic: SimpleNamespace, tmp_path: Path
) -> Callable[[int, int], tuple[Path, str, list[Path]]]:
    def make(number: int, seed: int) -> tuple[Path, str, list[Path]]:
        """A folder of runs with one sound record and `number` damaged ones."""
        runs, rng, folders = tmp_path / f"runs-{seed}", random.Random(seed), []
        first = synthetic.write_ok(runs, synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}), 1.0, 0.1)
        text = (first / "record.json").read_text()
        for place in range(number):
            folder = Path(shutil.copytree(first, runs / f"{place:016x}"))
            (folder / "record.json").write_text(text.replace(first.name, folder.name))
            mutate(folder, rng)
            folders.append(folder)
        return runs, first.name, folders

    return make


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 13))])
def test_damaged_records_cost_their_own_rows_and_no_verb(
    seed: int, study_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, sound, damaged = study_of(25, seed)
    tables = tmp_path / "tables"
    code, out, err = called(capsys, "collect", "--runs", runs, "--out", tables, "--json")
    assert code == 0, err
    collected = json.loads(out)
    rows = set(pq.read_table(tables / "runs.parquet")["run_id"].to_pylist())
    assert sound in rows
    left = [folder for folder in damaged if folder.name not in rows]
    assert len(collected["left_out"]) == len(left) > len(damaged) / 3
    assert all(any(folder.name in reason for reason in collected["left_out"]) for folder in left)

    assert called(capsys, "runs", "list", "--runs", runs)[0] == 0
    for folder in damaged:
        code, _, err = called(capsys, "runs", "show", folder.name, "--runs", runs)
        assert code in (0, 2), (folder, err)
        assert code == 0 or folder.name in err, err
        code, _, err = called(capsys, "compare", runs / sound, folder)
        assert code in (0, 1, 2), (folder, err)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_tables_of_damaged_records_are_drawn_reported_and_packed(
    seed: int, study_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, _, _ = study_of(25, seed)
    tables, figures = tmp_path / "tables", tmp_path / "figures"
    packed = ("--runs", runs, "--tables", tables, "--figures", figures, "--out", tmp_path / "pack.tar.gz")
    for words in (
        ("collect", "--runs", runs, "--out", tables),
        ("figures", "--tables", tables, "--out", figures),
        ("report", "--tables", tables, "--out", tmp_path / "report.html"),
        ("pack", "--by", "Some Group", *packed),
    ):
        code, _, err = called(capsys, *words)
        assert code in (0, 1, 2), err


def test_a_copy_of_a_run_folder_is_left_out_by_name(
    study_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, sound, _ = study_of(0, 0)
    shutil.copytree(runs / sound, runs / f"{sound}.bak")
    (runs / "notes").mkdir()
    code, out, _ = called(capsys, "collect", "--runs", runs, "--out", tmp_path)
    assert code == 0
    assert out.splitlines()[-1].startswith(
        f"2 folders were left out. The first: {runs / sound}.bak holds the record of the run {sound}, so it is a copy"
    )
    assert called(capsys, "collect", "--runs", runs, "--out", tmp_path, "--verify")[0] == 1
    code, out, err = called(capsys, "runs", "list", "--runs", runs)
    assert code == 0 and "1 run," in out and "2 folders were left out" in err


def test_a_plan_that_cannot_be_read_does_not_block_the_report(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "broken.json").write_text("{")
    words = ("--tables", study / "tables", "--out", tmp_path / "report.html")
    code, _, err = called(capsys, "report", *words)
    assert code == 0, err


def test_a_table_is_refused_by_its_schema_before_its_rows_are_read(
    study_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of one value repeated takes next to nothing on disk, whatever it takes in memory."""
    runs, sound, _ = study_of(0, 0)
    many = pa.table({"x": pa.array([0], pa.int64()).take(pa.array([0] * 10_000))})
    pq.write_table(many, runs / sound / "epochs.parquet")
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("its rows were read"))
    code, _, err = called(capsys, "runs", "show", sound, "--runs", runs)
    assert code == 2
    assert "epochs.parquet has schema none" in err


def test_a_table_that_memory_has_no_room_for_is_refused(
    study_of: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, sound, _ = study_of(0, 0)
    monkeypatch.setattr("harness.results.parquet.ALWAYS_FITS", 0)
    monkeypatch.setattr("harness.results.parquet.find_available_bytes", lambda: 100)
    code, _, err = called(capsys, "runs", "show", sound, "--runs", runs)
    assert code == 2
    assert "bytes of memory, and 100 are free" in err
