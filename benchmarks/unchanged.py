"""Whether a change of the code left the runs as they were: losses to the bit, ledgers to the word.

    python benchmarks/unchanged.py BEFORE AFTER

Both are folders of collected tables, of the same experiment run by two commits (every-choice.yaml has every strategy).
Of the runs in both it compares the losses of all epochs, what is counted under every key of the ledger (calls, words,
bytes, but no time), accuracies, and the bytes that are held. It fails where anything differs, where a run is in one
alone, and where there is none.
"""

import sys
from pathlib import Path

import pandas as pd
from measuring import argument_parser

from harness.results.parquet import read_collected

KEY = ["run_id", "epoch", "rank", "layer", "direction", "phase", "op", "axis", "peer", "tensor"]
COUNTED = ["calls", "words_payload", "words_received", "bytes"]
EXACT = {
    "epochs": (["run_id", "epoch", "rank"], ["loss"]),
    "ledger": (KEY, COUNTED),
    "accuracy": (["run_id", "epoch", "split"], ["accuracy"]),
    "memory": (["run_id", "rank", "tensor"], ["persistent_bytes"]),
}
"""By table: what tells its rows apart, and what must be the same in them."""
SHOWN = 5


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = ok_runs(options.before), ok_runs(options.after)
    both = before & after
    print(f"{len(both)} runs in both, {len(before - after)} before alone, {len(after - before)} after alone")
    differing = sum(compare(name, options.before, options.after, both) for name in EXACT)
    return int(bool(differing) or before != after or not both)


def ok_runs(tables: Path) -> set[str]:
    """The ids of the runs that succeeded."""
    runs = read_collected(tables, "runs")
    return set(runs.run_id[runs.status == "ok"])


def compare(name: str, before: Path, after: Path, runs: set[str]) -> int:
    """How many rows of a table differ, those that are in one alone included."""
    key, exact = EXACT[name]
    first, second = (rows_of(read_collected(folder, name), key, exact, runs) for folder in (before, after))
    both = first.merge(second, on=key, how="outer", suffixes=(" before", " after"), indicator="found")
    same = both.found == "both"
    for column in exact:
        one, other = both[f"{column} before"], both[f"{column} after"]
        same &= (one == other) | (one.isna() & other.isna())
    print(f"{name}: {len(both):,} rows by {', '.join(exact)}: {int((~same).sum()):,} differ")
    if not same.all():
        print(both[~same].head(SHOWN).to_string())
    return int((~same).sum())


def rows_of(table: pd.DataFrame, key: list[str], exact: list[str], runs: set[str]) -> pd.DataFrame:
    """What must be the same. A ledger's rows in which nothing but time was counted come and go with the clock."""
    mine = table.loc[table.run_id.isin(runs), key + exact]
    return mine[(mine[exact] != 0).any(axis=1)] if exact == COUNTED else mine


if __name__ == "__main__":
    sys.exit(main())
