"""The schema says all there is: nothing that a spec, a ledger or a run writes is without a column."""

import runpy
from pathlib import Path

import pandas as pd
import pytest
from pydantic import BaseModel

from harness.ledger import AMOUNTS, AxisName, Key
from harness.results.parquet import conform_frame
from harness.results.schema import EPOCHS, LEDGER, RUNS, TABLES
from harness.spec.spec import Spec

ROOT = Path(__file__).parents[2]


def leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    """The dotted names of all fields of a model that are no models themselves."""
    names = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        inner = isinstance(kind, type) and issubclass(kind, BaseModel)
        names |= leaves(kind, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
    return names


def test_every_key_of_a_spec_is_a_column_and_no_other() -> None:
    columns = {column.name for column in RUNS.columns if column.part == "spec"} - {"spec"}
    assert columns == leaves(Spec) | {f"grid.{axis.value}" for axis in AxisName}


def test_the_columns_of_the_ledger_are_its_keys_and_amounts() -> None:
    assert set(LEDGER.names) == {"epoch", "rank_id", *Key._fields, *AMOUNTS}


def test_every_column_is_named_once_and_explained() -> None:
    for table in TABLES.values():
        assert len(set(table.names)) == len(table.names)
        assert all(len(column.meaning) > 3 for column in table.columns)


def test_the_data_dictionary_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "write_tables.py"))["format_page"]()
    assert (ROOT / "docs" / "reference" / "tables.md").read_text() == page, (
        "run python docs/write_tables.py > docs/reference/tables.md"
    )


def test_an_empty_table_has_all_columns_and_types() -> None:
    frame = conform_frame(pd.DataFrame(), LEDGER)
    assert list(frame) == LEDGER.names
    assert frame.dtypes["rank_id"] == "int64"
    assert frame.dtypes["seconds"] == "float64"


@pytest.mark.parametrize("column", ["loss", "speed"])
def test_a_missing_or_strange_column_is_a_mistake_of_ours(column: str) -> None:
    frame = pd.DataFrame([{"epoch": 0, "rank_id": 0, "seconds": 1.0, "loss": 1.0}])
    wrong = frame.drop(columns=column) if column in frame else frame.assign(**{column: 1})
    with pytest.raises(AssertionError, match=column):
        conform_frame(wrong, EPOCHS)
