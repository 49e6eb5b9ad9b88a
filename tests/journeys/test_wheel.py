"""From the built wheel to figures, in a clean environment and outside of the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main
from tests.python_path import folders_of_packages
from tests.test_packaging import LINKS_OF_A_PROJECT, files_of, run

ROOT = Path(__file__).parents[2]


def test_a_project_has_the_cards_and_workflows_of_the_checkout(tmp_path: Path) -> None:
    project = tmp_path / "project"
    assert main(["new", "project", str(project)]) == 0
    for folder in ("datasets/catalog", "config/machines", "config/programs", "workflows"):
        made, own = (root / folder for root in (project, ROOT))
        assert files_of(made) == files_of(own)
        assert all(
            (made.parent / name).read_bytes() == (own.parent / name).read_bytes() for name in files_of(own)
        )
    assert "/results/" in (project / ".gitignore").read_text()
    assert all((project / link).is_dir() for link in LINKS_OF_A_PROJECT)
    assert main(["list", "datasets", "--root", str(project)]) == 0
    assert main(["new", "project", str(project)]) == 2


@pytest.mark.slow
def test_an_installed_wheel_runs_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """The dependencies are those of this environment; the harness and its command are the wheel's."""
    clean, project = tmp_path / "clean", tmp_path / "project"
    run(sys.executable, "-m", "venv", "--without-pip", str(clean))
    site = clean / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text("\n".join(map(str, folders_of_packages())))
    pip = [sys.executable, "-m", "pip", "--python", str(clean / "bin/python"), "install", "--quiet"]
    run(*pip, "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel))
    harness = str(clean / "bin/harness")
    assert str(site) in run(
        str(clean / "bin/python"), "-c", "import harness; print(harness.__file__)", cwd=tmp_path
    )
    run(harness, "new", "project", str(project), cwd=tmp_path)
    for line in ("run --strategy cagnet-1d --dataset tiny-sbm --ranks 2", "collect", "figures", "report"):
        run(harness, *line.split(), cwd=project, PYTHONPATH="")
    assert list((project / "figures").glob("*.svg"))
    assert (project / "results/report.html").is_file()
    dry = [str(clean / "bin/python"), "-m", "snakemake", "--profile", "workflows/profiles/local", "--dry-run"]
    planned = subprocess.run(dry, cwd=project, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr[-2000:]
