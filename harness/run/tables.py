"""One rank's share of a run's tables, as plain rows. They travel to rank 0 and become data frames there."""

import resource
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from harness.ledger import Amounts, Key
from harness.models import Hits
from harness.run.fault import Fault
from harness.run.provenance import Affinity
from harness.run.trainer import Epoch
from harness.run.utilisation import Reading, last_said
from harness.strategy import Context, RemoteRows

Row = dict[str, Any]


@dataclass
class RankTables:
    """The rows of one rank. Warm-up epochs have negative numbers."""

    rank: int
    epochs: list[Row] = field(default_factory=list)
    ledger: list[Row] = field(default_factory=list)
    accuracy: list[Row] = field(default_factory=list)
    utilisation: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    words_formula: float = 0
    """Payload words of the dearest epoch, by the strategy's own account."""
    chosen: dict[str, str] = field(default_factory=dict)
    """What this rank chose by measuring."""
    remote: RemoteRows = field(default_factory=RemoteRows)
    """What its mini-batches needed of others in timed epochs."""
    affinity: Affinity | None = None
    """Where it ran."""
    fault: Fault | None = None
    """Why training that came to its end is no result: it diverged."""

    def add_epoch(self, number: int, epoch: Epoch, readings: Sequence[Reading]) -> None:
        """The row of the epoch comes last: where it stands, the epoch's other rows are whole."""
        at = {"epoch": number, "rank": self.rank}
        self.ledger.extend({**at, **entry(key, amounts)} for key, amounts in epoch.entries.items())
        self.utilisation.extend({**at, **row} for row in _windows(epoch, readings))
        self.epochs.append({**at, "seconds": epoch.seconds, "loss": epoch.loss.item()})

    def add_accuracy(self, number: int, hits: dict[str, Hits], eval_seconds: float) -> None:
        """Accuracies are the whole graph's, so one rank's rows are enough."""
        if self.rank:
            return
        trained = sum(row["seconds"] for row in self.epochs)
        for split, (right, of) in hits.items():
            accuracy = right / of if of else None
            at = {"epoch": number, "train_seconds": trained, "eval_seconds": eval_seconds}
            self.accuracy.append({**at, "split": split, "accuracy": accuracy})

    def dearest_epoch(self) -> int:
        """The timed epoch in which this rank sent most; they differ where samples do."""
        sent: dict[int, float] = {row["epoch"]: 0.0 for row in self.epochs if row["epoch"] >= 0}
        for row in self.ledger:
            if row["epoch"] in sent:
                sent[row["epoch"]] += row["words_payload"]
        return max(sent, key=sent.__getitem__, default=0)

    def only(self, epochs: set[int]) -> "RankTables":
        """The rows of these epochs."""

        def kept(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row["epoch"] in epochs]

        return RankTables(
            self.rank, kept(self.epochs), kept(self.ledger), kept(self.accuracy), kept(self.utilisation)
        )

    def add_memory(self, ctx: Context) -> None:
        peaks = {
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_peak_bytes": torch.cuda.max_memory_allocated() if ctx.device.type == "cuda" else 0,
        }
        nothing = dict.fromkeys(peaks, 0)
        self.memory.append({"rank": self.rank, "tensor": "", **peaks, "persistent_bytes": 0})
        for name, size in ctx.memory.persistent_bytes().items():
            self.memory.append({"rank": self.rank, "tensor": name.value, **nothing, "persistent_bytes": size})


def _windows(epoch: Epoch, readings: Sequence[Reading]) -> Iterator[Row]:
    """Windows in order, each with what the device's driver had last said when it was over."""
    over = epoch.begun
    for number, (seconds, computing, communicating) in enumerate(epoch.windows):
        over += seconds
        yield {
            "window": number,
            "seconds": seconds,
            "computing_seconds": computing,
            "communicating_seconds": communicating,
            "device_percent": last_said(readings, over),
        }


def entry(key: Key, amounts: Amounts) -> Row:
    return {
        "layer": key.layer,
        "direction": key.direction.value,
        "phase": key.phase.value,
        "op": key.op.value,
        "axis": key.axis or "",
        "peer": key.peer,
        "tensor": key.tensor.value if key.tensor else "",
        **asdict(amounts),
    }
