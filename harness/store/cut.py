"""What a partition makes of a graph, counted in the blocks of its store: none of it is ever whole in memory.

Verifier (tests/store/test_cut.py): `harness.graph.volume` of the whole matrix.
"""

from functools import partial

import numpy as np

from harness.ranges import between, common
from harness.store.manifest import Cut
from harness.store.task import Task


def cut_of(task: Task) -> Cut | None:
    """Nonzeros of every part, and the rows it needs of others; None without a partition. All blocks are there."""
    bounds = task.order.bounds
    if bounds is None:
        return None
    before = np.concatenate([[0], np.cumsum(task.work.array("degrees/0"), dtype=np.int64)])
    nonzeros = np.diff(before[list(bounds)]).tolist()
    given = [partial(_needed, task, own) for own in between(bounds)]
    needed = task.means.in_parallel("counting what parts exchange", given)
    return Cut(bounds=bounds, nonzeros=tuple(nonzeros), needed=tuple(needed))


def _needed(task: Task, own: range) -> int:
    """Columns outside the part in which its rows have a nonzero, a column of blocks at a time."""
    return sum(_needed_of(task, own, j) for j in range(task.grid.vertices))


def _needed_of(task: Task, own: range, j: int) -> int:
    cols = task.ranges[j]
    filled = np.zeros(len(cols), bool)
    for i, block in enumerate(task.ranges):
        if rows := common(block, own):
            name = f"adjacency/0/{i}-{j}"
            ends = task.work.array(f"{name}.rowptr")
            first, last = ends[rows.start - block.start], ends[rows.stop - block.start]
            filled[task.work.array(f"{name}.col")[first:last]] = True
    inside = common(cols, own)
    filled[inside.start - cols.start : inside.stop - cols.start] = False
    return int(filled.sum())
