"""The rows that one rank adds to the tables of a run. Rank 0 gathers the rows of all ranks.

During training, each rank also appends its rows to a file after every epoch, outside of the timed region. So the
finished epochs are kept even if the rank is killed.
"""

import copyreg
import pickle
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from harness.base.device import peak_memory
from harness.base.errors import RunError
from harness.comm.axis import Axis
from harness.ledger import Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.ledger.tape import Event
from harness.results.schema import RUN_TABLES
from harness.runtime.fault import Fault
from harness.runtime.ledger_rows import LedgerRows, key_to_row
from harness.runtime.load import Reading, last_percent
from harness.runtime.provenance import Affinity
from harness.runtime.trainer import Epoch
from harness.strategy import Context, RemoteRows
from harness.strategy.models import SplitAccuracy

Row = dict[str, Any]
T = TypeVar("T")
ENUMS: tuple[type[Enum], ...] = (AxisName, Direction, Op, Phase, TensorName)
READABLE = {(kind.__module__, kind.__qualname__) for kind in (Affinity, RemoteRows, *ENUMS)} | {
    (__name__, "RankTables"),
    (LedgerRows.__module__, "LedgerRows"),
    ("numpy", "dtype"),
    (np.float64(0).__reduce__()[0].__module__, "scalar"),
}
"""The classes that may occur in a rank's tables, apart from plain values. Formulas may return NumPy scalars."""


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
    elements_payload_formula: float = 0
    """The payload words of the epoch in which the rank sent most, by the strategy's formula."""
    least_words: float = 0
    """A lower bound on the words that the rank receives in an epoch, for any strategy of the same kind."""
    chosen: dict[str, str] = field(default_factory=dict)
    """The choices that this rank made by measuring."""
    accuracy_by: str = ""
    """The metric of a dataset's publisher by which accuracies are computed; empty for the harness's own."""
    remote: RemoteRows = field(default_factory=RemoteRows)
    """The remote rows that its mini-batches needed in timed epochs."""
    affinity: Affinity | None = None
    """The host and the cores of the rank."""
    stages: dict[str, float] = field(default_factory=dict)
    """The seconds of each stage of the rank's start."""
    fault: Fault | None = None
    """Set if training diverged, so that it has no valid result."""
    trained_seconds: float = 0.0
    """The seconds of all epochs so far, warm-up included."""

    def add_epoch(self, number: int, epoch: Epoch, readings: Sequence[Reading]) -> None:
        """Add the rows of an epoch. The row in `epochs` is added last and marks the other rows as complete."""
        at = {"epoch": number, "rank_id": self.rank}
        self.ledger.add_epoch(number, epoch.entries)
        self.utilisation.extend({**at, **row} for row in _make_window_rows(epoch, readings))
        self.epochs.append({**at, "seconds": epoch.seconds, "loss": epoch.loss.item()})
        self.trained_seconds += epoch.seconds

    def add_tape(self, events: Sequence[Event]) -> None:
        """Add the events of a tape, as an epoch after the last one."""
        at = {"epoch": self.epochs[-1]["epoch"] + 1, "rank_id": self.rank}
        for number, event in enumerate(events):
            self.tape.append({**at, "event": number, **event_to_row(event)})

    def add_accuracy(
        self,
        number: int,
        hits: dict[str, SplitAccuracy],
        eval_seconds: float,
        scores: Mapping[str, float] | None = None,
    ) -> None:
        """Add the accuracies of the whole graph, or the scores of a judge; only rank 0 has them."""
        if self.rank:
            return
        for split, (right, of) in hits.items():
            accuracy = right / of if of else None
            if scores is not None:
                accuracy = None if isnan(scores[split]) else scores[split]
            at = {"epoch": number, "train_seconds": self.trained_seconds, "eval_seconds": eval_seconds}
            self.accuracy.append({**at, "split": split, "accuracy": accuracy})

    def elements_by_epoch(self, column: Literal["elements_payload", "elements_received"]) -> dict[int, float]:
        """Return the words of this rank in each timed epoch."""
        epochs, words = self.ledger.column("epoch"), self.ledger.column(column)
        timed = epochs >= 0
        last = max((row["epoch"] for row in self.epochs), default=-1)
        sums = np.bincount(epochs[timed], words[timed], minlength=max(last + 1, 0))
        return {row["epoch"]: float(sums[row["epoch"]]) for row in self.epochs if row["epoch"] >= 0}

    def epoch_with_most_words(self) -> int:
        """Return the timed epoch in which this rank sent most; epochs differ if samples do."""
        words = self.elements_by_epoch("elements_payload")
        return max(words, key=words.__getitem__, default=0)

    def select_epochs(self, epochs: set[int]) -> "RankTables":
        """Return the rows of these epochs."""

        def select(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row["epoch"] in epochs]

        return RankTables(
            self.rank,
            select(self.epochs),
            self.ledger.select_epochs(epochs),
            select(self.accuracy),
            select(self.utilisation),
        )

    def add_memory(self, ctx: Context) -> None:
        peaks = {
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_peak_bytes": peak_memory(ctx.device),
        }
        zeros = dict.fromkeys(peaks, 0)
        self.memory.append({"rank_id": self.rank, "tensor": "", **peaks, "persistent_bytes": 0})
        for name, size in ctx.memory.persistent_bytes().items():
            self.memory.append(
                {"rank_id": self.rank, "tensor": name.value, **zeros, "persistent_bytes": size}
            )


def _make_window_rows(epoch: Epoch, readings: Sequence[Reading]) -> Iterator[Row]:
    """Yield a row for each window, with the last reading of the device's driver before the end of the window."""
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


def entry_to_row(key: Key, amounts: Amounts) -> Row:
    return {**key_to_row(key), **asdict(amounts)}


EVENT_AMOUNTS = ("calls", "elements_payload", "elements_received", "bytes")
"""The amounts of an event that a tape keeps."""


def event_to_row(event: Event) -> Row:
    """Return an event of a tape as a row, without the fields that only a replay sets."""
    counted = {name: getattr(event.amounts, name) for name in EVENT_AMOUNTS}
    order = {name: getattr(event, name) for name in ("cpu_seconds", "leaves", "waits_for", "travels_with")}
    return {**key_to_row(event.key), **counted, **order}


def event_from_row(row: Mapping[str, Any]) -> Event:
    """Return the event in a row."""
    order = {name: row[name] for name in ("cpu_seconds", "leaves", "waits_for", "travels_with")}
    return Event(key_from_row(row), Amounts(**{name: row[name] for name in EVENT_AMOUNTS}), **order)


def key_from_row(row: Mapping[str, Any]) -> Key:
    """Return the ledger key in a row."""
    return Key(
        Phase(row["phase"]),
        row["layer"],
        Direction(row["direction"]),
        Op(row["op"]),
        row["axis"] or None,
        row["peer"],
        TensorName(row["tensor"]) if row["tensor"] else None,
    )


def gather_tables(world: Axis, value: T) -> list[T]:
    """Return the values of all ranks in rank order on rank 0, and an empty list on all other ranks.

    The values are sent over the grid that the ranks already share. Loading them never runs code that they name.
    """
    pickled = BytesIO()
    _TablesWriter(pickled).dump(value)
    data = torch.frombuffer(pickled.getbuffer(), dtype=torch.uint8).to(world.device)
    sizes = world.all_gather(torch.tensor([len(data)], device=world.device), tensor=TensorName.COUNT).tolist()
    receives = {rank: (size,) for rank, size in enumerate(sizes)} if world.index == 0 else {}
    received = world.exchange({0: data}, receives, dtype=torch.uint8, tensor=TensorName.COUNT)
    values = []
    for rank in sorted(received):
        pickled = BytesIO(received.pop(rank).cpu().numpy().tobytes())  # frees the buffer of the rank
        values.append(_TablesReader(pickled).load())
    return values


def _reduce_member(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    return type(member), (member.value,)


class _TablesWriter(pickle.Pickler):
    """Pickles a member of an enum as its class and value, as Python does, except for 3.11.0 to 3.11.3.

    These versions pickle a call of getattr, which `_TablesReader` refuses.
    """

    dispatch_table = copyreg.dispatch_table | dict.fromkeys(ENUMS, _reduce_member)


class _TablesReader(pickle.Unpickler):
    """Unpickles only plain values and the classes in `READABLE`.

    Anyone who can reach the port of a rank can send bytes, and an ordinary unpickler would call any function they name.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in READABLE:
            raise RunError(
                f"A rank sent tables that ask for {module}.{name}, which no rank of the harness sends. Another program "
                "may be writing to the ports of this run: docs/how-to/security.md."
            )
        return super().find_class(module, name)


class Journal:
    """The file to which a rank appends its rows. Each entry holds the rows added since the previous entry."""

    def __init__(self, scratch: Path, tables: RankTables) -> None:
        self._tables, self._written = tables, dict.fromkeys(RUN_TABLES, 0)
        self._path = _journal_path(scratch, tables.rank)

    def write(self) -> None:
        """Write an entry, without waiting for the disk."""
        more = {name: getattr(self._tables, name)[done:] for name, done in self._written.items()}
        with self._path.open("ab") as file:
            _TablesWriter(file).dump(more)
        for name, rows in more.items():
            self._written[name] += len(rows)


def read_unfinished_tables(scratch: Path, world: int) -> list[RankTables]:
    """Return the rows of every rank for the epochs that all ranks finished; empty if a rank has no file."""
    paths = [_journal_path(scratch, rank) for rank in range(world)]
    if not all(path.exists() for path in paths):
        return []
    ranks = [_read_journal(path, rank) for rank, path in enumerate(paths)]
    common = set.intersection(*({row["epoch"] for row in rank.epochs} for rank in ranks))
    return [rank.select_epochs(common) for rank in ranks]


def _read_journal(path: Path, rank: int) -> RankTables:
    """Return the rows of all complete entries; the last entry is incomplete if the rank was killed while writing it."""
    tables = RankTables(rank)
    with path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
        while True:
            for name, rows in _TablesReader(file).load().items():
                getattr(tables, name).extend(rows)
    return tables


def _journal_path(scratch: Path, rank: int) -> Path:
    return scratch / f"unfinished-{rank}"
