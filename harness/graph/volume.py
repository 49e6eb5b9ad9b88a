"""What a partition costs where rows are exchanged as they are needed: rows of H that a part must get from others.

An aggregation sends each of them once, so times the width of H these are its words. Sending whole blocks, as the
sparsity-oblivious algorithms do, costs each part all rows but its own, whatever the partition.
Verifier (tests/graph/test_volume.py): distinct columns counted by scipy.
"""

from harness.kernels.csr import Csr, block
from harness.kernels.parts import filled_columns
from harness.ranges import between


def volumes(A: Csr, bounds: tuple[int, ...]) -> list[int]:
    """For each part the rows of other parts it needs; A stands in the order of the partition."""
    assert bounds[0] == 0 and bounds[-1] == A.rows == A.cols, (bounds, A.shape)
    return [needed(block(A, rows, range(A.cols)), rows) for rows in between(bounds)]


def needed(A: Csr, own: range) -> int:
    """Columns outside `own` in which these rows have a nonzero."""
    filled = filled_columns(A)
    return int(((filled < own.start) | (filled >= own.stop)).sum())
