"""Compiled loops compared with scipy and torch."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch_geometric.utils import softmax

from benchmarks.measuring import alternate, median_ratio
from benchmarks.registry import Results, Table, benchmark
from benchmarks.spmm import draw_rmat, make_matrix
from harness.kernels.attention import (
    SLOPE,
    reorder_entries_numba,
    softmax_backward_numba,
    softmax_numba,
    transpose_with_positions,
)
from harness.kernels.csr import Csr, row_indices, take, to_scipy
from harness.kernels.induced import induced_pair
from harness.kernels.parts import build_scatter_matrix, extract_block, hstack, select_columns, select_rows
from harness.kernels.shuffle import sample_distinct
from harness.kernels.spmm import spmm

SCALES, DEGREE, WIDTH = (14, 17, 20), 16, 64
TURNS = {14: 21, 17: 11, 20: 5}
"""The turns of a cell, by scale."""
Pair = tuple[Callable[[], Any], Callable[[], Any]]


@benchmark
def loops(scales: tuple[int, ...] = SCALES) -> Results:
    """Compare compiled loops with the same work by scipy or torch, one thread.

    Graphs have 2^14, 2^17 and 2^20 vertices of degree 16, uniform or R-MAT. A sample has an eighth of the vertices; a
    block lacks a quarter of the columns. A cell is the competitor's time over ours, the median over turns in which the
    two alternate: above 1, ours is faster. Each pair of results is compared before it is measured.

    The table of rows has 64 float32 in a row: the gather that the harness uses (torch's index_select), and the sum of
    rows by the product with a scatter matrix made before. A percentage is of the speed at which a copy of the gathered
    rows moves bytes: a gather reads and writes each row once; the sum reads each row and reads and writes each target.

    The table of attention is of one head: the scores of all entries and their softmax row by row, and with their
    gradients; the competitor is `torch_geometric.utils.softmax` with pointers, and autograd.

    Args:
        scales: graphs have 2^SCALE vertices
    """
    rng = np.random.default_rng(0)
    worst, shown = (float("inf"), ""), False
    for scale in scales:
        for kind in ("uniform", "R-MAT"):
            ends = rng.integers(0, 1 << scale, (2, DEGREE << scale)) if kind == "uniform" else None
            A = make_matrix(1 << scale, *(draw_rmat(rng, scale, DEGREE) if ends is None else ends))
            pairs = make_pairs(A)
            if not shown:
                yield Table("graph", *(f"{name}:.2f" for name in pairs))
                shown = True
            ratios = {name: compare_exactly(*pair, count_turns(scale)) for name, pair in pairs.items()}
            yield f"{kind} 2^{scale}", *ratios.values()
            worst = min(worst, *((each, f"{name}, {kind} 2^{scale}") for name, each in ratios.items()))
    yield f"Worst cell: {worst[0]:.2f} ({worst[1]})."
    yield Table("rows", "copy GB/s:.1f", "gather:.0%", "sum of rows:.0%", "index_add_ over ours:.2f")
    for scale in scales:
        yield f"2^{scale}", *measure_rows(scale)
    yield Table("attention", "softmax, PyG:.2f", "and gradients, PyG:.2f")
    for scale in scales:
        attention = make_attention_pairs(make_matrix(1 << scale, *draw_rmat(rng, scale, DEGREE)))
        yield f"R-MAT 2^{scale}", *(compare_closely(*pair, count_turns(scale)) for pair in attention)


def count_turns(scale: int) -> int:
    """Return the turns of a cell."""
    return TURNS.get(scale, min(TURNS.values()))


def make_pairs(A: Csr) -> dict[str, Pair]:
    """Return ours and the competitor's way, by what the two compute and the competitor's name."""
    n, M = A.rows, to_scipy(A)
    S = sample_distinct((0, 0), n, n >> 3)
    s, cut = S.numpy(), range(n // 4, n)
    left, right = extract_block(A, range(n), range(n // 4)), extract_block(A, range(n), cut)

    def scipy_pair() -> tuple[Any, Any]:
        sampled = M[s][:, s]
        return sampled, sampled.T.tocsr()

    parts = to_scipy(left), to_scipy(right)
    return {
        "induced pair, scipy": (lambda: induced_pair(A, S, S, 0, 1.0), scipy_pair),
        "rows, scipy": (lambda: select_rows(A, S), lambda: M[s]),
        "columns, scipy": (lambda: select_columns(A, S), lambda: M[:, s]),
        "block, scipy": (lambda: extract_block(A, range(n), cut), lambda: M[:, cut.start :]),
        "beside, scipy": (lambda: hstack([left, right]), lambda: sp.hstack(parts, format="csr")),
    }


def compare_exactly(ours: Callable[[], Any], theirs: Callable[[], Any], turns: int) -> float:
    """Return the competitor's time over ours, once the results are the same."""
    found, expected = ours(), theirs()
    each = [(found, expected)] if isinstance(found, Csr) else zip(found, expected, strict=True)
    for mine, other in each:
        other.sort_indices()
        assert np.array_equal(mine.rowptr, other.indptr)
        assert np.array_equal(mine.col, other.indices)
        assert np.array_equal(mine.val, other.data)
    return median_ratio(alternate({"ours": ours, "theirs": theirs}, turns, swap=True))


def measure_rows(scale: int) -> tuple[float, ...]:
    """Return the cells of 2^scale rows, gathered by as many random indices."""
    n = 1 << scale
    index = torch.randint(n, (n,), generator=torch.Generator().manual_seed(scale))
    X, Z = torch.ones(n, WIDTH), torch.zeros(n, WIDTH)
    Y, scatter = torch.empty_like(X), build_scatter_matrix(index, n, X.dtype)
    assert torch.equal(spmm(scatter, X), torch.zeros(n, WIDTH).index_add_(0, index, X))
    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: Y.copy_(X),
        "gather": lambda: take(X, index),
        "sum": lambda: spmm(scatter, X, add_to=Z),
        "index_add_": lambda: Z.index_add_(0, index, X),
    }
    seconds = {name: median(taken) for name, taken in alternate(ways, count_turns(scale), swap=True).items()}
    gather = seconds["copy"] / seconds["gather"]
    total = 3 / 2 * seconds["copy"] / seconds["sum"]
    ratio = seconds["index_add_"] / seconds["sum"]
    speed = 2 * X.nbytes / seconds["copy"] / 1e9
    return speed, gather, total, ratio


def make_attention_pairs(A: Csr) -> list[Pair]:
    """Return ours and PyG's: the softmax of the scores, and that with the gradients of both ends."""
    A_T, row, col = transpose_with_positions(A), row_indices(A), A.col.long()
    d, s = (torch.randn(A.rows, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    da = torch.linspace(-1, 1, A.nnz)
    leaves = d.clone().requires_grad_(), s.clone().requires_grad_()

    def theirs(d: Tensor, s: Tensor) -> Tensor:
        a: Tensor = softmax(leaky_relu(d[row] + s[col], SLOPE), ptr=A.rowptr)
        return a

    def ours_with_gradients() -> list[Tensor]:
        a = softmax_numba(A, d, s)
        dl, dd = softmax_backward_numba(A, d, s, a, da.clone())
        return [dd, reorder_entries_numba(A_T, a, dl)[1]]

    return [
        (lambda: [softmax_numba(A, d, s)], lambda: [theirs(d, s)]),
        (ours_with_gradients, lambda: torch.autograd.grad(theirs(*leaves), leaves, da)),
    ]


def compare_closely(
    ours: Callable[[], list[Tensor]], theirs: Callable[[], list[Tensor]], turns: int
) -> float:
    """Return the competitor's time over ours, once the results are about the same."""
    torch.testing.assert_close(ours(), [*theirs()], rtol=1e-3, atol=1e-3)
    return median_ratio(alternate({"ours": ours, "theirs": theirs}, turns, swap=True))
