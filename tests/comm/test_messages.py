"""Messages between two members: data, rows of the ledger, and freedom from deadlock in any order of calls."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.comm import engine
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.ledger import Amounts, AxisName, Key, Ledger, Op, Phase, TensorName

P, H = AxisName.P, TensorName.H


def axis_here() -> Axis:
    return Grid.build({P: engine.world_size()}, Ledger())[P]


def rows(sender: int, receiver: int) -> int:
    """Some messages are empty."""
    return (sender + 2 * receiver) % 3


def message(sender: int, receiver: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.arange(2 * rows(sender, receiver)) + 10 * sender + receiver
    return values.to(dtype).view(2, -1).t()  # strided


def exchange_with_all(later: bool, wire: torch.dtype | None) -> tuple[dict[int, Tensor], dict[Key, Amounts]]:
    axis = replace(axis_here(), wire=wire)
    me, everyone = axis.index, range(axis.size)
    axis.ledger.start()
    with axis.ledger.phase(Phase.FETCH, layer=1):
        call = axis.exchange.call(
            {other: message(me, other) for other in everyone},
            {other: (rows(other, me), 2) for other in everyone},
            dtype=torch.float32,
            tensor=H,
        )
        arrived = call.later() if later else call.now()
    if later:
        arrived = arrived.wait()
    return arrived, {key: amounts for key, amounts in axis.ledger.stop().items() if amounts.calls}


@pytest.mark.parametrize(("later", "wire"), [(False, None), (True, None), (True, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_all_members_exchange_with_each_other(
    ranks, world: int, later: bool, wire: torch.dtype | None
) -> None:
    for me, (arrived, entries) in enumerate(ranks(world, exchange_with_all, later, wire)):
        assert sorted(arrived) == list(range(world))
        for other, x in arrived.items():
            assert torch.equal(x, message(other, me))
        assert len(entries) == 2 * (world - 1)
        for key, amounts in entries.items():
            assert (key.phase, key.layer, key.axis, key.tensor) == (Phase.FETCH, 1, "p", H)
            words = 2 * (rows(key.peer, me) if key.op is Op.RECV else rows(me, key.peer))
            assert (amounts.calls, amounts.elements_payload) == (1, words)
            assert amounts.elements_received == (words if key.op is Op.RECV else 0)
            assert amounts.bytes == words * (wire or torch.float32).itemsize
        assert {(key.op, key.peer) for key in entries} == {
            (op, other) for other in range(world) if other != me for op in (Op.SEND, Op.RECV)
        }


def pass_along() -> list[float]:
    """Receive the predecessor's list, append this member, and send it to the next."""
    axis = axis_here()
    last, me = axis.size - 1, axis.index
    x = torch.zeros(0)
    if me > 0:
        x = axis.recv((me,), source=me - 1, dtype=torch.float32, tensor=H)
    x = torch.cat([x, torch.tensor([float(me)])])
    if me < last:
        axis.send(x, to=me + 1, tensor=H)
    return x.tolist()


def test_chain_of_sends_and_receives_visits_all_members(ranks) -> None:
    assert ranks(4, pass_along) == [[0.0], [0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]]


def read_in_another_order() -> list[float]:
    """Receive two messages in the opposite order, by their tags."""
    axis = axis_here()
    other, x = 1 - axis.index, torch.tensor([1.0 + axis.index])
    sent = [axis.exchange.later({other: tag * x}, {}, dtype=x.dtype, tensor=H, tag=tag) for tag in (1, 2)]
    got = [axis.recv((1,), source=other, dtype=x.dtype, tensor=H, tag=tag).item() for tag in (2, 1)]
    for pending in sent:
        pending.wait()
    return got


def test_tags_distinguish_messages(ranks) -> None:
    assert ranks(2, read_in_another_order) == [[4.0, 2.0], [2.0, 1.0]]


def keep_without_asking() -> None:
    with pytest.raises(AssertionError, match="sent"):
        axis_here().exchange({engine.rank(): torch.ones(1)}, {}, dtype=torch.float32, tensor=H)


def test_message_to_itself_must_be_both_sent_and_received(ranks) -> None:
    ranks(2, keep_without_asking)
