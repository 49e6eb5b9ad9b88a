"""Neighbour sampling of a graph in block rows: who needs neighbours of a vertex asks its owner, who draws them.

What is drawn of a vertex is a function of group, step, layer and vertex (`harness.kernels.sample`), so the owner draws
what the group would have drawn from the whole graph. A vertex is asked for once a layer; only what was drawn travels.
"""

from collections.abc import Sequence

from torch import Tensor

from harness.comm.axis import Axis
from harness.errors import UserError
from harness.kernels import Csr
from harness.kernels.assemble import below
from harness.kernels.spgemm import select_rows
from harness.parallel.asking import ask, by_owner, inside, inverse
from harness.parallel.asking_rows import rows_from_owners
from harness.parallel.neighbourhood import Neighbourhood
from harness.strategy import MiniBatch


class OwnedRows:
    """One rank's block row of the graph, and the way to the others', for a group a rank."""

    def __init__(
        self,
        A_NK: Csr,
        blocks: Sequence[range],
        over: Axis,
        neighbourhood: Neighbourhood,
        layers: int,
        whole: Csr | None = None,
    ) -> None:
        """`whole` is all of A, in a replay."""
        if A_NK.val.is_meta:
            raise UserError(
                "Sampling a partitioned graph cannot be replayed by facts alone: what is sent hangs on the neighbours "
                "that are drawn. Build the dataset, or take graphsage, which has the graph on every rank."
            )
        self.A, self.blocks, self.over, self.whole = A_NK, blocks, over, whole
        self.neighbourhood, self.layers = neighbourhood, layers
        self.start = blocks[over.index].start

    def mini_batch(self, step: int, targets: Tensor, others: Sequence[MiniBatch]) -> MiniBatch:
        """This rank's; `others` are everybody's, in a replay."""

        here = self.blocks[self.over.index]

        def draw(layer: int, vertices: Tensor) -> Csr:
            needed = [batch.vertices[layer + 1] for batch in others]
            asking = [vertices[inside(vertices, here)] for vertices in needed]
            return self._drawn(step, layer, vertices, asking)

        mine = self.neighbourhood.targets(step, self.over.index, targets)
        return self.neighbourhood.expand(mine, self.layers, draw)

    def _drawn(self, step: int, layer: int, vertices: Tensor, asking: Sequence[Tensor]) -> Csr:
        """Neighbours of these vertices, in their order."""
        order, counts = by_owner(vertices, self.blocks)
        named = vertices[order]
        asked = ask(self.over, self.blocks, named.to(self.over.device), counts, lambda: asking)
        leaving = [
            self._of_mine(rows, (group, step, layer))
            for group, rows in enumerate(asked.coming.cpu().split(asked.asked))
        ]
        at = self.over.index, step, layer
        mine = self._of_mine(named[asked.before :][: counts[self.over.index]] - self.start, at)
        known = None
        if self.whole is not None:
            known = self.neighbourhood.neighbours(self.whole, named, named, at, self.layers)
        drawn = rows_from_owners(asked, below(leaving), mine, known)
        return select_rows(drawn, inverse(order))

    def _of_mine(self, rows: Tensor, at: tuple[int, int, int]) -> Csr:
        """Drawn of some rows of this rank's block."""
        return self.neighbourhood.neighbours(self.A, rows, rows + self.start, at, self.layers)
