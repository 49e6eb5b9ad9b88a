"""All operators of a layer except its convolution, on axes whose roles rotate: projection, head, root, norm, residual.

`add_words` is the formula of their words. The layout and the legend are in `harness.strategy.parallel.rotating_layout`.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from harness.base.device import record_upload
from harness.comm.grid import Grid
from harness.comm.layout import Coordinates
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.strategy import Words
from harness.strategy.models import Part, Skip, Weight
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.norm import Epilogue, NormPlan, normalise_rows
from harness.strategy.parallel.products import LinearOptions, ProductAxes, linear_3d
from harness.strategy.parallel.reshard import Cuts, Residual, plan_reshard, reshard
from harness.strategy.parallel.rotating_layout import CUBE, RotatingLayout
from harness.strategy.parallel.row_strategy import LayerOperators, to_index_tensor

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class RotatingLayers(LayerOperators):
    """One rank's operators except the convolution. Subclasses define the grid, the layout and the gradients."""

    grid: Grid
    at: Coordinates
    layout: RotatingLayout
    gradients: Gradients
    fused = False
    """Compile norm, ReLU and dropout into one kernel."""
    overlap = False
    """Overlap reductions of gradients with the computation of others."""

    @property
    def cuts(self) -> Cuts:
        """The blocks of the training step's vertices along each axis."""
        return self.layout.row_cuts()

    @property
    def linear_options(self) -> LinearOptions:
        """The options for the reductions of products with weights."""
        return LinearOptions(self.overlap, self.gradients)

    def linear(self, part: Part, H: Tensor, W: Tensor, layer: int = -1) -> Tensor:
        """Return H W. The projection sums over R, the head over T (ScaleGNN, equation 28)."""
        if part is Part.ROOT:
            return self.root_term(layer, H, W)
        R, S, T = self.layout.projection_roles if part is Part.PROJECTION else self.layout.head_roles
        inner, cols = (R, T) if part is Part.PROJECTION else (T, R)
        makes = TensorName.H if part is Part.PROJECTION else TensorName.Z
        axes = ProductAxes(self.grid[S], self.grid[inner], self.grid[cols], makes, TensorName.DH)
        with self.ledger.phase(Phase.LINEAR, -1):
            return linear_3d(self.kernels, H, W, axes, self.linear_options)

    def root_term(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        """Return GraphSAGE's H W: summed over T with columns over R, then resharded like the layer's output."""
        R, S, T = self.layout.roles(layer)
        axes = ProductAxes(self.grid[S], self.grid[T], self.grid[R], TensorName.Z, TensorName.DH)
        before, after = self.layout.root_layouts(layer)
        group, shape, rows = self.grid.axis((R, S)), self.grid.shape, self.cuts
        cols: Cuts = self.layout.column_cuts(self.layout.shapes[layer][1])
        with self.ledger.phase(Phase.LINEAR, layer):
            forward_plan = plan_reshard(group, shape, before, after, rows, cols)
            backward_plan = plan_reshard(group, shape, after, before, rows, cols)
            Z_KH = linear_3d(self.kernels, H_KF, W_FH, axes, self.linear_options)
            return reshard(Z_KH, forward_plan, backward_plan)

    def finish(self, layer: int, Z_NH: Tensor, gamma: Tensor | None) -> Tensor:
        if gamma is None:
            return super().finish(layer, Z_NH, gamma)
        R, S, _ = self.layout.roles(layer)
        with self.ledger.phase(Phase.ACTIVATE, layer):
            mask, scale = None, 1.0
            if self.step is not None and self.model.dropout:
                mask, scale = self.draw_recorded_mask(layer, Z_NH)
            epilogue = Epilogue(self.model.hidden, self.model.activation == "relu", mask, scale)
            plan = NormPlan(self.grid[S], self.grid[R], self.gradients, self.fused)
            return normalise_rows(self.kernels, Z_NH, gamma, epilogue, plan)

    def draw_recorded_mask(self, layer: int, Z_NH: Tensor) -> tuple[Tensor, float]:
        with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            return self.draw_mask(layer, Z_NH)

    def rows_of(self, layer: int) -> Tensor:
        R = self.layout.roles(layer).R
        own = self.cuts[R][self.at[R]]
        rows = self.vertices[own.start : own.stop]
        if isinstance(rows, Tensor):
            return record_upload(rows, self.device)
        return to_index_tensor(rows, self.device)

    def features(self, layer: int, Z_NH: Tensor) -> range:
        return self.layout.shares(self.at)[layer].H

    def save_input(self, layer: int, H: Tensor) -> Skip:
        """Start to reshard the layer's input to the layout of its output (ScaleGNN, section IV-C4)."""
        before, after = self.layout.residual_layouts(layer)
        group, shape, rows = self.grid.axis(CUBE), self.grid.shape, self.cuts
        cols: Cuts = self.layout.column_cuts(self.model.hidden)
        with self.ledger.phase(Phase.ACTIVATE, layer):
            forward_plan = plan_reshard(group, shape, before, after, rows, cols)
            backward_plan = plan_reshard(group, shape, after, before, rows, cols)
            residual = Residual(forward_plan, backward_plan)
            H, token = residual.fork(H)
        return Skip(H, (residual, token))

    def add_input(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        if isinstance(skip.saved, Tensor):  # a root term is in the layout of the output
            return super().add_input(layer, H, skip)
        residual, token = skip.saved
        with self.ledger.phase(Phase.ACTIVATE, layer):
            added: Tensor = residual.join(H, token)
            return added


def add_words(
    words: Words,
    layout: RotatingLayout,
    weights: Sequence[Weight],
    at: Coordinates,
    rows: Mapping[AxisName, int],
    *,
    residual: bool,
) -> None:
    """Add the words of all operators except convolutions, given the rows of this rank's block along each axis."""
    for weight in weights:
        down, across = map(len, layout.weight(weight, at))
        if weight.part is Part.SCALE:
            R, S, _ = layout.roles(weight.layer)
            words.add(FORWARD, weight.layer, Op.ALL_REDUCE, S, TensorName.SQUARES, rows[R])
            words.add(BACKWARD, weight.layer, Op.ALL_REDUCE, S, TensorName.SQUARES, rows[R])
            words.add(BACKWARD, weight.layer, Op.ALL_REDUCE, R, TensorName.DGAMMA, across)
        elif weight.part is Part.PROJECTION:  # the features are not trained
            R, S, _ = layout.projection_roles
            words.add(FORWARD, -1, Op.ALL_REDUCE, R, TensorName.H, rows[S] * across)
            words.add(BACKWARD, -1, Op.ALL_REDUCE, S, TensorName.DW, down * across)
        elif weight.part is Part.ROOT:
            layer, (R, S, T) = weight.layer, layout.roles(weight.layer)
            words.add(FORWARD, layer, Op.ALL_REDUCE, T, TensorName.Z, rows[S] * across)
            words.add(
                FORWARD, layer, Op.ALL_TO_ALL, (R, S), TensorName.Z, rows[R] * len(layout.shares(at)[layer].H)
            )
            words.add(BACKWARD, layer, Op.ALL_TO_ALL, (R, S), TensorName.G, rows[S] * across)
            words.add(BACKWARD, layer, Op.ALL_REDUCE, S, TensorName.DW, down * across)
            if layer or layout.projection:
                words.add(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DH, rows[S] * down)
        elif weight.part is Part.HEAD:
            R, S, T = layout.head_roles
            words.add(FORWARD, -1, Op.ALL_REDUCE, T, TensorName.Z, rows[S] * across)
            words.add(BACKWARD, -1, Op.ALL_REDUCE, R, TensorName.DH, rows[S] * down)
            words.add(BACKWARD, -1, Op.ALL_REDUCE, S, TensorName.DW, down * across)
    for layer, (roles, _, _, F, H) in enumerate(layout.shares(at) if residual else ()):
        words.add(FORWARD, layer, Op.ALL_TO_ALL, CUBE, TensorName.H, rows[roles.R] * len(H))
        words.add(BACKWARD, layer, Op.ALL_TO_ALL, CUBE, TensorName.DH, rows[roles.S] * len(F))
