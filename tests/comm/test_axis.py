"""Every collective equals a computation in one process, and its row on the ledger has the right words.

Inputs are small integers, so that every sum is exact in every type, also on the wire.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from harness.comm import collectives, engine
from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.comm.collectives import Reduction
from harness.comm.grid import Grid
from harness.ledger import Amounts, AxisName, Direction, Key, Ledger, Op, Phase, TensorName

P, H, COLUMNS = AxisName.P, TensorName.H, 3
WORLDS = (1, 2, 3, 4, 6)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
MANNERS = [  # strided, later, wire
    (False, False, None),
    (True, False, None),
    (False, True, None),
    (True, True, None),
    (False, False, torch.bfloat16),
    (True, True, torch.bfloat16),
]


def matrix(rows: int, seed: int, dtype: torch.dtype, strided: bool = False) -> Tensor:
    """Return small integers, as a transposed view if `strided`."""
    values = torch.randint(-8, 9, (rows, COLUMNS), generator=torch.Generator().manual_seed(seed)).to(dtype)
    return values.t().contiguous().t() if strided else values


def uneven(world: int) -> list[int]:
    """Return the number of rows of each member; with three ranks or more, some have none."""
    return [(3 * rank + 2) % 4 for rank in range(world)]


def sent(world: int, sender: int) -> list[int]:
    """Return the numbers of rows that a member sends to each."""
    return [(sender + receiver + 1) % 3 for receiver in range(world)]


def received(world: int, receiver: int) -> list[int]:
    return [sent(world, sender)[receiver] for sender in range(world)]


class Members(NamedTuple):
    """The inputs of all members, and the member whose result is computed."""

    rank: int
    xs: list[Tensor]

    @property
    def world(self) -> int:
        return len(self.xs)

    @property
    def here(self) -> int:
        """Return the number of elements of this member's input."""
        return self.xs[self.rank].numel()

    @property
    def everywhere(self) -> int:
        return sum(x.numel() for x in self.xs)

    @property
    def total(self) -> Tensor:
        return sum(self.xs[1:], self.xs[0])

    def arriving(self) -> Tensor:
        """Return the rows that all members have for this member."""
        pieces = [x.split(sent(self.world, sender))[self.rank] for sender, x in enumerate(self.xs)]
        return torch.cat(pieces)


class Case(NamedTuple):
    """A call, its expected result, and its expected words (payload, received)."""

    op: Op
    rows: Callable[[int, int], int]
    call: Callable[[Axis, Tensor], Call[Tensor]]
    result: Callable[[Members], Tensor]
    words: Callable[[Members], tuple[float, Fraction | float]]


def four_each(rank: int, world: int) -> int:
    return 4


def none_each(rank: int, world: int) -> int:
    return 0


def four_for_each(rank: int, world: int) -> int:
    return 4 * world


def uneven_each(rank: int, world: int) -> int:
    return uneven(world)[rank]


def uneven_for_each(rank: int, world: int) -> int:
    return sum(uneven(world))


def for_all(rank: int, world: int) -> int:
    return sum(sent(world, rank))


def all_reduce(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.all_reduce.call(x, tensor=H)


def all_reduce_max(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.all_reduce.call(x, tensor=H, op=Reduction.MAX)


def all_gather(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.all_gather.call(x, tensor=H)


def all_gather_uneven(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.all_gather.call(x, tensor=H, sizes=uneven(axis.size))


def reduce_scatter(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.reduce_scatter.call(x, tensor=H)


def reduce_scatter_uneven(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.reduce_scatter.call(x, tensor=H, sizes=uneven(axis.size))


def broadcast(axis: Axis, x: Tensor) -> Call[Tensor]:
    return axis.broadcast.call(x, root=axis.size - 1, shape=x.shape, tensor=H)


def all_to_all(axis: Axis, x: Tensor) -> Call[Tensor]:
    send, receive = sent(axis.size, axis.index), received(axis.size, axis.index)
    return axis.all_to_all.call(x, send=send, receive=receive, tensor=H)


def ring(m: Members) -> tuple[int, Fraction]:
    return m.here, Fraction(2 * (m.world - 1) * m.here, m.world)


def half_a_ring(m: Members) -> tuple[int, Fraction]:
    return m.here, Fraction((m.world - 1) * m.here, m.world)


def others_pieces(m: Members) -> tuple[int, int]:
    return m.everywhere, m.everywhere - m.here


def from_the_last(m: Members) -> tuple[int, int]:
    return m.here, m.here * (m.rank != m.world - 1)


def rows_of_others(m: Members) -> tuple[int, int]:
    own = sent(m.world, m.rank)[m.rank] * COLUMNS
    return m.arriving().numel(), m.arriving().numel() - own


CASES = {
    "all_reduce": Case(Op.ALL_REDUCE, four_each, all_reduce, lambda m: m.total, ring),
    "all_reduce max": Case(
        Op.ALL_REDUCE, four_each, all_reduce_max, lambda m: torch.stack(m.xs).amax(0), ring
    ),
    "all_reduce of nothing": Case(Op.ALL_REDUCE, none_each, all_reduce, lambda m: m.total, ring),
    "all_gather": Case(Op.ALL_GATHER, four_each, all_gather, lambda m: torch.cat(m.xs), others_pieces),
    "all_gather of nothing": Case(
        Op.ALL_GATHER, none_each, all_gather, lambda m: torch.cat(m.xs), others_pieces
    ),
    "all_gather uneven": Case(
        Op.ALL_GATHER, uneven_each, all_gather_uneven, lambda m: torch.cat(m.xs), others_pieces
    ),
    "reduce_scatter": Case(
        Op.REDUCE_SCATTER, four_for_each, reduce_scatter, lambda m: m.total.split(4)[m.rank], half_a_ring
    ),
    "reduce_scatter uneven": Case(
        Op.REDUCE_SCATTER,
        uneven_for_each,
        reduce_scatter_uneven,
        lambda m: m.total.split(uneven(m.world))[m.rank],
        half_a_ring,
    ),
    "broadcast": Case(Op.BROADCAST, four_each, broadcast, lambda m: m.xs[-1], from_the_last),
    "broadcast of nothing": Case(Op.BROADCAST, none_each, broadcast, lambda m: m.xs[-1], from_the_last),
    "all_to_all": Case(Op.ALL_TO_ALL, for_all, all_to_all, Members.arriving, rows_of_others),
}


def run_case(
    name: str, dtype: torch.dtype, composed_from: int | None
) -> list[tuple[Tensor, dict[Key, Amounts]]]:
    """Make the call in every variant; return its result, and the nonempty rows of the ledger."""
    case, ledger, found = CASES[name], Ledger(), []
    axis = Grid.build({P: engine.world_size()}, ledger, composed_from=composed_from)[P]
    rows = case.rows(axis.index, axis.size)
    for strided, later, wire in MANNERS:
        x = matrix(rows, axis.index, dtype, strided)
        ledger.start()
        with ledger.phase(Phase.CONVOLVE, layer=2):
            call = case.call(replace(axis, wire=wire), x)
            result = call.later() if later else call.now()
        if later:
            with ledger.phase(Phase.LOSS):
                result = result.wait()
        found.append((result, {key: row for key, row in ledger.stop().items() if row.calls}))
    return found


def check_row(
    entries: dict[Key, Amounts], op: Op, words: tuple[float, Any], itemsize: int, later: bool
) -> None:
    """Check that one row has one call, with the words of the formula."""
    ((key, row),) = entries.items()
    payload, received = words
    assert key == Key(Phase.CONVOLVE, 2, Direction.FORWARD, op, P, tensor=H)
    assert (row.calls, row.elements_payload, row.bytes) == (1, payload, payload * itemsize)
    assert row.elements_received == float(received)
    assert row.seconds > 0
    assert (row.in_flight_seconds > 0) == later


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("composed_from", [None, 0])
def test_collective_equals_one_process_and_counts_its_words(
    ranks, world: int, name: str, composed_from: int | None
) -> None:
    case = CASES[name]
    for dtype in DTYPES if world in (1, 3) else DTYPES[:1]:
        xs = [matrix(case.rows(rank, world), rank, dtype) for rank in range(world)]
        for rank, found in enumerate(ranks(world, run_case, name, dtype, composed_from)):
            members = Members(rank, xs)
            for (result, entries), (_, later, wire) in zip(found, MANNERS, strict=True):
                assert result.dtype == dtype
                assert torch.equal(result, case.result(members))
                if world == 1:
                    assert entries == {}
                else:
                    travels = wire if wire and dtype.is_floating_point else dtype
                    check_row(entries, case.op, case.words(members), travels.itemsize, later)


def reduce_weights() -> dict[Key, Amounts]:
    ledger = Ledger()
    axis = Grid.build({P: 2}, ledger)[P]
    ledger.start()
    with ledger.phase(Phase.CONVOLVE, layer=1):
        axis.all_reduce(torch.ones(2, 3), tensor=TensorName.DW)
        axis.reduce_scatter(torch.ones(2, 3), tensor=TensorName.DW)
        axis.all_gather(torch.ones(2, 3), tensor=TensorName.W)
    return ledger.stop()


def test_weight_gradient_reduction_is_in_phase_sync_wherever_it_is_issued(ranks) -> None:
    for entries in ranks(2, reduce_weights):
        phases = {key.op: (key.phase, key.layer) for key, amounts in entries.items() if amounts.calls}
        assert phases == {
            Op.ALL_REDUCE: (Phase.SYNC, 1),
            Op.REDUCE_SCATTER: (Phase.SYNC, 1),
            Op.ALL_GATHER: (Phase.CONVOLVE, 1),
        }


def use_buffers() -> list[bool]:
    """Check identities and output buffers on one of two ranks."""
    axis = Grid.build({P: 2}, Ledger())[P]
    root = axis.index == 0
    x, strided = torch.full((2, 3), 1.0 + axis.index), torch.zeros(3, 2).t()
    ours = axis.broadcast(x, root=0, shape=(2, 3), tensor=H)
    into = torch.zeros(2, 3)
    same = axis.broadcast(x if root else None, root=0, shape=(2, 3), tensor=H, out=into)
    odd = axis.broadcast(x if root else None, root=0, shape=(2, 3), tensor=H, out=strided)
    narrow = replace(axis, wire=torch.bfloat16).broadcast(
        torch.full((1,), 1 / 3), root=0, shape=(1,), tensor=H
    )
    space = torch.zeros(4, 3)
    gathered = axis.all_gather(x, tensor=H, out=space)
    view = torch.ones(3, 2).t()
    scalar = torch.tensor(2.0)
    return [
        ours is x if root else (ours is not x and bool((ours == 1).all())),
        same is x if root else (same is into and bool((into == 1).all())),
        odd is x if root else (odd is strided and bool((strided == 1).all())),
        narrow.item() == torch.tensor(1 / 3).bfloat16().item(),
        gathered is space and gathered[:, 0].tolist() == [1, 1, 2, 2],
        axis.all_reduce(view, tensor=H) is view and view.tolist() == [[2, 2, 2], [2, 2, 2]],
        axis.all_reduce(scalar, tensor=H) is scalar and scalar.item() == 4,
    ]


def test_results_are_written_to_the_given_buffers(ranks) -> None:
    for checks in ranks(2, use_buffers):
        assert all(checks), checks


def replicate(wire: torch.dtype) -> list[Tensor]:
    axis = Grid.build({P: engine.world_size()}, Ledger(), wire=wire)[P]
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(axis.index))
    sizes = [5] * axis.size
    return [
        axis.all_reduce(x.clone(), tensor=H),
        axis.all_gather(x, tensor=H),
        axis.all_gather(x[: axis.index], tensor=H, sizes=list(range(axis.size))),
        axis.broadcast(x, root=1, shape=(5, 3), tensor=H),
        axis.reduce_scatter(x.repeat(axis.size, 1), tensor=H, sizes=sizes),
    ]


@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16], ids=str)
def test_members_have_bitwise_equal_results(ranks, wire: torch.dtype) -> None:
    """With a narrow wire, the root of a broadcast and the owner of a piece also hold the rounded values."""
    first, *others = ranks(3, replicate, wire)
    again = ranks(3, replicate, wire)[0]
    for result, repeated, *theirs in zip(first, again, *others, strict=True):
        assert all(torch.equal(result, other) for other in theirs)
        assert torch.equal(result, repeated), "the same seed gives the same bits"


def scatter_both_ways() -> tuple[Tensor, Tensor]:
    """Return the results of the library's reduce-scatter, which other engines than gloo use, and of ours."""
    axis = Grid.build({P: 3}, Ledger())[P]
    x, sizes = matrix(12, axis.index, torch.float32), [4, 4, 4]
    own, wire = (4, COLUMNS), torch.bfloat16
    library = collectives.reduce_scatter_by_library(axis.group, x, own, sizes, wire, later=True)
    for work in library.works:
        work.wait()
    return library.result(), axis.reduce_scatter(x, tensor=H, sizes=sizes)


def test_both_implementations_of_reduce_scatter_agree(ranks) -> None:
    for library, ours in ranks(3, scatter_both_ways):
        assert torch.equal(library, ours)


def mistaken(name: str) -> None:
    axis = Grid.build({P: 2}, Ledger())[P]
    x = torch.ones(3, 2)
    calls = {
        "autograd": lambda: axis.all_reduce(x.requires_grad_(), tensor=H),
        "rows": lambda: axis.reduce_scatter(x, tensor=H),
        "sizes": lambda: axis.all_gather(x, tensor=H, sizes=[1, 2]),
        "split": lambda: axis.all_to_all(x, send=[1, 1], receive=[1, 1], tensor=H),
        "shape": lambda: axis.broadcast(x, root=axis.index, shape=(2, 2), tensor=H),
        "out": lambda: axis.all_gather(x, tensor=H, out=torch.ones(6, 3)),
        "type": lambda: axis.broadcast(None, root=1 - axis.index, shape=(2, 2), tensor=H),
    }
    with pytest.raises(AssertionError):
        calls[name]()


@pytest.mark.parametrize("name", ["autograd", "rows", "sizes", "split", "shape", "out", "type"])
def test_inconsistent_call_fails_an_assertion_before_it_is_sent(ranks, name: str) -> None:
    ranks(2, mistaken, name)
