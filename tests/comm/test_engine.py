"""Joining a world and leaving it."""

import sys

import pytest
import torch
import torch.distributed as dist

from harness.comm import engine, meeting
from harness.comm.engine import Engine
from harness.comm.meeting import RankPlace
from harness.errors import UserError


def test_a_process_without_a_launcher_is_a_world_of_one() -> None:
    assert meeting.place({}) == RankPlace(rank=0, world=1, local_rank=0)
    assert meeting.place({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == RankPlace(5, 8, 1)


@pytest.mark.parametrize("kind", [Engine.SINGLE, Engine.GLOO])
def test_a_world_of_one_has_no_process_group(kind: Engine) -> None:
    assert engine.start(kind, RankPlace()) == torch.device("cpu")
    assert not dist.is_initialized()
    assert (engine.rank(), engine.world_size()) == (0, 1)
    engine.stop()


def test_the_engine_single_refuses_a_second_rank() -> None:
    with pytest.raises(UserError, match="one rank, and 2 were started"):
        engine.start(Engine.SINGLE, RankPlace(0, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nccl_without_a_gpu_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="gloo"):
        engine.start(Engine.NCCL, RankPlace(0, 2))


def hook_and_place() -> tuple[bool, int, int]:
    return sys.excepthook is sys.__excepthook__, engine.rank(), engine.world_size()


def test_joining_leaves_the_hook_for_uncaught_errors_alone(ranks) -> None:
    assert ranks(3, hook_and_place) == [(True, rank, 3) for rank in range(3)]
