"""The ranks and addresses that launchers' environments define, and the rendezvous of ranks."""

import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.comm import rendezvous, world_store
from harness.comm.engine import _is_bound, parse_network
from harness.comm.hosts import get_master_address, get_world_name, parse_first_host
from harness.comm.interfaces import get_own_address
from harness.comm.launchers import RankPlace, detect_launcher, read_place
from harness.comm.rendezvous import RENDEZVOUS, Rendezvous, find_address, publish_address

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
# As found under mpirun 4.1.4 of Open MPI and mpirun 4.0.2 of MPICH, both `-n 2`.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1889861633",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
# By flux-environment(7), the user guides of Polaris and Aurora, and LLNL's launcher for LSF: not tried.
FLUX = {
    "FLUX_URI": "local:///run/flux/local",
    "FLUX_TASK_RANK": "5",
    "FLUX_JOB_SIZE": "8",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_ID": "ƒ2WRhsAEtJ",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
PALS = {
    "PBS_JOBID": "123.polaris",
    "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "4",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
JSRUN = {
    "LSB_JOBID": "99",
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "8",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize(
    ("environ", "launcher", "expected"),
    [
        ({}, None, RankPlace(0, 1, 0)),
        (BATCH, None, RankPlace(0, 1, 0)),
        (TORCHRUN, "torchrun", RankPlace(2, 3, 0)),
        (STEP, "srun", RankPlace(5, 8, 1)),
        (STEP | {"PMI_RANK": "5", "PMI_SIZE": "8"}, "srun", RankPlace(5, 8, 1)),
        (STEP | TORCHRUN, "torchrun", RankPlace(2, 3, 0)),
        (OPEN_MPI, "Open MPI", RankPlace(1, 2, 1)),
        (STEP | OPEN_MPI, "Open MPI", RankPlace(1, 2, 1)),
        (MPICH, "MPICH", RankPlace(1, 2, 1)),
        (STEP | MPICH, "MPICH", RankPlace(1, 2, 1)),
        (FLUX, "Flux", RankPlace(5, 8, 1)),
        (PALS, "PALS", RankPlace(5, 8, 1)),
        (JSRUN, "jsrun", RankPlace(5, 8, 1)),
    ],
)
def test_rank_and_size_are_read_from_the_launchers_environment(
    environ: dict[str, str], launcher: str | None, expected: RankPlace
) -> None:
    """Inside a job or step of another launcher, the variables of the innermost launcher apply."""
    found = detect_launcher(environ)
    assert (found.name if found else None, read_place(environ)) == (launcher, expected)


def test_ranks_of_another_launcher_connect_to_its_first_host(tmp_path: Path) -> None:
    assert get_master_address(STEP)["MASTER_ADDR"] == "n1"
    assert 20_000 <= int(get_master_address(STEP)["MASTER_PORT"]) < 32_000
    assert (
        get_master_address(STEP)["MASTER_PORT"]
        != get_master_address(STEP | {"SLURM_STEP_ID": "4"})["MASTER_PORT"]
    )
    assert get_master_address(STEP) == get_master_address(
        STEP | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    ), "the same for all"
    assert get_master_address(STEP | TORCHRUN) == get_master_address(BATCH) == get_master_address({}) == {}
    for here in (OPEN_MPI, MPICH):
        assert get_master_address(here)["MASTER_ADDR"] == "127.0.0.1"
    hosts = tmp_path / "hosts"
    hosts.write_text("x3001.hsn\nx3001.hsn\nx3002.hsn\n")
    assert get_master_address(PALS | {"PBS_NODEFILE": str(hosts)})["MASTER_ADDR"] == "x3001.hsn"
    assert get_master_address(PALS | {"MASTER_ADDR": "mine"})["MASTER_ADDR"] == "mine"
    with pytest.raises(UserError, match="Set MASTER_ADDR"):
        get_master_address(PALS)


def test_ranks_on_several_machines_without_a_name_of_their_job_need_a_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MPICH names no job, and each machine has its own parent process, so no common port follows from them."""
    apart = STEP | MPICH | {"PMI_SIZE": "8"}
    with pytest.raises(UserError, match=r"MPICH .*MASTER_ADDR"):
        get_master_address(apart)
    told = apart | {"MASTER_PORT": "29500"}
    assert get_master_address(told) == {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    names = set()
    for parent in (7, 8):
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        names.add(get_world_name(told))
    assert names == {"8"}


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
def test_first_host_of_a_host_list_is_parsed(nodes: str, first: str) -> None:
    assert parse_first_host(nodes) == first


def test_empty_host_list_is_refused() -> None:
    with pytest.raises(UserError, match="MASTER_ADDR"):
        parse_first_host("")


def test_missing_interface_is_refused_with_the_existing_ones() -> None:
    there = [name for _, name in socket.if_nameindex()]
    with pytest.raises(UserError, match=r"hsn9.*it has .*lo") as refusal:
        get_own_address({"GLOO_SOCKET_IFNAME": "hsn9"})
    assert all(name in str(refusal.value) for name in there)
    with pytest.raises(UserError, match="hsn9"):
        get_own_address({"NCCL_SOCKET_IFNAME": "lo,hsn9"})
    assert (
        get_own_address({"GLOO_SOCKET_IFNAME": "lo"})
        == get_own_address({"NCCL_SOCKET_IFNAME": "=lo"})
        == "127.0.0.1"
    )
    assert get_own_address({"NCCL_SOCKET_IFNAME": "^lo"}) == get_own_address({}) == socket.gethostname()


def test_single_visible_device_is_bound_to_a_rank_only_by_launchers_that_bind() -> None:
    assert _is_bound(STEP | {"CUDA_VISIBLE_DEVICES": "0"}) and _is_bound(FLUX | {"ROCR_VISIBLE_DEVICES": "3"})
    assert not _is_bound(STEP | {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}) and not _is_bound(STEP)
    assert not _is_bound(TORCHRUN | {"CUDA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("nid1:7:7 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        ("host:9:9 [0] NCCL INFO Using network Socket\nhost:9:9 [0] NCCL INFO more", "Socket"),
        ("host:9:9 [0] NCCL INFO NET/IB : No device found.\n", None),
    ],
)
def test_network_is_read_from_the_nccl_log(line: str, network: str | None) -> None:
    assert parse_network(line) == network


@pytest.mark.parametrize(
    ("file", "environ", "way"),
    [
        (None, {}, "_open_at_job_port"),
        (None, STEP, "_open_at_job_port"),
        (None, STEP | {RENDEZVOUS: "name here 1"}, "_open_at_job_port"),
        (Path("meeting"), {}, "open_file_store"),
        (Path("meeting"), TORCHRUN, "open_file_store"),
        (Path("meeting"), STEP | {RENDEZVOUS: "name here 1"}, "_open_at_rendezvous"),
    ],
)
def test_the_way_to_meet_follows_from_what_ranks_share(
    file: Path | None, environ: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a rendezvous come from the harness, which sets RANK as torchrun does."""
    taken = []
    for name in ("_open_at_job_port", "_open_at_rendezvous", "open_file_store"):
        monkeypatch.setattr(world_store, name, lambda *_, name=name: taken.append(name))
    monkeypatch.setattr(os, "environ", environ)
    world_store.open_world_store(RankPlace(1, 2), file)
    assert taken == [way]


RANKS = 40


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    board = Rendezvous("127.0.0.1")
    monkeypatch.setenv(RENDEZVOUS, board.environment[RENDEZVOUS])
    return board


def test_ranks_get_the_address_from_the_rendezvous_without_reading_files(
    board: Rendezvous, tmp_path: Path
) -> None:
    """Rank 0 comes last, and the folder of the address file does not exist."""
    nowhere = tmp_path / "nowhere" / "meeting"
    with ThreadPoolExecutor(RANKS) as ranks:
        asked = [ranks.submit(find_address, nowhere, timedelta(seconds=60)) for _ in range(RANKS - 1)]
        for _ in range(20):
            board.serve()
        assert not any(each.done() for each in asked)
        posted = ranks.submit(publish_address, nowhere, "10.0.0.7", 4242)
        while not (posted.done() and all(each.done() for each in asked)):
            board.serve()
        assert {each.result() for each in asked} == {("10.0.0.7", 4242)}
        assert posted.result() is None
    board.close()


def test_ranks_of_a_step_connect_at_a_free_port_and_keep_their_secret(
    board: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ThreadPoolExecutor(2) as ranks:
        opened = [
            ranks.submit(world_store.open_world_store, RankPlace(rank, 2), tmp_path / "meeting")
            for rank in (1, 0)
        ]
        while not all(each.done() for each in opened):
            board.serve()
        follower, leader = (each.result() for each in opened)
    leader.set("said", "by rank 0")
    assert follower.get("said") == b"by rank 0"
    name = follower.get(world_store.WORLD).decode()
    assert name and name not in os.environ[RENDEZVOUS]
    board.close()


def test_without_a_rendezvous_the_address_is_read_from_the_file(
    board: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens on the port; or the rendezvous of another run does, which gives no address."""
    monkeypatch.setattr(rendezvous, "CONNECT_TIMEOUT", 0.2)
    name, host, _ = os.environ[RENDEZVOUS].split()
    board.close()
    publish_address(tmp_path / "meeting", "10.0.0.7", 4242)
    assert find_address(tmp_path / "meeting", timedelta(seconds=5)) == ("10.0.0.7", 4242)
    assert (tmp_path / "meeting").exists()
    other = Rendezvous(host)
    monkeypatch.setenv(RENDEZVOUS, f"{name} {host} {other.environment[RENDEZVOUS].split()[2]}")
    with ThreadPoolExecutor(1) as ranks:
        asked = ranks.submit(find_address, tmp_path / "meeting", timedelta(seconds=5))
        while not asked.done():
            other.serve()
        assert asked.result() == ("10.0.0.7", 4242)
    other.close()


def ask(board: Rendezvous, words: str) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", int(board.environment[RENDEZVOUS].split()[2])), 5)
    link.sendall(words.encode())
    return link


def address_between_ranks(board: Rendezvous, folder: Path) -> tuple[str, int]:
    """Return the address that a rank gets from the rendezvous after another has published it."""
    with ThreadPoolExecutor(2) as ranks:
        asked = ranks.submit(find_address, folder / "meeting", timedelta(seconds=60))
        posted = ranks.submit(publish_address, folder / "meeting", "10.0.0.7", 4242)
        while not (posted.done() and asked.done()):
            board.serve()
        return asked.result()


def test_rendezvous_accepts_only_clients_that_know_its_name(board: Rendezvous, tmp_path: Path) -> None:
    name = board.environment[RENDEZVOUS].split()[0]
    for words in (
        "",
        "\n",
        "x 6.6.6.6 66\n",
        f"{name[:-1]} 6.6.6.6 66\n",
        f"{name}0 6.6.6.6 66\n",
        "\0" * 999,
        f"{name} 6.6.6.6\n",
        f"{name} 6.6.6.6 66 66\n",
        f"\udcff {name}\n".encode(errors="replace").decode(),
    ):
        with closing(ask(board, words)) as stranger:
            time.sleep(0.01)
            board.serve()
            if words:
                assert stranger.recv(100) == b"", words
    assert address_between_ranks(board, tmp_path) == ("10.0.0.7", 4242)
    board.close()


def test_rendezvous_answers_while_idle_connections_hold_all_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With more idle connections than free descriptors, `serve` returns and drops them."""
    used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 60, used + 60))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(rendezvous, "KEPT_FREE", used + 50)
    board = Rendezvous("127.0.0.1")
    monkeypatch.setenv(RENDEZVOUS, board.environment[RENDEZVOUS])
    silent = []
    for _ in range(60):
        silent.append(ask(board, ""))
        board.serve()
    assert len(board._silent) <= 10
    assert address_between_ranks(board, tmp_path) == ("10.0.0.7", 4242)
    monkeypatch.setattr(rendezvous, "SILENCE_TIMEOUT", 0.0)
    board.serve()
    assert not board._silent, "guests that say nothing are dropped"

    def refused(_: socket.socket) -> None:
        raise OSError(24, "Too many open files")

    silent.append(ask(board, ""))
    monkeypatch.setattr(socket.socket, "accept", refused)
    board.serve()  # returns, although a connection is still waiting
    for link in silent:
        link.close()
    board.close()
