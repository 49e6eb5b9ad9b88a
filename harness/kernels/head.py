"""One head of attention, by the library's operators on any device; `harness.kernels.attention` has the formulas.

Positions of entries count and values do not, except in `columns_back`. Legend: N rows of A, K columns, E entries in
order, F features of a head.
"""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from harness.kernels.csr import Csr, row_of, take
from harness.kernels.spmm import inner_products, multiply

SLOPE = 0.2
"""The slope of the leaky ReLU below zero."""

Pair = tuple[Tensor, Tensor]


def weigh(A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor) -> Pair:
    """a = softmax of the scores, row by row; Z = a T."""
    row_E = row_of(A_NK)
    l_E = leaky_relu(take(d_N, row_E) + take(s_K, A_NK.col), SLOPE)
    exp_E = (l_E - take(_reduced(l_E, A_NK.rowptr, "max"), row_E)).exp()
    a_E = exp_E / take(_reduced(exp_E, A_NK.rowptr, "sum"), row_E)
    return a_E, multiply(A_NK._replace(val=a_E), T_KF, None)


def rows_back(A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor, a_E: Tensor, G_NF: Tensor) -> Pair:
    """dl = a (da - sum of a da) leaky', where da = G T; and dd, the sums of dl."""
    row_E = row_of(A_NK)
    da_E = inner_products(A_NK, G_NF, T_KF)
    mean_N = _reduced(a_E * da_E, A_NK.rowptr, "sum")
    dl_E = a_E * (da_E - take(mean_N, row_E))
    dl_E = torch.where(take(d_N, row_E) + take(s_K, A_NK.col) > 0, dl_E, SLOPE * dl_E)
    return dl_E, _reduced(dl_E, A_NK.rowptr, "sum")


def columns_back(A_KN: Csr, a_E: Tensor, dl_E: Tensor, G_NF: Tensor) -> Pair:
    """dT = a^T G, and ds, the sums of dl; the values of A_KN are the positions of its entries in A."""
    dT_KF = multiply(A_KN._replace(val=take(a_E, A_KN.val)), G_NF, None)
    return dT_KF, _reduced(take(dl_E, A_KN.val), A_KN.rowptr, "sum")


def _reduced(x_E: Tensor, rowptr: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(x_E, how, offsets=rowptr, unsafe=True)
