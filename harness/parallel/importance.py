"""GraphSAINT's node sampler: vertices that many listen to are drawn more often, and count for less when they are.

A vertex is drawn with a probability in proportion to the squares of its column of A, so many times, with replacement.
The authors count in many samples beforehand how often a vertex, and how often an edge, is in one; it has a closed form.
Legend: q the probability of one draw, p of being in a sample: p_v = 1 - (1 - q_v)^B.
"""

import torch
from torch import Tensor

from harness.kernels import Csr, row_of
from harness.kernels.induced import induced_pair, mark, places
from harness.kernels.random import Purpose, uniform
from harness.strategy import MiniBatch


class NodeSampler:
    """On one graph."""

    def __init__(self, seed: int, size: int, q: Tensor) -> None:
        """`q` is `column_shares` of A."""
        self.seed, self.size, self.q = seed, size, q
        self._upto = q.cumsum(0)
        self.p = self._some_of(q)

    def held(self) -> list[Tensor]:
        """Three numbers a vertex."""
        return [self.q, self._upto, self.p]

    def draw(self, step: int, group: int) -> Tensor:
        """The sample, ascending, each vertex once."""
        drawn = uniform((self.seed, group, step), Purpose.SAMPLE, range(self.size)) * self._upto[-1]
        S: Tensor = torch.searchsorted(self._upto, drawn, right=True).clamp(max=len(self.q) - 1).unique()
        return S

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """The subgraph on a sample; an entry is divided by the chance of its column once its row is there."""
        S, where = self.draw(step, group), places(A.cols, torch.device("cpu"))
        mark(where, S, 1)
        A_S, _ = induced_pair(A, S, S, where, 1, 0, 1.0)
        if not A.val.is_meta:
            row, col = row_of(A_S), A_S.col.long()
            chance = torch.where(row == col, 1.0, self.both(S[row], S[col]) / self.p[S[row]])
            A_S = A_S._replace(val=A_S.val / chance.to(A_S.val.dtype))
        return MiniBatch([S] * (layers + 1), [A_S] * layers, self.p.mean() / self.p[S])

    def both(self, u: Tensor, v: Tensor) -> Tensor:
        """The chance that two different vertices are in one sample."""
        q_u, q_v = self.q[u], self.q[v]
        return self.p[u] + self.p[v] - self._some_of(q_u + q_v)

    def _some_of(self, q: Tensor) -> Tensor:
        """The chance of at least one draw, exact for small q too."""
        return -torch.expm1(self.size * torch.log1p(-q.clamp(max=1 - 1e-15)))


def column_shares(A: Csr) -> Tensor:
    """The share of each column of A in the sum of the squares of its entries; of shapes alone, all alike."""
    if A.val.is_meta:
        return torch.full((A.cols,), 1 / max(A.cols, 1), dtype=torch.float64)
    squares = torch.zeros(A.cols, dtype=torch.float64)
    squares.index_add_(0, A.col.long(), A.val.double().square())
    return squares / squares.sum()
