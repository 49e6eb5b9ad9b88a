"""After the change to the layout of the transpose, every rank has its blocks of the matrix."""

import pytest
import torch

from harness.base.ranges import split_evenly
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger
from harness.strategies.cagnet.summa import Split3D, redistribute_transposed

ROW, COL, FIBRE = AxisName.ROW, AxisName.COL, AxisName.FIBRE
FEATURES = 5


def trade(layout: Split3D) -> tuple[dict[AxisName, int], torch.Tensor]:
    grid = Grid.build({ROW: layout.rows, COL: layout.cols, FIBRE: layout.fibres}, Ledger())
    i, j, k = grid.coordinates.values()
    rows, cols = layout.rows_of(i, k), split_evenly(FEATURES, layout.cols)[j]
    mine = whole(layout)[rows.start : rows.stop, cols.start : cols.stop]
    return grid.coordinates, redistribute_transposed(mine, FEATURES, layout, k, grid.axis((ROW, COL)))


def whole(layout: Split3D) -> torch.Tensor:
    return torch.arange(layout.vertices * FEATURES).view(-1, FEATURES).double()


@pytest.mark.parametrize(
    "layout",
    [
        Split3D(17, 1, 1),
        Split3D(17, 2, 2),
        Split3D(17, 3, 2),
        Split3D(17, 1, 4),
        Split3D(17, 6, 1),
        Split3D(17, 2, 1, 2),
        Split3D(3, 2, 2, 1, 1),
    ],
    ids=str,
)
def test_every_rank_receives_its_block_of_the_transposed_layout(ranks, layout: Split3D) -> None:
    H = whole(layout)
    for at, piece in ranks(layout.rows * layout.cols * layout.fibres, trade, layout):
        rows = [v for part in layout.columns_of(at[COL], at[FIBRE]) for v in part]
        cols = split_evenly(FEATURES, layout.rows)[at[ROW]]
        assert torch.equal(piece, H[rows][:, cols.start : cols.stop])
