"""Replicas of a parameter must stay equal to the bit: a checksum an epoch, compared once the epochs are over.

Comparing later costs no synchronisation between epochs and finds the same epoch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.comm import Grid
from harness.errors import RunError
from harness.strategy import Piece, Strategy


def checksum(weights: Sequence[Tensor]) -> Tensor:
    """One 64-bit number a tensor; any changed bit, and any two exchanged elements, change it."""
    return torch.stack([_sum_of_bits(weight.detach()) for weight in weights])


def _sum_of_bits(weight: Tensor) -> Tensor:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    bits = weight.contiguous().view(-1).view(integer).to(torch.int64)
    place = torch.arange(1, 2 * len(bits), 2, dtype=torch.int64, device=weight.device)
    return (bits * place).sum()


def compare(grid: Grid, strategy: Strategy, epochs: Sequence[Tensor]) -> None:
    """Raises where two ranks that hold the same piece of a weight ever held different bits of it.

    `epochs` are this rank's checksums, oldest first.
    """
    everyone = grid.world.all_gather(torch.stack(epochs).unsqueeze(0)).cpu()
    first: dict[tuple[int, Piece], int] = {}
    for rank in range(strategy.spec.ranks):
        for layer, piece in enumerate(strategy.weights_of(rank)):
            other = first.setdefault((layer, piece), rank)
            differs = everyone[rank, :, layer] != everyone[other, :, layer]
            if differs.any():
                raise RunError(
                    f"Replicas differ: after epoch {int(differs.nonzero()[0])} (warm-up included) ranks {other} and "
                    f"{rank} hold different values of the weight of layer {layer}, of which both hold the same "
                    "piece. The strategy lost a reduction, or the ranks did not start alike."
                )
