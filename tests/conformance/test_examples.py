"""The strategies that pages show in full are short, and hold every law of the kit."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.conformance.kit import check
from harness.conformance.kit import check_case as findings_of
from harness.conformance.kit import make_case as kit_case
from harness.ledger import AxisName
from harness.spec.spec import StrategyChoice

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / name).read_text() for name in ("tutorials/add-a-strategy.md", "concepts/layouts.md")]
CODE = re.findall(r"^```python\n(.*?)^```", "".join(PAGES), flags=re.MULTILINE | re.DOTALL)
EXAMPLES = {
    "GatheredRows": (120, AxisName.P, {}),
    "UniformBatches": (120, AxisName.D, {}),
    "PopularRows": (22, AxisName.P, {"fanouts": [3, 2]}),
    "SplitColumns": (82, AxisName.P, {}),
}
"""The most lines of each, in the order of the pages; the axis of its grid; parameters."""


def written(name: str, folder: Path) -> str:
    """The example as a file of its own, as `--strategy` takes it."""
    file = folder / f"{name.lower()}.py"
    file.write_text(CODE[list(EXAMPLES).index(name)])
    return f"{file}:{name}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_holds_every_law_of_a_case(name: str, tmp_path: Path, pool: Any) -> None:
    lines, axis, params = EXAMPLES[name]
    strategy = written(name, tmp_path)
    assert CODE[list(EXAMPLES).index(name)].count("\n") < lines
    choice = StrategyChoice(name=strategy, params=params)
    findings = list(findings_of(kit_case(strategy, {axis: 3}, name, strategy=choice), pool.run, range(3)))
    assert len(findings) > 8
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_conforms(name: str, tmp_path: Path, pool: Any) -> None:
    findings = list(check(written(name, tmp_path), pool.run, "quick"))
    assert [finding for finding in findings if not finding.holds] == []
