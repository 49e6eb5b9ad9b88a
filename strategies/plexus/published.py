"""What the authors' code sends, with its padding: the account that ours is held against.

Counted in their code on three grids, this table was right to the word. Letters as in `plexus`.
"""

from collections.abc import Sequence

from harness.ledger import AxisName, Direction, Op, TensorName
from harness.parallel.roles import Roles, roles_of
from harness.strategy import Words


def words_of_the_authors(
    grid: dict[AxisName, int], first: Roles, vertices: int, shapes: Sequence[tuple[int, int]]
) -> Words:
    """Payload words of an epoch; all ranks send the same, as all blocks are padded to the largest."""
    words = Words(grid)
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    for layer, (d, e) in enumerate(shapes):
        R, S, T = roles_of(layer, first)
        r, s, t = grid[R], grid[S], grid[T]
        N, K = -(-vertices // r), -(-vertices // s)
        sharded = layer == 0 or -(-d // t) % r == 0  # else W is whole along R, and its gradient summed
        F = -(-d // (t * r)) * r if sharded else -(-d // t)
        H = -(-e // s)
        if layer == 0:
            words.put(forward, layer, Op.ALL_GATHER, R, TensorName.X, K * F)
        words.put(forward, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
        words.put(forward, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
        if sharded:
            words.put(forward, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
            words.put(backward, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
        gradient = Op.REDUCE_SCATTER if sharded else Op.ALL_REDUCE
        words.put(backward, layer, gradient, R, TensorName.DW, F * H)
        words.put(backward, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
        if layer == 0:
            words.put(backward, layer, Op.REDUCE_SCATTER, R, TensorName.DX, K * F)
        else:
            words.put(backward, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)
    words.put(forward, -1, Op.ALL_REDUCE, S, TensorName.Z, 3 * N)
    words.put(forward, -1, Op.ALL_REDUCE, R, TensorName.LOSS, 1)
    return words
