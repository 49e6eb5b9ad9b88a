"""The state that the stages of a calibration share: the device, the measured times, and notes for the reader."""

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeVar

import torch

from harness.base.device import is_gpu, reset_memory
from harness.base.errors import RunError
from harness.base.progress import OnStep, ignore_step
from harness.ledger.tape import ProductShape
from harness.prediction.calibration.links import make_constant
from harness.prediction.calibration.stopwatch import time_work
from harness.spec.machine_card import Machine

T = TypeVar("T")
BOUND_BY_HOST = 0.9
"""A kernel measures the host if issuing it takes this part of its time."""


class KernelTime(NamedTuple):
    """The measured time of a kernel, with its sizes."""

    kernel: str
    seconds: float
    product: ProductShape | None = None
    bytes: int = 0
    issue: float = 0.0
    """The seconds in which the host issues it; 0 if it was not measured, or without a GPU."""

    @property
    def is_bound_by_host(self) -> bool:
        """True if the GPU waits for the host, because the host issues calls more slowly than the GPU executes them."""
        return self.issue > BOUND_BY_HOST * self.seconds


@dataclass
class Calibrator:
    """Runs and times the stages of a calibration, and keeps the times and notes so far."""

    machine: Machine
    device: torch.device
    source: str
    """The source of the constants: where and when they are measured."""
    on_step: OnStep = ignore_step
    times: list[KernelTime] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was skipped and why, and facts that have no place in a section of a card."""
    ends: float = inf
    """The time by `time.monotonic` after which no measurement of a sparse product starts."""

    def try_stage(self, name: str, measure: Callable[[], T]) -> T | None:
        """Return the result of a stage. If it fails on a GPU, add a note and return None."""
        if not is_gpu(self.device):
            return measure()
        try:
            return measure()
        except Exception as error:  # out of memory, an unsupported type, or any other error of a GPU
            reason = str(error).strip().partition("\n")[0]
            self.notes.append(f"{name} left out: {type(error).__name__}: {reason}")
        reset_memory(self.device)
        return None

    def is_time_up(self) -> bool:
        """Return True if no time is left for another sparse product."""
        return time.monotonic() > self.ends

    def time_kernel(
        self, kernel: str, work: Callable[[], object], product: ProductShape | None = None, moved: int = 0
    ) -> KernelTime:
        """Return the time of a kernel, and keep it for the table."""
        taken = time_work(work, self.device)
        self.times.append(KernelTime(kernel, taken.seconds, product, moved, taken.issue))
        return self.times[-1]

    def leave_out_bound_by_host(self, name: str, times: Sequence[KernelTime]) -> list[KernelTime]:
        """Return the times that measure the device, and add a note on the others. Raises RunError if all are others."""
        kept = [each for each in times if not each.is_bound_by_host]
        if times and not kept:
            raise RunError(f"the host takes as long to issue all {len(times)} {name}")
        if len(kept) < len(times):
            self.notes.append(
                f"{len(times) - len(kept)} of {len(times)} {name} left out: the host takes as long to issue them"
            )
        return kept

    def make_constant(self, value: float, within: float, remark: str = "") -> dict[str, Any]:
        """Return a constant of the card with the source of this calibration."""
        return make_constant(value, within, f"{self.source}{f'; {remark}' if remark else ''}")


def format_table(times: Sequence[KernelTime]) -> str:
    """Return the measured times as CSV, so that other terms can be fitted to them later."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("kernel", *ProductShape._fields, "bytes", "seconds", "issue_seconds"))
    for each in times:
        shape = each.product or ("",) * len(ProductShape._fields)
        rows.writerow((each.kernel, *shape, each.bytes or "", f"{each.seconds:.6g}", f"{each.issue:.6g}"))
    return text.getvalue()


def subtract_launch(seconds: float, launch: float) -> float:
    """Return the seconds of a kernel without its launch, but at least half of them, as the launch is not exact."""
    return max(seconds - launch, seconds / 2)
