"""The heads of graph attention (Veličković et al., ICLR'18), independent of the code that computes the attention.

T = H W has the features of all heads side by side, and a head's score of an edge j -> i is a_0 T_i + a_1 T_j, each a
vector of its features. The outputs of heads are side by side again, except in the layer that gives the classes, whose
output is the mean of the heads.

Legend: N vertices, Q heads, F features of a head, H those of all.
"""

import torch
from torch import Tensor


def split_heads(T_NH: Tensor, heads: int) -> Tensor:
    """One head after the other, (Q, N, F)."""
    T_NQF: Tensor = T_NH.unflatten(1, (heads, -1))
    return T_NQF.transpose(0, 1).contiguous()


def concatenate_heads(T_QNF: Tensor) -> Tensor:
    """The inverse of `by_head`, (N, H)."""
    return T_QNF.transpose(0, 1).flatten(1)


def compute_scores(T_QNF: Tensor, a_H: Tensor) -> Tensor:
    """The share of a vertex in the scores of its edges at one of their ends, (Q, N)."""
    return torch.einsum("qnf,qf->qn", T_QNF, a_H.view(len(T_QNF), -1))


def compute_scores_backward(ds_QN: Tensor, T_QNF: Tensor, a_H: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients dT and da of `scores`."""
    dT_QNF = torch.einsum("qn,qf->qnf", ds_QN, a_H.view(len(T_QNF), -1))
    return dT_QNF, torch.einsum("qn,qnf->qf", ds_QN, T_QNF).flatten()


def merge_heads(Z_QNF: Tensor, *, mean: bool) -> Tensor:
    """The output of a layer: the mean of its heads, or all heads side by side."""
    return Z_QNF.mean(dim=0) if mean else concatenate_heads(Z_QNF)


def merge_heads_backward(G: Tensor, heads: int, *, mean: bool) -> Tensor:
    """The gradient of every head, the backward of `merged`."""
    return (G / heads).expand(heads, *G.shape).contiguous() if mean else split_heads(G, heads)
