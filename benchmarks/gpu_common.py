"""What the parts of benchmarks/gpu.py have in common: the form of a part, the sizes of graphs, one rank's trainer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measuring import spec_of, trainer_of
from harness.comm.engine import Engine, select_device
from harness.registry import load_strategy, registered_strategies
from harness.runtime.trainer import Trainer

Row = Sequence[object]


class BrokenLawError(Exception):
    """A law does not hold. The message says which, and what was found."""


class Size(NamedTuple):
    """How large the graphs are, and where parts leave files."""

    dataset: str
    epochs: tuple[str, ...]
    """The datasets of serial training beside PyG."""
    scale: int
    """Graphs that are no dataset have 2^scale vertices."""
    copied: int
    """Numbers in the copy whose speed is the bound."""
    dense: int
    batch: int
    folder: Path = Path()


FULL = Size("rmat-17", ("sbm-4096", "rmat-17", "rmat-21"), 20, 1 << 28, 8192, 4096)
QUICK = Size("tiny-rmat", ("tiny-sbm",), 8, 1 << 16, 64, 64)


@dataclass(frozen=True)
class Part:
    """A question with one table: the rows of each item."""

    question: str
    columns: tuple[str, ...]
    items: Callable[[Size], Sequence[str]]
    measure: Callable[[str, Size], Iterator[Row]]
    share: float
    """The share of a call's time after which no further item is started."""
    each: float = 60.0
    """The seconds that an item may take."""
    shared: bool = True
    """True for laws, which other processes may disturb; a measurement has the GPU alone."""
    processes: bool = False
    """True if each item has its own process, several at a time."""
    stores: bool = False
    """True if the part opens graphs that the part `data` builds."""


def device() -> torch.device:
    return select_device(Engine.NCCL, 0)


@cache
def strategies(*first: str) -> tuple[str, ...]:
    """The names of all strategies, some of them first."""
    return (*first, *sorted({entry.name for entry in registered_strategies()} - set(first)))


def full_graph_strategies(_size: Size) -> list[str]:
    return [name for name in strategies("serial") if not load_strategy(name).mini_batches]


def asked_of(name: str, size: Size) -> dict[str, Any]:
    asked = {
        "strategy": {"name": name},
        "dataset": size.dataset,
        "ranks": 1,
        "model": {"order": "aggregate_first"},
        "machine": "local-gpu",
    }
    if load_strategy(name).mini_batches:
        asked["training"] = {"batch": size.batch}
    return asked


def trainer_alone(name: str, size: Size) -> Trainer:
    return trainer_of(spec_of(asked_of(name, size)), device=device())
