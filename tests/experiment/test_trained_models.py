"""The table of what each strategy trains is the strategies' own answers, and stands in the docs."""

from pathlib import Path

import pytest

from harness.cli.commands.listing import list_names
from harness.cli.commands.output import Table
from harness.experiment.trained_models import OPTIONAL_SETTINGS, list_trained_models
from harness.registry import load_strategy, registered_strategies

ROOT = Path(__file__).parents[2]
OUTSIDE = "pyg"  # what it trains depends on the packages at hand


@pytest.fixture(scope="module")
def rows():
    return list_trained_models(ROOT)


def test_every_strategy_has_a_row_and_every_setting_a_column(rows) -> None:
    assert [row.strategy for row in rows] == sorted(point.name for point in registered_strategies())
    assert all(list(row.settings) == list(OPTIONAL_SETTINGS) for row in rows)


def test_kinds_and_parts_are_those_that_a_strategy_declares(rows) -> None:
    """Asked of the class, and not by a spec."""
    kinds = {"GCN": "gcn", "GraphSAGE": "sage", "GAT": "gat"}
    for row in rows:
        if row.strategy != OUTSIDE:
            strategy = load_strategy(row.strategy)
            assert {name for name in kinds if row.settings[name]} == {
                name for name, kind in kinds.items() if kind in strategy.models
            }
            assert row.settings["norm"] == row.settings["dropout"] == strategy.has_model_parts


def test_the_table_stands_in_the_docs(rows) -> None:
    """`harness list models` prints it, and the page has it as Markdown."""
    shown = list_names("models", root=ROOT)
    table = Table(shown.columns, [row for row in shown.rows if row["strategy"] != OUTSIDE]).format_columns()
    headings, cells = [column.title for column in table], zip(*table.values(), strict=True)
    lines = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *cells)]
    page = (ROOT / "docs" / "strategies" / "README.md").read_text()
    assert "\n".join(lines) in page, "docs/strategies/README.md: the table should be\n" + "\n".join(lines)
