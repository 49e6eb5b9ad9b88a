"""Results and stores on a file system that is mounted read-only, and on a full disk: mounted for real, by root."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
NO_MOUNTS = 77
RUN = ["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--in-process"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one card, with a list of edges, and a folder `out` for everything that is written."""
    for card in ("datasets/catalog/tiny-sbm.yaml", "config/machines/local.yaml"):
        (tmp_path / card).parent.mkdir(parents=True)
        shutil.copy(ROOT / card, tmp_path / card)
    (tmp_path / "edges.csv").write_text("".join(f"{v},{v + 1}\n" for v in range(20_000)))
    (tmp_path / "out").mkdir()
    return tmp_path


def verbs(project: Path) -> list[list[str]]:
    """The ways to write results and stores."""
    return [
        RUN,
        ["data", "build", "tiny-sbm"],
        ["data", "import", "mine", "--edges", f"{project}/edges.csv"],
    ]


def call_where(kind: str, project: Path, words: list[list[str]]) -> dict[str, Any]:
    """The answers of verbs where the folder `out` cannot be written."""
    folder = project / "out"
    environment = with_python_path(
        ROOT,
        HARNESS_ROOT=str(project),
        HARNESS_RESULTS=f"{folder}/results",
        HARNESS_DATASETS=f"{folder}/datasets",
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.without_room", kind, str(folder)],
        input=json.dumps(words),
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
        env=environment,
    )
    if done.returncode == NO_MOUNTS:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


on_each_mount = pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [("read-only", 2, "Read-only file system"), ("full", 1, "No space left on device")],
)
"""For each kind of mount: the exit code and the reason that the system gives."""


@on_each_mount
def test_unwritable_path_is_named_with_a_remedy(kind: str, code: int, reason: str, project: Path) -> None:
    found = call_where(kind, project, verbs(project))
    wrong = [answer for answer in found["answers"] if not is_refusal(answer, code, reason, project / "out")]
    assert wrong == []
    assert found["left"] == []


@on_each_mount
def test_project_that_cannot_be_written_leaves_no_files_and_folders(
    kind: str, code: int, reason: str, project: Path
) -> None:
    """A project in a new folder, and one in an empty folder."""
    out = project / "out"
    found = call_where(
        kind, project, [["new", "project", f"{out}/deep/project"], ["new", "project", str(out)]]
    )
    wrong = [
        answer
        for answer in found["answers"]
        if not is_refusal(answer, code, reason, out, "choose another folder")
    ]
    assert wrong == []
    assert (found["left"], found["folders"]) == ([], [])


def is_refusal(
    answer: dict[str, Any], code: int, reason: str, folder: Path, way_out: str = "choose another place"
) -> bool:
    """Return True if the last line of an answer names the folder, the reason and the way out."""
    *_, said = answer["err"].splitlines() or [""]
    why = reason in said or "bytes free, but" in said
    return answer["code"] == code and str(folder) in said and why and way_out in said
