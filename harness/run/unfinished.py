"""What ranks leave of a run that does not come to its end: the epochs that all of them finished.

A rank that is told to leave may be waiting for another in a library that hears no signals. So a thread listens, which
sleeps until the signal is there, writes down what the rank has, and ends it.
"""

import os
import pickle
import signal
import threading
import time
from pathlib import Path

from harness.run.tables import RankTables

LEAVE = signal.SIGUSR2
TOGETHER = 1.0
"""Seconds in which the others hear the signal too, before they miss this rank."""


def leave_when_told(scratch: Path, tables: RankTables) -> None:
    """From now on, the signal ends this process with its finished epochs on disk."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    signal.signal(LEAVE, lambda *_: None)
    threading.Thread(target=_listen, args=(ear, scratch, tables), daemon=True).start()


def _listen(ear: int, scratch: Path, tables: RankTables) -> None:
    while LEAVE not in os.read(ear, 1):
        pass
    write_unfinished(scratch, tables)
    time.sleep(TOGETHER)
    os._exit(0)


def write_unfinished(scratch: Path, tables: RankTables) -> None:
    """Leaves a rank's rows where the launcher looks; whole or not at all."""
    path = scratch / f"unfinished-{tables.rank}"
    partial = path.with_suffix(".part")
    partial.write_bytes(pickle.dumps(tables))
    partial.replace(path)


def read_unfinished(scratch: Path, world: int) -> list[RankTables]:
    """The rows of every rank for the epochs that all of them finished; nothing if a rank left nothing."""
    paths = [scratch / f"unfinished-{rank}" for rank in range(world)]
    if not all(path.exists() for path in paths):
        return []
    ranks: list[RankTables] = [pickle.loads(path.read_bytes()) for path in paths]
    common = set.intersection(*({row["epoch"] for row in rank.epochs} for rank in ranks))
    return [rank.only(common) for rank in ranks]
