"""The summary of several launches: a row for each configuration, with the median over its launches and its interval."""

from collections.abc import Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from harness.base.formatting import format_interval
from harness.cli.commands.output import Block, Table, TableColumn
from harness.cli.commands.run_facts import describe_run

if TYPE_CHECKING:
    from harness.results.record import Record

COLUMNS = (
    TableColumn("run", "run"),
    TableColumn("launches", "launches", "whole"),
    TableColumn("seconds", "epoch", "s"),
    TableColumn("interval", "95 % interval"),
    TableColumn("range", "range", may_drop=True),
    TableColumn("statuses", "failed", may_drop=True),
)


def lay_out_launches(records: "Sequence[Record]") -> Iterator[Block]:
    """Yield the table of the configurations, and how many launches an interval needs if one has too few."""
    import pandas as pd

    from harness.results.launch_intervals import count_needed_blocks
    from harness.results.statistics import summarize_configurations

    runs = pd.concat([record.make_runs_row() for record in records], ignore_index=True)
    names = {record.record["run_id"]: describe_run(record) for record in records}
    summary: Any = summarize_configurations(runs)
    rows = [_make_row(row, names[row.run_ids[0]]) for row in summary.itertuples()]
    columns = COLUMNS if any(row["statuses"] for row in rows) else COLUMNS[:-1]
    yield Table(columns, rows)
    if any(not row["interval"] for row in rows):
        yield f"The interval of a median needs {count_needed_blocks()} launches."


def _make_row(row: Any, name: str) -> dict[str, Any]:
    seconds = row.epoch_seconds_median
    has_time, has_interval = not isnan(seconds), not isnan(row.interval_low)
    return {
        "run": name,
        "launches": row.processes if has_time else 0,
        "seconds": seconds if has_time else None,
        "interval": format_interval(row.interval_low, row.interval_high) if has_interval else "",
        "range": format_interval(row.low, row.high) if has_time else "",
        "statuses": row.statuses,
    }
