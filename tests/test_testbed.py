"""The emulated cluster: hosts with shaped links, and clean-up of the machine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
RANK = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x, begun = torch.ones(1 << 18), time.perf_counter()
dist.all_reduce(x)
took, hosts = time.perf_counter() - begun, sorted(os.listdir("/sys/class/net"))
assert x[0] == 4 == dist.get_world_size()
print(f"{dist.get_rank()} {int(os.environ['LOCAL_RANK'])} {took > 0.3}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "testbed"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")


def interfaces() -> list[str]:
    told = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, check=True).stdout
    return [json.dumps(link) for link in json.loads(told)]


@pytest.fixture
def cluster(only_testbed: None) -> Iterator[None]:
    """Two hosts, where this machine lets one make them."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("needs root and iproute2")
    if call("show").stdout != "0 hosts are up.\n":
        pytest.skip("somebody uses one")
    made = call("up", "--hosts", "2", "--rate", "10mbit")
    if "Operation not permitted" in made.stderr:
        pytest.skip("this machine lets nobody make network namespaces")
    assert made.returncode == 0, made.stderr
    yield
    assert call("down").returncode == 0
    assert call("show").stdout == "0 hosts are up.\n"


def test_ranks_of_two_hosts_speak_at_the_rate_of_the_links(cluster: None) -> None:
    """All-reducing 1 MiB brings each host 8 Mbit or more."""
    before = interfaces()
    done = call("run", "--ranks-per-host", "2", "--", sys.executable, "-c", RANK)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "0 0 True", "1 1 True", "2 0 True", "3 1 True"]
    assert interfaces() == before
    assert not any("testbed" in link or "10.77" in link for link in before)


def test_a_rank_that_fails_ends_the_others(cluster: None) -> None:
    script = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    assert call("run", "--", sys.executable, "-c", script).returncode == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--rate", "fast"], "200mbit"),
        (["up", "--hosts", "0"], "1 to 250"),
        (["run", "--"], "a command"),
    ],
)
def test_a_wrong_request_is_refused(words: list[str], said: str) -> None:
    refused = call(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_non_root_is_rejected(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "benchmarks" / "testbed", "/tmp/testbed-for-nobody", dirs_exist_ok=True)
    try:
        command = ["/usr/bin/env", "python3", str(folder), "up"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, user=65534, cwd="/")
    finally:
        shutil.rmtree(folder)
    assert refused.returncode == 2
    assert "need root" in refused.stderr
