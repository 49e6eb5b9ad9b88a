"""Joining and leaving a world of ranks, and choosing devices."""

import sys

import pytest
import torch
import torch.distributed as dist

from harness.base.errors import UserError
from harness.comm import engine, launchers
from harness.comm.engine import Engine
from harness.comm.launchers import RankPlace


def test_process_without_a_launcher_is_a_world_of_one() -> None:
    assert launchers.read_place({}) == RankPlace(rank=0, world=1, local_rank=0)
    assert launchers.read_place({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == RankPlace(5, 8, 1)


@pytest.mark.parametrize("kind", [Engine.SINGLE, Engine.GLOO])
def test_a_world_of_one_has_no_process_group(kind: Engine) -> None:
    assert engine.join_world(kind, RankPlace()) == torch.device("cpu")
    assert not dist.is_initialized()
    assert (engine.rank(), engine.world_size()) == (0, 1)
    engine.leave_world()


def test_engine_single_refuses_a_second_rank() -> None:
    with pytest.raises(UserError, match="2"):
        engine.join_world(Engine.SINGLE, RankPlace(0, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nccl_without_a_gpu_is_refused_with_advice() -> None:
    with pytest.raises(UserError, match="gloo"):
        engine.join_world(Engine.NCCL, RankPlace(0, 2))


def hook_and_place() -> tuple[bool, int, int]:
    return sys.excepthook is sys.__excepthook__, engine.rank(), engine.world_size()


def test_joining_does_not_replace_the_exception_hook(ranks) -> None:
    assert ranks(3, hook_and_place) == [(True, rank, 3) for rank in range(3)]


SRUN = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}


def devices(
    monkeypatch: pytest.MonkeyPatch, launcher: str, shown: list[str], hosts: str = "aaaa"
) -> list[torch.device]:
    """Return the devices that ranks choose on nodes with a mocked driver; each rank sees the given GPUs."""
    store, taken = dist.HashStore(), []
    names = {"srun": ("SLURM_PROCID", "SLURM_LOCALID"), "torchrun": ("RANK", "LOCAL_RANK")}[launcher]
    more = SRUN if launcher == "srun" else {"WORLD_SIZE": str(len(shown))}
    monkeypatch.setattr(engine, "use_gpu", lambda index: torch.device("cuda", index))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    for rank, visible in enumerate(shown):
        local = hosts[:rank].count(hosts[rank])
        place = {name: str(number) for name, number in zip(names, (rank, local), strict=True)}
        told = {**place, **more, "CUDA_VISIBLE_DEVICES": visible, "NCCL_DEBUG": "WARN"}
        monkeypatch.setattr(engine.os, "environ", told)
        numbers = visible.split(",")
        monkeypatch.setattr(engine, "gpu_count", lambda numbers=numbers: len(numbers))
        monkeypatch.setattr(
            engine, "gpu_identity", lambda device, numbers=numbers: f"uuid {numbers[device.index]}"
        )
        monkeypatch.setattr(engine, "gethostname", lambda host=hosts[rank]: host)
        taken.append(engine.join_world(Engine.NCCL, RankPlace(rank, len(shown), local), rendezvous=store))
    return taken


def test_ranks_that_see_all_gpus_take_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in ("srun", "torchrun"):
        taken = devices(monkeypatch, launcher, ["3,2,1,0"] * 4)
        assert [device.index for device in taken] == [0, 1, 2, 3]


def test_ranks_join_if_their_scheduling_policy_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses a change for ranks that were started as idle, and in containers."""
    asked: list[object] = []

    def refuse(*policy: object) -> None:
        asked.append(policy)
        raise PermissionError

    monkeypatch.setattr(engine.os, "sched_setscheduler", refuse)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: asked.append("joined"))
    assert engine.join_world(Engine.GLOO, RankPlace(0, 2), rendezvous=dist.HashStore()) == torch.device("cpu")
    assert len(asked) == 2 and asked[-1] == "joined"


def test_ranks_that_see_their_own_gpu_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device.index for device in devices(monkeypatch, "srun", ["0", "1", "2"])] == [0, 0, 0]
    assert devices(monkeypatch, "srun", ["0", "0"], hosts="ab"), "each node has a GPU of that number"


@pytest.mark.parametrize(
    ("launcher", "shown", "words"),
    [
        ("srun", ["0", "0"], "Two ranks on a "),
        ("srun", ["0", "1", "1"], "Two ranks on a "),
        ("torchrun", ["0", "0"], "rank 1 .* 1"),
        ("torchrun", ["0,1"] * 3, "rank 2 .* 2"),
        ("srun", ["0,1"] * 3, "rank 2 .* 2"),
    ],
)
def test_more_ranks_than_gpus_are_refused_with_the_counts(
    monkeypatch: pytest.MonkeyPatch, launcher: str, shown: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        devices(monkeypatch, launcher, shown)
