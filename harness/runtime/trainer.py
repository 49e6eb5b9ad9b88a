"""The training loop of one rank, which runs, tests and replays of all strategies share.

This module does not know about files, launchers or tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from harness.base.device import is_gpu
from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.kernels.step_numbers import StepNumbers
from harness.ledger import Amounts, Key, Op, Phase, TensorName
from harness.runtime.epoch_graph import EpochGraph, require_graph_events
from harness.runtime.load import Window, split_into_windows
from harness.spec.spec import Training
from harness.strategy import Context, Piece, Strategy
from harness.strategy.admit import ORDINARY_EPOCHS
from harness.strategy.models import Operators, SplitAccuracy, Weight, group_by_part
from harness.strategy.models.weights import init_weight

Judge = Callable[[Operators, Tensor], dict[str, float]]
"""Returns a score of the model's output for each split, the same on every rank."""


@dataclass(frozen=True)
class Epoch:
    """One epoch of this rank."""

    seconds: float
    losses: Tensor
    """The loss of each step, (steps,)."""
    entries: dict[Key, Amounts]
    begun: float
    """The start time (`perf_counter` of the host)."""
    windows: list[Window]
    """The load of the rank over time, if the spec requests windows."""

    @property
    def loss(self) -> Tensor:
        """The mean loss of the steps."""
        return self.losses.mean()


def create_weight(ctx: Context, number: int, weight: Weight, piece: Piece) -> Tensor:
    """Return the initial value of a piece of matrix `number`, the same for every strategy and grid."""
    if ctx.device.type == "meta":  # a replay needs the shape only
        W = torch.empty(len(piece.rows), len(piece.cols), dtype=ctx.dtype, device=ctx.device)
    else:
        W = init_weight(ctx.spec.seed, number, weight, piece.rows, piece.cols).to(ctx.dtype)
    return ctx.memory.hold(TensorName.W, W).requires_grad_()


class Trainer:
    """Trains a model with a strategy on one rank."""

    def __init__(
        self, strategy: Strategy, grid: Grid, blocks: Blocks, chosen: Mapping[str, str] | None = None
    ) -> None:
        """`chosen` are kernels chosen in an earlier run, which are not measured again."""
        assert grid.wire == strategy.wire, "the grid sends in the type that the strategy chose"
        self.strategy = strategy
        self.ctx = ctx = Context(strategy.spec, strategy.facts, grid, blocks, chosen)
        pieces = strategy.weight_pieces(ctx.grid.rank)
        self.weights = [
            create_weight(ctx, number, weight, piece)
            for number, (weight, piece) in enumerate(zip(strategy.weights, pieces, strict=True))
        ]
        self.layers = group_by_part(strategy.weights, self.weights)
        self.operators = strategy.operators(ctx)
        """The operators of the whole graph."""
        self.steps = strategy.steps
        """The number of steps in an epoch."""
        self.taken = 0
        """The number of steps taken so far."""
        features = [self.operators.inputs()] if ctx.spec.training.features else []
        self.parameters = self.weights + features
        """All trained tensors, in the order of `Strategy.parameter_pieces`."""
        optimizers = GPU_OPTIMIZERS if is_gpu(ctx.device) else OPTIMIZERS
        self.optimizer = optimizers[ctx.spec.training.optimizer](
            self.parameters, ctx.spec.training, ctx.numbers
        )
        self.graph: EpochGraph | None = None
        """The CUDA graph of an epoch, after it was captured."""
        self._captures = ctx.spec.training.cuda_graph and is_gpu(ctx.device)
        if self._captures:
            require_graph_events()
        self.scores: dict[str, float] | None = None
        """The scores of the last evaluation by a judge: a metric of the dataset's publisher for each split."""
        self.output_is_finite = torch.ones((), dtype=torch.bool, device=ctx.device)
        """True if all outputs of the last evaluation were finite, on this rank."""

    def epoch(self, *, drain: bool = False) -> Epoch:
        """Run all steps of an epoch; full-graph training has one step.

        A stale strategy has messages in flight at the end of an epoch. With `drain`, the epoch ends when they have
        arrived. Use it before work that is not timed, which would hide their time. Ignored with a CUDA graph.

        With `training.cuda_graph`, the first two epochs run as usual. The third epoch is captured, which does not train
        and is not timed, and is then replayed like all later ones.
        """
        ledger, width = self.ctx.ledger, self.ctx.spec.measure.utilisation_ms / 1e3
        if self._captures and self.graph is None and self.taken == ORDINARY_EPOCHS * self.steps:
            self.graph = EpochGraph(self.strategy.name, self.ctx, self.take_steps)
            self.taken -= self.steps
        begun, since = ledger.clock.mark(), perf_counter()
        if self.graph is None:
            ledger.start()
            losses = self.take_steps()
            if drain:
                self.ctx.grid.drain()
            done = ledger.clock.mark()
            entries = ledger.stop()
        else:
            losses = self.graph.replay()
            self.taken += self.steps
            done = ledger.clock.mark()
            entries = ledger.read(self.graph.recording.with_bounds(begun, done))
        return Epoch(
            ledger.clock.elapsed(begun, done),
            torch.stack(losses),
            entries,
            since,
            split_into_windows(ledger.slices, width) if width else [],
        )

    def take_steps(self) -> list[Tensor]:
        """Run the steps of an epoch and return their losses."""
        return [self.step() for _ in range(self.steps)]

    def step(self) -> Tensor:
        """Run forward, backward and update; return the loss before the update."""
        ledger = self.ctx.ledger
        operators, self.taken = self.operators.for_step(self.taken), self.taken + 1
        loss = operators.loss(self.forward(operators))
        for W in self.parameters:
            W.grad = None
        with ledger.backward():
            loss.backward()
            operators.reduce_gradients(self.weights)
        with ledger.phase(Phase.OPTIMIZE), ledger.op(Op.ELEMENTWISE, tensor=TensorName.W):
            self.optimizer.step()
        return loss.detach()

    def forward(self, operators: Operators) -> Tensor:
        """Return this rank's part of the model's output."""
        return self.strategy.forward(operators, self.layers)

    def output(self) -> Tensor:
        """Return the output on the whole graph, without dropout and autograd."""
        with torch.no_grad():
            return self.forward(self.operators)

    def evaluate(self, judge: Judge | None = None) -> tuple[dict[str, SplitAccuracy], float]:
        """Return the hits of each split and the seconds of the evaluation, which is not part of any epoch.

        With a judge, also set `scores`; the seconds do not include this.
        """
        ledger = self.ctx.ledger
        recording, ledger.recording = ledger.recording, False
        begun = perf_counter()
        with torch.no_grad():
            Z = self.forward(self.operators)
            hits = self.operators.evaluate(Z)
        seconds = perf_counter() - begun
        self.output_is_finite = Z.isfinite().all()
        with torch.no_grad():
            self.scores = judge(self.operators, Z) if judge else None
        ledger.recording = recording
        return hits, seconds


# Bitwise equal to torch.optim, whose classes import torch's compiler: 1.5 seconds and 100 MB for every process.
# Verifier (tests/runtime/test_optimizers.py): torch.optim.


class Descent:
    """Stochastic gradient descent: W -= lr (dW + decay W)."""

    def __init__(
        self, weights: Sequence[Tensor], training: Training, _numbers: StepNumbers | None = None
    ) -> None:
        self.weights, self.lr, self.decay = weights, training.lr, training.weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight that has a gradient."""
        for number, W in enumerate(self.weights):
            if W.grad is not None:
                self.update(number, W, W.grad.add(W, alpha=self.decay) if self.decay else W.grad)

    def update(self, number: int, W: Tensor, dW: Tensor) -> None:
        """Update weight `number`."""
        W.add_(dW, alpha=-self.lr)


class Adam(Descent):
    """Adam (Kingma and Ba, ICLR 2015, Algorithm 1), with running means of dW and of its square."""

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(
        self, weights: Sequence[Tensor], training: Training, numbers: StepNumbers | None = None
    ) -> None:
        super().__init__(weights, training, numbers)
        self.means = [torch.zeros_like(W, requires_grad=False) for W in weights]
        self.squares = [torch.zeros_like(W, requires_grad=False) for W in weights]
        self.steps = [0] * len(weights)

    def update(self, number: int, W: Tensor, dW: Tensor) -> None:
        mean, square = self.advance(number, dW)
        unbiased_1, unbiased_2 = self.corrections(self.steps[number])
        root = (square.sqrt() / unbiased_2**0.5).add_(self.EPSILON)
        W.addcdiv_(mean, root, value=-self.lr / unbiased_1)

    def advance(self, number: int, dW: Tensor) -> tuple[Tensor, Tensor]:
        """Update the running means of weight `number` with a gradient and return them."""
        mean, square = self.means[number], self.squares[number]
        self.steps[number] += 1
        mean.lerp_(dW, 1 - self.BETA_1)
        square.mul_(self.BETA_2).addcmul_(dW, dW, value=1 - self.BETA_2)
        return mean, square

    def corrections(self, step: int) -> tuple[float, float]:
        """Return the bias corrections of both means."""
        return 1 - self.BETA_1**step, 1 - self.BETA_2**step


class FoldedAdam(Adam):
    """Adam on a GPU, with the same number of kernels.

    Only two numbers change from step to step, and a CUDA graph can read them from the device. Kernels round equally
    whether a number is an argument or a tensor.
    """

    def __init__(
        self, weights: Sequence[Tensor], training: Training, numbers: StepNumbers | None = None
    ) -> None:
        super().__init__(weights, training)
        self.numbers = numbers or StepNumbers(weights[0].device)

    def update(self, number: int, W: Tensor, dW: Tensor) -> None:
        mean, square = self.advance(number, dW)
        factor, term = self.numbers.get(self.steps[number], self.folded)
        W.addcdiv_(mean, square.sqrt().mul_(factor).add_(term), value=-1)

    def folded(self, step: int) -> tuple[float, float]:
        """Return the factor of the square root and the added term, both divided by the learning rate of the step."""
        unbiased_1, unbiased_2 = self.corrections(step)
        rate = self.lr / unbiased_1
        return 1 / (rate * unbiased_2**0.5), self.EPSILON / rate


OPTIMIZERS = {"adam": Adam, "sgd": Descent}
"""The optimizer of every name in a spec."""
GPU_OPTIMIZERS = {"adam": FoldedAdam, "sgd": Descent}
"""The optimizers on a GPU."""
