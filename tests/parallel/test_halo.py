"""The rows of a halo equal scipy's count, and samples of a boundary have the right distribution."""

import numpy as np
import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.kernels.csr import to_scipy
from harness.ledger import AxisName, Ledger, TensorName
from harness.strategies.halo.bns import draw_sample, sample_size
from harness.strategy import Context, facts_of
from harness.strategy.parallel.halo import build_block_row
from tests.cases import DOUBLE, in_parts, make_case

P = AxisName.P


def make_halo_case(parts: int, partition: str = "metis") -> Case:
    return make_case("bns-gcn", {"p": parts}, dataset=in_parts(parts, partition), **DOUBLE)


def exchanged(case: Case, transposed: bool) -> tuple[list[int], list[int], torch.Tensor, torch.Tensor]:
    """Return the numbers of rows sent and received, the vertices received, and the sum of the returned ones."""
    store, ledger = case.store(), Ledger(recording=False)
    grid = Grid.build({P: case.spec.ranks}, ledger)
    ctx = Context(case.spec, facts_of(store), grid, store)
    blocks, own = ctx.facts.blocks(case.spec.ranks), grid.coordinates[P]
    halo = build_block_row(ctx, blocks, own, range(len(blocks)), transposed=transposed).halo
    mine = torch.arange(blocks[own].start, blocks[own].stop).double()[:, None]
    came = halo.exchange(grid[P], ctx.kernels, mine, TensorName.H).now()
    back = halo.exchange_gradients(grid[P], torch.ones_like(came), TensorName.DH).now()
    return halo.send, halo.receive, came[:, 0].long(), back


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("parts", [2, 5])
def test_each_peer_sends_the_nonempty_columns_of_its_block_once(ranks, parts: int, transposed: bool) -> None:
    case = make_halo_case(parts)
    store = case.store()
    A = to_scipy(store.adjacency(range(store.n), range(store.n)))
    A = (A.T if transposed else A).tocsr()
    blocks = facts_of(store).blocks(parts)
    exchanges = ranks(parts, exchanged, case, transposed)
    for i, (_, receive, came, _) in enumerate(exchanges):
        wanted = [np.unique(A[list(blocks[i])][:, list(blocks[j])].nonzero()[1]) for j in range(parts)]
        wanted[i] = wanted[i][:0]
        assert receive == [len(columns) for columns in wanted]
        assert came.tolist() == [blocks[j][column] for j, columns in enumerate(wanted) for column in columns]
    for i, (send, _, _, back) in enumerate(exchanges):
        assert send == [exchanges[j][1][i] for j in range(parts)]
        assert len(back) == sum(send)


@pytest.mark.parametrize(("boundary", "rate"), [(1, 0.1), (3, 0.1), (7, 0.25), (1000, 0.333)])
def test_sample_size_has_the_mean_rate_times_boundary(boundary: int, rate: float) -> None:
    """This includes boundaries with rate times size below one, which rounding down would never sample."""
    steps = 3000
    sizes = torch.tensor([sample_size(5, step, (0, 1), boundary, rate) for step in range(steps)]).double()
    low = int(rate * boundary)
    assert set(sizes.tolist()) <= {low, low + 1}
    deviation = (rate * boundary % 1 * (1 - rate * boundary % 1) / steps) ** 0.5
    assert abs(sizes.mean() - rate * boundary) <= 5 * deviation


def test_all_rows_of_a_boundary_are_equally_likely() -> None:
    boundary, rate, steps = 20, 0.23, 2000
    drawn = [draw_sample(5, step, (1, 0), boundary, rate) for step in range(steps)]
    assert all(bool((rows.diff() > 0).all()) for rows in drawn)
    share = torch.bincount(torch.cat(drawn), minlength=boundary) / steps
    assert (share - rate).abs().max() <= 5 * (rate * (1 - rate) / steps) ** 0.5
    assert not torch.equal(drawn[0], draw_sample(5, 0, (0, 1), boundary, rate))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_0_and_1_sample_no_row_and_all_rows(rate: float) -> None:
    assert all(len(draw_sample(0, step, (0, 1), 9, rate)) == 9 * rate for step in range(50))
