"""Differentiable collectives equal dense autograd over the tensors of all members.

The dense function concatenates the members' outputs. Its gradient with respect to a member's input must equal the
result of backward on that member, for any strides of the incoming gradient.
"""

import pytest
import torch
from torch import Tensor

from harness.comm import engine
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.ledger import Amounts, AxisName, Direction, Key, Ledger, Op, Phase, TensorName

P, T, DT = AxisName.P, TensorName.T, TensorName.S
WORLDS = (1, 2, 3, 4)


def sizes_of(world: int) -> list[int]:
    return [(3 * rank + 2) % 4 for rank in range(world)]


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(name: str, rank: int, world: int) -> int:
    if name == "gather":
        return sizes_of(world)[rank]
    return sum(sizes_of(world)) if name == "scatter" else 4


def input_of(name: str, rank: int, world: int) -> Tensor:
    if name == "replicate":
        rank = 0  # the same on every member
    return random(rank, rows_of(name, rank, world), 3)


def apply_to(axis: Axis, name: str, x: Tensor) -> Tensor:
    sizes = sizes_of(axis.size)
    if name in ("sum", "sum in place"):
        return axis.sum(x, tensor=T, in_place=name != "sum")
    if name == "replicate":
        return axis.replicate(x, gradient=DT)
    return getattr(axis, name)(x, tensor=T, gradient=DT, sizes=sizes)


def share_of_loss(name: str, rank: int, y: Tensor, manner: str) -> Tensor:
    """Return a member's term of the loss. The sum is the same on all members, which all use it in the same way."""
    seed = 100 if name.startswith("sum") else 100 + rank
    if manner == "expanded":  # the gradient of y has strides of zero
        return y.sum() * (seed + 1)
    if manner == "transposed":
        return (y.t() @ random(seed, y.shape[0], 2)).square().sum()
    return (y * random(seed, *y.shape)).sum()


def differentiate(name: str, manner: str) -> tuple[Tensor, Tensor]:
    axis = Grid.build({P: engine.world_size()}, Ledger())[P]
    x = input_of(name, axis.index, axis.size).requires_grad_()
    y = apply_to(axis, name, x * 1.0)  # not a leaf: it may be summed in place
    share_of_loss(name, axis.index, y, manner).backward()
    assert x.grad is not None
    return y.detach(), x.grad


def dense(name: str, manner: str, world: int) -> tuple[list[Tensor], list[Tensor]]:
    xs = [input_of(name, rank, world).requires_grad_() for rank in range(world)]
    if name == "replicate":
        ys = xs[:1] * world
    elif name == "gather":
        ys = [torch.cat(xs)] * world
    else:
        total = sum(xs[1:], xs[0])
        ys = list(total.split(sizes_of(world))) if name == "scatter" else [total] * world
    counted = ys[:1] if name.startswith("sum") else ys  # a replicated loss is one loss
    loss = sum(share_of_loss(name, rank, y, manner) for rank, y in enumerate(counted))
    used = xs[:1] if name == "replicate" else xs
    gradients = list(torch.autograd.grad(loss, used))
    return ys, gradients * world if name == "replicate" else gradients


@pytest.mark.parametrize("manner", ["plain", "transposed", "expanded"])
@pytest.mark.parametrize("name", ["sum", "sum in place", "replicate", "gather", "scatter"])
def test_outputs_and_gradients_equal_dense_autograd(ranks, name: str, manner: str) -> None:
    for world in WORLDS:
        outputs, gradients = dense(name, manner, world)
        for rank, (y, dx) in enumerate(ranks(world, differentiate, name, manner)):
            torch.testing.assert_close(y, outputs[rank].detach(), rtol=1e-13, atol=1e-13)
            torch.testing.assert_close(dx, gradients[rank], rtol=1e-13, atol=1e-13)


def rows_written(name: str, frozen: bool) -> list[tuple[Key, Amounts]]:
    """Run forward in layer 3 of the convolution, and backward from the thread that autograd uses."""
    ledger = Ledger()
    axis = Grid.build({P: engine.world_size()}, ledger)[P]
    x, w = input_of(name, axis.index, axis.size).requires_grad_(not frozen), torch.ones(3, requires_grad=True)
    ledger.start()
    with ledger.phase(Phase.CONVOLVE, layer=3):
        y = apply_to(axis, name, x * 1.0)
    with ledger.backward():
        (y * w.double()).sum().backward()
    return [(key, amounts) for key, amounts in ledger.stop().items() if amounts.calls]


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("sum", Op.ALL_REDUCE, None),
        ("replicate", None, Op.ALL_REDUCE),
        ("gather", Op.ALL_GATHER, Op.REDUCE_SCATTER),
        ("scatter", Op.REDUCE_SCATTER, Op.ALL_GATHER),
    ],
)
def test_backward_is_recorded_in_the_phase_and_layer_of_forward_if_needed(
    ranks, name: str, forward: Op | None, backward: Op | None
) -> None:
    there = {Key(Phase.CONVOLVE, 3, Direction.FORWARD, forward, P, tensor=T)} if forward else set()
    back = {Key(Phase.CONVOLVE, 3, Direction.BACKWARD, backward, P, tensor=DT)} if backward else set()
    for frozen in (False, True):
        for rows in ranks(3, rows_written, name, frozen):
            assert {key for key, _ in rows} == (there if frozen else there | back)
            assert all(amounts.calls == 1 for _, amounts in rows)
            words = {amounts.elements_payload for _, amounts in rows}
            assert words <= {3.0 * sum(sizes_of(3)), 12.0}


def copies(in_place: bool) -> list[Key]:
    ledger = Ledger()
    axis = Grid.build({P: 2}, ledger)[P]
    x = torch.ones(2, requires_grad=True) * 1.0
    ledger.start()
    y = axis.sum(x, tensor=T, in_place=in_place)
    assert (x is y) == in_place or (x.data_ptr() == y.data_ptr()) == in_place
    assert y.tolist() == [2, 2]
    return [key for key in ledger.stop() if key.op is Op.COPY]


def test_copies_are_recorded_and_in_place_calls_make_none(ranks) -> None:
    assert [len(keys) for keys in ranks(2, copies, False)] == [1, 1]
    assert ranks(2, copies, True) == [[], []]


def share_a_gradient() -> tuple[Tensor, Tensor]:
    """The backward pass of an addition passes the same buffer to both terms."""
    axis = Grid.build({P: 2}, Ledger())[P]
    x, u = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    both = axis.replicate(x, gradient=DT) + u
    (both * (1.0 + axis.index)).sum().backward()
    assert x.grad is not None
    assert u.grad is not None
    return x.grad, u.grad


def test_shared_gradient_buffer_is_not_overwritten(ranks) -> None:
    for rank, (dx, du) in enumerate(ranks(2, share_a_gradient)):
        assert dx.tolist() == [3, 3]
        assert du.tolist() == [1 + rank] * 2


def overwrite() -> None:
    axis = Grid.build({P: 2}, Ledger())[P]
    y = torch.ones(2, requires_grad=True).exp()  # its backward needs y itself
    axis.sum(y, tensor=T, in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_sum_of_a_saved_tensor_is_refused(ranks) -> None:
    ranks(2, overwrite)


def sum_narrow() -> tuple[Tensor, Tensor]:
    axis = Grid.build({P: 2}, Ledger(), wire=torch.bfloat16)[P]
    x = (torch.ones(2) / 3).requires_grad_()
    y = axis.replicate(axis.sum(x, tensor=T), gradient=DT)
    (y / 3).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def test_narrow_wire_keeps_the_type_of_tensors(ranks) -> None:
    third = torch.tensor([1 / 3, 1 / 3]).bfloat16()
    for y, dx in ranks(2, sum_narrow):
        assert y.dtype == dx.dtype == torch.float32
        assert torch.equal(y, (third + third).float())
        assert torch.equal(dx, (third + third).float())


def test_calls_on_an_axis_of_size_one_return_their_input() -> None:
    ledger = Ledger()
    axis = Grid.build({P: 1}, ledger)[P]
    ledger.start()
    x = torch.ones(2, requires_grad=True)
    for name in ("sum", "sum in place", "replicate"):
        assert apply_to(axis, name, x) is x
    assert axis.gather(x, tensor=T, gradient=DT) is x
    assert axis.scatter(x, tensor=T, gradient=DT) is x
    assert axis.all_reduce(x, tensor=T) is x
    assert axis.broadcast.later(x, root=0, shape=(2,), tensor=T).wait() is x
    assert axis.exchange({0: x}, {0: (2,)}, dtype=x.dtype, tensor=T)[0] is x
    axis.barrier()
    assert len(ledger.stop()) == 1
