"""Cross-entropy over split classes equals torch's (value, gradient, best class), and sends two words per row."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.base.ranges import split_evenly
from harness.comm import engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, Op, TensorName, apply
from harness.strategy.parallel.label_loss import CrossEntropy, predict_split

P = AxisName.P
ROWS, CLASSES, OF = 11, 7, 5


def logits(scale: float) -> Tensor:
    Z = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * scale
    Z[2] = Z[2, 0]  # a tie
    return Z


def labels() -> Tensor:
    y = torch.arange(ROWS) % CLASSES
    y[[0, 4]] = -100
    return y


def share(scale: float) -> tuple[Tensor, Tensor, Tensor, dict[str, float]]:
    ledger = Ledger()
    axis = Grid.build({P: engine.world_size()}, ledger)[P]
    classes = split_evenly(CLASSES, axis.size)[axis.index]
    Z = logits(scale)[:, classes.start : classes.stop].clone().requires_grad_()
    ledger.start()
    loss = apply(ledger, CrossEntropy, Z, labels(), classes, axis, OF)
    (3 * loss).backward()
    moved = {
        str(key.tensor): amounts.elements_payload
        for key, amounts in ledger.stop().items()
        if key.op is Op.ALL_REDUCE
    }
    assert Z.grad is not None
    return loss.detach(), Z.grad, predict_split(Z.detach(), classes, axis), moved


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 400.0])
def test_split_cross_entropy_equals_torch(ranks, world: int, scale: float) -> None:
    """The large logits would overflow an unshifted exponential."""
    Z = logits(scale).requires_grad_()
    whole = cross_entropy(Z, labels(), reduction="sum", ignore_index=-100) / OF
    (3 * whole).backward()
    assert Z.grad is not None
    got = ranks(world, share, scale)
    torch.testing.assert_close(sum(loss for loss, *_ in got), whole.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(torch.cat([dZ for _, dZ, *_ in got], dim=1), Z.grad, rtol=1e-13, atol=1e-13)
    for *_, best, moved in got:
        assert torch.equal(best, Z.argmax(dim=1))
        assert moved == ({} if world == 1 else {TensorName.LOSS: 2 * ROWS})
