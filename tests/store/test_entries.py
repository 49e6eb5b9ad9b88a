"""Edges scattered chunk by chunk and settled block by block are scipy's matrix, however they were cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from harness.graph.builders.entries import (
    Blocking,
    mirror_entries,
    narrow_rowptr,
    scatter_entries,
    sort_block,
    sort_block_in_stripes,
)
from harness.graph.order import TableMap


@st.composite
def edges(draw):
    """A number of vertices, and edges among them with repetitions and loops."""
    n = draw(st.integers(1, 40))
    ends = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=120))
    source, target = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return n, source.copy(), target.copy()


def expected(n, source, target, directed, rows_at, cols_at):
    """The pattern with a loop at every vertex, moved."""
    ones = np.ones(len(source), dtype=bool)
    M = sparse.csr_array((ones, (target, source)), shape=(n, n)) + sparse.eye_array(
        n, dtype=bool, format="csr"
    )
    M = (M if directed else M + M.T).tocoo()
    moved = np.zeros((n, n), dtype=bool)
    moved[rows_at[M.row], cols_at[M.col]] = True
    return moved


@given(edges(), st.integers(1, 5), st.integers(1, 50), st.integers(1, 30), st.booleans(), st.booleans())
def test_blocks_are_those_of_the_matrix(graph, blocks, chunk, at_once, directed, moves):
    n, source, target = graph
    rng = np.random.default_rng(n)
    rows, cols = (rng.permutation(n) if moves else np.arange(n) for _ in range(2))
    to = Blocking(n, blocks, *((TableMap(torch.from_numpy(each)) for each in (rows, cols)) if moves else ()))
    rows_at, cols_at = np.argsort(rows), np.argsort(cols)
    starts = range(0, len(source), chunk)
    found = [
        scatter_entries(source[s : s + chunk], target[s : s + chunk], to, both=not directed) for s in starts
    ]
    vertices = np.arange(n)
    found.append(scatter_entries(vertices, vertices, to, both=False, added=True))
    dense, originals = expected(n, source, target, directed, rows_at, cols_at), 0
    for i in range(blocks):
        for j in range(blocks):
            b = i * blocks + j
            pieces = [each.keys[each.ends[b - 1] if b else 0 : each.ends[b]] for each in found]
            corner = dense[i * to.size : (i + 1) * to.size, j * to.size : (j + 1) * to.size]
            whole = sort_block(np.concatenate(pieces), len(corner))
            chunks = [(keys, None) for keys in pieces]
            stripes = sort_block_in_stripes(lambda chunks=chunks: chunks, len(corner), at_once)
            originals += whole.originals
            for one in (whole, stripes):
                cols = max(corner.shape[1], 1)
                M = sparse.csr_array((np.ones(len(one.col)), one.col, one.rowptr), shape=(len(corner), cols))
                assert M.has_sorted_indices
                assert np.array_equal(M.toarray()[:, : corner.shape[1]], corner)
                assert one.originals == whole.originals
    assert originals == len(set(zip(source.tolist(), target.tolist(), strict=True)))
    assert sum(each.loops for each in found[:-1]) == np.count_nonzero(source == target)


@given(edges(), st.integers(1, 5))
def test_mirror_images_made_later_are_those_of_scattering(graph, blocks):
    n, *ends = graph
    to = Blocking(n, blocks)
    both, straight = (scatter_entries(*ends, to, both=both) for both in (True, False))

    def keys(found, i, j):
        b = i * blocks + j
        return found.keys[found.ends[b - 1] if b else 0 : found.ends[b]]

    for i in range(blocks):
        for j in range(blocks):
            images = mirror_entries(keys(straight, j, i).copy(), diagonal=i == j)
            made = np.concatenate([keys(straight, i, j), images])
            assert np.array_equal(np.sort(made), np.sort(keys(both, i, j)))


def test_mirrored_entries_of_the_largest_graph_are_exact():
    n = 2**31 - 1
    both, straight = (
        scatter_entries(np.array([n - 1]), np.array([n - 2]), Blocking(n, 1), both=both)
        for both in (True, False)
    )
    assert mirror_entries(straight.keys.copy(), diagonal=True).tolist() == both.keys[1:].tolist()


def test_a_block_may_be_as_wide_as_32_bits_allow():
    n = 2**31 - 1
    far = scatter_entries(np.array([n - 1]), np.array([n - 2]), Blocking(n, 1), both=True)
    assert (far.keys >> np.uint64(33)).tolist() == [n - 2, n - 1]
    assert ((far.keys >> np.uint64(1)) & np.uint64(2**32 - 1)).tolist() == [n - 1, n - 2]
    with pytest.raises(AssertionError):
        scatter_entries(np.array([0]), np.array([0]), Blocking(2**31, 1), both=True)


def test_row_pointers_have_32_bits_as_long_as_they_fit():
    for last, expected in ((0, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)):
        found = narrow_rowptr(np.array([0, last]))
        assert found.dtype == expected
        assert found.tolist() == [0, last]
