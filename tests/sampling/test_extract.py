"""Extraction equals the paper's products of stacked matrices with selection matrices, by scipy."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from harness.conformance.case import make_check_graph
from harness.kernels import Csr, to_scipy
from harness.kernels.parts import select_rows
from harness.strategies.sampling.matrices import (
    BatchStack,
    PositionMap,
    batch_keys,
    draw_masses,
    draw_rows,
    extract_columns,
    join_chosen,
    matrix_of_batch,
    renumber,
    square_masses,
    stack_batches,
    sum_rows,
    unit_masses,
)

N = 97
BATCHES = st.lists(st.lists(st.integers(0, N - 1), max_size=30), min_size=1, max_size=4)


def stack_of(batches: list[list[int]]) -> BatchStack:
    return stack_batches([torch.tensor(batch, dtype=torch.int64) for batch in batches])


def selection(vertices: torch.Tensor) -> sparse.csr_array:
    """Return a matrix with a one in every row, in the column of its vertex."""
    rows = np.arange(len(vertices))
    return sparse.csr_array((np.ones(len(rows)), (rows, vertices.numpy())), shape=(len(rows), N))


def ascending(A: Csr) -> bool:
    return all(bool((A.col[a:b].diff() > 0).all()) for a, b in pairwise(A.rowptr))


def well_formed(stack: BatchStack, inputs: BatchStack, batch: int) -> None:
    """Check that an input begins with the output, and has every other vertex once."""
    out, found = stack.batch_vertices(batch), inputs.batch_vertices(batch)
    assert found[: len(out)].tolist() == out.tolist()
    new = found[len(out) :].tolist()
    assert len(set(new)) == len(new)
    assert not set(new) & set(out.tolist())


@given(BATCHES, st.integers(1, 6))
def test_renumbered_columns_are_the_sampled_matrix(batches: list[list[int]], fanout: int) -> None:
    """Equals a sampled matrix times a selection of its columns, with one map for many layers."""
    stack, places = stack_of(batches), PositionMap(N)
    for layer in range(3):
        keys = batch_keys([(layer, batch) for batch in range(stack.batches)])
        S = draw_rows(make_check_graph(N).A, stack, fanout, keys)
        A, inputs = renumber(S, stack, places)
        assert ascending(A)
        for batch in range(stack.batches):
            well_formed(stack, inputs, batch)
            here = stack.span(batch)
            mine = to_scipy(matrix_of_batch(A, stack, inputs, batch))
            back = (mine @ selection(inputs.batch_vertices(batch))).toarray()
            assert np.array_equal(back, to_scipy(S)[here.start : here.stop].toarray())
            drawn = set(S.col[S.rowptr[here.start] : S.rowptr[here.stop]].tolist())
            assert set(inputs.batch_vertices(batch).tolist()) == drawn | set(
                stack.batch_vertices(batch).tolist()
            )
        stack = inputs


@pytest.mark.parametrize("mass", [unit_masses, square_masses])
@given(batches=BATCHES)
def test_masses_equal_the_integer_product(mass, batches: list[list[int]]) -> None:
    """P = Q M in integers, for any order of the rows."""
    A, stack = make_check_graph(N).A, stack_of(batches)
    P = sum_rows(select_rows(A, stack.vertices), stack, mass)
    M = sparse.csr_array((mass(A.val).numpy(), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    Q = np.zeros((stack.batches, N), dtype=np.int64)
    for batch in range(stack.batches):
        np.add.at(Q[batch], stack.batch_vertices(batch).numpy(), 1)
    assert np.array_equal(to_scipy(P).toarray(), Q @ M.toarray())
    assert ascending(P)
    turned = stack_batches([stack.batch_vertices(batch).flip(0) for batch in range(stack.batches)])
    again = sum_rows(select_rows(A, turned.vertices), turned, mass)
    assert all(torch.equal(a, b) for a, b in zip(P[:3], again[:3], strict=True))


@given(BATCHES, st.integers(1, 30), st.booleans())
def test_extracted_columns_equal_the_papers_products(
    batches: list[list[int]], size: int, replacement: bool
) -> None:
    """Q_R A Q_C, where Q_C has the weight of a chosen vertex in the column of its position."""
    A, stack, places = make_check_graph(N).A, stack_of(batches), PositionMap(N)
    R = select_rows(A, stack.vertices)
    keys = batch_keys([(1, batch) for batch in range(stack.batches)])
    chosen = draw_masses(sum_rows(R, stack, unit_masses), size, keys, replacement=replacement)
    inputs = join_chosen(stack, chosen, places)
    found = extract_columns(R, stack, inputs, chosen, places)
    for batch in range(stack.batches):
        well_formed(stack, inputs, batch)
        weight = to_scipy(chosen)[[batch]].toarray()[0]
        mine = to_scipy(matrix_of_batch(found, stack, inputs, batch))
        back = (mine @ selection(inputs.batch_vertices(batch))).toarray()
        theirs = (selection(stack.batch_vertices(batch)) @ to_scipy(A)).toarray() * weight
        np.testing.assert_allclose(back, theirs, rtol=1e-15)
        assert set(inputs.batch_vertices(batch).tolist()) == set(stack.batch_vertices(batch).tolist()) | set(
            np.flatnonzero(weight).tolist()
        )


def test_map_without_free_tags_fails_an_assertion() -> None:
    places = PositionMap(3)
    places.reserve_tags((1 << 31) - 1)
    with pytest.raises(AssertionError):
        places.reserve_tags(1)
