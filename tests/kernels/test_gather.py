"""A product with the scatter matrix is the gradient of dense torch's indexing."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from harness.kernels.parts import build_scatter_matrix
from harness.kernels.spmm import spmm


@given(st.integers(0, 6), st.integers(0, 3), st.lists(st.integers(0, 5), max_size=20))
def test_product_with_scatter_matrix_equals_gradient_of_indexing(rows, features, index):
    index = torch.tensor(index if rows else [], dtype=torch.int64) % max(rows, 1)
    X = torch.zeros(rows, features, dtype=torch.float64, requires_grad=True)
    dY = torch.arange(len(index) * features, dtype=torch.float64).reshape(len(index), features)
    X[index].backward(dY)
    scatter = build_scatter_matrix(index, rows, X.dtype)
    assert scatter.shape == (rows, len(index))
    assert torch.equal(spmm(scatter, dY), X.grad)


def test_gather_runs_on_meta_tensors():
    with FakeTensorMode():
        scatter = build_scatter_matrix(torch.zeros(50, dtype=torch.int64), 1000, torch.float32)
        assert spmm(scatter, torch.empty(50, 8)).shape == (1000, 8)
