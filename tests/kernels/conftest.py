"""Strategies of hypothesis for small matrices: any shape, also empty, with empty rows and repeated entries.

Values are small integers, so sums are exact in every type and order, and results are compared for equality.
"""

import pytest
import torch
from hypothesis import strategies as st

from harness.kernels.csr import Csr, from_coo


@st.composite
def any_matrix(draw: st.DrawFn) -> Csr:
    rows, cols = draw(st.integers(0, 13)), draw(st.integers(0, 13))
    place = st.tuples(st.integers(0, rows - 1), st.integers(0, cols - 1), st.integers(-4, 4))
    entries = draw(st.lists(place, max_size=60)) if rows * cols else []
    row, col, val = torch.tensor(entries, dtype=torch.int64).reshape(-1, 3).T
    return from_coo(row, col, val.double(), (rows, cols))


st.register_type_strategy(Csr, any_matrix())


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
