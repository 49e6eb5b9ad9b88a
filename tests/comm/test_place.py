"""Ranks, worlds and meeting points from the environments that launchers make."""

import pytest

from harness.comm.engine import RankPlace, address, first_host, place
from harness.errors import UserError

# As found in task 5 of `srun -N 2 -n 8 --ntasks-per-node=4` inside a batch job.
STEP = {
    "SLURM_JOB_ID": "70012",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_NODELIST": "n[1-4]",
}
BATCH = {"SLURM_JOB_ID": "70012", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-4]"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, RankPlace(0, 1, 0)),
        (TORCHRUN, RankPlace(2, 3, 0)),
        (STEP, RankPlace(5, 8, 1)),
        (STEP | TORCHRUN, RankPlace(2, 3, 0)),
        (BATCH, RankPlace(0, 1, 0)),
    ],
    ids=["alone", "torchrun", "srun", "torchrun in a step", "batch script"],
)
def test_a_process_knows_its_place(environ: dict[str, str], expected: RankPlace) -> None:
    assert place(environ) == expected


def test_the_ranks_of_a_step_meet_on_its_first_host() -> None:
    assert address(STEP) == {"MASTER_ADDR": "n1", "MASTER_PORT": str(20_000 + 70_015 % 20_000)}
    assert address(STEP)["MASTER_PORT"] != address(STEP | {"SLURM_STEP_ID": "4"})["MASTER_PORT"]
    assert address(STEP | TORCHRUN) == address(BATCH) == address({}) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("nid[001004-001007,001012]", "nid001004"),
        ("nid[001004,001012],login1", "nid001004"),
        ("rack-7-node[08-09].cluster", "rack-7-node08.cluster"),
        ("frontier00001", "frontier00001"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="MASTER_ADDR"):
        first_host("")
