"""Whether a change of the code left all runs unchanged: losses to the bit, ledgers to the word.

    python benchmarks/unchanged.py BEFORE AFTER

BEFORE and AFTER are folders of collected tables, of the same experiment run by two commits (every-choice.yaml has
every strategy). Compared are, for the runs in both, the losses of all epochs, the counts under every key of the
ledger (calls, words, bytes, but no time), accuracies, and persistent bytes. The comparison fails if anything differs,
if only one folder has a run, or if both are empty.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from harness.results.parquet import read_collected

KEY = ["run_id", "epoch", "rank_id", "layer", "direction", "phase", "op", "axis", "peer", "tensor"]
COUNTED = ["calls", "elements_payload", "elements_received", "bytes"]
EXACT = {
    "epochs": (["run_id", "epoch", "rank_id"], ["loss"]),
    "ledger": (KEY, COUNTED),
    "accuracy": (["run_id", "epoch", "split"], ["accuracy"]),
    "memory": (["run_id", "rank_id", "tensor"], ["persistent_bytes"]),
}
"""By table: the columns that identify a row, and the columns that must be equal."""
SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = ok_runs(options.before), ok_runs(options.after)
    both = before & after
    print(f"{len(both)} runs in both, {len(before - after)} before alone, {len(after - before)} after alone")
    differing = sum(compare(name, options.before, options.after, both) for name in EXACT)
    return int(bool(differing) or before != after or not both)


def ok_runs(tables: Path) -> set[str]:
    """Return the ids of the runs that succeeded."""
    runs = read_collected(tables, "runs")
    return set(runs.run_id[runs.status == "ok"])


def compare(name: str, before: Path, after: Path, runs: set[str]) -> int:
    """Return the number of rows that differ, with rows that only one folder has."""
    key, exact = EXACT[name]
    first, second = (rows_of(read_collected(folder, name), key, exact, runs) for folder in (before, after))
    both = first.merge(second, on=key, how="outer", suffixes=(" before", " after"), indicator="side")
    same = both.side == "both"
    for column in exact:
        one, other = both[f"{column} before"], both[f"{column} after"]
        same &= (one == other) | (one.isna() & other.isna())
    print(f"{name}: {len(both):,} rows by {', '.join(exact)}: {int((~same).sum()):,} differ")
    if not same.all():
        print(both[~same].head(SHOWN).to_string())
    return int((~same).sum())


def rows_of(table: pd.DataFrame, key: list[str], exact: list[str], runs: set[str]) -> pd.DataFrame:
    """Return the columns that must be equal, without ledger rows that count only time."""
    rows = table.loc[table.run_id.isin(runs), key + exact]
    return rows[(rows[exact] != 0).any(axis=1)] if exact == COUNTED else rows


if __name__ == "__main__":
    sys.exit(main())
