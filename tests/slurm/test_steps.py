"""Runs under a real srun: as many ranks as were asked for, in their order; and whatever befalls them is on record."""

import json
import os
import resource
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from harness.results.record import Record, read_record
from harness.runtime.recorded_environment import UNLISTED
from harness.runtime.slurm.srun import make_step_command
from harness.spec.machine_card import Slurm
from tests.slurm.cluster import LOCAL
from tests.slurm.project import CARD, ROOT, Project

FAULTY = f"{ROOT / 'tests' / 'launch' / 'faulty.py'}:Faulty"
PLACE = 'echo "$SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID"'
STRIPPED = """for name in $(compgen -e); do
  case $name in SLURM_JOB_ID) ;; SLURM_* | SRUN_* | SBATCH_*) unset $name ;; esac
done
"""
"""What the executor does to a rule's environment."""


def in_job(project: Project, script: str, nodes: int = 2, memory: int = 2500) -> str:
    """What a batch script prints that sees of Slurm's variables what the executor leaves to a rule."""
    file = project.folder / "job.sh"
    file.write_text(f"#!/bin/bash\n{STRIPPED}{script} 2>&1\n")
    words = [
        f"--nodes={nodes}",
        "--ntasks-per-node=4",
        f"--mem={memory}",
        f"--output={file}.out",
        "--time=30",
    ]
    project.start("sbatch", "--wait", *words, str(file)).wait(timeout=900)
    return Path(f"{file}.out").read_text()


def harness_run(
    project: Project,
    params: dict[str, Any],
    ranks: int = 4,
    memory: int = 2500,
    again: str = "true",
    path: str = "/usr/bin",
) -> Record | str:
    """The record of a run of one spec in a job, or what was said instead of one."""
    project.experiment(
        {
            "strategy": {"name": FAULTY, "params": params} if params else "cagnet-1d",
            "dataset": "tiny-sbm",
            "ranks": ranks,
            "training": {"epochs": 8, "warmup": 1},
        }
    )
    project.run("harness", "data", "build", "tiny-sbm")
    plan = project.folder / "plan.json"
    project.run(
        "harness", "plan", "--experiment", "mine.yaml", "--machine", "test-cluster", "--out", str(plan)
    )
    (run,) = json.loads(plan.read_text())["runs"]
    (project.folder / "spec.json").write_text(json.dumps(run["spec"]))
    said = in_job(
        project, f"export PATH={path}:$PATH; (harness run --spec spec.json; {again})", memory=memory
    )
    folder = project.folder / "results" / "runs" / run["run_id"]
    assert not list(project.folder.glob("results/launch-*")), "nothing is left behind"
    return read_record(folder) if folder.is_dir() else said


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_d1_a_step_has_its_ranks_in_order_whatever_the_environment(project: Project, ranks: int) -> None:
    line = shlex.join(make_step_command(ranks, Slurm(ranks_per_node=4)))
    told = sorted(in_job(project, f"{line} sh -c {shlex.quote(PLACE)}").splitlines())
    assert told == [f"{rank} n{1 + rank // 4} {rank % 4}" for rank in range(ranks)]


def test_d1_a_plain_srun_has_too_few_ranks_and_a_world_of_another_size_fails(project: Project) -> None:
    """The defect itself: should it go away, so may its cure."""
    assert len(in_job(project, f"srun sh -c {shlex.quote(PLACE)}").splitlines()) < 8
    project.run("harness", "data", "build", "tiny-sbm")
    (project.folder / "scratch").mkdir()
    plan = {
        "strategy": "cagnet-1d",
        "dataset": "tiny-sbm",
        "ranks": 4,
        "grid": {"p": 4},
        "machine": {"name": "local"},
    }
    (project.folder / "scratch" / "spec.json").write_text(json.dumps(plan))
    in_job(
        project,
        "srun python -m harness.runtime.rank --scratch scratch --runs results/runs --meeting scratch/meeting",
    )
    faults = [json.loads(path.read_text()) for path in (project.folder / "scratch").glob("fault-*.json")]
    assert faults and {fault["status"] for fault in faults} == {"refused"}
    assert "4" in faults[0]["message"]
    assert not list(project.folder.glob("results/runs/*"))


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_run_over_nodes_is_recorded_like_any_other(project: Project, ranks: int) -> None:
    record = harness_run(project, {}, ranks)
    assert isinstance(record, Record), record
    assert record.record["status"] == "ok", record.record["error"]
    assert set(record.table("epochs").rank_id) == set(range(ranks))
    assert record.record["provenance"]["env"]["HARNESS_STEP"].startswith("srun ")
    forked = "fork" in record.record["provenance"]["start"]
    assert forked == (ranks > 1), "the first task of a node imports for all of its ranks"


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_archive_is_unpacked_on_the_disk_of_each_node_once_a_job(project: Project, whole: bool) -> None:
    """A Python in an archive says where it is, and on which disk: each node has one of its own."""
    (project.folder / "env").mkdir()
    python = project.folder / "env" / "python"
    say = f'echo "$SLURMD_NODENAME $0 $(stat -c %d "$0")" >> {project.folder}/where'
    python.write_text(f'#!/bin/sh\n{say}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (project.folder / "env" / "library").write_bytes(os.urandom(20_000_000))
    archive = project.folder / "env.tar"
    subprocess.run(["tar", "-cf", archive, "-C", project.folder, "env"], check=True)
    if not whole:
        archive.write_bytes(archive.read_bytes()[:10_000_000])
    card = project.folder / "config" / "machines" / "test-cluster.yaml"
    staged = {"stage": [str(archive)], "local": LOCAL, "python": f"{LOCAL}/env/python"}
    card.write_text(yaml.safe_dump({**CARD, "slurm": {**CARD["slurm"], **staged}}))  # type: ignore[dict-item]
    record = harness_run(project, {}, again="harness run --fresh --spec spec.json")
    if not whole:
        assert isinstance(record, str) and "tar -xf" in record and "failed" in record
        assert not (project.folder / "where").exists(), "no rank was started"
        return
    assert isinstance(record, Record), record
    assert record.record["status"] == "ok", record.record["error"]
    assert "stage" not in record.record["provenance"]["start"], "the second run finds the archive there"
    said = [line.split() for line in (project.folder / "where").read_text().splitlines()]
    assert sorted(node for node, _, _ in said) == ["n1"] * 4 + ["n2"] * 4
    assert {path for _, path, _ in said} == {f"{LOCAL}/env/python"}
    assert len({disk for _, _, disk in said}) == 2


IMAGE = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/run", "/var")
APPTAINER = """#!/bin/bash
set -e
[ "$1" = exec ]; shift
while [[ $1 == --* ]]; do
  case $1 in
    --bind=*) IFS=, read -ra bound <<< "${1#--bind=}" ;;
    --pwd=*) there=${1#--pwd=} ;;
  esac
  shift
done
image=$1; shift
if [ -z "$INSIDE" ]; then
  export INSIDE=yes
  exec unshare --mount -- "$0" exec --bind="$(IFS=,; echo "${bound[*]}")" --pwd="$there" "$image" "$@"
fi
root=$(mktemp -d)
mount -t tmpfs tmpfs "$root"
for folder in $(cat "$image") "${bound[@]}"; do
  mkdir -p "$root$folder"
  mount --rbind "$folder" "$root$folder"
done
export TORCH_IMAGE=$image
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$there" "$@"
"""
"""A stand-in for apptainer: it shows the folders that the image lists and those that are bound, and nothing else."""


@pytest.mark.parametrize("bound", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ranks_in_a_container_see_the_folders_of_the_run(project: Project, bound: bool) -> None:
    """Not apptainer, but what it shows to a rank: no folder that the step does not bind."""
    program = project.folder / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER if bound else APPTAINER.replace('"${bound[@]}"', ""))
    program.chmod(0o755)
    python = Path(sys.executable)
    image = project.folder / "image"
    packages = Path(find_spec("torch").origin).parents[1]  # type: ignore[union-attr, arg-type]
    image.write_text(" ".join([*IMAGE, str(ROOT), sys.base_prefix, str(packages)]))
    card = project.folder / "config" / "machines" / "test-cluster.yaml"
    box = {"container": {"runtime": "apptainer", "image": str(image), "options": "--nv"}}
    more = {**box, "local": LOCAL, "python": str(python)}
    card.write_text(yaml.safe_dump({**CARD, "slurm": {**CARD["slurm"], **more}}))  # type: ignore[dict-item]
    record = harness_run(project, {}, path=str(program.parent))
    assert isinstance(record, Record), record
    if not bound:
        assert record.record["status"] == "failed"
        assert f"can't cd to {project.folder}" in record.record["error"]["trace"]
        return
    assert record.record["status"] == "ok", record.record["error"]
    environment = record.record["provenance"]["env"]
    assert environment["TORCH_IMAGE"] == UNLISTED, "the stand-in sets it in a container alone"
    assert f" apptainer exec --bind={LOCAL},{project.folder} --pwd=" in environment["HARNESS_STEP"]


@pytest.fixture
def podman_hpc(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """NERSC's podman-hpc over Debian's podman, with an image whose folders are empty; and its options.

    Under these limits podman starts where a process may not raise its own.
    """
    missing = [tool for tool in ("podman-hpc", "podman", "runc", "fuse-overlayfs") if which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found")
    short = tempfile.TemporaryDirectory()  # of at most 50 characters, says podman
    settings = project.folder / "podman-hpc"
    (settings / "hooks").mkdir(parents=True)
    there = {
        "modules_dir": f"{sys.prefix}/etc/podman_hpc/modules.d",
        "hooks_dir": f"{settings}/hooks",
        "graph_root_template": f"{settings}/storage",
        "run_root_template": short.name,
    }
    (settings / "config.yaml").write_text(yaml.safe_dump(there))
    monkeypatch.setenv("PODMANHPC_CONFIG_FILE", str(settings / "config.yaml"))
    monkeypatch.setenv("SQUASH_DIR", str(settings / "squashed"))
    monkeypatch.setenv("USER", "root")
    image = project.folder / "image.tar"
    with tarfile.open(image, "w") as archive:
        for name in ("usr", "bin", "lib", "lib64", "etc", "proc", "sys", "dev", "run", "tmp", "root", "var"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
    project.run("podman-hpc", "import", str(image), "localhost/empty:1")
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"nofile": open_files, "nproc": 32768}
    packages = str(Path(find_spec("torch").origin).parents[1])  # type: ignore[union-attr, arg-type]
    shown = {"/usr", "/lib", "/lib64", "/bin", "/etc", str(ROOT), sys.base_prefix, sys.prefix, packages}
    with short:
        yield [
            *(f"--ulimit={name}={limit}:{limit}" for name, limit in limits.items()),
            *(f"--volume={folder}:{folder}" for folder in sorted(shown)),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ok", "hang"])
def test_ranks_run_under_podman_hpc(project: Project, podman_hpc: list[str], way: str) -> None:
    """Those whose time is up end with their containers."""
    box = {"runtime": "podman-hpc", "image": "localhost/empty:1", "options": " ".join(["--gpu", *podman_hpc])}
    card = project.folder / "config" / "machines" / "test-cluster.yaml"
    more = {"container": box, "local": LOCAL, "python": sys.executable, "minutes": 1.5}
    card.write_text(yaml.safe_dump({**CARD, "slurm": {**CARD["slurm"], **more}}))  # type: ignore[dict-item]
    record = harness_run(project, {"way": "hang", "rank": 1, "call": 6} if way == "hang" else {})
    assert isinstance(record, Record), record
    assert record.record["status"] == {"ok": "ok", "hang": "timeout"}[way], record.record["error"]
    assert set(record.table("epochs").rank_id) == {0, 1, 2, 3}
    if way == "ok":
        assert " podman-hpc run --rm " in record.record["provenance"]["env"]["HARNESS_STEP"]
    assert project.cluster.call("podman-hpc", "ps", "--quiet") == "", "no container is left"


@pytest.mark.parametrize(
    ("way", "status", "kind", "message"),
    [
        pytest.param("raise", "failed", "ZeroDivisionError", "on purpose", marks=pytest.mark.slow),
        ("kill", "failed", "Died", "killed by SIGKILL"),
        pytest.param("exit", "failed", "Died", "exited with code 7", marks=pytest.mark.slow),
        ("swallow", "oom", "Died", "memory had run out"),
    ],
)
def test_the_cause_is_on_record(project: Project, way: str, status: str, kind: str, message: str) -> None:
    record = harness_run(project, {"way": way, "rank": 3, "call": 4})
    assert isinstance(record, Record), record
    error = record.record["error"]
    assert (record.record["status"], error["type"]) == (status, kind), error
    assert message in error["message"]
    assert error["rank"] == 3 or way == "swallow", "a node's memory is that of all its ranks"


def test_a_run_whose_time_is_up_is_a_timeout_with_its_finished_epochs(project: Project) -> None:
    """Rank 1 sleeps in the third timed epoch, and the others wait for it in a library that hears no signals."""
    card = project.folder / "config" / "machines" / "test-cluster.yaml"
    card.write_text(card.read_text().replace("minutes: 3\n", "minutes: 1.5\n"))
    record = harness_run(project, {"way": "hang", "rank": 1, "call": 6})
    assert isinstance(record, Record), record
    assert record.record["status"] == "timeout", record.record["error"]
    epochs = record.table("epochs")
    assert set(epochs.epoch) == {-1, 0, 1}
    assert set(epochs.rank_id) == {0, 1, 2, 3}
    assert set(record.table("ledger").epoch) == {-1, 0, 1}
    assert record.record["summary"]["epochs"] == 2
