"""`harness collect`, killed anywhere: the next call makes the tables of an undisturbed one, and leaves nothing else."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.results.schema import TABLES
from tests.kills import Killer

pytestmark = pytest.mark.long

Study = dict[str, bytes]


@pytest.fixture(scope="module")
def studies(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Study]]:
    """Two folders of runs, and the tables that an undisturbed call makes of them."""
    found = []
    for launches in (1, 2):
        runs, out = (tmp_path_factory.mktemp("study") / name for name in ("runs", "out"))
        for launch in range(launches):
            synthetic.write_ok(runs, synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch), 1.0)
            synthetic.write_ok(
                runs, synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}, launch=launch), 1, 0.1
            )
        collect(runs, out)
        found.append((runs, content(out)))
    assert not set(found[0][1].values()) & set(found[1][1].values())
    return found


def content(folder: Path) -> Study:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_half(out: Path, allowed: list[Study]) -> None:
    """Every table is one that a whole call makes, and what is read goes together, or is refused with the way out."""
    tables = {path.name: path.read_bytes() for path in out.glob("[!.]*")}
    assert all(data in [study[name] for study in allowed] for name, data in tables.items())
    if tables.keys() != {f"{name}.parquet" for name in TABLES} or tables in allowed:
        return
    with pytest.raises(UserError, match=r"were not made by the same call.*harness collect"):
        [read_collected(out, name) for name in TABLES]


def in_turn(studies: list[tuple[Path, Study]], out: Path) -> Iterator[tuple[Killer, Study]]:
    """The command on one folder of runs and on the other, so that every table changes."""
    while True:
        for runs, study in studies:
            yield Killer(["collect", "--runs", str(runs), "--out", str(out)], out), study


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_collecting_killed_at_random_is_done_again(
    studies: list[tuple[Path, Study]], tmp_path: Path, kills: int
) -> None:
    out, rng, killed, rounds = tmp_path / "out", random.Random(kills), 0, 0
    out.mkdir()
    for killer, study in in_turn(studies, out):
        rounds += 1
        before = content(out)
        waits = rounds % 3 > 0  # until it writes

        def begun(waits: bool = waits, before: Study = before) -> bool:
            return not waits or {path.name for path in out.iterdir()} != set(before)

        killed += killer.kill_at_random(rng, 0.05 if waits else 0.3, begun)
        check_half(out, [study for _, study in studies])
        if rounds % 2:
            killer.run()
            assert content(out) == study
        if killed >= kills:
            killer.run()
            assert content(out) == study
            break
    print(f"collect: {killed} kills in {rounds} rounds; the bytes are those of an undisturbed one")


@pytest.mark.slow
def test_collecting_killed_at_every_step_is_done_again(
    studies: list[tuple[Path, Study]], tmp_path: Path
) -> None:
    out, step, mixed = tmp_path / "out", 0, 0
    before, turns = studies[0][1], in_turn(studies[1:], out)
    for killer, study in turns:
        step += 1
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name, data in before.items():
            (out / name).write_bytes(data)
        killed = killer.kill_at_step(step)
        check_half(out, [before, study])
        mixed += {name: data for name, data in content(out).items() if name in study} not in (before, study)
        killer.run()
        assert content(out) == study
        if not killed:
            break
    assert step > len(TABLES)
    assert mixed, "some kills came between two tables"
