"""An error in an author's code: the kit names the author's own line, checks the other checks, and repeats one case."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.cli.app import make_app, parse
from harness.cli.commands.checking import CheckAnswer, CheckRequest
from harness.cli.commands.output import Command, View
from harness.cli.commands.rendering import render_text
from harness.conformance.case import Case
from harness.conformance.case_list import make_case
from harness.conformance.checks import Finding
from harness.conformance.suite import check, check_case
from harness.ledger import AxisName
from tests.conformance.test_examples import CODE

CRASHES = {
    "aggregate": ("        H_VF = self.over", "        H_NF = H_NF @ H_NF\n        H_VF = self.over"),
    "words": ("        words, n = Words", '        self.spec.params["x"]\n        words, n = Words'),
    "memory": ("        rows, n = self.rows", "        rows = 1 // 0\n        rows, n = self.rows"),
    "refuse": (
        "    def operators",
        '    def refuse(self) -> None:\n        raise KeyError("x")\n\n    def operators',
    ),
    "grids": (
        "    def operators",
        '    @classmethod\n    def grids(cls, ranks: int) -> None:\n        raise KeyError("x")\n\n    def operators',
    ),
}


def write_crash(method: str, folder: Path) -> str:
    """Return the name of a strategy of which one method raises an error."""
    old, new = CRASHES[method]
    file = folder / f"crash_in_{method}.py"
    file.write_text(CODE[0].replace(old, new))
    return f"{file}:GatheredRows"


def name_own_line(name: str, text: str) -> str:
    """Return the line of the strategy's file with this text, as findings name it."""
    file = Path(name.rpartition(":")[0])
    number = next(at for at, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file.name}:{number}"


def find(name: str, run: Callable[..., Any]) -> dict[str, Finding]:
    return {each.check: each for each in check_case(make_case(name, {AxisName.P: 1}, "one"), run, [0])}


@pytest.mark.parametrize(
    ("method", "check", "code", "error"),
    [
        (
            "aggregate",
            "trains",
            "H_NF = H_NF @ H_NF",
            "RuntimeError: mat1 and mat2",
        ),
        ("words", "elements equal the formula", 'self.spec.params["x"]', "AttributeError: 'Spec' object"),
        ("memory", "memory equals the formula", "rows = 1 // 0", "ZeroDivisionError: integer"),
        ("refuse", "refused with a reason", 'raise KeyError("x")', "KeyError: 'x'"),
    ],
)
def test_error_of_a_method_names_the_authors_line(
    method: str, check: str, code: str, error: str, tmp_path: Path, pool: Any
) -> None:
    name = write_crash(method, tmp_path)
    findings = find(name, pool.run)
    broken = findings.pop(check)
    assert not broken.holds
    assert error in str(broken.wrong[0].got)
    assert broken.look.endswith(f"{name_own_line(name, code)}, in {method}: {code}")
    assert "/harness/" in broken.trace
    assert broken.trace.count("File ") > 2
    assert all(finding.holds for finding in findings.values())
    assert ("losses equal serial" in findings) == (method in {"words", "memory"})


def test_error_before_any_case_names_the_authors_line(tmp_path: Path) -> None:
    name = write_crash("grids", tmp_path)
    with pytest.raises(UserError, match="KeyError: 'x'") as refused:
        list(check(name, lambda *_: [], "quick"))
    assert f'{name_own_line(name, "raise KeyError")}, in grids: raise KeyError("x")' in str(refused.value)


def leave_out(*_: Any) -> list[Any]:
    raise UserError("this test trains nothing")


def test_only_the_named_case_is_tried() -> None:
    everything = [replace(each, trace="") for each in check("cagnet-1d", leave_out, "quick")]
    for name in {finding.case for finding in everything}:
        chosen = [replace(each, trace="") for each in check("cagnet-1d", leave_out, "quick", only=name)]
        assert chosen == [finding for finding in everything if finding.case == name]
    some = {finding.case for finding in check("cagnet-1d", leave_out, "quick", only="p=4")}
    assert some == {finding.case for finding in everything if "p=4" in finding.case}
    with pytest.raises(UserError, match=r"'a rank without edges'.* p=4: a rank without vertices"):
        list(check("cagnet-1d", leave_out, "quick", only="a rank without edges"))


def test_next_case_is_trained_during_the_checks() -> None:
    """The verifier is the order of events: the second training begins although the first finding is not taken."""
    begun = SimpleQueue[str]()

    def train(_world: int, _function: object, case: Case, *_: Any) -> list[Any]:
        begun.put(case.name)
        return leave_out()

    findings = check("cagnet-1d", train, "quick")
    first = next(findings).case
    assert begun.get(timeout=60) == first
    assert begun.get(timeout=60) != first
    assert first not in {finding.case for finding in findings}


def test_command_of_a_broken_check_repeats_the_case() -> None:
    finding = Finding(
        "trains", "p=3: wire = bf16", False, "", "mine.py:3", "cagnet-1d", trace="File one\nFile two"
    )
    request = CheckRequest("mine.py:Mine", quick=True, machine="local")
    answer = CheckAnswer("mine.py:Mine", "quick", [finding], 1.0, request)
    (command,) = (block.text for block in answer.lay_out(View()) if isinstance(block, Command))
    parsed = parse(make_app(), shlex.split(command)[1:])
    assert parsed is not None
    assert (parsed.request.case, parsed.request.choose_extent()) == (finding.case, "quick")
    assert (parsed.request.strategy, parsed.request.machine) == ("mine.py:Mine", "local")
    brief, verbose = (render_text(answer.lay_out(view), view) for view in (View(), View(verbose=True)))
    assert "File two" not in brief and "-v" in brief
    assert "  File one\n  File two" in verbose
