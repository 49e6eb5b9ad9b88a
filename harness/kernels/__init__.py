"""Tensors in, tensors out: sparse matrices, their products, gathers, and random numbers by index."""

from harness.kernels.csr import Csr as Csr
from harness.kernels.csr import cast as cast
from harness.kernels.csr import from_coo as from_coo
from harness.kernels.csr import from_scipy as from_scipy
from harness.kernels.csr import index_dtype as index_dtype
from harness.kernels.csr import row_indices as row_indices
from harness.kernels.csr import to_device as to_device
from harness.kernels.csr import to_scipy as to_scipy
from harness.kernels.csr import transpose as transpose
from harness.kernels.csr import upload_csr as upload_csr
