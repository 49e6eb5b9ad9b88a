"""Contributed runs: one row for each run of a site, with the columns of `runs` and what a site adds to them.

`harness site` writes the table as rows.parquet.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from harness.errors import UserError
from harness.results.parquet import read_table, to_arrow, to_pandas
from harness.results.schema import RUNS
from harness.results.table_schema import NULLABLE, REAL, TEXT, TRUTH, Column, TableSchema

CONTRIBUTED = (
    Column("contributor", TEXT, "the group that contributed the run"),
    Column("submission", TEXT, "the first digits of the checksum of its archive; the name of its page"),
    Column("checks", TEXT, "the verdict and the reason of each check of the run, as JSON"),
    Column("persistent_bytes", REAL, "bytes held between epochs, on the rank that holds the most"),
    Column("peak_bytes", REAL, "peak memory of the rank with the most, on its device or else on its host"),
)
"""What is known about a run when its submission was verified."""
JUDGED = (
    Column("task", TEXT, "what was trained: runs with the same task may be compared; the name of its page"),
    Column("on_machine", TEXT, "the machine with its contributor: times are compared on one machine only"),
    Column("results", TEXT, "what the strategy promises: exact, estimator, approximate, or another model"),
    Column("marks", TEXT, "why the run is not ranked, separated by semicolons; empty for a ranked run"),
    Column("is_ranked", TRUTH, "whether the run may be compared with others"),
    Column("place", NULLABLE, "number of the row in its submission"),
)
"""What depends on all submissions of a site and on its rules."""
ROWS = TableSchema("rows", "one contributed run", (*CONTRIBUTED, *RUNS.columns, *JUDGED))


def make_rows(rows: list[dict[str, Any]]) -> pa.Table:
    """Return the table of contributed runs, with null where a row has no value."""
    return to_arrow(pd.DataFrame(rows).reindex(columns=ROWS.names), ROWS)


def read_contributed_rows(path: Path, group: str = "") -> pd.DataFrame:
    """Read the rows of a site, of all groups or of one. Blocks of different submissions have different names."""
    rows = to_pandas(read_table(path, ROWS, "`harness site` makes the rows again."), ROWS)
    groups = sorted(set(rows.contributor))
    if group and group not in groups:
        raise UserError(f"{path} has no runs of {group!r}. It has runs of {', '.join(groups)}.")
    return qualify_blocks(rows[rows.contributor == group] if group else rows)


def qualify_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the submission in the name of each block, so that submissions share none."""
    block = rows["provenance.block"]
    return rows.assign(**{"provenance.block": block.where(block == "", rows.submission + " " + block)})
