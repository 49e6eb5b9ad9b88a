"""A project of few cards, whose runs come to no rank."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness.runtime.launch.series
from tests.untrusted.command import ROOT


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project of few cards, whose runs come to no rank."""
    root = tmp_path_factory.mktemp("project")
    for card in ("datasets/catalog/tiny-sbm.yaml", "config/machines/local.yaml"):
        (root / card).parent.mkdir(parents=True)
        shutil.copy(ROOT / card, root / card)
    for folder in ("workflows/experiments", "brought", "results/runs"):
        (root / folder).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_ROOT", str(root))
        for name in ("HARNESS_DATASETS", "HARNESS_RESULTS", "HARNESS_DEBUG"):
            patch.delenv(name, raising=False)
        patch.setattr(harness.runtime.launch.series, "launch_series", lambda *_, **__: iter([]))
        yield root
