"""Gathering rows, and adding their gradients back, as dense torch's indexing does."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck

from harness.kernels.gather import gather_rows, scatter_matrix


@given(st.integers(1, 6), st.integers(0, 3), st.lists(st.integers(0, 5), max_size=20), st.booleans())
def test_values_and_gradient(rows, features, index, planned):
    index = torch.tensor(index, dtype=torch.int64) % rows
    X = torch.arange(rows * features, dtype=torch.float64).reshape(rows, features).requires_grad_()
    X_oracle = X.detach().clone().requires_grad_()
    dY = torch.arange(len(index) * features, dtype=torch.float64).reshape(len(index), features)
    scatter = scatter_matrix(index, rows, X.dtype) if planned else None
    Y, Y_oracle = gather_rows(X, index, scatter), X_oracle[index]
    assert torch.equal(Y, Y_oracle)
    Y.backward(dY)
    Y_oracle.backward(dY)
    assert torch.equal(X.grad, X_oracle.grad)


def test_gradient_by_differences():
    X = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).requires_grad_()
    assert gradcheck(lambda X: gather_rows(X, torch.tensor([3, 0, 3, 3])), (X,))


def test_no_rows_to_gather_from():
    X = torch.ones(0, 3, requires_grad=True)
    gather_rows(X, torch.zeros(0, dtype=torch.int64)).sum().backward()
    assert X.grad.shape == (0, 3)


def test_shapes_are_enough():
    with FakeTensorMode():
        X = torch.empty(1000, 8, requires_grad=True)
        gather_rows(X, torch.zeros(50, dtype=torch.int64)).sum().backward()
        assert X.grad.shape == X.shape
