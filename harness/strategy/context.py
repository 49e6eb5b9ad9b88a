"""A strategy's view of its run on one rank.

A strategy reads pieces of the graph from `blocks`, keeps tensors in `memory`, computes with `kernels`, communicates
over the axes of `grid`, and records choices and counts in `measured`. Numbers that change from step to step and that
kernels read come from `numbers`, so that a CUDA graph of one step can be replayed for all steps.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.comm.layout import Coordinates
from harness.graph.averaged import select_adjacency
from harness.graph.blocks import Blocks
from harness.graph.shared_blocks import SharedBlocks
from harness.kernels.recorded import Kernels, autotune
from harness.kernels.step_numbers import StepNumbers
from harness.spec.spec import Spec
from harness.strategy.facts import Facts
from harness.strategy.memory import DeviceMemory
from harness.strategy.rank_blocks import RankBlocks


@dataclass
class RemoteRows:
    """The number of feature rows of other ranks that mini-batches needed."""

    rows: int = 0
    cached: int = 0
    """The number of these rows that a cache held."""

    def reset(self) -> None:
        """Reset the counts to zero."""
        self.rows = self.cached = 0


class Measurements:
    """Choices and counts of one rank, for the run's record."""

    def __init__(self, device: torch.device, chosen: Mapping[str, str]) -> None:
        self.chosen = dict(chosen)
        """What was chosen, by measurement or by the strategy, by the name of the choice."""
        self.remote = RemoteRows()
        self._device = device

    def choose_fastest(self, choice: str, variants: Mapping[str, Callable[[], object]]) -> str:
        """Return the name of the variant that is fastest on this device; on meta tensors, the first.

        A choice from an earlier run is kept.
        """
        if choice not in self.chosen:
            self.chosen[choice] = autotune(variants, self._device)
        return self.chosen[choice]


Once = Callable[[Hashable, Callable[[], Sequence[Tensor]]], Sequence[Tensor]]
"""Computes tensors under a key, once for all ranks that are replayed (`Context.once`)."""


def compute_every_time(_: Hashable, compute: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """Compute the tensors, whatever the key."""
    return compute()


class Context:
    """One rank's view of its run."""

    def __init__(
        self, spec: Spec, facts: Facts, grid: Grid, blocks: Blocks, chosen: Mapping[str, str] | None = None
    ) -> None:
        """Create a context; `chosen` are the choices of an earlier run, which are not measured again."""
        self.spec, self.facts, self.grid, self.ledger = spec, facts, grid, grid.ledger
        self.device = grid.device
        self.dtype: torch.dtype = getattr(torch, spec.precision)
        self.kernels = Kernels(grid.ledger)
        self.numbers = StepNumbers(self.device)
        self.measured = Measurements(self.device, chosen or {})
        self.memory = DeviceMemory(
            self.device,
            self.dtype,
            self.measured.choose_fastest,
            has_own_memory=spec.machine.device != "cpu",
        )
        self.blocks = RankBlocks(spec, facts, select_adjacency(blocks, spec.model.kind), self.memory)
        self._shared = blocks if isinstance(blocks, SharedBlocks) else None

    @property
    def at(self) -> Coordinates:
        """The coordinates of this rank on the grid."""
        return self.grid.coordinates

    def compute_once(self, key: Hashable, compute: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Return read-only host tensors that are equal on every rank, computed once when several ranks are replayed.

        No rank is charged for them: in a run they are computed before the first epoch, or other ranks send them. `key`
        identifies everything that they depend on besides the graph, the model and the targets.
        """
        if self._shared is None or self.device.type != "meta":
            return compute()
        whole_key = key, self.spec.model.kind, self.spec.precision, self.spec.protocol
        known: Sequence[Tensor] | None = self._shared.get_result(whole_key)
        if known is None:
            # Without dispatch: the meter of a replay counts nothing here, but would take most of the time.
            with self.ledger.simulating_peers(), torch._C._DisableTorchDispatch():
                known = compute()
            self._shared.add_result(whole_key, known, _count_storage_bytes(known))
        return known


def _count_storage_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the storage of tensors. Storage that tensors share counts once."""
    memory = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(memory.values())
