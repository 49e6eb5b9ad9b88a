"""The workflow with the real `harness`: jobs that share builds, killed in the middle, leave what one builder makes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from harness.graph.store.building import build_store
from harness.spec.dataset import DatasetChoice
from tests import snakemakes
from tests.folder_contents import read_files

ROOT = Path(__file__).parents[1]
CHOICES = [
    DatasetChoice(name="directed-toy", permutation="double", seed=1),
    DatasetChoice(name="tiny-sbm", partition="metis", parts=3),
]
EXPERIMENT = {
    "name": "shared",
    "runs": [{"strategy": "serial", "dataset": [choice.model_dump() for choice in CHOICES]}],
}
OPTIONS = ["--profile", "workflows/profiles/local", "--cores", "3", "--resources", "device=3"]
CONFIG = ["--config", "experiment=shared.yaml", "build_jobs=3"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project root of its own, over the cards and rules of this one."""
    root = tmp_path / "root"
    for name in ("config", "datasets", "results"):
        (root / name).mkdir(parents=True)
    for name in ("workflow", "workflows", "config/machines", "datasets/catalog"):
        (root / name).symlink_to(ROOT / name)
    (root / "shared.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    return root


def marker(choice: DatasetChoice) -> str:
    order = f"{choice.permutation}-s{choice.seed}-{choice.partition}-{choice.parts}"
    return f"datasets/store/.built/{choice.name}-{order}"


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    return snakemakes.start(root, *map(marker, CHOICES), *words, *OPTIONS, *CONFIG)


def snakemake(root: Path, *words: str) -> None:
    assert start(root, *words).wait(timeout=400) == 0, (root / "output").read_text()


def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """What one builder makes, by the name of the store."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("HARNESS_DATASETS", str(tmp_path / "alone"))
        return {
            folder.name: read_files(folder) for folder in (build_store(ROOT, choice) for choice in CHOICES)
        }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shared_builds_are_killed_resumed_and_what_one_builder_makes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, deadline = start(root), time.monotonic() + 200
    while len(list(root.glob("datasets/store/.shares/*/scatter-*"))) < 2:
        assert process.poll() is None, (root / "output").read_text()
        assert time.monotonic() < deadline, "no job of a build ended in time"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert list(root.glob("datasets/store/.*.work")), "there is nothing to go on with"

    snakemake(root, "--unlock")
    snakemake(root)
    stores = [
        path
        for path in (root / "datasets" / "store").iterdir()
        if path.name not in (".built", ".shares", ".fetched")
    ]
    assert {folder.name: read_files(folder) for folder in stores} == alone(tmp_path, monkeypatch)
    assert len(list(root.glob("datasets/store/.shares/*/*-of-3"))) == 2 * 9 + 1

    snakemake(root, "--dry-run")
    assert "Nothing to be done" in (root / "output").read_text()
