"""The scripts and notebooks of examples/ run unchanged, in a project created by `harness new project`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.cli import main
from harness.conformance.case_list import make_case as kit_case
from harness.conformance.suite import check_case as findings_of
from harness.ledger import AxisName
from harness.strategy import Promise

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_AS_A_FILE = {"own_sampler.py"}
"""Files that commands name; the others are started by python."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project") / "mine"
    assert main(["new", "project", str(folder)]) == 0
    return folder


def locate_strategy(path: Path) -> str:
    """A script; or the code of a notebook, cell after cell, in which the value of the last line is printed."""
    if path.suffix == ".py":
        return path.read_text()
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are of one machine: clear them"
    lines = []
    for cell in cells:
        *head, last = "".join(cell["source"]).rsplit("\n", 1)
        lines += [*head, f"print({last})" if not last.startswith((" ", ")", "}")) else last]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(path.name for path in EXAMPLES.glob("*.*") if path.name not in RUN_AS_A_FILE)
)
def test_an_example_runs(name: str, project: Path) -> None:
    script = project / f"{name}.py"
    script.write_text(locate_strategy(EXAMPLES / name))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_sampler_of_the_examples_passes_every_check_of_a_case(pool: Any) -> None:
    name = f"{EXAMPLES / 'own_sampler.py'}:WalkBatches"
    findings = list(findings_of(kit_case(name, {AxisName.D: 2}, "walks"), pool.run, range(2)))
    assert len(findings) > 8
    assert [finding for finding in findings if not finding.holds] == []


def test_advice_and_a_prediction_from_python_agree(project: Path) -> None:
    """The option that advice names is predicted alike by name; the strategies promise what was asked for."""
    advice = harness.advise("tiny-sbm", 2, "perlmutter", accuracy="exact", root=project).advice
    best = advice.full_graph[0]
    assert {option.strategy.effective_promise for option in advice.full_graph} == {Promise.EXACT}
    alone = harness.predict(
        best.strategy.name, "tiny-sbm", 2, "perlmutter", grid=best.strategy.spec.grid, root=project
    )
    assert alone.prediction.seconds == best.prediction.seconds
    costs = [option.cost for option in advice.full_graph]
    assert costs == sorted(costs)


CALLED = """
import harness
from harness.base.errors import UserError
print(*dir(harness))
import harness.cli.commands.running
print(harness.run is harness.cli.commands.running.run, harness.run.__name__)
try:
    harness.run("serial", "tiny-sbn")
except UserError as error:
    print(error)
"""


def test_the_functions_are_named_and_refuse_as_the_commands_do(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLED], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, refused = done.stdout.splitlines()
    assert first.split() == ["__version__", "advise", "check", "compare", "load", "predict", "run"]
    assert second == "True run"
    assert "tiny-sbm" in refused
