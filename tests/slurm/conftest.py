"""A real Slurm for tests that ask for it by HARNESS_SLURM_TEST=1, and projects that submit to it.

Asked for, it must come up: what CI cannot test is no skip. A user's own cluster is out of reach: what the tests talk to
lives in a mount namespace, and their commands run inside it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.processes import find_processes
from tests.slurm.project import CARD, ROOT, Cluster, Project, wait_until

WANTED = "HARNESS_SLURM_TEST"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.environ.get(WANTED) != "1":
        pytest.skip(f"a Slurm is started only where {WANTED}=1")
    folder = tmp_path_factory.mktemp("slurm")
    command = [sys.executable, str(Path(__file__).with_name("cluster.py")), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout
        told = holder.stdout.readline()
        if not told.startswith("up "):
            pytest.fail(f"no Slurm could be started: {told}{holder.stdout.read()}")
        yield Cluster(folder, int(told.split()[1]))
        holder.stdin.close()


@pytest.fixture
def project(cluster: Cluster, tmp_path: Path) -> Iterator[Project]:
    """A project of its own. Nothing of it is left in Slurm afterwards, and no process."""
    for name in ("workflow", "workflows", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("config/machines", "datasets", "figures", "results"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "datasets" / "catalog").symlink_to(ROOT / "datasets" / "catalog")
    for card in (ROOT / "config" / "machines").glob("*.yaml"):
        (tmp_path / "config" / "machines" / card.name).symlink_to(card)
    (tmp_path / "config" / "machines" / "test-cluster.yaml").write_text(yaml.safe_dump(CARD))
    project = Project(tmp_path, cluster)
    yield project
    project.stop()
    cluster.call("scancel", "--user=root")
    wait_until(lambda: cluster.call("squeue", "-h") == "")
    # Slurm drains a node that was to start a job which it had.
    for node in cluster.call("sinfo", "-h", "-N", "-t", "drain", "-p", "wide", "-o", "%N").split():
        cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    wait_until(lambda: not find_processes(tmp_path))
