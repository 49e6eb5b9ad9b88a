"""What sampling a partitioned graph says, as a formula over samples: their vertices and entries are counted.

Of a product, in the grid column: how many rows, which, how long, their columns and values, of the rows that grid row i
needs of this column's block rows and that are not its own. In the grid row: what was sampled, and LADIES' masses.
"""

from typing import Protocol

import torch
from torch import Tensor

from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.ranges import balanced
from harness.strategy import Coordinates, MiniBatch, Words

ROW, COL = AxisName.ROW, AxisName.COL


class Sampler(Protocol):
    """What the formula needs to know of a strategy."""

    grid: dict[AxisName, int]

    @property
    def layers(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def at_once(self) -> int: ...

    @property
    def layer_wise(self) -> bool: ...

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch: ...

    def together(self, row: int) -> list[int]: ...

    def blocks(self) -> list[range]: ...

    def rows(self, at: Coordinates) -> range: ...


def say_sampling(
    words: Words, strategy: Sampler, at: Coordinates, A: Csr, targets: Tensor, epoch: int
) -> None:
    """Of all bulks of an epoch."""
    steps = strategy.steps
    at_once = strategy.at_once
    for first in range(0, steps, at_once):
        turns = [epoch * steps + turn for turn in range(first, min(first + at_once, steps))]
        drawn = [
            [
                strategy.mini_batch(step, group, A, targets)
                for step in turns
                for group in strategy.together(row)
            ]
            for row in range(strategy.grid[ROW])
        ]
        for hop in range(strategy.layers):
            say_product(words, strategy, at, A, [[one.vertices[-1 - hop] for one in row] for row in drawn])
            say_grid_row(words, strategy, A, drawn[at[ROW]], hop)


def say_product(words: Words, strategy: Sampler, at: Coordinates, A: Csr, rows: list[list[Tensor]]) -> None:
    """`rows` are the vertices of every grid row's batches."""
    blocks, own = strategy.blocks(), strategy.rows(at)
    asked_of = [blocks[q] for q in balanced(len(blocks), strategy.grid[COL])[at[COL]]]
    needed = [set(torch.cat(vertices).tolist()) for vertices in rows]
    wanted = [v for v in needed[at[ROW]] if v not in own and any(v in block for block in asked_of)]
    asked = sum(len(needed[row] & set(own)) for row in range(len(rows)) if row != at[ROW] and own in asked_of)
    entries = int(A.rowptr.diff()[wanted].sum())
    for tensor, number in (
        (TensorName.COUNT, len(blocks) + len(wanted)),
        (TensorName.INDEX, asked + entries),
        (TensorName.A, entries),
    ):
        words.put(Direction.FORWARD, -1, Op.ALL_TO_ALL, ROW, tensor, number)


def say_grid_row(words: Words, strategy: Sampler, A: Csr, drawn: list[MiniBatch], hop: int) -> None:
    """Of the batches of this rank's grid row."""
    sampled = sum(one.A[-1 - hop].nnz for one in drawn)
    counted = sum(len(one.vertices[-1 - hop]) for one in drawn)
    indices, masses = sampled, 0
    if strategy.layer_wise:
        masses = sum(_reached(strategy, A, one.vertices[-1 - hop]) for one in drawn)
        counted, indices = counted + len(drawn) * strategy.grid[COL], indices + masses
    for tensor, number in (
        (TensorName.COUNT, counted),
        (TensorName.INDEX, indices),
        (TensorName.A, sampled),
        (TensorName.CHANCE, masses),
    ):
        words.put(Direction.FORWARD, -1, Op.ALL_GATHER, COL, tensor, number)


def _reached(strategy: Sampler, A: Csr, vertices: Tensor) -> int:
    """Neighbours of a batch, once for every rank of the grid row that has some of its rows."""
    blocks = strategy.blocks()
    total = 0
    for stages in balanced(len(blocks), strategy.grid[COL]):
        here = [v for v in vertices.tolist() if any(v in blocks[q] for q in stages)]
        total += len({c for v in here for c in A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist()})
    return total
