"""One rank's share of a run's tables. Rank 0 gathers the rows and makes data frames.

While it trains, each rank also appends its rows to a file, after every epoch and outside of its time. Whatever ends a
rank, even a signal that no process can handle, the file has its finished epochs.
"""

import pickle
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from harness.comm.axis import Axis
from harness.device import peak_bytes
from harness.errors import RunError
from harness.ledger import Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.ledger.tape import Event
from harness.models import Hits
from harness.results.schema import RUN_TABLES
from harness.run.fault import Fault
from harness.run.ledger_rows import LedgerRows, key_row
from harness.run.load import Reading, last_percent
from harness.run.provenance import Affinity
from harness.run.trainer import Epoch
from harness.strategy import Context, RemoteRows

Row = dict[str, Any]
T = TypeVar("T")
READABLE = {
    (kind.__module__, kind.__qualname__)
    for kind in (Affinity, RemoteRows, AxisName, Direction, Op, Phase, TensorName)
} | {
    (__name__, "RankTables"),
    (LedgerRows.__module__, "LedgerRows"),
    ("numpy", "dtype"),
    (np.float64(0).__reduce__()[0].__module__, "scalar"),
}
"""The classes of everything in a rank's tables that is not a plain value; formulas may give numbers of numpy."""


@dataclass
class RankTables:
    """The rows of one rank. Warm-up epochs have negative numbers."""

    rank: int
    epochs: list[Row] = field(default_factory=list)
    ledger: LedgerRows = field(default_factory=LedgerRows)
    accuracy: list[Row] = field(default_factory=list)
    utilisation: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    tape: list[Row] = field(default_factory=list)
    words_formula: float = 0
    """The payload words of the epoch in which the rank sent most, by the strategy's own account."""
    least_words: float = 0
    """The least words that the rank receives in an epoch, with any strategy of the same kind."""
    chosen: dict[str, str] = field(default_factory=dict)
    """The choices that this rank made by measuring."""
    remote: RemoteRows = field(default_factory=RemoteRows)
    """The remote rows that its mini-batches needed in timed epochs."""
    affinity: Affinity | None = None
    """The host and the cores of the rank."""
    stages: dict[str, float] = field(default_factory=dict)
    """The seconds of each stage of the rank's start."""
    fault: Fault | None = None
    """The reason why training that came to its end is no result: divergence."""

    def add_epoch(self, number: int, epoch: Epoch, readings: Sequence[Reading]) -> None:
        """Adds the rows of an epoch. Its row in `epochs` comes last and says that its other rows are complete."""
        at = {"epoch": number, "rank": self.rank}
        self.ledger.add_epoch(number, epoch.entries)
        self.utilisation.extend({**at, **row} for row in _windows(epoch, readings))
        self.epochs.append({**at, "seconds": epoch.seconds, "loss": epoch.loss.item()})

    def add_tape(self, events: Sequence[Event]) -> None:
        """Adds the events of an epoch after the last one."""
        at = {"epoch": self.epochs[-1]["epoch"] + 1, "rank": self.rank}
        for number, event in enumerate(events):
            self.tape.append({**at, "event": number, **event_row(event)})

    def add_accuracy(self, number: int, hits: dict[str, Hits], eval_seconds: float) -> None:
        """Adds the accuracies of the whole graph, on rank 0 alone."""
        if self.rank:
            return
        trained = sum(row["seconds"] for row in self.epochs)
        for split, (right, of) in hits.items():
            accuracy = right / of if of else None
            at = {"epoch": number, "train_seconds": trained, "eval_seconds": eval_seconds}
            self.accuracy.append({**at, "split": split, "accuracy": accuracy})

    def words_by_epoch(self, column: Literal["words_payload", "words_received"]) -> dict[int, float]:
        """The words of this rank in each timed epoch."""
        epochs, words = self.ledger.column("epoch"), self.ledger.column(column)
        timed = epochs >= 0
        last = max((row["epoch"] for row in self.epochs), default=-1)
        sums = np.bincount(epochs[timed], words[timed], minlength=max(last + 1, 0))
        return {row["epoch"]: float(sums[row["epoch"]]) for row in self.epochs if row["epoch"] >= 0}

    def dearest_epoch(self) -> int:
        """The timed epoch in which this rank sent most; epochs differ where samples do."""
        words = self.words_by_epoch("words_payload")
        return max(words, key=words.__getitem__, default=0)

    def only(self, epochs: set[int]) -> "RankTables":
        """The rows of these epochs."""

        def kept(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row["epoch"] in epochs]

        return RankTables(
            self.rank,
            kept(self.epochs),
            self.ledger.only(epochs),
            kept(self.accuracy),
            kept(self.utilisation),
        )

    def add_memory(self, ctx: Context) -> None:
        peaks = {
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_peak_bytes": peak_bytes(ctx.device),
        }
        nothing = dict.fromkeys(peaks, 0)
        self.memory.append({"rank": self.rank, "tensor": "", **peaks, "persistent_bytes": 0})
        for name, size in ctx.memory.persistent_bytes().items():
            self.memory.append({"rank": self.rank, "tensor": name.value, **nothing, "persistent_bytes": size})


def _windows(epoch: Epoch, readings: Sequence[Reading]) -> Iterator[Row]:
    """The rows of the windows in order, each with the last reading of the device's driver before its end."""
    end = epoch.begun
    for number, (seconds, computing, communicating) in enumerate(epoch.windows):
        end += seconds
        yield {
            "window": number,
            "seconds": seconds,
            "computing_seconds": computing,
            "communicating_seconds": communicating,
            "device_percent": last_percent(readings, end),
        }


def entry(key: Key, amounts: Amounts) -> Row:
    return {**key_row(key), **asdict(amounts)}


def event_row(event: Event) -> Row:
    """An event of a tape, without what only a replay knows."""
    counted = {name: getattr(event.amounts, name) for name in COUNTED}
    order = {name: getattr(event, name) for name in ("cpu_seconds", "leaves", "waits_for", "travels_with")}
    return {**key_row(event.key), **counted, **order}


COUNTED = ("calls", "words_payload", "words_received", "bytes")


def event_of(row: Mapping[str, Any]) -> Event:
    """The event of a row."""
    order = {name: row[name] for name in ("cpu_seconds", "leaves", "waits_for", "travels_with")}
    return Event(key_of(row), Amounts(**{name: row[name] for name in COUNTED}), **order)


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row."""
    return Key(
        Phase(row["phase"]),
        row["layer"],
        Direction(row["direction"]),
        Op(row["op"]),
        row["axis"] or None,
        row["peer"],
        TensorName(row["tensor"]) if row["tensor"] else None,
    )


def gather(world: Axis, value: T) -> list[T]:
    """The values of all ranks in rank order, on rank 0; an empty list on the others.

    The values travel through the grid that the ranks already share. They are read as data: no code comes with them.
    """
    pickled = BytesIO()
    pickle.dump(value, pickled)
    data = torch.frombuffer(pickled.getbuffer(), dtype=torch.uint8).to(world.device)
    sizes = world.all_gather(torch.tensor([len(data)], device=world.device), tensor=TensorName.COUNT).tolist()
    receives = {rank: (size,) for rank, size in enumerate(sizes)} if world.index == 0 else {}
    arrived = world.exchange({0: data}, receives, dtype=torch.uint8, tensor=TensorName.COUNT)
    return [_TablesReader(BytesIO(arrived[rank].cpu().numpy().tobytes())).load() for rank in sorted(arrived)]


class _TablesReader(pickle.Unpickler):
    """Reads the tables of ranks: plain rows, and the records and words of the harness that may be among them.

    Whoever reaches a rank's port may send it bytes, and a pickle that names any other function would call it here.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in READABLE:
            raise RunError(
                f"A rank sent tables that ask for {module}.{name}, which no rank of the harness sends. Another program "
                "may be writing to the ports of this run: docs/security.md."
            )
        return super().find_class(module, name)


class Journal:
    """The file of one rank. An entry holds the rows that were added to its tables since the entry before."""

    def __init__(self, scratch: Path, tables: RankTables) -> None:
        self._tables, self._written = tables, dict.fromkeys(RUN_TABLES, 0)
        self._path = _journal(scratch, tables.rank)

    def write(self) -> None:
        """Writes an entry. The kernel has the bytes when this returns; nothing waits for the disk."""
        more = {name: getattr(self._tables, name)[done:] for name, done in self._written.items()}
        with self._path.open("ab") as file:
            pickle.dump(more, file)
        for name, rows in more.items():
            self._written[name] += len(rows)


def read_unfinished(scratch: Path, world: int) -> list[RankTables]:
    """The rows of every rank for the epochs that all ranks finished; none if a rank left no file."""
    paths = [_journal(scratch, rank) for rank in range(world)]
    if not all(path.exists() for path in paths):
        return []
    ranks = [_read(path, rank) for rank, path in enumerate(paths)]
    common = set.intersection(*({row["epoch"] for row in rank.epochs} for rank in ranks))
    return [rank.only(common) for rank in ranks]


def _read(path: Path, rank: int) -> RankTables:
    """The rows of all whole entries. The last entry is cut off if the rank ended during the write."""
    tables = RankTables(rank)
    with path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
        while True:
            for name, rows in _TablesReader(file).load().items():
                getattr(tables, name).extend(rows)
    return tables


def _journal(scratch: Path, rank: int) -> Path:
    return scratch / f"unfinished-{rank}"
