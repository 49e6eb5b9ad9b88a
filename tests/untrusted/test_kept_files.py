"""No verb replaces or removes a file that it did not write, and what it wrote itself it writes again."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.untrusted.command import ROOT, say

OWN = "years of work"
EXPERIMENT = ROOT / "workflows" / "experiments" / "smoke.yaml"
VERBS = {
    "plan": ["plan", EXPERIMENT, "--out", "{out}"],
    "pack": ["pack", "--by", "Some Group", "--runs", "{runs}", "--out", "{out}"],
    "report": ["report", "--tables", "{tables}", "--out", "{out}"],
    "check": ["check", "serial", "--quick", "--certificate", "{out}"],
}


@pytest.fixture(scope="module")
def places(study: Path) -> dict[str, str]:
    return {"runs": str(study / "runs"), "tables": str(study / "tables")}


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_of_the_user_stays(verb: str, places: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "mine.txt"
    out.write_text(OWN)
    said = say(*(str(word).format(out=out, **places) for word in VERBS[verb]))
    assert said.code == 2 and "mine.txt exists" in said.err
    assert out.read_text() == OWN


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "check"])
def test_a_file_of_the_verb_is_written_again(verb: str, places: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        words = [str(word).format(out=tmp_path / "ours.txt", **places) for word in VERBS[verb]]
        assert say(*words).code == 0


def test_collected_tables_do_not_replace_others(places: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ledger.parquet").write_text(OWN)
    said = say("collect", "--runs", places["runs"], "--out", tmp_path)
    assert said.code == 2 and "ledger.parquet exists" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.parquet"]


@pytest.mark.parametrize("is_made", [True, False], ids=["made by make", "made by the user"])
def test_make_clean_removes_only_an_environment_that_it_made(is_made: bool, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("harness", "strategies", "tests", "benchmarks", "env"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "precious").touch()
    if is_made:
        (tmp_path / "env" / "made-by-make").touch()
    command = ["make", "clean", "VENV=env"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert (tmp_path / "env" / "precious").exists() != is_made
    assert ("env stays" in done.stdout) != is_made
