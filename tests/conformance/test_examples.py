"""The strategies that pages show in full pass every check of the kit."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from harness.conformance.case_list import make_case as kit_case
from harness.conformance.suite import check
from harness.conformance.suite import check_case as findings_of
from harness.graph.model import LabelTask
from harness.ledger import AxisName
from harness.spec.spec import StrategyChoice
from harness.strategies import sancus
from harness.strategies.scalegnn import scalegnn

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / name).read_text() for name in ("tutorials/add-a-strategy.md", "concepts/layouts.md")]
CODE = re.findall(r"^```python\n(.*?)^```", "".join(PAGES), flags=re.MULTILINE | re.DOTALL)
EXAMPLES = {
    "GatheredRows": (AxisName.P, {}),
    "RingRows": (AxisName.P, {}),
    "UniformBatches": (AxisName.D, {}),
    "PopularRows": (AxisName.P, {"fanouts": [3, 2]}),
    "SplitColumns": (AxisName.P, {}),
}
"""The axis of the grid and the parameters of each, in the order of the pages."""


def written(name: str, folder: Path) -> str:
    """The example as a file of its own, as `--strategy` takes it."""
    file = folder / f"{name.lower()}.py"
    file.write_text(CODE[list(EXAMPLES).index(name)])
    return f"{file}:{name}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_holds_every_check_of_a_case(name: str, tmp_path: Path, pool: Any) -> None:
    axis, params = EXAMPLES[name]
    strategy = written(name, tmp_path)
    choice = StrategyChoice(name=strategy, params=params)
    findings = list(findings_of(kit_case(strategy, {axis: 3}, name, strategy=choice), pool.run, range(3)))
    assert len(findings) > 8
    assert [finding for finding in findings if not finding.holds] == []


def test_references_on_the_page_are_those_of_their_strategies() -> None:
    shown = re.findall(r"^```py\n(.*?)^```", PAGES[0], flags=re.MULTILINE | re.DOTALL)
    for code, module in zip(shown, (sancus, scalegnn), strict=True):
        assert code in inspect.getsource(module)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_conforms(name: str, tmp_path: Path, pool: Any) -> None:
    findings = list(check(written(name, tmp_path), pool.run, "quick"))
    assert [finding for finding in findings if not finding.holds] == []


MISTAKES: dict[str, tuple[list[tuple[str, str]], LabelTask]] = {
    "`across=None`": ([("across=P", "across=None")], "single-label"),
    "`2 * n` for every task": ([(' if self.facts.task == "single-label" else 0', "")], "multi-label"),
    "no `.T`": ([("part_NX.T", "part_NX"), ("sizes=sizes).T", "sizes=sizes)")], "single-label"),
    "`weight_piece` with all rows": (
        [("Piece(self.columns(at, rows),", "Piece(range(rows),")],
        "single-label",
    ),
}
"""The changes that the page on layouts makes to its example: each change of the code, and a task that shows it."""
ROWS = re.findall(
    r"^\| ([^|]+) \| `([a-z ]+)` \| `([^`|]+)` \|$",
    PAGES[1].partition("What it prints on three ranks")[2],
    re.M,
)


def test_page_on_layouts_shows_what_check_prints_about_each_mistake(tmp_path: Path, pool: Any) -> None:
    assert [change for change, _, _ in ROWS] == list(MISTAKES)
    for number, (change, failed, message) in enumerate(ROWS):
        (edits, task), code = MISTAKES[change], CODE[list(EXAMPLES).index("SplitColumns")]
        for old, new in edits:
            assert old in code, change
            code = code.replace(old, new)
        file = tmp_path / f"mistake_{number}.py"
        file.write_text(code)
        case = kit_case(f"{file}:SplitColumns", {AxisName.P: 3}, change, task=task)
        first = next(finding for finding in findings_of(case, pool.run, [0]) if not finding.holds)
        # The class and the columns of the piece differ by the rank that fails first: pieces have 5, 5 and 3 columns.
        expected, detail = (
            re.sub(r"Target \d", "Target N", text).replace("(211x3 and", "(211x5 and")
            for text in (message, first.detail)
        )
        assert (first.check, expected in detail) == (failed, True), detail
        if failed == "trains":
            raised = rf".*{file.name}:\d+, in \w+: \S"
            inherited = rf".*{file.name}:\d+ \(\w+\): it inherits the code of .*label_loss.py:\d+, in \w+: \S"
            assert re.match(inherited if "across" in change else raised, first.look), first.look
