"""What a part does about the rows of others that it needs: some it computes itself, the others it fetches.

Every rank makes the choice of every part, so nobody has to be told who fetches what.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.errors import UserError
from harness.kernels import Csr
from harness.kernels.closure import Prices, boundary, heights
from harness.parallel.row_requests import inside


class Choice(NamedTuple):
    """One part's."""

    replicas: Tensor
    """Vertices of others whose rows it computes, or at least their features: those that go highest come first."""
    sizes: list[int]
    """How many of them it has at the input of each layer, and at the output, where there are none."""
    fetched: list[Tensor]
    """The vertices whose rows it fetches for each layer, ascending."""

    def at(self, layer: int) -> Tensor:
        """Those of the replicas that are there at the input of a layer."""
        return self.replicas[: self.sizes[layer]]


def choices(A: Csr, blocks: Sequence[range], prices: Prices, share: float | None) -> list[Choice]:
    """Every part's; each takes at most this share of its own vertices of others, or any number."""
    if A.col.is_meta:
        raise UserError(
            "What is worth computing twice hangs on who is whose neighbour, which is not known before the graph is "
            "there: build the dataset (harness data build)."
        )
    return [_choice(A, own, prices, A.rows if share is None else int(share * len(own))) for own in blocks]


def _choice(A: Csr, own: range, prices: Prices, room: int) -> Choice:
    height, layers, needed = heights(A, own, prices, room), len(prices.worth), boundary(A, own)
    of_others = ((height >= 0) & (height < layers)).nonzero()[:, 0]
    replicas = of_others[height[of_others].argsort(descending=True, stable=True)]
    sizes = [int((height[replicas] >= layer).sum()) for layer in range(layers + 1)]
    return Choice(replicas, sizes, [needed[height[needed] < layer] for layer in range(layers)])


def leaving(choices: Sequence[Choice], layer: int, own: range) -> list[Tensor]:
    """Which of a part's own vertices each other fetches for a layer, ascending and counted from its start."""
    return [
        fetched[inside(fetched, own)] - own.start for fetched in (choice.fetched[layer] for choice in choices)
    ]


def arriving(choice: Choice, layer: int, blocks: Sequence[range]) -> list[int]:
    """How many rows come from each part."""
    stops = torch.tensor([block.stop for block in blocks])
    before = torch.searchsorted(choice.fetched[layer], stops)
    return before.diff(prepend=before.new_zeros(1)).tolist()
