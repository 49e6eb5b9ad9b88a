"""The heads of graph attention (Veličković et al., ICLR'18), whoever computes the attention itself.

T = H W has the features of all heads side by side, and a head's score of an edge j -> i is a_0 T_i + a_1 T_j, each a
vector of the head's features. Heads stay side by side, but where a layer gives the classes: there the mean is taken.

Legend: N vertices, H features of all heads, Q heads, F features of one; a_2H is both vectors of every head.
"""

import torch
from torch import Tensor


def scores(T_NH: Tensor, a_H: Tensor, heads: int) -> Tensor:
    """Of every head and vertex, (Q, N): what it adds to the scores of its edges at one of their ends."""
    return torch.einsum("nqf,qf->qn", _by_head(T_NH, heads), a_H.view(heads, -1)).contiguous()


def scores_back(ds_QN: Tensor, T_NH: Tensor, a_H: Tensor) -> tuple[Tensor, Tensor]:
    """dT and da."""
    heads = len(ds_QN)
    dT_NQF = torch.einsum("qn,qf->nqf", ds_QN, a_H.view(heads, -1))
    da_QF = torch.einsum("qn,nqf->qf", ds_QN, _by_head(T_NH, heads))
    return dT_NQF.flatten(1), da_QF.flatten()


def merged(Z_NH: Tensor, heads: int, *, mean: bool) -> Tensor:
    """What a layer gives of what its heads do."""
    return _by_head(Z_NH, heads).mean(dim=1) if mean else Z_NH


def merged_back(G: Tensor, heads: int, *, mean: bool) -> Tensor:
    """The gradient of all heads, (N, H)."""
    return (G / heads).repeat(1, heads) if mean else G


def _by_head(T_NH: Tensor, heads: int) -> Tensor:
    by_head: Tensor = T_NH.unflatten(1, (heads, -1))
    return by_head
