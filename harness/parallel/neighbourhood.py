"""Neighbour sampling: some training vertices, some neighbours of each, some neighbours of those (GraphSAGE).

An epoch goes through the training vertices once, in an order of its own. Each layer draws anew; a vertex's own loop is
always there, as it is, and the other entries are rescaled, so that a layer's aggregation has the right mean.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.kernels import Csr, from_coo, row_of
from harness.kernels.compact import filled_columns
from harness.kernels.random import Purpose, shuffled
from harness.kernels.sample import neighbours
from harness.ranges import balanced
from harness.strategy import MiniBatch


@dataclass(frozen=True)
class Neighbourhood:
    """So many targets a mini-batch, and so many neighbours of a vertex."""

    seed: int
    size: int
    fanout: int
    groups: int

    def steps(self, targets: int) -> int:
        """In which all groups together come to every target once."""
        return max(1, -(-targets // (self.size * self.groups)))

    def held(self) -> list[Tensor]:
        """Nothing of the graph."""
        return []

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """From the output back to the input, layer by layer."""
        vertices, found = [self.targets(step, group, targets)], list[Csr]()
        for layer in reversed(range(layers)):
            seed = (self.seed, group, step, layer)
            drawn = neighbours(A, vertices[0], vertices[0], self.fanout, seed, loops=True)
            reached, drawn = renumbered(drawn, vertices[0])
            vertices.insert(0, reached)
            found.insert(0, drawn)
        return MiniBatch(vertices, found)

    def targets(self, step: int, group: int, targets: Tensor) -> Tensor:
        """Those of a step, shared out evenly among steps and groups."""
        steps = self.steps(len(targets))
        epoch, turn = divmod(step, steps)
        share = balanced(len(targets), steps * self.groups)[turn * self.groups + group]
        if targets.is_meta:
            return targets[share.start : share.stop]
        order = shuffled((self.seed, epoch), Purpose.SAMPLE, range(len(targets)))
        return targets[order[share.start : share.stop]]


def renumbered(A: Csr, rows: Tensor) -> tuple[Tensor, Csr]:
    """The vertices in whose columns A has entries, those of its rows first; and A with its columns by their places."""
    filled = filled_columns(A)
    if A.val.is_meta:
        reached = filled.new_empty(min(len(rows) + len(filled), A.cols))
        return reached, A._replace(cols=len(reached))
    reached = torch.cat([rows, filled[~torch.isin(filled, rows)]])
    ascending, order = reached.sort()
    col = order[torch.searchsorted(ascending, A.col.long())]
    return reached, from_coo(row_of(A), col, A.val, (A.rows, len(reached)))
