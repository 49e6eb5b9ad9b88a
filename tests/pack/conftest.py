"""Real runs, which honest and cheating contributors pack."""

import shutil
from pathlib import Path

import pytest

import harness

SETTINGS = {"training.epochs": 2, "training.warmup": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, ranks_at_hand: None) -> Path:
    """The folders of a full-graph run, of a run on mini-batches, and of a predicted run."""
    folder = tmp_path_factory.mktemp("contributor") / "runs"
    harness.run("cagnet-2d", "tiny-sbm", 2, settings=SETTINGS, out=folder)
    harness.run("graphsage", "tiny-sbm", 2, settings={**SETTINGS, "training.batch": 64}, out=folder)
    harness.predict("plexus", "tiny-sbm", 2, out=folder)
    return folder


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))
