"""BNS-GCN-style boundary sampling (Wan et al., MLSys'22): a part trains with a sample of the rows at its boundary.

In every epoch each part draws, of the rows that it needs of each other part, a share p, and multiplies by those alone,
scaled by 1/p. With p = 1 it is the plain halo exchange, exact; with p = 0 parts know nothing of each other. The first
layer takes no sample: A X is computed once, before training, with the whole boundary (`precompute`). It is not the
authors' code: the number of rows is rounded at random, where theirs is rounded down and a small boundary is never
sampled; the scale is 1/p, where theirs is the realised share; gradients are summed by plain all-reduces.

Legend as in `rows`.
"""

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr, transpose
from harness.kernels.csr import take
from harness.kernels.gather import scatter_matrix
from harness.kernels.parts import drawn_rows
from harness.kernels.random import Purpose, bits, uniform
from harness.ledger import Op, Phase, TensorName
from harness.parallel.halo import Boundary, Halo
from harness.strategy import Context, Coordinates, Counts, Promise, csr_bytes, turned_bytes
from harness.validation import Frozen
from strategies.halo.attention import AttendingRows, Neighbours
from strategies.halo.rows import P, Part, PartRows, PartScheme

# A sample of the boundary: which of the rows that one part needs of another travel in a step.
#
# Both ends draw it, so nobody sends a list. The number is p b rounded up or down at random, so that its
# mean is p b also where p b is below one; the rows are drawn without replacement. A row is there with
# probability p, whatever b is, and 1/p times what is there is unbiased.

Pair = tuple[int, int]
"""Who needs the rows, and who has them."""


def size_of_sample(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> int:
    """How many of so many rows travel."""
    whole = int(rate * boundary)
    last = torch.tensor([boundary])
    up = float(uniform((seed, step, *pair), Purpose.SAMPLE, last)) < rate * boundary - whole
    return min(whole + up, boundary)


def sample(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> Tensor:
    """Which of them, ascending."""
    size = size_of_sample(seed, step, pair, boundary, rate)
    drawn = bits((seed, step, *pair), Purpose.SAMPLE, range(boundary))
    return torch.argsort(drawn, stable=True)[:size].sort().values


class Bns(PartScheme):
    """Boundary node sampling, for any number of parts up to the number of vertices."""

    name = "bns-gcn"
    promise = Promise.EXACT
    models = ("gcn", "sage", "gat")

    class Params(Frozen):
        """Of the sample."""

        p: float = Field(1.0, ge=0, le=1, examples=[0.5, 0.1, 0.0])
        """The share of the boundary that travels in an epoch."""
        precompute: bool = True
        """A X is computed once, before training, where features never change: the authors' --use-pp."""
        overlap: bool = False
        """A rank multiplies by its own rows while those of others are under way."""

    params: Params

    @property
    def overlaps(self) -> bool:
        return self.params.overlap

    @property
    def precompute(self) -> bool:
        return self.params.precompute

    @property
    def samples_rows(self) -> bool:
        """Whether any layer multiplies by a sample."""
        return self.params.p < 1 and len(self.exchanging) > 0

    def promised(self) -> Promise:
        """Of a product with A a sample is an estimate; of attention it is not."""
        if not self.samples_rows:
            return Promise.EXACT
        estimates = self.params.p > 0 and self.spec.model.kind != "gat"
        return Promise.ESTIMATOR if estimates else Promise.APPROXIMATE

    def operators(self, ctx: Context) -> "SampledRows":
        return (SampledAttention if self.spec.model.kind == "gat" else SampledRows)(ctx, self)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Of attention, A_NV and where its entries stand in it column by column."""
        held, rows, boundary = super().memory(at, counts), self.rows(at), self.boundary(at, counts)
        if self.spec.model.kind == "gat":
            entries = counts.nonzeros(rows, rows) + boundary.nonzeros()
            everyone = len(rows) + sum(boundary.arriving().values())
            A_NV = csr_bytes(len(rows), entries, self.spec.precision)
            held[TensorName.A] = A_NV + turned_bytes(everyone, entries)
        return held

    def travelling(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        own = boundary.own
        arriving = (self.size(epoch, own, owner, b) for owner, b in boundary.arriving().items())
        leaving = (self.size(epoch, other, own, b) for other, b in boundary.leaving().items())
        return [(sum(arriving), sum(leaving))] * len(self.shapes)

    def size(self, step: int, receiver: int, owner: int, boundary: int) -> int:
        return size_of_sample(self.spec.seed, step, (receiver, owner), boundary, self.params.p)

    def sample(self, step: int, receiver: int, owner: int, boundary: int) -> Tensor:
        return sample(self.spec.seed, step, (receiver, owner), boundary, self.params.p)

    def multiplier(self, A: Tensor, layer: int, step: int) -> Tensor:
        """A, its columns outside the diagonal blocks scaled by 1/p where they were drawn, and by 0 where not.

        The first layer multiplies by A itself where A X is computed once.
        """
        if layer not in self.exchanging:
            return A
        estimate = A.clone()
        for i, rows in enumerate(self.blocks()):
            for j, cols in enumerate(self.blocks()):
                if i == j:
                    continue
                block = estimate[rows.start : rows.stop, cols.start : cols.stop]
                boundary = (block != 0).any(dim=0).nonzero()[:, 0]
                drawn = boundary[self.sample(step, i, j, len(boundary))]
                scale = torch.zeros(len(cols), dtype=A.dtype)
                scale[drawn] = 1 / self.params.p if self.params.p else 0
                block *= scale
        return estimate


class SampledRows(PartRows):
    """The whole boundary where the whole graph is asked for, a sample of it in a training step."""

    strategy: Bns

    def __init__(self, ctx: Context, strategy: Bns) -> None:
        super().__init__(ctx, strategy)
        blocks, own = strategy.blocks(), ctx.at[P]
        others = [block for i, block in enumerate(blocks) if i != own]
        self.A_KN_on_host = transpose(ctx.blocks.compact_on_host(blocks[own], others)[0])

    def of_step(self, step: int) -> "SampledRows":
        there = super().of_step(step)
        if self.strategy.samples_rows:
            with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.INDEX):
                there.parts = [self.sampled(step)] * self.model.layers
        return there

    def sampled(self, step: int) -> Part:
        """This rank's part with the rows of a sample alone."""
        (A_KN, halo), ctx = self.drawn(step), self.ctx
        return self.parts[0]._replace(
            A_NK=ctx.memory.to_device(transpose(A_KN)),
            A_KN=ctx.memory.to_device(A_KN),
            halo=halo,
            S_NM=scatter_matrix(halo.leaving, len(self.rows), ctx.dtype),
        )

    def drawn(self, step: int) -> tuple[Csr, Halo]:
        """A_KN of a sample, on the host, and its halo."""
        ctx, draw, halo, own = self.ctx, self.strategy.sample, self.parts[0].halo, self.ctx.at[P]
        sent = [draw(step, other, own, b) for other, b in enumerate(halo.send)]
        received = [draw(step, own, owner, b) for owner, b in enumerate(halo.receive)]
        A_KN = drawn_rows(
            self.A_KN_on_host, _beside(received, halo.receive), 1 / (self.strategy.params.p or 1)
        )
        leaving = take(halo.leaving, _beside(sent, halo.send).to(ctx.device))
        return A_KN, Halo(leaving, [len(each) for each in sent], [len(each) for each in received])


class SampledAttention(SampledRows, AttendingRows):
    """The same with attention, which weighs what is there and needs no scale."""

    def sampled(self, step: int) -> Neighbours:
        A_KN, halo = self.drawn(step)
        edges = self.edges(transpose(A_KN), self.ctx.memory.to_device)
        return Neighbours(edges, halo, scatter_matrix(halo.leaving, len(self.rows), self.ctx.dtype))


def _beside(places: list[Tensor], sizes: list[int]) -> Tensor:
    """Places within lists of these sizes as places in one list of them all."""
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([each + start for each, start in zip(places, starts[:-1], strict=True)])
