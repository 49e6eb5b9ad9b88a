"""RMSNorm over split columns, ReLU and dropout, fused or not, equal torch's on full rows."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from harness.base.errors import UserError
from harness.base.ranges import split_evenly
from harness.comm.grid import Grid
from harness.kernels.recorded import Kernels
from harness.ledger import AxisName, Ledger
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.norm import Epilogue, NormPlan, normalise_rows, require_compiler
from harness.strategy.parallel.row_strategy import EPSILON
from tests.compiler import needs_compiler

X, Y = AxisName.X, AxisName.Y
N, H = 13, 7


def whole(relu: bool, dropout: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    drawn = torch.Generator().manual_seed(3)
    Z, dH = (torch.randn(N, H, generator=drawn, dtype=torch.float64) for _ in range(2))
    gamma = torch.linspace(-1, 2, H, dtype=torch.float64)[None]
    kept = torch.rand(N, H, generator=drawn) < 0.6 if dropout else None
    return Z, gamma, dH, kept


def split_over(relu: bool, dropout: bool, fused: bool, overlap: bool, shape: dict[AxisName, int]) -> Any:
    """Return the largest errors of this rank's output and gradients compared with slices of the full ones."""
    grid = Grid.build(shape, Ledger())
    Z, gamma, dH, kept = whole(relu, dropout)
    rows = split_evenly(N, shape[X])[grid.coordinates[X]]
    cols = split_evenly(H, shape[Y])[grid.coordinates[Y]]
    piece = slice(rows.start, rows.stop), slice(cols.start, cols.stop)
    mine = Z[piece].clone().requires_grad_()
    scale = gamma[:, piece[1]].clone().requires_grad_()
    gradients = Gradients(grid.axis(()), overlap=overlap)
    epilogue = Epilogue(H, relu, None if kept is None else kept[piece], 1 / 0.6 if dropout else 1.0)
    plan = NormPlan(grid[Y], grid[X], gradients, fused)
    out = normalise_rows(Kernels(grid.ledger), mine, scale, epilogue, plan)
    out.backward(dH[piece])
    gradients.reduce_gradients([scale])
    Z, gamma = Z.requires_grad_(), gamma.requires_grad_()
    theirs = rms_norm(Z, (H,), gamma[0], EPSILON)
    theirs = theirs.relu() if relu else theirs
    theirs = theirs if kept is None else torch.where(kept, theirs / 0.6, 0)
    theirs.backward(dH)
    pairs = [(out, theirs[piece]), (mine.grad, Z.grad[piece]), (scale.grad, gamma.grad[:, piece[1]])]
    return [float((a - b).detach().abs().max()) if a.numel() else 0.0 for a, b in pairs]


@pytest.mark.parametrize("shape", [{X: 1, Y: 1}, {X: 2, Y: 2}, {X: 1, Y: 3}], ids=str)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_split_norm_equals_torch_on_full_rows(relu, dropout, overlap, shape, ranks) -> None:
    world = shape[X] * shape[Y]
    for errors in ranks(world, split_over, relu, dropout, False, overlap, shape):
        assert max(errors) < 1e-14


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
def test_fused_kernel_equals_torch(relu, dropout, ranks) -> None:
    for errors in ranks(2, split_over, relu, dropout, True, True, {X: 1, Y: 2}):
        assert max(errors) < 1e-14


def test_missing_compiler_error_lists_remedies(monkeypatch, tmp_path, request) -> None:
    request.addfinalizer(require_compiler.cache_clear)
    require_compiler.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "of-someone++")
    with pytest.raises(UserError, match=r"of-someone\+\+.*CXX.*fused"):
        require_compiler()
