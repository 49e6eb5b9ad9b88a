"""What the stages of a calibration share: the device, the times that were measured, and the notes for the reader."""

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeVar

import torch

from harness.device import is_gpu, reset_memory
from harness.doctor.links import make_constant
from harness.doctor.stopwatch import time_work
from harness.ledger.tape import ProductShape
from harness.progress import OnStep, ignore_step
from harness.spec.machine_card import Machine

T = TypeVar("T")


class KernelTime(NamedTuple):
    """A measured time: a kernel with the sizes that it has."""

    kernel: str
    seconds: float
    product: ProductShape | None = None
    bytes: int = 0


@dataclass
class Measuring:
    """What the stages of a calibration share: the device, the times so far, and what was left out."""

    machine: Machine
    device: torch.device
    source: str
    """Where the constants were measured, and when."""
    on_step: OnStep = ignore_step
    times: list[KernelTime] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Facts for the reader that no section of a card holds, and what was left out with the reason."""
    ends: float = inf
    """The time by `time.monotonic` after which no sparse product begins."""

    def attempt(self, what: str, stage: Callable[[], T]) -> T | None:
        """The result of a stage. On a GPU, a stage that fails is left out with a note, and the others go on."""
        if not is_gpu(self.device):
            return stage()
        try:
            return stage()
        except (
            Exception
        ) as error:  # memory ran out, a type is not supported, or whatever else a GPU may answer
            reason = str(error).strip().partition("\n")[0]
            self.notes.append(f"{what} left out: {type(error).__name__}: {reason}")
        reset_memory(self.device)
        return None

    def is_over(self) -> bool:
        """True if no time is left for another sparse product."""
        return time.monotonic() > self.ends

    def seconds(
        self, kernel: str, work: Callable[[], object], product: ProductShape | None = None, moved: int = 0
    ) -> float:
        """Times a kernel and keeps the time."""
        taken = time_work(work, self.device)
        self.times.append(KernelTime(kernel, taken, product, moved))
        return taken

    def constant(self, value: float, within: float, remark: str = "") -> dict[str, Any]:
        """A constant of the card, measured here."""
        return make_constant(value, within, f"{self.source}{f'; {remark}' if remark else ''}")


def format_table(times: Sequence[KernelTime]) -> str:
    """The measured times as CSV, so that other terms can be fitted to them later."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("kernel", *ProductShape._fields, "bytes", "seconds"))
    for each in times:
        shape = each.product or ("",) * len(ProductShape._fields)
        rows.writerow((each.kernel, *shape, each.bytes or "", f"{each.seconds:.6g}"))
    return text.getvalue()


def subtract_launch(seconds: float, launch: float) -> float:
    """The seconds of a kernel's own work. A time that is hardly longer than a launch says little of the work."""
    return max(seconds - launch, seconds / 2)
