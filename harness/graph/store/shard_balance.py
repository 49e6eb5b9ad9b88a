"""The balance of the nonzeros of a graph over shards, in each order that its vertices can have.

A single permutation spreads every edge but leaves all loops in the shards on the diagonal: the largest of g x g shards
has (nnz - n + g n) / nnz times the mean. A double permutation spreads the loops too. No permutation evens out degrees:
the row of a hub stays in one row of shards.
Verifier (tests/store/test_balance.py): the permuted matrix, cut by scipy.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.base.progress import OnStep, ignore_step
from harness.graph.blocks import Blocks, read_row_stripes
from harness.graph.order import make_orders
from harness.kernels.csr import row_indices


class ShardBalance(NamedTuple):
    """The nonzeros of the largest shard over the mean, in one order."""

    order: str
    most_over_mean: float


class ShardOfVertex(NamedTuple):
    """The row of shards and the column of shards of every vertex."""

    rows: Tensor
    cols: Tensor


def measure_shard_balance(
    blocks: Blocks, shards: int, seed: int = 0, on_step: OnStep = ignore_step
) -> list[ShardBalance]:
    """Measure the balance over shards x shards blocks of ceil(n / shards) vertices. The graph is not permuted yet."""
    assert blocks.permutation == "none", blocks.permutation
    assert blocks.bounds is None, blocks.bounds
    by_order = {kind: _assign_shards(kind, blocks.n, shards, seed) for kind in ("none", "single", "double")}
    counts = {kind: torch.zeros(shards * shards, dtype=torch.int64) for kind in by_order}
    loops = torch.zeros(shards * shards, dtype=torch.int64)
    for rows, A in read_row_stripes(blocks, range(blocks.n)):
        on_step(rows.start, blocks.n, "counting entries, vertex by vertex")
        row, col = row_indices(A) + rows.start, A.col.long()
        for kind, at in by_order.items():
            counts[kind] += torch.bincount(at.rows[row] * shards + at.cols[col], minlength=shards**2)
        at = by_order["single"]
        diagonal = row[row == col]
        loops += torch.bincount(at.rows[diagonal] * shards + at.cols[diagonal], minlength=shards**2)
    counts["single, loops apart"] = counts["single"] - loops
    return [ShardBalance(kind, _divide_max_by_mean(count)) for kind, count in counts.items()]


def expect_loop_imbalance(n: int, nonzeros: int, shards: int) -> float:
    """Return the expected largest shard over the mean, for a single permutation of a graph without hubs."""
    return (nonzeros - n + shards * n) / nonzeros


def _assign_shards(kind: str, n: int, shards: int, seed: int) -> ShardOfVertex:
    p, q = make_orders(kind, n, seed)  # type: ignore[arg-type]
    shard = torch.arange(n) // -(-n // shards)
    rows, cols = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=torch.int64)
    rows[p], cols[q] = shard, shard
    return ShardOfVertex(rows, cols)


def _divide_max_by_mean(counts: Tensor) -> float:
    total = int(counts.sum())
    return int(counts.max()) * len(counts) / total if total else 1.0
