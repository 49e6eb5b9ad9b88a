"""What ranks leave of a run that does not come to its end: the epochs that all of them finished.

Each rank writes its rows behind each other into a file of its own, after every epoch and outside its time. So whatever
ends a rank, a signal that no process hears included, its finished epochs are there.
"""

import pickle
from contextlib import suppress
from pathlib import Path

from harness.results.schema import RUN_TABLES
from harness.run.tables import RankTables


class Journal:
    """The file of one rank. An entry holds the rows that its tables have more than at the entry before."""

    def __init__(self, scratch: Path, tables: RankTables) -> None:
        self._tables, self._written = tables, dict.fromkeys(RUN_TABLES, 0)
        self._path = _path(scratch, tables.rank)

    def write(self) -> None:
        """The kernel has the entry when this returns; nothing waits for the disk."""
        more = {name: getattr(self._tables, name)[done:] for name, done in self._written.items()}
        with self._path.open("ab") as file:
            pickle.dump(more, file)
        for name, rows in more.items():
            self._written[name] += len(rows)


def read_unfinished(scratch: Path, world: int) -> list[RankTables]:
    """The rows of every rank for the epochs that all of them finished; nothing if a rank left nothing."""
    paths = [_path(scratch, rank) for rank in range(world)]
    if not all(path.exists() for path in paths):
        return []
    ranks = [_read(path, rank) for rank, path in enumerate(paths)]
    common = set.intersection(*({row["epoch"] for row in rank.epochs} for rank in ranks))
    return [rank.only(common) for rank in ranks]


def _read(path: Path, rank: int) -> RankTables:
    """All whole entries: the end of the last one is missing where the rank ended while it wrote."""
    tables = RankTables(rank)
    with path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
        while True:
            for name, rows in pickle.load(file).items():
                getattr(tables, name).extend(rows)
    return tables


def _path(scratch: Path, rank: int) -> Path:
    return scratch / f"unfinished-{rank}"
