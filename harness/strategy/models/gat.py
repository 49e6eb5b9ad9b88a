"""The heads of graph attention (Veličković et al., ICLR'18), apart from the attention kernel.

T = H W holds the features of all heads, concatenated. A head's score of an edge j -> i is a_0 T_i + a_1 T_j, where a_0
and a_1 are vectors of the head's features. The heads' outputs are concatenated, or averaged in the output layer.

Legend: N vertices, Q heads, F features of a head, H features of all heads.
"""

import torch
from torch import Tensor


def split_heads(T_NH: Tensor, heads: int) -> Tensor:
    """Split the concatenated features of all heads into (Q, N, F)."""
    T_NQF: Tensor = T_NH.unflatten(1, (heads, -1))
    return T_NQF.transpose(0, 1).contiguous()


def concatenate_heads(T_QNF: Tensor) -> Tensor:
    """Concatenate the features of all heads, (N, H): the inverse of `split_heads`."""
    return T_QNF.transpose(0, 1).flatten(1)


def compute_scores(T_QNF: Tensor, a_H: Tensor) -> Tensor:
    """Return the contribution of each vertex to the scores of its edges at one endpoint, (Q, N)."""
    return torch.einsum("qnf,qf->qn", T_QNF, a_H.view(len(T_QNF), -1))


def compute_scores_backward(ds_QN: Tensor, T_QNF: Tensor, a_H: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients dT and da of `compute_scores`."""
    dT_QNF = torch.einsum("qn,qf->qnf", ds_QN, a_H.view(len(T_QNF), -1))
    return dT_QNF, torch.einsum("qn,qnf->qf", ds_QN, T_QNF).flatten()


def merge_heads(Z_QNF: Tensor, *, mean: bool) -> Tensor:
    """Return the output of a layer: the mean of its heads, or their concatenation."""
    return Z_QNF.mean(dim=0) if mean else concatenate_heads(Z_QNF)


def merge_heads_backward(G: Tensor, heads: int, *, mean: bool) -> Tensor:
    """Return the gradient of every head: the backward pass of `merge_heads`."""
    return (G / heads).expand(heads, *G.shape).contiguous() if mean else split_heads(G, heads)
