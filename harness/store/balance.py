"""How evenly the nonzeros of a graph fall into shards, in each order that its vertices can have.

A single permutation spreads every edge and leaves all loops in the shards on the diagonal: the fullest of g x g shards
has (nnz - n + g n) / nnz times the mean. A double permutation spreads the loops too. What none of them evens out is
degree: a star stays a star. Verifier (tests/store/test_balance.py): the permuted matrix, cut by scipy.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.graph.order import orders
from harness.kernels.csr import row_of
from harness.store.blocks import Blocks, stripes


class Balance(NamedTuple):
    """The fullest shard over the mean, in one order."""

    order: str
    most_over_mean: float


class Positions(NamedTuple):
    """The shard of every vertex as a row, and as a column."""

    rows: Tensor
    cols: Tensor


def balance(blocks: Blocks, shards: int, seed: int = 0) -> list[Balance]:
    """Of a graph in its original order, for shards x shards blocks of ceil(n / shards) vertices."""
    assert blocks.permutation == "none", blocks.permutation
    assert blocks.bounds is None, blocks.bounds
    by_order = {kind: _positions(kind, blocks.n, shards, seed) for kind in ("none", "single", "double")}
    counts = {kind: torch.zeros(shards * shards, dtype=torch.int64) for kind in by_order}
    loops = torch.zeros(shards * shards, dtype=torch.int64)
    for rows, A in stripes(blocks, range(blocks.n)):
        row, col = row_of(A) + rows.start, A.col.long()
        for kind, at in by_order.items():
            counts[kind] += torch.bincount(at.rows[row] * shards + at.cols[col], minlength=shards**2)
        at = by_order["single"]
        itself = row[row == col]
        loops += torch.bincount(at.rows[itself] * shards + at.cols[itself], minlength=shards**2)
    counts["single, loops apart"] = counts["single"] - loops
    return [Balance(kind, _most_over_mean(count)) for kind, count in counts.items()]


def law_of_loops(n: int, nonzeros: int, shards: int) -> float:
    """What is to be expected of a single permutation of a graph without hubs."""
    return (nonzeros - n + shards * n) / nonzeros


def _positions(kind: str, n: int, shards: int, seed: int) -> Positions:
    p, q = orders(kind, n, seed)  # type: ignore[arg-type]
    shard = torch.arange(n) // -(-n // shards)
    rows, cols = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=torch.int64)
    rows[p], cols[q] = shard, shard
    return Positions(rows, cols)


def _most_over_mean(counts: Tensor) -> float:
    total = int(counts.sum())
    return int(counts.max()) * len(counts) / total if total else 1.0
