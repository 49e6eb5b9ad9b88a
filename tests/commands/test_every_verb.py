"""Every verb answers in JSON and in text that fits a terminal, and what it prints can be pasted back."""

import json
import runpy
import shlex
from math import prod
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli.app import Parsed, make_app, parse
from harness.cli.commands import VERBS
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import EVERYTHING, Command, Table, View
from harness.cli.commands.rendering import render_text
from harness.cli.commands.verb import SILENT
from harness.registry import load_strategy
from harness.spec.spec import AxisName
from harness.strategy.admit import parse_grid

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LOGS = runpy.run_path(str(ROOT / "tests/external/logs.py"))
LOG = "bns-gcn.log"
SBM, RUN = "--strategy serial --dataset tiny-sbm", "RUN"
ANSWERED = {
    "list": [
        *("strategies", "strategies --strategy plexus", "models", "grids --strategy plexus --ranks 4"),
        *("datasets", "machines", "experiments", "settings", "figures"),
    ],
    "data fetch": ["tiny-sbm"],
    "data import": ["mine --edges edges.csv"],
    "data build": ["tiny-sbm", "tiny-sbm --seed 0,1 --permutation single"],
    "data info": ["tiny-sbm", "tiny-lattice"],
    "data verify": ["tiny-sbm"],
    "data balance": ["tiny-sbm --shards 2"],
    "data export": ["tiny-sbm --out graph.pt"],
    "run": [f"{SBM} --in-process --set measure.tape=true"],
    "runs list": [""],
    "runs show": [RUN],
    "runs prune": ["--failed"],
    "runs emulate": [RUN],
    "new strategy": ["my-strategy"],
    "new project": ["folder"],
    "check": ["serial --quick"],
    "words": [
        "--strategy cagnet-1d --dataset tiny-sbm --ranks 2",
        "--replay --strategy plexus --dataset tiny-sbm --ranks 4",
    ],
    "predict": [
        "--strategy plexus --dataset tiny-sbm --ranks 2,4",
        "--strategy cagnet-2d --dataset tiny-sbm --ranks 4 --grid all",
    ],
    "advise": ["--dataset tiny-sbm --ranks 2 --accuracy exact"],
    "plan": ["workflows/experiments/smoke.yaml", "--experiment workflows/experiments/smoke.yaml --cost"],
    "collect": ["--out tables"],
    "compare": [f"{RUN} {RUN}", "tables tables"],
    "figures": ["--tables tables"],
    "report": ["--tables tables", "pack.tar.gz --out packs"],
    "pack": ["--by Someone --tables tables --out pack.tar.gz"],
    "verify": ["pack.tar.gz"],
    "claims": ["--quick --figure plexus-tab4"],
    "external run": ["--format bns-gcn --dataset tiny-sbm -- cat {log}"],
    "external read": ["{log} --format bns-gcn"],
    "doctor": [""],
    "completion": [""],
}
"""Requests of each verb; RUN is the run that the project has, and `tables` has it collected."""
MAY_FAIL = {"doctor"}
"""Verbs whose exit code may be 1: a machine may lack something."""
WITHOUT_PROJECT = {"list", "doctor", "new strategy", "new project", "check", "completion"}
"""Verbs that answer outside of a project."""
WIDTH = 80


def split_words(request: str, run: str) -> list[str]:
    """Return the words of a request, with those of another program's command after --."""
    options, dashes, command = request.format(log=LOG).replace(RUN, run).partition(" -- ")
    return [*options.split(), *(["--", *command.split()] if dashes else [])]


def answer(verb: str, request: str, run: str) -> Answer:
    """Run a verb as the command line does, and return its answer."""
    parsed = parse(make_app(), [*verb.split(), *split_words(request, run)])
    assert isinstance(parsed, Parsed)
    return parsed.declaration.run(parsed.request, SILENT)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run that has a tape, its tables, figures, report and pack, a log, and a file of edges."""
    folder = tmp_path_factory.mktemp("project") / "mine"
    assert main(["new", "project", str(folder)]) == 0
    (folder / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    (folder / LOG).write_text(LOGS["whole"](LOGS["BNS"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            f"run {ANSWERED['run'][0]}",
            "collect --out tables",
            "figures --tables tables",
            "report --tables tables",
            f"pack {ANSWERED['pack'][0]}",
        ):
            assert main(words.split()) == 0
    return folder


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[pytest.mark.slow] if verb == "check" else []) for verb in VERBS]
)
def test_every_answer_is_json_fits_a_terminal_and_can_be_pasted_back(
    verb: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (run,) = [path.name for path in (project / "results/runs").iterdir() if (path / "tape.parquet").exists()]
    for request in ANSWERED[verb]:
        found = answer(verb, request, run)
        assert found.exit_code == 0 or verb in MAY_FAIL
        json.loads(json.dumps(found.to_document(), default=str))
        for view in (View(), EVERYTHING):
            blocks = list(found.lay_out(view))
            assert blocks
            for block in blocks:
                if isinstance(block, Command):
                    paste_command(block.text)
                elif isinstance(block, Table):
                    paste_grids(block)
                    text = render_text(iter([block]), view, WIDTH)
                    widest = max(text.splitlines(), key=len, default="")
                    assert len(widest) <= WIDTH or widest.startswith("(a wider terminal"), widest


def paste_command(text: str) -> None:
    """Parse each printed command of the harness again."""
    for part in text.split(" && "):
        program, *words = shlex.split(part)
        if program == "harness":
            assert parse(make_app(), words)


def paste_grids(table: Table) -> None:
    """Parse each printed grid as --grid does."""
    for row in table.rows:
        for column in table.columns:
            if column.title == "--grid" and row.get("strategy"):
                text = column.format_cell(row[column.key])
                grid = parse_grid(load_strategy(row["strategy"]), text, int(row["ranks"]))
                assert prod(grid.values()) == row["ranks"] and all(
                    isinstance(axis, AxisName) for axis in grid
                )


@pytest.mark.parametrize("verb", VERBS)
def test_every_refusal_is_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the parser; and of the verb itself, where the folder that it is to work in is no project."""
    requests = [["--no-such-option", "--json"]]
    if verb not in WITHOUT_PROJECT:
        requests.append(["--root", "/nowhere", "--json", *split_words(ANSWERED[verb][0], "3e1f")])
    for request in requests:
        assert main([*verb.split(), *request]) == 2, request
        said = capsys.readouterr()
        refusal = json.loads(said.out)
        assert refusal["exit_code"] == 2
        assert said.err == f"harness: {refusal['error']}\n"
        assert "--no-such-option" in request or "/nowhere" in refusal["error"]


def test_requests_cover_all_verbs() -> None:
    assert list(ANSWERED) == list(VERBS)
