"""The work and the communication of each part of a store, counted block by block: no array holds the whole graph.

Verifier (tests/store/test_cut.py): `harness.graph.partitions.partition` on the whole matrix.
"""

from functools import partial

import numpy as np

from harness.base.ranges import intersect_ranges, ranges_between
from harness.graph.builders.store_build import EDGES, StoreBuild
from harness.graph.store.manifest import Cut


def compute_cut(build: StoreBuild) -> Cut | None:
    """Count the nonzeros of every part and the remote rows that it needs; None without a partition.

    All blocks must be complete.
    """
    bounds = build.order.bounds
    if bounds is None:
        return None
    nonzeros_before = np.concatenate([[0], np.cumsum(build.staging.map_array("degrees/0"), dtype=np.int64)])
    nonzeros = np.diff(nonzeros_before[list(bounds)]).tolist()
    jobs = [partial(_count_needed_rows, build, part) for part in ranges_between(bounds)]
    needed = build.resources.run_parallel("counting what parts exchange", jobs)
    cut = Cut(bounds=bounds, nonzeros=tuple(nonzeros), needed=tuple(needed))
    if build.order.copies is None:
        return cut
    entries = np.bincount(build.staging.map_array(EDGES), minlength=len(bounds) - 1).tolist()
    return cut.model_copy(update={"entries": tuple(entries), "copies": build.order.copies})


def _count_needed_rows(build: StoreBuild, part: range) -> int:
    """Count the columns outside the part in which its rows have a nonzero."""
    return sum(_count_in_block_column(build, part, j) for j in range(build.grid.vertices))


def _count_in_block_column(build: StoreBuild, part: range, j: int) -> int:
    """Count these columns in column `j` of the block grid."""
    cols = build.block_ranges[j]
    is_filled = np.zeros(len(cols), bool)
    for i, block in enumerate(build.block_ranges):
        if rows := intersect_ranges(block, part):
            name = f"adjacency/0/{i}-{j}"
            rowptr = build.staging.map_array(f"{name}.rowptr")
            first, last = rowptr[rows.start - block.start], rowptr[rows.stop - block.start]
            is_filled[build.staging.map_array(f"{name}.col")[first:last]] = True
    inside = intersect_ranges(cols, part)
    is_filled[inside.start - cols.start : inside.stop - cols.start] = False
    return int(is_filled.sum())
