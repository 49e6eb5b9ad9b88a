"""Cards of programs: those of the project, one of a user, and the mistakes that are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.base.errors import UserError
from harness.cli import main
from harness.cli.completed_names import list_names
from harness.experiment.external.line_form import compile_form
from harness.experiment.external.log_reader import ProgramLog, read_log
from harness.experiment.external.program import Program, list_programs, load_program
from harness.spec.root import find_root
from tests.external.conftest import check_values, only

ROOT = find_root()
PAGE = (ROOT / "docs" / "how-to" / "other-programs.md").read_text()
CARD = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
"""The card that the page shows."""
LOG = "".join(
    f"10:15 epoch {epoch}: loss {2 / (epoch + 1)} in {100 + epoch}  ms, validation 80.5%\n"
    for epoch in range(3)
)


@pytest.fixture
def read_card(tmp_path: Path, read_as: Callable[..., int]) -> Callable[..., int]:
    """Return a function that reads a log by a card in a file."""

    def act(card: Any, text: str = LOG, *options: str) -> int:
        path = tmp_path / "mine.yaml"
        path.write_text(card if isinstance(card, str) else yaml.safe_dump(card))
        return read_as(str(path), text, "--dataset", "cora", *options)

    return act


@pytest.mark.parametrize("name", list_programs(ROOT))
def test_programs_of_the_project_are_valid_and_on_the_page(name: str) -> None:
    program = load_program(ROOT, name)
    assert f"| `{name}` | [{program.title}]" in PAGE
    assert program.revision.split(", ")[1] in PAGE
    assert name in list_names("programs")


def test_page_has_every_key_of_a_card() -> None:
    keys = set(re.findall(r"`(\w+)`", PAGE.partition("| key of a card |")[2]))
    assert Program.model_fields.keys() - {"name"} <= keys


def test_card_of_the_page_reads_a_log(read_card: Callable[..., int], tmp_path: Path) -> None:
    assert read_card(CARD, f"$ torchrun train.py --world-size 2 --epochs 3 --lr 0.5\n{LOG}") == 0
    check_values(
        only(tmp_path),
        """
        strategy: { name: cagnet-1d }
        ranks: 2
        training: { epochs: 3, lr: 0.5 }
        model: { kind: null }
        external: { program: MyGNN, options: { world_size: 2 } }
        epochs: { seconds: [0.1, 0.101, 0.102] }
        accuracy: { accuracy: [0.805, 0.805, 0.805] }
        summary: { epoch_seconds_median: 0.101, final_loss: null }
        """,
    )


def test_card_in_the_project_is_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["new", "project", str(tmp_path / "mine")]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    Path("config/programs/my-gnn.yaml").write_text(yaml.safe_dump(CARD))
    words = ["external", "run", "--format", "my-gnn", "--dataset", "cora", "--set", "ranks=2"]
    assert main([*words, "--out", str(tmp_path / "runs"), "--", "echo", LOG]) == 0
    assert only(tmp_path).record["external"]["program"] == CARD["title"]


def test_values_of_lines_are_combined(read_card: Callable[..., int], tmp_path: Path) -> None:
    """Times of several lines are added up, parts have the direction of the lines before, and sums become means."""
    card = CARD | {
        "lines": [
            "epoch {epoch}{end}",
            {"line": "backward pass", "direction": "backward", "shows": {"has_backward": True}},
            "took {seconds:us} us, sending {messages:us} us and {messages:us} us",
            {"line": "in all {seconds}s, {products}s, {--epochs} epochs", "total": True},
            "loss {loss}, peak {device_peak:GB} GB",
            {"line": "{{bye}}", "marks": "end"},
        ],
        "parts": {
            "messages": {"op": "all_reduce", "axis": "x+y", "tensor": "dW"},
            "products": {"op": "spmm"},
        },
        "cases": [{"when": {"has_backward": True}, "differences": {"sums": "over {--epochs} epochs"}}],
        "keys": {"strategy": {"name": "serial"}, "ranks": 1, "training": {"epochs": "--epochs"}},
    }
    text = (
        "epoch 0\ntook 5 us, sending 1 us and 1 us\nbackward pass\ntook 9 us, sending 3 us and 1 us\n"
        "loss 2, peak 3 GB\n"
        "epoch 1\nloss 1e-05, peak 1 GB\nin all 8s, 2s, 2 epochs\n{bye}\n"
    )
    assert read_card(card, text) == 0
    ledger = only(tmp_path).table("ledger")
    sent = ledger[ledger.op == "all_reduce"]
    assert dict(zip(sent.direction, sent.seconds, strict=True)) == pytest.approx(
        {"forward": 2e-6, "backward": 4e-6}
    )
    check_values(
        only(tmp_path),
        """
        epochs: { seconds: [14.0e-6, 4.0], loss: [2.0, 1.0e-5] }
        seconds.spmm: 1.0
        memory: { device_peak_bytes: [1073741824] }
        training: { epochs: 2 }
        external: { options: { has_backward: true }, beyond: { sums: over 2 epochs } }
        """,
    )


def change_line(line: Any) -> dict[str, Any]:
    """Return a card with one more line."""
    return CARD | {"lines": [line, *CARD["lines"]]}


MISTAKES = [
    (change_line("Epoch {epoc} took {seconds}"), r"line 1 of lines.*\{epoc\}.*Did you mean epoch"),
    (change_line("took {seconds:min}"), r"line 1 .*\{seconds\}.*'min'.*s, ms, us"),
    (change_line("took {--lr:ms}"), r"line 1 .*\{--lr\}.*distinct, shortfall"),
    (change_line("took {seconds"), "line 1 .*braces"),
    (change_line("took {seconds}}"), "line 1 .*braces"),
    (change_line("took {rank}{epoch}"), r"line 1 .*\{rank\} and \{epoch\}.*text between"),
    (change_line("{rank} {epoch}"), "line 1 .*no text"),
    (change_line("took{end}more"), r"line 1 .*\{end\}"),
    (change_line({"line": "took {seconds}", "total": True}) | {"keys": {}}, "line 1 .*training.epochs"),
    (change_line({"lines": "took"}), "lines.0.lines is not a key"),
    (change_line("x" * 1001), "lines.0.line .*1000 characters"),
    (CARD | {"lines": ["epoch {epoch} took {seconds}"]}, r"\{loss\}"),
    (CARD | {"lines": []}, "lines = "),
    (CARD | {"parts": {"loss": {"op": "spmm"}}}, "parts.loss: .*Choose another name"),
    (CARD | {"parts": {"sent": {"op": "spm"}}}, "parts.sent.op = 'spm' .*spmm"),
    (CARD | {"parts": {"sent": {"axis": "x+w"}}}, r"parts.sent.axis = 'x\+w' .*'w'"),
    (CARD | {"line": ["loss {loss}"]}, "line is not a key here. Did you mean lines"),
    (CARD | {"times": "max"}, "times = 'max' .*mean"),
    (CARD | {"keys": {"model": {"kindd": "gcn"}}}, "model.kindd is not a key.*Did you mean model.kind"),
    (
        CARD | {"keys": {"strategy": {"name": "bns-gcn", "params": {"q": 1}}}},
        "strategy.params.q is not a key",
    ),
    (CARD | {"keys": {"strategy": "bns"}}, "strategy is not a key.*strategy.name"),
    (CARD | {"keys": {"strategy": {"name": "bns"}}}, "strategy.name: .*Did you mean bns-gcn"),
    (CARD | {"keys": {"strategy": {"name": "mine.py:Mine"}}}, r"strategy 'mine\.py:Mine' is unknown"),
    (CARD | {"keys": {"strategy": {"name": "--strategy"}}}, "strategy '--strategy' is unknown"),
    (CARD | {"needed": {"grit": "its grid."}}, "grit is not a key of a spec. Did you mean grid"),
    (CARD | {"cases": [{"unknown": "seed"}]}, "case 1 of cases: unknown needs one difference"),
    (CARD | {"cases": [{"when": {"lr": {"above": 1}}}]}, "cases.0.when.lr"),
    ({key: value for key, value in CARD.items() if key != "title"}, "title is missing"),
    ("title: !!python/object:os.system", "tag"),
]


@pytest.mark.parametrize(("card", "reason"), MISTAKES, ids=[f"{n}" for n in range(len(MISTAKES))])
def test_mistake_in_a_card_is_named(
    card: Any, reason: str, read_card: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_card(card) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"mine\.yaml.*{reason}", said), said


def test_unknown_program_is_refused_before_its_command_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["external", "run", "--format", "bnsgcn", "--", "touch", str(tmp_path / "ran")]) == 2
    assert "Did you mean bns-gcn" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"no\.yaml cannot be read"):
        load_program(ROOT, "no.yaml")
    assert not (tmp_path / "ran").exists()


SIZE = 1 << 20


@pytest.mark.parametrize(
    "line", ["a" * SIZE, "1" * SIZE, "1." * SIZE, " " * SIZE, "ab " * SIZE, "a1b" * SIZE]
)
@pytest.mark.parametrize(
    "form",
    [
        *("a{--x}b{--y}b{--z}c", "a{...}b{...}b{...}c", "a{loss}.{loss}.{loss}b"),
        *("1{loss} b", "a b{end}", "{loss} a{loss} b"),
    ],
)
def test_time_to_search_a_line_grows_linearly(form: str, line: str) -> None:
    """With backtracking, one of these would take hours."""
    assert list(compile_form(form, ()).pattern.finditer(line)) == []


def test_forms_find_numbers_as_programs_print_them() -> None:
    program = Program.model_validate({**CARD, "name": "mine", "lines": ["epoch {epoch} loss {loss}"]})
    numbers = ("1.5", "-nan ", "inf. ", "1.5e-05, ", ".5. ", "info")
    text = "".join(f"epoch {epoch} loss {number}" for epoch, number in enumerate(numbers))
    losses = [report.loss for report in read_log(ProgramLog(text, "log"), program).reports]
    assert losses == pytest.approx([1.5, float("nan"), float("inf"), 1.5e-5, 0.5], nan_ok=True)
