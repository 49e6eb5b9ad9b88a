"""The workflow with the real `harness`: killed in the middle of a run, and resumed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from harness.base.locks import RUNNING, hold_shared
from tests import snakemakes

ROOT = Path(__file__).parents[1]
EXPERIMENT = {
    "name": "resumed",
    "runs": [
        {"strategy": "serial", "dataset": "tiny-sbm", "launch": [0, 1], "training": {"epochs": 2}},
        {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": 2, "training": {"epochs": 2}},
    ],
}
OPTIONS = ["--profile", "workflows/profiles/local", "--config", "experiment=resumed.yaml"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project root of its own, over the cards and rules of this one."""
    for name in ("config", "datasets", "figures", "results"):
        (tmp_path / name).mkdir()
    for name in ("workflow", "workflows", "config/machines", "datasets/catalog"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "resumed.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    return tmp_path


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    return snakemakes.start(root, *words, *OPTIONS)


def snakemake(root: Path, *words: str) -> None:
    assert start(root, *words).wait(timeout=200) == 0, (root / "output").read_text()


def records(root: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in root.glob("results/runs/[!.]*/record.json")}


@pytest.mark.slow
def test_finished_records_survive_a_kill_untouched(root: Path) -> None:
    process = start(root)
    deadline = time.monotonic() + 120
    while not records(root):
        assert process.poll() is None, (root / "output").read_text()
        assert time.monotonic() < deadline, "no run was recorded in time"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    survived = records(root)
    assert 1 <= len(survived) < 3

    with hold_shared(root / RUNNING):  # as a run does that the killed workflow began
        assert start(root, "--unlock").wait(timeout=200) != 0
        assert "a workflow is running in this folder" in (root / "output").read_text()
    snakemake(root, "--unlock")
    snakemake(root, "all", "verify")
    resumed = records(root)
    assert len(resumed) == 3
    assert survived.items() <= resumed.items()
    assert (root / "results" / "report.html").is_file()

    snakemake(root, "--dry-run")
    assert "Nothing to be done" in (root / "output").read_text()
