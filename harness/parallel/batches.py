"""Which target is in which mini-batch: an epoch goes through the targets once, in an order of its own.

A step trains a batch of every group; the last batches may be short, and in the last step some groups may have none.
"""

from dataclasses import dataclass

from torch import Tensor

from harness.kernels.random import Purpose
from harness.kernels.shuffle import shuffle


@dataclass(frozen=True)
class Batches:
    """So many targets in batches of one size."""

    seed: int
    size: int
    groups: int
    targets: int

    @property
    def count(self) -> int:
        """In an epoch."""
        return -(-self.targets // self.size)

    @property
    def steps(self) -> int:
        """In an epoch; one even if there is nothing to train on."""
        return max(1, -(-self.count // self.groups))

    def number(self, step: int, group: int) -> tuple[int, int]:
        """The epoch of a step and, in it, the number of a group's batch; from `count` on there is none."""
        epoch, turn = divmod(step, self.steps)
        return epoch, turn * self.groups + group

    def of(self, epoch: int, number: int, targets: Tensor) -> Tensor:
        """The targets of a batch."""
        places = range(min(number * self.size, self.targets), min((number + 1) * self.size, self.targets))
        if targets.is_meta or not places:
            return targets[places.start : places.stop]
        return targets[shuffle(self.seed, Purpose.SAMPLE, self.targets, epoch).at(places)]
