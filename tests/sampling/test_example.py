"""The example of docs/add-a-strategy.md is short, and holds every law of the kit."""

from pathlib import Path
from typing import Any

import pytest

from harness.check.case import train_rank
from harness.check.kit import _case as kit_case
from harness.check.laws import (
    equal_to_formula,
    equal_to_replay,
    equal_to_serial,
    memory_equal_to_formula,
)
from harness.check.reference import train_densely
from harness.ledger import AxisName
from harness.spec.spec import StrategyChoice

DOCS = Path(__file__).parents[2] / "docs/add-a-strategy.md"
FENCE = "```"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example as a file of its own."""
    file = tmp_path / "popular_rows.py"
    file.write_text(DOCS.read_text().split(f"{FENCE}python\n")[1].split(FENCE)[0])
    return file


def test_a_new_system_is_under_fifteen_lines_and_holds_every_law(example: Path, pool: Any) -> None:
    assert len([line for line in example.read_text().splitlines() if line.strip()]) < 15
    name = f"{example}:PopularRows"
    choice = StrategyChoice(name=name, params={"fanouts": [3, 2]})
    case = kit_case(name, {AxisName.P: 3}, "popular", strategy=choice)
    strategy = case.strategy()
    ranks = pool.run(3, train_rank, case, 2)
    findings = [
        *equal_to_serial(case, ranks, train_densely(strategy, case.store(), 2)),
        equal_to_formula(case, ranks),
        memory_equal_to_formula(case, ranks),
        *equal_to_replay(case, ranks, range(len(ranks))),
    ]
    assert [finding for finding in findings if not finding.holds] == []
    assert any(sent.words for key, sent in ranks[0].sent.items() if key.tensor == "X"), "nothing is fetched"
