"""What is left without empty columns, against dense matrices; of shapes, what random nonzeros would fill."""

import pytest
import torch
from hypothesis import given

from harness.kernels import Csr, from_coo, to_scipy
from harness.kernels.parts import filled_columns, filled_rows, without_empty_columns


def dense(A: Csr) -> torch.Tensor:
    return torch.from_numpy(to_scipy(A).toarray())


def structure(A: Csr) -> torch.Tensor:
    """Where there is an entry, be it a zero."""
    return dense(A._replace(val=torch.ones_like(A.val)))


@given(A=...)
def test_filled_rows_and_columns_are_those_with_an_entry(A: Csr) -> None:
    there = structure(A) != 0
    assert filled_columns(A).tolist() == there.any(dim=0).nonzero()[:, 0].tolist()
    assert filled_rows(A).tolist() == there.any(dim=1).nonzero()[:, 0].tolist()


@given(A=...)
def test_the_filled_columns_are_all_that_is_left(A: Csr) -> None:
    B = without_empty_columns(A)
    assert torch.equal(dense(B), dense(A)[:, filled_columns(A)])


@pytest.mark.parametrize(
    ("rows", "cols", "nonzeros"), [(300, 200, 0), (300, 200, 1), (40, 500, 700), (9, 1, 5)]
)
def test_of_shapes_as_many_columns_are_filled_as_by_random_entries(
    rows: int, cols: int, nonzeros: int
) -> None:
    shapes = Csr(
        torch.empty(rows + 1, dtype=torch.int64, device="meta"),
        torch.empty(nonzeros, dtype=torch.int32, device="meta"),
        torch.empty(nonzeros, device="meta"),
        cols,
    )
    drawn = []
    for seed in range(20):
        source = torch.Generator().manual_seed(seed)
        row = torch.randint(rows, (nonzeros,), generator=source)
        col = torch.randint(cols, (nonzeros,), generator=source)
        drawn.append(from_coo(row, col, torch.ones(nonzeros), (rows, cols)))
    for count in (filled_columns, filled_rows):
        mean = sum(len(count(A)) for A in drawn) / len(drawn)
        assert len(count(shapes)) == pytest.approx(mean, rel=0.03, abs=0.6)
    assert without_empty_columns(shapes).cols == len(filled_columns(shapes))
