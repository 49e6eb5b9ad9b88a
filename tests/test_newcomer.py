"""The changes that docs/develop/architecture.md shows step by step work as the page says, in a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.python_path import CHECKOUT, with_python_path

pytestmark = pytest.mark.long

PAGE = (CHECKOUT / "docs" / "develop" / "architecture.md").read_text()
SECTION = PAGE[PAGE.index("## Six changes, step by step") :]
PARAMETER, COLUMN, FIGURE, VERB, MACHINE, MISTAKE = SECTION.split("\n### ")[1:]


class Change(NamedTuple):
    """A change of the page: diffs, each of an existing file, and new files with their texts."""

    diffs: list[str]
    files: dict[str, str]

    @property
    def touched(self) -> set[str]:
        changed = re.findall(r"^\+\+\+ b/(\S+)$", "".join(self.diffs), re.MULTILINE)
        return {*changed, *self.files}


def parse_change(text: str) -> Change:
    """Read the blocks of one change. A new file is a block below a line that ends with its path."""
    diffs = re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    files = re.findall(r"`(\S+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return Change(diffs, dict(files))


def apply_change(tree: Path, change: Change, *options: str) -> None:
    """Apply a change to a tree. A diff that no longer fits is to be corrected on the page."""
    for name, text in change.files.items():
        (tree / name).write_text(text)
    for diff in change.diffs:
        command = ["git", "apply", "--recount", *options]
        done = subprocess.run(command, cwd=tree, input=diff, capture_output=True, text=True)
        assert done.returncode == 0, (
            f"docs/develop/architecture.md shows a diff that does not apply: {done.stderr}"
        )


def run_python(tree: Path, *words: str) -> str:
    """Return what this Python prints with the tree's own modules."""
    environment = with_python_path(tree, OMP_NUM_THREADS="1")
    environment = {key: value for key, value in environment.items() if not key.startswith("HARNESS_")}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files with all changes but the mistake."""
    copy = tmp_path_factory.mktemp("newcomer") / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = CHECKOUT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for text in (PARAMETER, COLUMN, FIGURE, VERB, MACHINE):
        apply_change(copy, parse_change(text))
    (copy / "docs" / "reference" / "tables.md").write_text(run_python(copy, "docs/write_tables.py"))
    return copy


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (PARAMETER, {"strategies/cagnet/oned.py", "docs/strategies/cagnet.md"}),
        (COLUMN, {"harness/results/schema.py"}),
        (FIGURE, {"harness/report/figures/kinds/fewest_messages.py"}),
        (VERB, {"harness/cli/commands/degrees.py", "harness/cli/commands/__init__.py"}),
        (MACHINE, {"config/machines/department.yaml"}),
        (MISTAKE, {"strategies/cagnet/oned.py"}),
    ],
)
def test_a_change_touches_these_files_only(text: str, files: set[str]) -> None:
    assert parse_change(text).touched == files


CHECKS = """
import io, json
from contextlib import redirect_stdout
from pathlib import Path

from harness.cli import main


def say(line):
    with redirect_stdout(io.StringIO()) as printed:
        code = main(line.split())
    return code, printed.getvalue()


settings = "--set machine=department --set training.epochs=1"
run = f"run --in-process --strategy cagnet-1d --dataset tiny-sbm --ranks 1 {settings}"
found = {
    "strategies": say("list strategies -v"),
    "machines": say("list machines"),
    "set": say(f"{run} --set strategy.params.first_block=highest"),
    "wrong": say(f"{run} --set strategy.params.first_block=middle"),
    "mistaken": say(f"{run} --set strategy.params.moves=all_gather"),
    "collect": say("collect"),
    "degrees": [say("data degrees tiny-sbm"), say("data degrees tiny-sbm --json")],
}

from harness.conformance.case import Case
from harness.ledger import AxisName
from harness.results.loaded_tables import load
from harness.runtime.slurm.executor import make_batch_line
from harness.runtime.slurm.resources import Site, load_slurm, request_job, request_place
from harness.runtime.slurm.srun import make_step_command
from harness.spec.spec import Spec

tables = load("results")
found["rows"] = json.loads(tables.runs.to_json(orient="records"))
found["began_in"] = dict(zip(tables.failures.status, tables.failures.began_in))
(failed,) = tables.runs[tables.runs.status == "failed"].run_id
found["show"] = say(f"runs show {failed}")
strategy = {"name": "cagnet-1d", "params": {"first_block": "highest"}}
asked = {"dataset": {"name": "check", "seed": 3}, "ranks": 4, "grid": {"p": 4}, "machine": {"name": "kit"}}
spec = Spec.model_validate({"strategy": strategy, **asked})
found["stages"] = list(Case("cagnet-1d", spec, vertices=20).strategy().stages({AxisName.P: 2}))
slurm = load_slurm(Path.cwd(), "department", Site())
found["batch"] = make_batch_line(request_job([6], slurm, 30) | request_place(Site(), slurm))
found["step"] = " ".join(make_step_command(6, slurm))

from harness.report.figures import drawing
from harness.results.collect import collect
from tests.synthetic_runs import write_study

found["kinds"] = [kind.name for kind in drawing.KINDS]
drawing.KINDS = tuple(kind for kind in drawing.KINDS if kind.name == "messages")
write_study(Path("study"))
collect(Path("study"), Path("tables"))
found["drawn"] = sorted(path.name for path in drawing.draw_all(drawing.FramedTables(Path("tables")), Path("pictures")))
found["caption"] = Path("pictures/messages.txt").read_text()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tree: Path) -> dict[str, Any]:
    """What one process finds in the copy, the mistake included."""
    mistake = parse_change(MISTAKE)
    apply_change(tree, mistake)
    printed = run_python(tree, "-c", CHECKS)
    apply_change(tree, mistake, "-R")
    answers: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answers


def test_a_new_parameter_is_listed_checked_and_reaches_the_strategy(found: dict[str, Any]) -> None:
    code, listed = found["strategies"]
    assert code == 0 and re.search(r"first_block\b.*lowest.*highest", listed)
    assert found["set"][0] == 0 and found["wrong"][0] == 2
    params = [json.loads(row["params"]) for row in found["rows"]]
    assert [each.get("first_block") for each in params].count("highest") == 1
    assert found["stages"] == [3, 2, 1, 0]


def test_a_new_column_is_in_the_collected_tables(found: dict[str, Any], tree: Path) -> None:
    (ok,) = [row for row in found["rows"] if row["status"] == "ok"]
    assert ok["rank_seconds"] == ok["ranks"] * ok["epoch_seconds_median"] > 0
    (failed,) = [row for row in found["rows"] if row["status"] == "failed"]
    assert failed["rank_seconds"] is None
    assert "| `rank_seconds` |" in (tree / "docs" / "reference" / "tables.md").read_text()


def test_a_new_kind_of_figure_is_drawn_at_its_place(found: dict[str, Any]) -> None:
    assert found["kinds"].index("messages") == found["kinds"].index("received") + 1
    assert found["drawn"] == [f"messages.{ending}" for ending in ("csv", "pdf", "png", "svg", "txt")]
    assert found["caption"]


def test_a_new_verb_answers_as_text_and_as_json(found: dict[str, Any]) -> None:
    (text_code, text), (json_code, document) = found["degrees"]
    assert text_code == json_code == 0
    rows = json.loads(document)["degrees"]
    assert sum(row["vertices"] for row in rows) == 307
    headline, _, titles, *lines = text.splitlines()
    assert "307 vertices" in headline and titles.split() == ["least", "degree", "vertices", "share"]
    assert [int(line.split()[1]) for line in lines] == [row["vertices"] for row in rows]


def test_a_new_card_is_listed_and_starts_jobs_and_ranks(found: dict[str, Any]) -> None:
    assert "department" in found["machines"][1].split()
    assert (
        "sbatch" in found["batch"]
        and "--nodes=3" in found["batch"]
        and "--cpus-per-task=16" in found["batch"]
    )
    assert found["step"].startswith("srun --nodes=3 --ntasks=6")
    (ok,) = [row for row in found["rows"] if row["status"] == "ok"]
    assert (ok["machine"], ok["threads_per_rank"]) == ("department", 16)


def test_a_mistake_in_a_strategy_is_named_by_file_line_and_package(found: dict[str, Any], tree: Path) -> None:
    lines = (tree / "strategies" / "cagnet" / "oned.py").read_text().splitlines()
    (number,) = [at for at, line in enumerate(lines, 1) if line.strip().startswith("sizes = [len(block)")]
    (shown,) = re.findall(r"`began in +(.*?)`", MISTAKE)
    origin = shown.replace("line N", f"line {number}")
    assert found["mistaken"][0] == 1
    assert re.search(f"began in +{re.escape(origin)}\n", found["show"][1])
    assert found["began_in"]["failed"] == origin


QUICK_LAWS = (
    *("tests/test_layers.py", "tests/results/test_schema.py", "tests/spec/test_run_ids.py"),
    *("tests/spec/test_machine.py", "tests/slurm/test_cards.py", "tests/slurm/test_resources.py"),
)
LONGER = "contract or shallow or light_verbs or circle or classes"
SLOW_LAWS = (
    *(
        "tests/test_layers.py",
        "tests/test_docs.py",
        "tests/results/test_collect.py",
        "tests/report/test_page.py",
    ),
    *("tests/figures/test_drawing.py", "tests/figures/test_geometry.py"),
)
LONGEST = "files_to_read"
"""Trains an epoch of strategies, which does not depend on these changes."""


def run_tests(tree: Path, *words: str) -> None:
    run_python(tree, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not slow", *words)


def test_checks_of_the_project_allow_these_changes(tree: Path) -> None:
    run_tests(tree, *QUICK_LAWS, "-k", f"not ({LONGER})")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pages_tables_and_figures_hold_after_these_changes(tree: Path) -> None:
    settings = run_python(tree, "docs/write_settings.py")
    (tree / "docs" / "reference" / "settings.md").write_text(settings)
    run_tests(tree, *SLOW_LAWS, "-k", f"not {LONGEST}")


@pytest.mark.slow
def test_the_new_parameter_passes_the_check_of_its_strategy(tree: Path) -> None:
    said = run_python(tree, "-m", "harness", "check", "cagnet-1d", "--quick", "-v")
    assert "first_block = highest" in said and "PASS cagnet-1d" in said
