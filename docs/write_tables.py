"""Print the page docs/reference/tables.md from the schema: `python docs/write_tables.py > docs/reference/tables.md`."""

from harness.results.ranking import CONTRIBUTIONS
from harness.results.schema import CLAIMS, FAILURES, RUN_TABLES, RUNS, TABLES
from harness.results.table_schema import EARLIER_SCHEMA, RECORD_SCHEMA, SCHEMA, TIME, Column, TableSchema

WORDS = {
    "int64": "integer",
    "Int64": "integer or null",
    "float64": "real",
    "str": "text",
    "boolean": "boolean",
    TIME: "time",
}
PARTS = {
    "record": "The record",
    "spec": "The spec, under the names that `--set` and experiments use",
    "summary": "The summary; null unless the run is ok",
    "provenance": "Where the numbers come from",
}

HEADER = f"""# The tables

<!-- Made from harness/results/schema.py by `python docs/write_tables.py > docs/reference/tables.md`. -->

This is schema {SCHEMA}. `harness collect` joins the tables of all runs in `results/`, with `run_id` as the first
column, and adds `runs.parquet` and `failures.parquet`. [Read the tables](../tutorials/read-the-tables.md) uses
`harness.load()`, whose column names are short: `strategy` for `strategy.name`, `hidden` for `model.hidden`.

Text is never null: an empty text means that there is no value. A number that does not apply is null, except in the key
of a ledger, where -1 means no layer or no peer. Times are in UTC. Column names end with the unit. An element is one
number of a tensor, whatever its type.

```python
import pandas as pd

runs, ledger = pd.read_parquet("results/runs.parquet"), pd.read_parquet("results/ledger.parquet")
timed = ledger[ledger.epoch >= 0].merge(runs[["run_id", "strategy.name", "ranks"]], on="run_id")
timed.groupby(["strategy.name", "ranks", "phase", "op"]).seconds.sum()
```
"""

RUN_FOLDERS = f"""## Run folders

A run folder `results/runs/<run-id>/` holds `spec.json`, `record.json`, and each table of its run that has rows, such as
`epochs.parquet` and `ledger.parquet`. Run folders have schema {RECORD_SCHEMA}. Times of day are in seconds since 1970,
and an error is a part of `record.json` (`error.type`, `error.message`, `error.rank`, `error.trace`). Folders of schema
{EARLIER_SCHEMA} are read too; there these columns have other names:
"""


def format_page() -> str:
    """Return the text of the page."""
    tables = (RUNS, FAILURES, *RUN_TABLES.values(), CLAIMS, CONTRIBUTIONS)
    sections = [_format_table(table) for table in tables]
    return "\n".join([HEADER, *sections, _format_earlier()])


def _format_earlier() -> str:
    """Format the section about the earlier names of columns in run folders."""
    tables: dict[tuple[str, str], list[str]] = {}
    for table in TABLES.values():
        for column in table.columns:
            if column.earlier:
                tables.setdefault((column.name, column.earlier), []).append(table.name)
    rows = [f"| `{name}` | {', '.join(names)} | `{earlier}` |" for (name, earlier), names in tables.items()]
    head = ["| column | tables | in schema 1 |", "| --- | --- | --- |"]
    return "\n".join([RUN_FOLDERS, *head, *rows, ""])


def _format_table(table: TableSchema) -> str:
    """Format the section of one table."""
    lines = [f"## {table.name}", "", f"A row is {table.row}.", ""]
    part = ""
    for column in table.columns:
        if column.part != part or column is table.columns[0]:
            part = column.part
            lines += _format_heading(part, first=column is table.columns[0])
        lines.append(f"| `{column.name}` | {WORDS[column.dtype]} | {_describe_meaning(column)} |")
    return "\n".join([*lines, ""])


def _describe_meaning(column: Column) -> str:
    """Return what a column means, and which way is better if it is a quantity that one can compare."""
    return f"{column.meaning}; {column.better} is better" if column.better else column.meaning


def _format_heading(part: str, *, first: bool) -> list[str]:
    """Format the head of a table of columns, below the name of the part if it has one."""
    heading = [f"{PARTS[part]}:", ""] if part in PARTS else []
    return [*([] if first else [""]), *heading, "| column | type | meaning |", "| --- | --- | --- |"]


if __name__ == "__main__":
    print(format_page(), end="")
