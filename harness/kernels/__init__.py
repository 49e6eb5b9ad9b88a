"""Tensors in, tensors out: sparse matrices, their products, gathers, and random numbers by index."""

from harness.kernels.csr import (
    Csr,
    block,
    cast,
    from_coo,
    from_scipy,
    index_dtype,
    row_of,
    to_scipy,
    transpose,
)

__all__ = ["Csr", "block", "cast", "from_coo", "from_scipy", "index_dtype", "row_of", "to_scipy", "transpose"]
