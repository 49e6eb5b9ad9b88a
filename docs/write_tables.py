"""Print the page docs/tables.md from the schema: `python docs/write_tables.py > docs/tables.md`."""

from harness.results.schema import CLAIMS, RUN_TABLES, RUNS, SCHEMA, TableSchema

WORDS = {
    "int64": "integer",
    "Int64": "integer or null",
    "float64": "real",
    "str": "text",
    "boolean": "boolean",
}
PARTS = {
    "record": "The record",
    "spec": "The spec, under the names that `--set` and experiments use",
    "summary": "The summary; null unless the run is ok",
    "error": "The error; empty unless the run failed",
    "provenance": "Where the numbers come from",
}

HEADER = f"""# The tables

<!-- Made from harness/results/schema.py by `python docs/write_tables.py > docs/tables.md`. -->

This is schema {SCHEMA}. A run folder `results/runs/<run-id>/` holds `spec.json`, `record.json`, and each table below
that has rows, such as `epochs.parquet` and `ledger.parquet`. `harness collect` joins the tables of all runs in
`results/`, with `run_id` as the first column, and adds `runs.parquet`. Tables and records of another schema are
refused.

Text is never null: an empty text means that there is no value. A number that does not apply is null, except in the key
of a ledger, where -1 means no layer or no peer. Column names end with the unit.

```python
import pandas as pd

runs, ledger = pd.read_parquet("results/runs.parquet"), pd.read_parquet("results/ledger.parquet")
timed = ledger[ledger.epoch >= 0].merge(runs[["run_id", "strategy.name", "ranks"]], on="run_id")
timed.groupby(["strategy.name", "ranks", "phase", "op"]).seconds.sum()
```
"""


def format_page() -> str:
    """Return the text of the page."""
    sections = [_format_table(table) for table in (RUNS, *RUN_TABLES.values(), CLAIMS)]
    return "\n".join([HEADER, *sections])


def _format_table(table: TableSchema) -> str:
    """Format the section of one table."""
    lines = [f"## {table.name}", "", f"A row is {table.row}.", ""]
    part = ""
    for column in table.columns:
        if column.part != part or column is table.columns[0]:
            part = column.part
            lines += _format_heading(part, first=column is table.columns[0])
        lines.append(f"| `{column.name}` | {WORDS[column.dtype]} | {column.meaning} |")
    return "\n".join([*lines, ""])


def _format_heading(part: str, *, first: bool) -> list[str]:
    """Format the head of a table of columns, below the name of the part if it has one."""
    heading = [f"{PARTS[part]}:", ""] if part in PARTS else []
    return [*([] if first else [""]), *heading, "| column | type | meaning |", "| --- | --- | --- |"]


if __name__ == "__main__":
    print(format_page(), end="")
