"""The store of another launcher is open to every process of the machine: nothing in it makes a rank run code."""

import json
import os
import pickle
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from harness.base.errors import RunError, UserError
from harness.base.files import SCRATCH, owner_tag
from harness.comm import world_store
from harness.comm.launchers import RankPlace
from harness.experiment.requests import make_spec
from harness.runtime.launch.joined_world import JoinedWorld
from harness.runtime.launch.launch import launch
from harness.runtime.launch.time_limits import TimeLimits
from harness.runtime.rank_tables import RankTables, _TablesReader

ROOT = Path(__file__).parents[2]
ASKED = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": 2}


class Follower:
    """Rank 1 of a world of two, whose store another user writes to as well."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = dist.HashStore()  # type: ignore[attr-defined]
        self.runs, self.mark = tmp_path / "results/runs", tmp_path / "ran"
        self.runs.mkdir(parents=True)
        monkeypatch.setattr(world_store, "open_world_store", lambda *_: self.store)
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        self.world = JoinedWorld(RankPlace(1, 2, 1), TimeLimits(folder_visible=0.2))
        evil = tmp_path / "evil.py"
        evil.write_text(f"open({str(self.mark)!r}, 'w')\n")
        self.spec = make_spec(ROOT, ASKED, "the test").model_dump(mode="json")
        self.spec["strategy"]["name"] = f"{evil}:Evil"

    def scratch(self, folder: Path) -> Path:
        """A scratch folder whose spec runs code."""
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(self.spec))
        return folder

    def follow(self, *orders: str) -> None:
        for number, order in enumerate(orders):
            self.store.set(f"order {number}", order)
        self.world.follow_runs(ROOT, self.runs)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    return Follower(tmp_path, monkeypatch)


def test_order_that_leaves_the_results_is_refused(follower: Follower, tmp_path: Path) -> None:
    elsewhere = follower.scratch(tmp_path / "elsewhere/launch-a")
    paths = json.dumps([str(ROOT), str(elsewhere), str(follower.runs)])
    hostile = [
        str(elsewhere),
        paths,
        "../elsewhere/launch-a",
        "launch-a/../../elsewhere/launch-a",
        ".",
        "..",
        " ",
    ]
    ours = f"{SCRATCH}{owner_tag()}"
    hostile += [f"{ours}.abcdefgh/../../elsewhere/{ours.removeprefix(SCRATCH)}.abcdefgh"]
    hostile += ["launch-\0a", "launch-a\n", "launch-\x1b[2J", "launch-" + "x" * 5000, "launch-\udcff", "runs"]
    for order in hostile:
        with pytest.raises(UserError, match="scratch folder") as refusal:
            follower.world._find_scratch(follower.runs, order, "later")
        assert str(refusal.value).isprintable()
    with pytest.raises(UserError):
        follower.follow(paths, "")
    assert not follower.mark.exists()


def scratch_name(mark: str) -> str:
    """The name of a scratch folder of this process."""
    return f"{SCRATCH}{owner_tag()}.{mark:_<8}"


def test_order_for_a_folder_of_another_user_or_behind_a_link_is_refused(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = follower.runs.parent
    link, spec_link, absent, foreign = map(scratch_name, ("link", "spec", "absent", "foreign"))
    (results / link).symlink_to(follower.scratch(tmp_path / "elsewhere/launch-a"))
    (results / spec_link).mkdir()
    (results / spec_link / "spec.json").symlink_to(tmp_path / "elsewhere/launch-a/spec.json")
    follower.scratch(results / foreign)
    for name in (link, spec_link, absent):
        with pytest.raises(UserError, match="belong"):
            follower.world._find_scratch(follower.runs, name, "later")
    user = os.getuid()
    assert follower.world._find_scratch(follower.runs, foreign, "later") == results / foreign
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(UserError, match="belong"):
        follower.world._find_scratch(follower.runs, foreign, "later")
    assert not follower.mark.exists()


def test_order_whose_folder_is_gone_is_passed_over(follower: Follower) -> None:
    """Rank 0 ended the run before this rank began it, as with a refusal, and gave the next order."""
    follower.follow(scratch_name("gone"), scratch_name("gone_too"), "")
    assert not follower.store.check(["order 3"])
    follower.store.wait(["order 2"], timedelta(seconds=1))


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.mark), "w")


def test_tables_that_name_a_function_are_refused_and_call_nothing(tmp_path: Path) -> None:
    def read(value: object) -> Any:
        return _TablesReader(BytesIO(pickle.dumps(value))).load()

    mark = tmp_path / "called"
    for hostile in (Bomb(mark), RankTables(0, chosen={"a": Bomb(mark)}), [os.system], launch):  # type: ignore[dict-item]
        with pytest.raises(RunError, match="rank"):
            read(hostile)
    assert not mark.exists()
    tables = RankTables(1, epochs=[{"epoch": 0, "loss": 0.5}], chosen={"a": "b"})
    assert read(tables) == tables
