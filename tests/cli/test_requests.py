"""A wrong request: one paragraph that says what is wrong and the way out, exit code 2, nothing half-written."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.cli import main

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "workflows/experiments/smoke.yaml"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root of its own, with the cards of this one."""
    for folder in ("datasets/catalog", "config/machines", "workflows/experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return tmp_path


def run(*options: str) -> list[str]:
    return ["run", "--strategy", "cagnet-1d", "--dataset", "tiny-sbm", *options]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            ["run", "--strategy", "cagnet1d", "--dataset", "tiny-sbm"],
            ["cagnet1d", "Did you mean cagnet-1d", "serial"],
        ),
        (["run", "--strategy", "serial", "--dataset", "tiny-sbn"], ["tiny-sbn", "tiny-sbm"]),
        (["run", "--strategy", "serial"], ["--dataset"]),
        (["words", "--replay", "--dataset", "tiny-sbm"], ["words needs", "--strategy"]),
        (
            ["words", "--replay", "--strategy", "serial", "--dataset", "tiny-sbm", "--rank", "1"],
            ["--rank 1", "0 to 0"],
        ),
        (
            ["words", "--replay", "--strategy", "serial", "--dataset", "tiny-lattice", "--from-card"],
            ["tiny-lattice", "expected.n", "data build"],
        ),
        (run("--ranks", "2", "--set", "trainig.epochs=3"), ["trainig", "training"]),
        (run("--ranks", "2", "--set", "training.epoch=3"), ["training.epoch", "epochs"]),
        (run("--ranks", "2", "--set", "training.epochs=none"), ["training.epochs", "none", "integer"]),
        (run("--ranks", "2", "--set", "epochs"), ["KEY=VALUE"]),
        (run("--ranks", "2", "--set", "epochs=3"), ["--set epochs", "training.epochs"]),
        (
            run("--ranks", "2", "--set", "weight_gradient=T"),
            ["Did you mean strategy.params.weight_gradient?"],
        ),
        (
            run("--ranks", "2", "--set", "strategy.params.overlap=7"),
            ["--set strategy.params.overlap=7 is not accepted"],
        ),
        (run("--ranks", "2", "--grid", "w=2"), ["w=2", "p"]),
        (run("--ranks", "2", "--grid", "x=2"), ["x=2", "cagnet-1d", "p"]),
        (run("--ranks", "2", "--grid", "3"), ["3 ranks", "2"]),
        (run("--ranks", "2", "--grid", "1x2"), ["1x2", "p"]),
        (run("--ranks", "100000"), ["100000 ranks", "vertices"]),
        (run("--ranks", "2", "--set", "dataset.permutation=double"), ["double", "cagnet-1d"]),
        (["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--ranks", "2"], ["serial", "2"]),
        (["run", "--strategy", "nowhere.py:Mine", "--dataset", "tiny-sbm"], ["nowhere.py"]),
        (["run", "--spec", "absent.json"], ["absent.json"]),
        (["plan"], ["--experiment", "harness plan workflows/experiments/smoke.yaml"]),
        (["plan", "--strategy", "cagnet-1d"], ["harness predict", "--grid all", "harness list grids"]),
        (["plan", "--experiment", "absent.yaml"], ["absent.yaml", "workflows/experiments"]),
        (["data", "build", "nosuch"], ["nosuch", "Known", "tiny-sbm"]),
        (["data", "build", "cora"], ["not fetched", "harness data fetch cora"]),
        (["data", "build", "tiny-sbm", "--partition", "metis"], ["parts = 0", "metis", "number of parts"]),
        (
            ["data", "build", "tiny-sbm", "--partition", "kway", "--parts", "2"],
            ["kway", "hypergraph", "file:NAME"],
        ),
        (
            ["data", "info", "tiny-sbm", "--partition", "file:mine", "--parts", "2"],
            ["partitions/mine", "per line"],
        ),
        (["data", "build", "tiny-sbm", "--partition", "random", "--parts", "9999"], ["9999", "vertices"]),
        (["check", "nobody"], ["nobody", "serial", "entry-point"]),
        (["collect", "--runs", "absent"], ["absent"]),
        (["figures", "--tables", "absent"], ["absent", "harness collect"]),
        (["report", "--tables", "absent"], ["absent", "harness collect"]),
    ],
)
def test_a_wrong_request_is_refused_in_one_paragraph(
    request_: list[str], said: list[str], checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(checkout.rglob("*"))
    assert main(request_) == 2
    message = capsys.readouterr().err
    assert message.startswith("harness: ")
    assert message.count("\n") == 1
    assert all(word in message for word in said), message
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("request_", [["fly"], ["list", "planets"], ["data", "burn", "x"]])
def test_an_unknown_verb_or_option_lists_what_there_is(
    request_: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(request_) == 2
    assert "--help` lists what is accepted" in capsys.readouterr().err


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HARNESS_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["list", "datasets"]) == 2
    assert "datasets/catalog" in capsys.readouterr().err
    assert main(["list", "datasets", "--root", str(tmp_path)]) == 2
    assert "not a project root" in capsys.readouterr().err


def test_a_place_that_takes_no_results_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "results").write_text("a file where a folder should be")
    for request in (
        run("--ranks", "1"),
        ["plan", "--experiment", str(SMOKE), "--out", str(checkout / "results/x")],
    ):
        assert main(request) == 2
        message = capsys.readouterr().err
        assert "cannot be written" in message and "results" in message
        assert message.count("\n") == 1


def test_every_verb_answers_in_json(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for request in (["doctor"], ["list", "machines"], ["plan", str(SMOKE)]):
        assert main([*request, "--json"]) == 0, request
        json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--strategy", "nothing", "--dataset", "tiny-sbm", "--json"],
        ["run", "--json"],
        ["data", "info", "nothing", "--json"],
        ["check", "nothing", "--json"],
        ["list", "nothing", "--json"],
    ],
)
def test_an_error_is_json_where_json_was_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["exit_code"] == 2
    assert said.err == f"harness: {answer['error']}\n"
    assert main([word for word in words if word != "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["harness", "comp"], {"compare"}),
        (["harness", "data", "bal"], {"balance"}),
        (["harness", "predict", "--from"], {"--from-card"}),
        (["harness", "run", "--strategy", "cagnet-2"], {"cagnet-2d"}),
        (["harness", "run", "--set", "training.ep"], {"training.epochs="}),
    ],
)
def test_bash_completes_verbs_actions_options_and_values(
    typed: list[str], offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion"]) == 0
    words = " ".join(f"'{word}'" for word in typed)
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _harness; echo ${{COMPREPLY[@]}}"
    script = f"{capsys.readouterr().out}\n{ask}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered
