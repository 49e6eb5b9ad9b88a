"""Every verb answers in JSON with --json, and its refusals are JSON too; the parser says which verbs there are."""

import argparse
import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import commands
from harness.cli import main, make_parser

ROOT = Path(__file__).parents[2]
LOGS = runpy.run_path(str(ROOT / "tests/external/logs.py"))
LOG = "bns-gcn.log"


def verbs(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each verb, or each action of a verb, with its parser."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for name, child in action.choices.items():
            yield from verbs(child, f"{path} {name}".strip())
    if path and not below:
        yield path, parser


VERBS = {**dict(verbs(make_parser())), **commands.VERBS}
SBM, RUN = "--strategy serial --dataset tiny-sbm", "RUN"
ANSWERED = {
    "list": [
        *("strategies", "models", "grids --strategy plexus --ranks 4", "datasets", "machines", "experiments"),
        *("settings", "figures"),
    ],
    "runs list": [""],
    "runs show": [RUN],
    "runs prune": ["--failed"],
    "data fetch": ["tiny-sbm"],
    "data import": ["mine --edges edges.csv"],
    "data build": ["tiny-sbm", "tiny-sbm --seed 0,1 --permutation single"],
    "data info": ["tiny-sbm", "tiny-lattice"],
    "data verify": ["tiny-sbm"],
    "data balance": ["tiny-sbm --shards 2"],
    "plan": ["workflows/experiments/smoke.yaml", "--experiment workflows/experiments/smoke.yaml --cost"],
    "replay": [SBM],
    "predict": [SBM],
    "advise": ["--dataset tiny-sbm --ranks 2 --accuracy exact"],
    "run": [f"{SBM} --in-process --set measure.tape=true"],
    "external run": ["--format bns-gcn --dataset tiny-sbm -- cat {log}"],
    "external read": ["{log} --format bns-gcn"],
    "emulate": [RUN],
    "doctor": [""],
    "init": ["folder"],
    "new": ["strategy my-strategy"],
    "words": [SBM],
    "check": ["serial --quick"],
    "collect": ["--out tables"],
    "figures": ["--tables tables"],
    "report": ["--tables tables"],
    "artifact": ["--tables tables"],
    "compare": [f"{RUN} {RUN}"],
    "claims": ["--quick --figure plexus-tab4"],
    "completion": [""],
}
"""Requests of each verb; RUN is the run that the project has, and `tables` has it collected."""
CODES = {"doctor": {0, 1}}
"""The exit codes of an answer where 0 is not the only one: a machine may lack something."""
WITHOUT_PROJECT = {"list", "doctor", "init", "new", "check"}
"""Verbs that answer outside of a project: `list` about strategies."""


def typed(request: str, run: str) -> list[str]:
    """The words of a request with --json, before those of another program's command."""
    options, dashes, command = request.format(log=LOG).replace(RUN, run).partition(" -- ")
    return ["--json", *options.split(), *(["--", *command.split()] if dashes else [])]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run that has a tape, its tables, figures and report, a log, and a file of edges."""
    folder = tmp_path_factory.mktemp("project") / "mine"
    assert main(["init", str(folder)]) == 0
    (folder / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    (folder / LOG).write_text(LOGS["whole"](LOGS["BNS"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            f"run {ANSWERED['run'][0]}",
            "collect --out tables",
            "figures --tables tables",
            "report --tables tables",
        ):
            assert main(words.split()) == 0
    return folder


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[pytest.mark.slow] if verb == "check" else []) for verb in VERBS]
)
def test_every_verb_answers_in_json(
    verb: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    (run,) = [path.name for path in (project / "results/runs").iterdir() if (path / "tape.parquet").exists()]
    for request in ANSWERED[verb]:
        capsys.readouterr()
        code = main([*verb.split(), *typed(request, run)])
        answer = capsys.readouterr().out
        assert code in CODES.get(verb, {0}), answer
        told = json.loads(answer)
        assert not (isinstance(told, dict) and told.get("exit_code")), told


@pytest.mark.parametrize("verb", VERBS)
def test_every_refusal_is_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the parser; and of the verb itself, where the folder that it is to work in is no project."""
    requests = [["--no-such-option", "--json"]]
    if verb not in WITHOUT_PROJECT:
        requests.append(["--root", "/nowhere", *typed(ANSWERED[verb][0], "3e1f")])
    for request in requests:
        assert main([*verb.split(), *request]) == 2, request
        said = capsys.readouterr()
        answer = json.loads(said.out)
        assert answer["exit_code"] == 2
        assert said.err == f"harness: {answer['error']}\n"
        assert "--no-such-option" in request or "/nowhere is not a project root" in answer["error"]


def test_the_requests_are_those_of_all_verbs() -> None:
    assert ANSWERED.keys() == VERBS.keys()
