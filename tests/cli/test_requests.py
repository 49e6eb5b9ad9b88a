"""A wrong request: one paragraph that says what is wrong and the way out, exit code 2, nothing half-written."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.cli import main

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "workflows/experiments/smoke.yaml"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project root with the cards of this one. No test changes it."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("datasets/catalog", "config/machines", "workflows/experiments"):
        shutil.copytree(ROOT / folder, root / folder)
    return root


@pytest.fixture
def checkout(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root of its own."""
    monkeypatch.setenv("HARNESS_ROOT", str(copied))
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return copied


RUN = "run --strategy cagnet-1d --dataset tiny-sbm"
NEAR = "Did you mean "


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("fly", ["fly", "harness --help"]),
        ("export tiny-sbm", [f"{NEAR}data export"]),
        ("data biuld tiny-sbm", [f"{NEAR}build"]),
        ("data burn x", ["burn", "harness data --help"]),
        ("data fetch cora --shards 3", ["--shards", "harness data fetch --help"]),
        ("data balance tiny-lattice --permutation single", ["--permutation", "harness data balance"]),
        ("data balance tiny-lattice --shards 0", ["--shards 0", "4096"]),
        ("data info tiny-sbm --ranks 4", ["--ranks", "harness advise --dataset D --ranks P --all"]),
        ("data info tiny-sbm --partition metis --parts 2,4", ["info", "--parts"]),
        ("data info tiny-sbm --partition file:mine --parts 2", ["partitions/mine", "per line"]),
        ("data build nosuch", ["nosuch", "tiny-sbm", "harness data import NAME --edges FILE"]),
        ("data build cora", ["not fetched", "harness data fetch cora"]),
        ("data build tiny-sbm --partition metis", ["parts = 0", "metis"]),
        ("data build tiny-sbm --partition kway --parts 2", ["kway", "hypergraph", "file:NAME"]),
        ("data build tiny-sbm --partition random --parts 9999", ["9999", "307", "tiny-sbm"]),
        ("data import mine", ["--edges FILE", "--from"]),
        ("data import a/b --edges edges.txt", ["a/b"]),
        ("data import mine --edges nowhere.txt", ["nowhere.txt", ".mtx"]),
        ("data import mine --from snap:roads", ["suitesparse:GROUP/NAME", "ogb:NAME"]),
        ("data import mine --from suitesparse:roads", ["suitesparse:GROUP/NAME"]),
        ("data import mine --from suitesparse:../roads/x", ["suitesparse:GROUP/NAME"]),
        ("data import mine --from suitesparse:DIMACS10/a$b", ["'a$b'"]),
        ("data import mine --from suitesparse:DIMACS10/roads --edges e.txt", ["--edges FILE", "--from"]),
        ("data import mine --from suitesparse:DIMACS10/roads --names", ["--names"]),
        ("data import mine --from ogb:ogbn-mag", ["ogbn-mag", "ogbn-arxiv"]),
        ("data import mine --from ogb:ogbn-arxiv --weights raw", ["ogb", "weights"]),
        ("list dataset", [f"{NEAR}datasets"]),
        ("list planets", ["planets", "strategies", "harness list --help"]),
        ("list machines --strategy serial", ["--strategy", "machines"]),
        ("list strategies --strategy plexsu", [f"{NEAR}plexus"]),
        ("list grids", ["--strategy NAME", "--ranks P"]),
        ("list grids --strategy serial --ranks 2", ["serial", "2 ranks"]),
        ("new planet x", ["planet", "harness new --help"]),
        *(
            (f"new strategy {name}", [name])
            for name in ("serial", "Mine", "torch", "class", "../x", "x" * 41)
        ),
        ("run --stratgy serial", [f"{NEAR}--strategy"]),
        ("run --strategy cagnet1d --dataset tiny-sbm", ["cagnet1d", f"{NEAR}cagnet-1d", "serial"]),
        ("run --strategy serial --dataset tiny-sbn", ["tiny-sbn", f"{NEAR}tiny-sbm"]),
        ("run --strategy serial", ["--spec FILE", "--dataset NAME"]),
        ("run --strategy serial --dataset tiny-sbm --ranks 2", ["serial", "2"]),
        ("run --strategy nowhere.py:Mine --dataset tiny-sbm", ["nowhere.py"]),
        ("run --spec absent.json", ["absent.json"]),
        ("run --spec a.json --strategy serial --set seed=1", ["--strategy", "--set", "--spec"]),
        ("run --spec a.json --trace", ["--trace", "--spec", "measure"]),
        (f"{RUN} --accuracy exact", ["--accuracy", "harness run --help"]),
        (f"{RUN} --epochs 5", ["--set training.epochs=5"]),
        (f"{RUN} --epochs=5", ["--set training.epochs=5"]),
        (f"{RUN} --set epochs", ["epochs", "KEY=VALUE"]),
        (f"{RUN} --set epochs=3", ["--set epochs", "training.epochs"]),
        (f"{RUN} --set trainig.epochs=3", ["trainig", f"{NEAR}training"]),
        (f"{RUN} --set training.epoch=3", ["training.epoch", f"{NEAR}epochs"]),
        (f"{RUN} --set training.epochs=none", ["training.epochs", "none", "integer"]),
        (f"{RUN} --set weight_gradient=T", [f"{NEAR}strategy.params.weight_gradient"]),
        (f"{RUN} --set strategy.params.overlap=7", ["--set strategy.params.overlap=7"]),
        (f"{RUN} --set dataset.permutation=double", ["double", "cagnet-1d"]),
        (f"{RUN} --ranks 2 --grid w=2", ["w=2", "p"]),
        (f"{RUN} --ranks 2 --grid x=2", ["x=2", "cagnet-1d", "p"]),
        (f"{RUN} --ranks 2 --grid 3", ["3 ranks", "2"]),
        (f"{RUN} --ranks 2 --grid 1x2", ["1x2", "p"]),
        (f"{RUN} --ranks 100000", ["100000 ranks", "vertices"]),
        (f"{RUN} --launches 0", ["--launches 0", "1000"]),
        (f"{RUN} --launches 1001", ["--launches 1001", "1000"]),
        (f"{RUN} --launches few", ["--launches few", "1000"]),
        (f"{RUN} --launches 2 --set launch=3", ["--launches", "--set launch"]),
        (f"{RUN} --launches 2 --in-process", ["--in-process", "--launches"]),
        (f"{RUN} --launches 2 --trace", ["--trace", "--launches"]),
        ("words --replay --dataset tiny-sbm", ["--strategy"]),
        ("words --strategy serial --dataset tiny-sbm --from-card", ["--from-card", "--replay"]),
        ("words --strategy cagnet-1.5d --dataset tiny-sbm --ranks 2 --rank 2", ["--rank 2", "0 to 1"]),
        ("words --replay --strategy serial --dataset tiny-sbm --rank 1", ["--rank 1", "0 to 0"]),
        ("words --replay --strategy plexus --dataset tiny-sbm --set machine=locl", [f"{NEAR}local"]),
        ("words --replay --strategy plexus --dataset tiny-sbm --machine locl", [f"{NEAR}local"]),
        (
            "run --strategy plexus --dataset tiny-sbm --machine local --set machine=local",
            ["--machine", "--set machine"],
        ),
        (
            "words --replay --strategy serial --dataset tiny-lattice --from-card",
            ["tiny-lattice", "expected.n", "data build"],
        ),
        ("plan", ["--experiment", "harness plan workflows/experiments/smoke.yaml"]),
        ("plan --strategy cagnet-1d", ["harness predict", "--grid all", "harness list grids"]),
        ("plan --experiment absent.yaml", ["absent.yaml", "workflows/experiments"]),
        (f"plan {SMOKE} {SMOKE} --out one.json", ["--out", "2 experiments"]),
        ("predict", ["--strategy NAME", "--experiment FILE"]),
        ("predict --strategy plexus", ["--dataset NAME"]),
        ("predict --experiment mine.yaml --dataset reddit", ["--dataset NAME", "--experiment FILE"]),
        ("predict --strategy serial --dataset tiny-sbm --ranks 0", ["--ranks 0"]),
        (
            "predict --strategy serial --dataset reddit --machine local-gpu --from-card",
            ["local-gpu.yaml", "harness doctor --calibrate"],
        ),
        ("check nobody", ["nobody", "serial", "entry-point"]),
        ("check serial --quick --extent full", ["--quick", "--full", "--extent"]),
        ("check serial --certificate certificate.json --case p=1", ["--certificate", "--case"]),
        ("check serial --certificate certificate.json --machine local", ["--certificate", "--machine"]),
        ("check no/such/file.py:Mine --certificate certificate.json", ["no/such/file.py"]),
        ("collect --runs absent", ["absent"]),
        ("figures --tables absent", ["absent", "harness collect"]),
        ("report --tables absent", ["absent", "harness collect"]),
    ],
)
def test_a_wrong_request_is_refused_in_one_paragraph(
    typed: str, said: list[str], checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(checkout.rglob("*"))
    assert main(typed.split()) == 2
    out, message = capsys.readouterr()
    assert out == "" and message.startswith("harness: ") and message.count("\n") == 1
    assert all(word in message for word in said), message
    assert sorted(checkout.rglob("*")) == before


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HARNESS_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["list", "datasets"]) == 2
    assert "datasets/catalog" in capsys.readouterr().err
    assert main(["list", "datasets", "--root", str(tmp_path)]) == 2
    assert "not a project root" in capsys.readouterr().err


def test_a_place_that_takes_no_results_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    (checkout / "results").write_text("a file where a folder should be")
    request.addfinalizer((checkout / "results").unlink)
    for typed in (f"{RUN} --ranks 1", f"plan --experiment {SMOKE} --out {checkout / 'results/x'}"):
        assert main(typed.split()) == 2
        message = capsys.readouterr().err
        assert str(checkout / "results") in message and message.count("\n") == 1


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
