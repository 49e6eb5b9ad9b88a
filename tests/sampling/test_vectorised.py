"""Sampling by tensor operations is bitwise equal to compiled loops; tests/device repeats this on fake GPUs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.conformance.case import make_check_graph
from harness.kernels import Csr, from_coo, transpose
from harness.kernels.csr import transpose_torch
from harness.kernels.parts import select_rows
from harness.strategies.sampling.matrices import (
    PositionMap,
    batch_keys,
    draw_masses,
    draw_rows,
    extract_columns,
    join_chosen,
    renumber,
    square_masses,
    stack_batches,
    sum_rows,
    unit_masses,
)
from harness.strategies.sampling.sampler import renumber_columns, sample_neighbours

N = 97
SWITCHES = (
    "harness.strategies.sampling.sampler",
    "harness.strategies.sampling.matrices",
    "harness.kernels.csr",
)


@contextmanager
def by_tensors() -> Iterator[None]:
    """Make samplers use tensor operations on the host, as they do on a GPU."""
    with ExitStack() as stack:
        for module in SWITCHES:
            stack.enter_context(patch(f"{module}.is_on_gpu", return_value=True))
        stack.enter_context(patch(f"{SWITCHES[0]}.can_run_triton", return_value=False))
        yield


def same(mine: Csr, theirs: Csr) -> bool:
    """True if all bits and types are equal."""
    parts = zip(mine[:3], theirs[:3], strict=True)
    equal = all(a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()) for a, b in parts)
    return equal and mine.shape == theirs.shape


def rows_of_lengths(lengths: list[int], cols: int, dtype: torch.dtype, *, loops: bool) -> Csr:
    """Return a matrix with rows of these lengths, every second one with a loop, and unordered values."""
    generator = torch.Generator().manual_seed(len(lengths))
    row, col = list[int](), list[int]()
    for i, length in enumerate(lengths):
        own = i if loops and i % 2 and length else None
        others = [j for j in torch.randperm(cols, generator=generator).tolist() if j != i]
        chosen = others[: min(length, cols - 1) - (own is not None)] + ([own] if own is not None else [])
        row, col = row + [i] * len(chosen), col + chosen
    val = torch.rand(len(row), generator=generator, dtype=torch.float64).to(dtype)
    where = (torch.tensor(each, dtype=torch.int64) for each in (row, col))
    return from_coo(*where, val, (len(lengths), cols))


LENGTHS = st.lists(st.integers(0, 12), max_size=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loops", [False, True])
@given(lengths=LENGTHS, fanout=st.integers(1, 14), seed=st.integers(0, 99), data=st.data())
def test_sampled_neighbours_are_equal(
    dtype: torch.dtype, loops: bool, lengths: list[int], fanout: int, seed: int, data: st.DataObject
) -> None:
    """Empty rows, rows shorter than the fan-out, with and without loop, repeated rows, an empty frontier."""
    A = rows_of_lengths(lengths, 30, dtype, loops=loops)
    named = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)) if lengths else []
    rows = torch.tensor(named, dtype=torch.int64)
    how = fanout, (seed, 1)
    compiled = sample_neighbours(A, rows, rows, *how, loops=loops)
    with by_tensors():
        assert same(sample_neighbours(A, rows, rows, *how, loops=loops), compiled)


def test_sampled_neighbours_are_equal_for_huge_fan_outs_and_all_rows() -> None:
    A, rows = make_check_graph(N).A, torch.arange(N)
    wide = rows_of_lengths([4095, 4094, 0, 4200], 5000, torch.float32, loops=True)
    for matrix, number, fanout in ((A, N, 4095), (A, N, 1), (A, N, 3), (wide, 4, 4094), (wide, 4, 700)):
        compiled = sample_neighbours(matrix, rows[:number], rows[:number], fanout, (7,), loops=True)
        with by_tensors():
            tensors = sample_neighbours(matrix, rows[:number], rows[:number], fanout, (7,), loops=True)
        assert same(tensors, compiled)


def test_loop_of_an_empty_row_is_not_looked_for_in_the_row_before() -> None:
    """The last entry of the graph is in the column of the vertex whose row is empty."""
    A, rows = (
        from_coo(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.ones(2), (2, 2)),
        torch.tensor([1, 0]),
    )
    sample = sample_neighbours(A, rows, rows, 3, (1,), loops=True)
    assert same(sample, select_rows(A, rows))


def test_sampled_neighbours_are_equal_if_many_draws_share_marks() -> None:
    """There are over twice as many draws as marks, and most marks of the row of 5000 entries have several numbers."""
    A, rows = rows_of_lengths([5000, 3, 5000], 5100, torch.float32, loops=True), torch.arange(3)
    for seed in range(5):
        compiled = sample_neighbours(A, rows, rows, 2500, (seed,), loops=True)
        with by_tensors():
            assert same(sample_neighbours(A, rows, rows, 2500, (seed,), loops=True), compiled)


@pytest.mark.parametrize("length", [63, 64, 65, 66, 1023, 1024, 1025, 1026])
def test_sampled_neighbours_are_equal_around_the_number_of_marks_of_a_row(length: int) -> None:
    """A compiled loop marks draws in a word, if a row has at most 64 entries, and in 1024 marks in longer rows."""
    A = rows_of_lengths([length, length - 1, 3, length], 1100, torch.float32, loops=True)
    rows = torch.tensor([0, 1, 2, 3, 0, 2])
    for fanout, loops in ((1, True), (10, False), (10, True), (62, True), (1000, True)):
        compiled = sample_neighbours(A, rows, rows, fanout, (length,), loops=loops)
        with by_tensors():
            assert same(sample_neighbours(A, rows, rows, fanout, (length,), loops=loops), compiled)


def test_sampled_neighbours_are_equal_for_a_range_of_rows() -> None:
    """A rank has the rows from 40 on, and loops are in the columns of the full graph."""
    A, rows = make_check_graph(N).A, torch.arange(20)
    mine = Csr(A.rowptr[40:61] - A.rowptr[40], A.col[A.rowptr[40] :], A.val[A.rowptr[40] :], N)
    compiled = sample_neighbours(mine, rows, rows + 40, 2, (3,), loops=True)
    with by_tensors():
        assert same(sample_neighbours(mine, rows, rows + 40, 2, (3,), loops=True), compiled)


@given(size=st.integers(0, 30), fanout=st.integers(1, 9))
def test_frontiers_and_transposes_are_equal(size: int, fanout: int) -> None:
    rows = torch.randperm(N, generator=torch.Generator().manual_seed(size))[:size]
    sample = sample_neighbours(make_check_graph(N).A, rows, rows, fanout, (1,), loops=True)
    frontier, A = renumber_columns(sample, rows)
    with by_tensors():
        again, B = renumber_columns(sample, rows)
    assert frontier.tolist() == again.tolist()
    assert same(B, A)
    assert same(transpose_torch(A), transpose(A))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cols", [300, 50_000], ids=["few columns", "mostly empty columns"])
def test_frontiers_are_equal_for_long_rows_of_vertices_in_any_order(cols: int, dtype: torch.dtype) -> None:
    """The longest row has over a hundred entries whose columns are vertices of the rows."""
    S = rows_of_lengths([299, 0, 70, 5, 130], 300, dtype, loops=True)._replace(cols=cols)
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(3))[:200]
    frontier, A = renumber_columns(S, rows)
    with by_tensors():
        again, B = renumber_columns(S, rows)
    assert torch.equal(frontier, again)
    assert same(B, A)


def test_matrices_from_entries_are_equal() -> None:
    """This includes a matrix without entries and one without rows."""
    for rows, entries in ((5, 40), (5, 0), (0, 0)):
        generator = torch.Generator().manual_seed(entries)
        row = torch.randint(max(rows, 1), (entries,), generator=generator)
        col = torch.randint(7, (entries,), generator=generator)
        for summed in (False, True):
            compiled = from_coo(row, col, torch.arange(entries), (rows, 7), sum_duplicates=summed)
            with by_tensors():
                tensors = from_coo(row, col, torch.arange(entries), (rows, 7), sum_duplicates=summed)
            assert same(tensors, compiled)


BATCHES = st.lists(st.lists(st.integers(0, N - 1), max_size=30), min_size=1, max_size=4)


@given(batches=BATCHES, fanout=st.integers(1, 9), seed=st.integers(0, 99))
def test_bulk_draws_and_extraction_are_equal(batches: list[list[int]], fanout: int, seed: int) -> None:
    """For repeated vertices and empty batches."""
    stack = stack_batches([torch.tensor(batch, dtype=torch.int64) for batch in batches])
    keys = batch_keys([(seed, number) for number in range(len(batches))])
    S = draw_rows(make_check_graph(N).A, stack, fanout, keys)
    A, inputs = renumber(S, stack, PositionMap(N))
    with by_tensors():
        assert same(draw_rows(make_check_graph(N).A, stack, fanout, keys), S)
        B, found = renumber(S, stack, PositionMap(0))
    assert same(B, A)
    assert [each.tolist() for each in found] == [each.tolist() for each in inputs]


def test_bulk_draws_are_equal_for_a_large_fan_out() -> None:
    wide = rows_of_lengths([300, 0, 5, 299], 400, torch.float32, loops=False)
    stack = stack_batches([torch.arange(4), torch.tensor([], dtype=torch.int64), torch.tensor([3, 0])])
    keys = batch_keys([(1, number) for number in range(3)])
    for fanout in (1, 5, 298, 299, 65535):
        compiled = draw_rows(wide, stack, fanout, keys)
        with by_tensors():
            assert same(draw_rows(wide, stack, fanout, keys), compiled)


@given(
    rows=st.lists(st.lists(st.integers(1, 1 << 57), max_size=12), min_size=1, max_size=4),
    darts=st.integers(1, 20),
    seed=st.integers(0, 99),
    replacement=st.booleans(),
)
def test_masses_are_equal(rows: list[list[int]], darts: int, seed: int, replacement: bool) -> None:
    """Masses up to 2^57, so that a prefix sum over several rows overflows."""
    place = [(i, j, mass) for i, row in enumerate(rows) for j, mass in enumerate(row)]
    row, col, mass = torch.tensor(place, dtype=torch.int64).reshape(-1, 3).T
    P = from_coo(row, col, mass, (len(rows), 12))
    keys = batch_keys([(seed, number) for number in range(len(rows))])
    compiled = draw_masses(P, darts, keys, replacement=replacement)
    with by_tensors():
        assert same(draw_masses(P, darts, keys, replacement=replacement), compiled)


@given(batches=BATCHES, darts=st.integers(1, 9), counts=st.booleans(), replacement=st.booleans())
def test_layers_of_a_bulk_are_equal(
    batches: list[list[int]], darts: int, counts: bool, replacement: bool
) -> None:
    stack = stack_batches([torch.tensor(batch, dtype=torch.int64) for batch in batches])
    keys, mass = (
        batch_keys([(number,) for number in range(len(batches))]),
        unit_masses if counts else square_masses,
    )
    R, places = select_rows(make_check_graph(N).A, stack.vertices), PositionMap(N)
    P = sum_rows(R, stack, mass)
    chosen = draw_masses(P, darts, keys, replacement=replacement)
    inputs = join_chosen(stack, chosen, places)
    A = extract_columns(R, stack, inputs, chosen, places)
    with by_tensors():
        assert same(sum_rows(R, stack, mass), P)
        assert [each.tolist() for each in join_chosen(stack, chosen, places)] == [
            each.tolist() for each in inputs
        ]
        assert same(extract_columns(R, stack, inputs, chosen, places), A)
