"""Neighbour sampling: some training vertices, some neighbours of each, some neighbours of those (GraphSAGE).

An epoch goes through the training vertices once, in an order of its own. Each layer draws anew; a vertex's own loop is
always there, as it is, and the other entries are rescaled, so that a layer's aggregation has the right mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr, from_coo, row_of
from harness.kernels.compact import filled_columns
from harness.kernels.random import Purpose, shuffled
from harness.kernels.sample import MOST, neighbours
from harness.ranges import balanced
from harness.strategy import MiniBatch
from harness.validation import Frozen

Fanouts = tuple[Annotated[int, Field(ge=1, lt=MOST)], ...]


class FanoutParams(Frozen):
    """What samplers of neighbours have."""

    fanouts: Fanouts = Field((15, 10, 5), min_length=1, examples=[[3, 2]])
    """Neighbours that are drawn of a vertex, in the batch's own neighbourhood first; the last for all beyond."""


@dataclass(frozen=True)
class Neighbourhood:
    """So many targets a mini-batch, and so many neighbours of a vertex."""

    seed: int
    size: int
    fanouts: Fanouts
    groups: int
    own: bool = False
    """A group trains its stretch of the targets, ascending; or whatever comes in an order of all of them."""

    def steps(self, targets: int) -> int:
        """In which all groups together come to every target once."""
        return max(1, -(-targets // (self.size * self.groups)))

    def held(self) -> list[Tensor]:
        """Nothing of the graph."""
        return []

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """Where the whole graph is at hand."""

        def draw(layer: int, vertices: Tensor) -> Csr:
            return self.neighbours(A, vertices, vertices, (group, step, layer), layers)

        return self.expand(self.targets(step, group, targets), layers, draw)

    def expand(self, targets: Tensor, layers: int, draw: Callable[[int, Tensor], Csr]) -> MiniBatch:
        """From the output back to the input, layer by layer: `draw` is asked for neighbours of vertices."""
        vertices, found = [targets], list[Csr]()
        for layer in reversed(range(layers)):
            reached, drawn = renumbered(draw(layer, vertices[0]), vertices[0])
            vertices.insert(0, reached)
            found.insert(0, drawn)
        return MiniBatch(vertices, found)

    def neighbours(
        self, A: Csr, rows: Tensor, vertices: Tensor, at: tuple[int, int, int], layers: int
    ) -> Csr:
        """Some of the entries of these rows of A, which are those of these vertices, for a group, step and layer."""
        fanout = fanout_of(self.fanouts, layers - 1 - at[-1])
        return neighbours(A, rows, vertices, fanout, (self.seed, *at), loops=True)

    def targets(self, step: int, group: int, targets: Tensor) -> Tensor:
        """Those of a step, shared out evenly among steps and groups."""
        steps = self.steps(len(targets))
        epoch, turn = divmod(step, steps)
        mine = self.targets_of(group, targets)
        shares, number = (steps, turn) if self.own else (steps * self.groups, turn * self.groups + group)
        share = balanced(len(mine), shares)[number]
        if targets.is_meta:
            return mine[share.start : share.stop]
        seed = (self.seed, epoch, group) if self.own else (self.seed, epoch)
        order = shuffled(seed, Purpose.SAMPLE, range(len(mine)))
        return mine[order[share.start : share.stop]]

    def targets_of(self, group: int, targets: Tensor) -> Tensor:
        """All that a group may train on."""
        if not self.own:
            return targets
        stretch = balanced(len(targets), self.groups)[group]
        return targets[stretch.start : stretch.stop]

    def chance(self, targets: int) -> float:
        """Of one of these to be in a mini-batch of a group."""
        return 1 / (self.steps(targets) * (1 if self.own else self.groups))


def fanout_of(fanouts: Sequence[int], hop: int) -> int:
    """That of a hop away from the batch."""
    return fanouts[min(hop, len(fanouts) - 1)]


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
