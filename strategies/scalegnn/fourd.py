"""One rank's operators of ScaleGNN: on a sample in each training step, and on the whole graph in evaluation.

The legend is that of `scalegnn`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from pydantic import Field
from torch import Tensor

from harness.base.device import record_upload
from harness.comm.axis import Axis
from harness.kernels import Csr, to_device
from harness.kernels.random import Index
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.strategy import Context, MessageParams, Strategy
from harness.strategy.models import Predictions, SplitAccuracy
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.label_loss import LabelLoss, make_label_loss
from harness.strategy.parallel.prefetch import Prefetcher
from harness.strategy.parallel.products import ProductAxes, SparseFactor, Stripe, aggregate_3d, linear_3d
from harness.strategy.parallel.reshard import Cuts
from harness.strategy.parallel.rotating_layers import RotatingLayers
from harness.strategy.parallel.rotating_layout import RotatingLayout
from harness.strategy.parallel.uniform import BlockSampler, UniformSampler, find_places

D = AxisName.D


class ScaleGNNParams(MessageParams):
    """The optimisations of section V. The first choice is the paper's baseline, without them."""

    prefetch: bool = False
    """The next mini-batch is drawn while this one is trained on, also across epochs (section V-A)."""
    fused: bool = Field(False, examples=[False])  # not in a check, which would wait for the compiler
    """RMSNorm, ReLU and dropout are one compiled kernel (section V-C)."""
    overlap: bool = False
    """Sums of gradients are in flight while other gradients are computed (section V-D)."""


BlockOfA = tuple[range, range]
"""The rows and columns of a block of A, which repeats every three layers."""


class Sample(NamedTuple):
    """The input of one rank's operators: the whole graph, or its part of a mini-batch."""

    step: int | None
    """None for the whole graph."""
    S: Index
    """The vertices of the group's mini-batch, in ascending order."""
    matrices: dict[BlockOfA, tuple[Csr, Csr | None]]
    """This rank's blocks of A at S and their transposes, which evaluation does not need."""
    X: Tensor
    loss: LabelLoss
    cuts: Cuts
    """The blocks of positions in S along each axis."""


class Samples:
    """One rank's part of the whole graph, and of the mini-batches that Algorithm 2 draws from it."""

    def __init__(
        self,
        ctx: Context,
        strategy: Strategy,
        layout: RotatingLayout,
        sampler: UniformSampler,
        params: ScaleGNNParams,
    ) -> None:
        self.ctx, self.layout, self.sampler, self.params = ctx, layout, sampler, params
        self.device, self.layers, self.group = ctx.device, layout.shares(ctx.at), ctx.at[D]
        down, across = layout.output_axes
        self.everywhere = ctx.grid.axis((D, down))
        """The axis whose ranks together have every row of every mini-batch once."""
        self.shares = ctx.grid.axis((D, down, across))
        output, order = strategy.output_piece(ctx.at), (ctx.spec.model.layers - 1) % 2
        self.rows, over = output.rows, ctx.grid.axis((down,))
        loss = make_label_loss(ctx, output, order, over, ctx.grid[across], ctx.grid.axis((down, across)))
        X = ctx.blocks.features(*strategy.input_piece(ctx.at))
        matrices: dict[BlockOfA, tuple[Csr, Csr | None]] = {
            (share.N, share.K): (ctx.blocks.adjacency(share.N, share.K), None) for share in self.layers
        }
        self.whole = Sample(None, self.rows, matrices, X, loss, layout.row_cuts())
        self.samplers = {
            block: BlockSampler(ctx.blocks.sampling_matrix(*block), *block) for block in matrices
        }
        self.prefetch = Prefetcher(self._draw, ctx.device, ctx.ledger) if params.prefetch else None

    def take_sample(self, step: int) -> Sample:
        """Return the sample of a step, which may have been prefetched."""
        ledger = self.ctx.ledger
        with ledger.phase(Phase.SAMPLE), ledger.op(Op.COPY, tensor=TensorName.A):
            return self.prefetch.take(step) if self.prefetch else self._draw(step)

    def _draw(self, step: int) -> Sample:
        """Draw the sample of a step by Algorithm 2, without communication."""
        S = self.sampler.sample(step, self.group)
        matrices: dict[BlockOfA, tuple[Csr, Csr | None]] = {
            block: self._move_to_device(sampler.sample(S, self.sampler.inclusion_probability))
            for block, sampler in self.samplers.items()
        }
        K, N = self.layout.input(self.ctx.at).rows, self.rows
        X, loss = self.whole.X[self._positions(S, K)], self.whole.loss.select(self._positions(S, N))
        cuts = {axis: [find_places(S, block) for block in blocks] for axis, blocks in self.whole.cuts.items()}
        return Sample(step, S, matrices, X, loss, cuts)

    def _move_to_device(self, pair: tuple[Csr, Csr]) -> tuple[Csr, Csr]:
        A, A_T = pair
        return to_device(A, self.device), to_device(A_T, self.device)

    def _positions(self, S: Tensor, block: range) -> Tensor:
        """Return the positions in a block of its sampled vertices."""
        sampled = find_places(S, block)
        return record_upload(S[sampled.start : sampled.stop] - block.start, self.device)


class FourD(RotatingLayers):
    """One rank's operators by Algorithm 1, on the whole graph or on a sample."""

    def __init__(self, samples: Samples, sample: Sample) -> None:
        ctx, params = samples.ctx, samples.params
        super().__init__(ctx, sample.S, samples.group, sample.step)
        self.samples, self.sample = samples, sample
        self.grid, self.at, self.layout, self.layers = ctx.grid, ctx.at, samples.layout, samples.layers
        self.fused, self.overlap = params.fused, params.overlap
        self.gradients = Gradients(ctx.grid[D], overlap=params.overlap)

    def for_step(self, step: int) -> Self:
        return type(self)(self.samples, self.samples.take_sample(step))

    @property
    def cuts(self) -> Cuts:
        return self.sample.cuts

    def inputs(self) -> Tensor:
        return self.sample.X

    # The model.

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Sum T = A H over S and Z = T W over T (equations 27 and 28); backward, dT over S, and dH and dW over R."""
        share = self.layers[layer]
        R, S, T = (self.grid[axis] for axis in share.roles)
        A_NK, A_T_KN = self.sample.matrices[share.N, share.K]
        with self.ledger.phase(Phase.CONVOLVE, layer):
            transposed = None if A_T_KN is None else self._make_factor(A_T_KN, R)
            T_NF = aggregate_3d(self.kernels, self._make_factor(A_NK, S), transposed, H)
            return linear_3d(self.kernels, T_NF, W, ProductAxes(R, T, S), self.linear_options)

    def _make_factor(self, A: Csr, over: Axis) -> SparseFactor:
        return SparseFactor([Stripe(slice(0, A.rows), A, None)], over)

    # The loss.

    def loss(self, Z_NC: Tensor) -> Tensor:
        return self.sample.loss.mean_of_batches(Z_NC, self.samples.everywhere, self.samples.shares)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        return self.sample.loss.evaluate(Z_NC)

    def gather_predictions(self, Z_NC: Tensor) -> dict[str, Predictions]:
        return self.sample.loss.gather_predictions(Z_NC)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        self.gradients.reduce_gradients(weights)
