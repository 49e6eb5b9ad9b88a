"""The commands of README and docs are typed as they stand, and print what the page says that they print.

A command is a line of an indented block that begins with a program of `PROGRAMS`. A block ```text after it is what its
last command prints: `...` stands for anything, as a line of its own for any lines; seconds may be any number.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from harness.cli import main
from harness.cli.app import Parsed, make_app, parse

ROOT = Path(__file__).parents[2]
PROGRAMS = ("harness", "make", "snakemake", "python", "cp", ".", ".venv/bin/pre-commit", ".ci/run")
FIRST = ("docs/start/first-run.md", "README.md")
"""The pages that a reader begins with: the first prints what no earlier run is there to shorten."""
NOT_RUN = {
    r"make |\.ci/run|\.venv/bin/pre-commit": "CI makes these targets, and they call the tests",
    r"\. \.venv": "the tests run in an environment that is active",
    r"harness data (fetch|build) (cora|coauthor-cs)|harness data import \S+ --from": "downloads; tests/fetch",
    r"harness data \w+ \S+@1/(16|64)\b|harness data build osm-shape|harness data balance osm-shape": "takes minutes",
    r"harness data import mine --edges (edges|g)\.": "files of a reader; tests/journeys/test_from_a_page.py has some",
    r"harness data (build|merge) ogbn-papers100m": "takes a large graph; tests/store builds by shares",
    r"harness data build NAME": "a pattern and no command; tests/store builds by shares",
    r"harness doctor --calibrate": "measures a quiet machine for a minute and writes a card",
    r"harness doctor$": "exits with 1 where a package is missing; tests/doctor",
    r"harness claims (--score|--paper|--held-out)|harness claims --figure": "predicts for minutes; tests/claims",
    r"harness (advise|predict) .*--ranks 64|harness predict --experiment": "predicts for minutes; tests/cli",
    r"harness advise .*--tune": "runs six strategies; tests/cli/test_predicting.py",
    r"harness (check|run --strategy) my-strategy": "goes on to the end in tests/journeys/test_from_a_page.py",
    r"harness words --replay --strategy path": "a pattern and no command; tests/commands/test_replaying.py",
    r"harness run \.\.\.": "a pattern and no command",
    r"harness run .*--launches 10": "takes ten launches; tests/commands/test_launches.py",
    r"harness external": "needs the authors' program or its log; tests/external",
    r"harness (collect --runs|compare before)": "takes runs of other places; tests/results",
    r"harness advise .*--ranks 4 --all": "asks all strategies on all grids; tests/cli/test_predicting.py",
    r"harness predict --strategy plexus --dataset amazon-shape": "takes a large graph that is built",
    r"harness words --strategy (cagnet-2d|plexus|scalegnn) --dataset sbm-4096": "takes eight ranks; tests/strategies",
    r"snakemake .*slurm|snakemake .*CHECKOUT": "needs a Slurm; tests/slurm",
    r"snakemake (plexus_fig8|paper_plexus|papers) .*(?<!--dry-run)$": "CI makes all figures at tiny scale",
    r"snakemake .*(mine|plexus-figure-8)\.yaml": "make smoke and test_workflow.py run such workflows",
    r"python (-m )?benchmarks\b": "measures for minutes to an hour; `python -m benchmarks --record` keeps the page",
}
"""The commands that are not typed by this test, each with the reason."""


class Command(NamedTuple):
    """A command of a page, and the lines that it is said to print."""

    line: str
    printed: str


def pages() -> list[str]:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [str(path.relative_to(ROOT)) for path in paths]
    return [*FIRST, *(name for name in names if name not in FIRST and commands(name))]


def commands(page: str) -> list[Command]:
    return commands_of((ROOT / page).read_text())


def section(page: str, heading: str) -> str:
    """The text below a heading of a page, up to the next heading."""
    _, _, rest = (ROOT / page).read_text().partition(f"# {heading}\n")
    assert rest, f"{page} has no heading {heading}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def commands_of(text: str) -> list[Command]:
    blocks = re.finditer(
        r"^```(?P<kind>\S*)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^ {4}[^\n]*\n)+)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    found: list[Command] = []
    for block in blocks:
        if block["indented"] is None:
            if block["kind"] == "text" and found:
                found[-1] = found[-1]._replace(printed=block["fenced"])
            continue
        lines = re.sub(r"\\\n\s*", "", block["indented"]).splitlines()
        typed = [re.sub(r"\s{2,}(#.*|[a-z].*)$", "", line.strip()) for line in lines]
        found += [Command(line, "") for line in typed if line.split(" ")[0] in PROGRAMS]
    return found


def reason(line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


def parts(line: str) -> Iterator[list[str]]:
    """The words of each command that && joins."""
    for part in line.split(" && "):
        yield shlex.split(part)


@pytest.mark.parametrize("page", pages())
def test_every_command_of_a_page_is_one(page: str) -> None:
    """Verbs, options, choices and ranges are those of the parser; targets, scripts and folders exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for command in commands(page):
        for program, *words in parts(command.line):
            if program == "harness" and "..." not in words and words[-1:] != ["--help"]:
                assert isinstance(parse(make_app(), words), Parsed), command.line
            elif program == "make":
                assert {word for word in words if "=" not in word} <= targets, command.line
            elif program == "python" and words[0] != "-c":
                assert (ROOT / words[0]).is_file() or words[0] == "-m", command.line
            elif program == "snakemake" and "CHECKOUT" not in command.line:
                named = re.findall(r"(?<==)workflows/\S+|workflows/profiles/\S+", command.line)
                assert all((ROOT / name).exists() or name.endswith("/mine.yaml") for name in named), (
                    command.line
                )


def test_a_reason_is_given_for_no_command_that_is_gone() -> None:
    lines = [command.line for page in pages() for command in commands(page)]
    assert not [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in lines)]
    assert sum(reason(line) is None for line in lines) > 30


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project with the files that the pages call the reader's own."""
    folder = tmp_path_factory.mktemp("project") / "mine"
    assert main(["new", "project", str(folder)]) == 0
    ends = np.random.default_rng(0).integers(0, 60, (200, 2))
    (folder / "my-edges.csv").write_text("\n".join(f"{i},{j}" for i, j in ends if i != j) + "\n59,0\n")
    np.save(folder / "my-labels.npy", np.arange(60) % 3)
    scipy.io.mmwrite(
        folder / "my-matrix.mtx", sp.diags_array([[0.5] * 59] * 2, offsets=(-1, 1)), symmetry="symmetric"
    )
    shutil.copy(folder / "workflows/experiments/smoke.yaml", folder / "workflows/experiments/mine.yaml")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_do_what_it_says(page: str, project: Path) -> None:
    for command in commands(page):
        if reason(command.line):
            continue
        line = re.sub(r"\bRUN(-ID)?\b", lambda _: latest(project), command.line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=project, env=environment(), capture_output=True, text=True, check=False
        )
        already = "exists already" in done.stderr or "another dataset has the name" in done.stderr
        assert done.returncode == 0 or already, (
            f"{command.line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        )
        if command.printed:
            assert matches(command.printed, done.stdout), f"{command.line}\n{done.stdout}"


def environment() -> dict[str, str]:
    """This environment's programs come first, and none of this test's folders is named."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HARNESS_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def latest(project: Path) -> str:
    """The id of the latest run, which must have a tape where it is to be played."""
    folders = sorted((project / "results/runs").iterdir(), key=lambda path: path.stat().st_mtime)
    taped = [path for path in folders if (path / "tape.parquet").exists()]
    return (taped or folders)[-1].name


def matches(said: str, printed: str) -> bool:
    """True if the printed text is what the page says."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else pattern_of(line) for line in said.splitlines())
    return re.fullmatch(pattern + r"\s*", printed.rstrip("\n") + "\n") is not None


def pattern_of(line: str) -> str:
    """The expression for a line, in which `...` is anything and seconds are any number."""
    escaped = re.sub(r"\\\.\\\.\\\.", ".*", re.escape(line))
    return re.sub(r"\d[\d\\.]*(?=\\ (?:ms|s)\b)", r"[\\d.]+", escaped) + r"\n"


def test_output_printed_on_pages_is_compared() -> None:
    assert matches("a ...\n  epoch 11 ms\n", "a b\n  epoch 4.5 ms\n")
    assert matches("a\n...\n", "a\nb\nc\n")
    assert matches("a\n...\nz\n", "a\nb\nc\nz\n")
    assert not matches("a 11 words\n", "a 12 words\n")
    assert not matches("a\n", "a\nb\n")
