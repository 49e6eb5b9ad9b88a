"""`harness run` under launchers of others: every process is a rank, and there is one record."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results.record import read_record

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LAUNCHERS = {
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python"],
    "Open MPI": ["mpirun.openmpi", "--oversubscribe", "-n", "2"],
    "MPICH": ["mpirun.mpich", "-n", "2"],
}
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launched(name: str, out: Path, ranks: int) -> "subprocess.CompletedProcess[str]":
    command = LAUNCHERS[name]
    if shutil.which(command[0]) is None:
        assert "CI" not in os.environ or os.geteuid(), f"{command[0]} is not installed"
        pytest.skip(f"{command[0]} is not installed")
    asked = f"--strategy cagnet-1d --dataset tiny-sbm --ranks {ranks} --set training.epochs=2 --json"
    program = [str(Path(sys.executable).parent / "harness"), "run", *asked.split(), "--out", str(out)]
    return subprocess.run(
        [*command, *program],
        cwd=ROOT,
        env={**os.environ, **ROOT_MAY, "HARNESS_RESULTS": str(out.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "name", ["MPICH", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torchrun", "Open MPI"))]
)
def test_a_launchers_processes_are_the_ranks(name: str, tmp_path: Path) -> None:
    done = launched(name, tmp_path / "runs", 2)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    record = read_record(tmp_path / "runs" / told["run_id"])
    assert (told["status"], record.record["status"]) == ("ok", "ok")
    assert set(record.table("epochs").rank_id) == {0, 1}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "nothing is left behind"


@pytest.mark.slow
def test_a_launcher_of_another_size_is_refused_and_all_processes_end(tmp_path: Path) -> None:
    done = launched("MPICH", tmp_path / "runs", 3)
    assert done.returncode != 0
    assert "ranks = 3" in done.stderr
