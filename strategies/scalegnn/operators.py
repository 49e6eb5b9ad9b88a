"""One rank's operators of ScaleGNN: on the whole graph to evaluate, on a sample of it in every training step.

Letters as in `scalegnn`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr, on_device
from harness.kernels.induced import places
from harness.kernels.random import Index
from harness.ledger import Op, Phase, TensorName
from harness.models import Hits, Part, Skip
from harness.parallel.gradients import Gradients
from harness.parallel.label_loss import LabelLoss, label_loss
from harness.parallel.linear import Sending, Split, linear
from harness.parallel.norm import Finish, Way, normalised
from harness.parallel.prefetch import Ahead
from harness.parallel.products import Sparse, Stripe, aggregate
from harness.parallel.reshard import Cuts, Residual, moves
from harness.parallel.rows import LayerOperators
from harness.parallel.uniform import Sampled, Uniform, cut
from harness.strategy import Context, Strategy
from strategies.scalegnn.layout import GROUP, Blocks, D

Plane = tuple[range, range]
"""The rows and columns of a block of A; layers three apart have the same."""


class Sample(NamedTuple):
    """What one rank computes on: the whole graph, or its part of the mini-batch of a training step."""

    step: int | None
    """None for the whole graph."""
    S: Index
    """The vertices of the whole group's mini-batch, ascending."""
    planes: dict[Plane, tuple[Csr, Csr | None]]
    """This rank's parts of the subgraph, and their transposes."""
    X: Tensor
    loss: LabelLoss
    cuts: Cuts
    """Where the places in S are cut by each axis."""


class Choices(NamedTuple):
    """The optimisations of section V."""

    prefetch: bool
    bf16: bool
    fused: bool
    overlap: bool


class Samples:
    """Algorithm 2 on one rank: its part of every step's mini-batch, and of the whole graph."""

    def __init__(
        self, ctx: Context, strategy: Strategy, blocks: Blocks, sampler: Uniform, choices: Choices
    ) -> None:
        self.ctx, self.blocks, self.sampler, self.choices = ctx, blocks, sampler, choices
        self.device, self.layers, self.group = ctx.device, blocks.shares(ctx.at), ctx.at[D]
        down, across = blocks.output_axes
        self.everywhere = ctx.grid.axis((D, down))
        """The ranks that have all rows of all mini-batches, each once."""
        self.shares = ctx.grid.axis((D, down, across))
        output, order = strategy.output(ctx.at), (ctx.spec.model.layers - 1) % 2
        self.rows, over = output.rows, ctx.grid.axis((down,))
        loss = label_loss(ctx, output, order, over, ctx.grid[across], ctx.grid.axis((down, across)))
        X = ctx.blocks.features(*strategy.input(ctx.at))
        planes: dict[Plane, tuple[Csr, Csr | None]] = {
            (share.N, share.K): (ctx.blocks.adjacency(share.N, share.K), None) for share in self.layers
        }
        self.whole = Sample(None, self.rows, planes, X, loss, blocks.vertices())
        self.drawn = {plane: _drawn_from(ctx, plane) for plane in planes}
        self.prefetch = Ahead(self._draw, ctx.device) if choices.prefetch else None

    def take(self, step: int) -> Sample:
        """The sample of a step, which may have been drawn ahead."""
        ledger = self.ctx.ledger
        with ledger.phase(Phase.SAMPLE), ledger.op(Op.COPY, tensor=TensorName.A):
            return self.prefetch.take(step) if self.prefetch else self._draw(step)

    def _draw(self, step: int) -> Sample:
        """Algorithm 2. No other rank is asked for anything."""
        where = self.device if self.device.type == "cuda" else torch.device("cpu")
        S = self.sampler.draw(step, self.group, where)
        planes: dict[Plane, tuple[Csr, Csr | None]] = {
            plane: self._on_device(drawn.draw(S, step, self.sampler.chance))
            for plane, drawn in self.drawn.items()
        }
        K, N = self.blocks.input(self.ctx.at).rows, self.rows
        X, loss = self.whole.X[self._places(S, K)], self.whole.loss.on(self._places(S, N))
        cuts = {axis: [cut(S, block) for block in blocks] for axis, blocks in self.whole.cuts.items()}
        return Sample(step, S, planes, X, loss, cuts)

    def _on_device(self, pair: tuple[Csr, Csr]) -> tuple[Csr, Csr]:
        A, A_T = pair
        return on_device(A, self.device), on_device(A_T, self.device)

    def _places(self, S: Tensor, block: range) -> Tensor:
        """Where the sampled vertices of a block stand in it."""
        found = cut(S, block)
        return (S[found.start : found.stop] - block.start).to(self.device)


class FourD(LayerOperators):
    """Algorithm 1, on the whole graph or on a sample."""

    def __init__(self, samples: Samples, sample: Sample) -> None:
        ctx, choices = samples.ctx, samples.choices
        super().__init__(ctx, sample.S, samples.group, sample.step)
        self.samples, self.sample = samples, sample
        self.grid, self.at, self.blocks, self.layers = ctx.grid, ctx.at, samples.blocks, samples.layers
        self.wire = torch.bfloat16 if choices.bf16 else None
        self.fused, self.overlap = choices.fused, choices.overlap
        self.gradients = Gradients(ctx.grid[D], overlap=choices.overlap)

    def of_step(self, step: int) -> Self:
        return type(self)(self.samples, self.samples.take(step))

    def inputs(self) -> Tensor:
        return self.sample.X

    # The model.

    def linear(self, part: Part, H: Tensor, W: Tensor) -> Tensor:
        """The projection sums over R, the head over T (equation 28)."""
        R, S, T = self.blocks.before if part is Part.PROJECTION else self.blocks.behind
        inner, cols = (R, T) if part is Part.PROJECTION else (T, R)
        makes = TensorName.H if part is Part.PROJECTION else TensorName.Z
        axes = self.grid[S], self.grid[inner], self.grid[cols]
        with self.ledger.phase(Phase.LINEAR, -1):
            return linear(self.kernels, H, W, Split(*axes, makes, TensorName.DH), self._sending)

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """T = A H summed over S, Z = T W summed over T (equations 27 and 28); backward dT over S, dH and dW over R."""
        share = self.layers[layer]
        R, S, T = (self.grid[axis] for axis in share.roles)
        A_NK, A_T_KN = self.sample.planes[share.N, share.K]
        with self.ledger.phase(Phase.CONVOLVE, layer):
            back = None if A_T_KN is None else self._sparse(A_T_KN, R)
            T_NF = aggregate(self.kernels, self._sparse(A_NK, S), back, H)
            return linear(self.kernels, T_NF, W, Split(R, T, S, TensorName.Z, TensorName.DT), self._sending)

    def _sparse(self, A: Csr, over: Axis) -> Sparse:
        return Sparse([Stripe(slice(0, A.rows), A, None)], over, wire=self.wire)

    @property
    def _sending(self) -> Sending:
        return Sending(self.wire, self.overlap, self.gradients)

    def finish(self, layer: int, Z_NH: Tensor, gamma: Tensor | None) -> Tensor:
        if gamma is None:
            return super().finish(layer, Z_NH, gamma)
        R, S, _ = self.layers[layer].roles
        with self.ledger.phase(Phase.ACTIVATE, layer):
            kept, scale = (
                (None, 1.0) if self.step is None or not self.model.dropout else self.drawn_mask(layer, Z_NH)
            )
            finish = Finish(self.model.hidden, self.model.activation == "relu", kept, scale)
            way = Way(self.grid[S], self.grid[R], self.gradients, self.fused)
            return normalised(self.kernels, Z_NH, gamma, finish, way)

    def drawn_mask(self, layer: int, Z_NH: Tensor) -> tuple[Tensor, float]:
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            return self.mask(layer, Z_NH)

    def rows_of(self, layer: int) -> Tensor:
        share = self.layers[layer]
        R = share.roles.R
        here = self.sample.cuts[R][self.at[R]]
        S = self.vertices
        assert isinstance(S, Tensor), "masks are for samples"
        return S[here.start : here.stop].to(self.device)

    def features(self, layer: int, Z_NH: Tensor) -> range:
        return self.layers[layer].H

    def keep(self, layer: int, H: Tensor) -> Skip:
        """The input sets out for where the output will be (section IV-C4)."""
        before, after = self.blocks.residual(layer)
        group, grid, rows = self.grid.axis(GROUP), self.grid.shape, self.sample.cuts
        cols: Cuts = self.blocks.columns(self.model.hidden)
        with self.ledger.phase(Phase.ACTIVATE, layer):
            there = moves(group, grid, before, after, rows, cols)
            back = moves(group, grid, after, before, rows, cols)
            residual = Residual(there, back)
            H, token = residual.keep(H)
        return Skip(H, (residual, token))

    def add(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        residual, token = skip.kept
        with self.ledger.phase(Phase.ACTIVATE, layer):
            added: Tensor = residual.add(H, token)
            return added

    # The loss.

    def loss(self, Z_NC: Tensor) -> Tensor:
        return self.sample.loss.mean_of_batches(Z_NC, self.samples.everywhere, self.samples.shares)

    def evaluate(self, Z_NC: Tensor) -> dict[str, Hits]:
        return self.sample.loss.hits(Z_NC)

    def settle(self, weights: Sequence[Tensor]) -> None:
        self.gradients.settle(weights)


def _drawn_from(ctx: Context, plane: Plane) -> Sampled:
    A = ctx.blocks.sampling_matrix(*plane)
    where = places(A.cols, A.rowptr.device)
    ctx.memory.hold(TensorName.INDEX, where)
    return Sampled(A, *plane, where)
