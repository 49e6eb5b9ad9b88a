"""From H, cut by vertices over grid rows and by features over grid columns, to the layout of its transpose.

Afterwards grid row a has its share of the features, of the vertices at which its grid column has columns of A: what a
product H^T S by SUMMA starts from. On a square grid every rank trades with the one across the diagonal; on others with
all whose pieces meet. Verifier (tests/parallel/test_transposition.py): the pieces of a whole matrix.
"""

from itertools import accumulate, product

from torch import Tensor

from harness.comm.axis import Axis
from harness.ledger import Op, TensorName
from harness.parallel.summa import Split3D
from harness.ranges import balanced, common


def transposed_layout(H_NF: Tensor, features: int, layout: Split3D, k: int, plane: Axis) -> Tensor:
    """The rows of H at `layout.columns_of(j, k)`, one after the other, of the features of grid row i."""
    i, j = divmod(plane.index, layout.cols)
    down, across = balanced(features, layout.rows), balanced(features, layout.cols)
    meetings = layout.meetings(k)
    sends, receives = {}, {}
    here, left = layout.rows_of(i, k).start, across[j].start
    for peer, (a, c) in enumerate(product(range(layout.rows), range(layout.cols))):
        rows, cols = meetings.get((i, c), range(0)), common(down[a], across[j])
        if rows and cols:
            sends[peer] = H_NF[rows.start - here : rows.stop - here, cols.start - left : cols.stop - left]
        rows, cols = meetings.get((a, j), range(0)), common(down[i], across[c])
        if rows and cols:
            receives[peer] = rows, cols
    shapes = {peer: (len(rows), len(cols)) for peer, (rows, cols) in receives.items()}
    arrived = plane.exchange(sends, shapes, dtype=H_NF.dtype, tensor=TensorName.H)
    heights = [len(meetings.get((a, j), ())) for a in range(layout.rows)]
    with plane.ledger.op(Op.COPY, tensor=TensorName.H):
        H_KF, tops = H_NF.new_empty((sum(heights), len(down[i]))), [0, *accumulate(heights)]
        for peer, (rows, cols) in receives.items():
            top, left = tops[peer // layout.cols], cols.start - down[i].start
            H_KF[top : top + len(rows), left : left + len(cols)] = arrived[peer]
    return H_KF
