"""PipeGCN-style staleness (Wan et al., ICLR'22): the boundary of the last epoch, while this one's is under way.

A layer multiplies by the rows that its neighbours had in the epoch before, and adds the gradients they had; what it
sends now is used in the next epoch. No rank ever waits for a message that it has just asked for. The first epoch knows
nothing of others. The first layer has nothing stale: A X is computed once, before training (`precompute`). It is
approximate, and not the authors' code. Evaluation exchanges what is there.

Legend as in `rows`.
"""

from pydantic import Field
from torch import Tensor

from harness.comm.call import Call, Landed, Pending
from harness.ledger import Direction, Op, TensorName
from harness.parallel.halo import Halo
from harness.strategy import WORD, Context, Coordinates, Counts, Promise
from harness.validation import Frozen
from strategies.halo.rows import BACKWARD, FORWARD, PartRows, PartScheme

NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}


class Pipe(PartScheme):
    """A stale boundary, for any number of parts up to the number of vertices."""

    name = "pipegcn"
    promise = Promise.APPROXIMATE

    class Params(Frozen):
        """What is computed once; and what of the past is kept: m of the average so far and 1 - m of what came."""

        precompute: bool = True
        """A X is computed once, before training, where features never change: the authors' --use-pp."""

        features: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """m of the rows of H."""
        gradients: float = Field(0.0, ge=0, lt=1, examples=[0.95])
        """m of their gradients."""

    params: Params

    @property
    def precompute(self) -> bool:
        return self.params.precompute

    def promised(self) -> Promise:
        """Where nothing travels nothing is stale."""
        return Promise.APPROXIMATE if self.exchanging else Promise.EXACT

    def operators(self, ctx: Context) -> "StaleRows":
        return StaleRows(ctx, self)

    def widths(self) -> list[tuple[Direction, int, int]]:
        """Every exchange of an epoch: direction, layer, and the width of the rows."""
        there = [(FORWARD, layer, self.width(layer)) for layer in self.exchanging]
        back = [
            (BACKWARD, layer, width)
            for _, layer, width in there
            if self.combine_first or self.wants_dH(layer)
        ]
        return there + back

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """The boundary of the last epoch too: of every exchange."""
        held, boundary, word = (
            super().memory(at, counts),
            self.boundary(at, counts),
            WORD[self.spec.precision],
        )
        rows = {FORWARD: sum(boundary.arriving().values()), BACKWARD: sum(boundary.leaving().values())}
        for direction, _, width in self.widths():
            held[NAMES[direction]] = held.get(NAMES[direction], 0) + word * width * rows[direction]
        return held


class StaleRows(PartRows):
    """What came in the last epoch is used in this one."""

    strategy: Pipe

    def __init__(self, ctx: Context, strategy: Pipe) -> None:
        super().__init__(ctx, strategy)
        part = self.parts[0]
        rows = {FORWARD: part.A_NK.cols, BACKWARD: len(part.halo.leaving)}
        kept = strategy.params
        self.keeps = {FORWARD: kept.features, BACKWARD: kept.gradients}
        self.last = {
            (direction, layer): ctx.memory.buffer(NAMES[direction], rows[direction], width)
            for direction, layer, width in strategy.widths()
        }
        self.under_way: dict[tuple[Direction, int], Pending[Tensor]] = {}

    def fetch(self, halo: Halo, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        if self.step is None:
            return super().fetch(halo, layer, H_NF)
        return self.stale(FORWARD, layer, halo.exchange(self.over, self.kernels, H_NF, TensorName.H))

    def give_back(self, halo: Halo, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        return self.stale(BACKWARD, layer, halo.back(self.over, dH_KF, TensorName.DH))

    def stale(self, direction: Direction, layer: int, call: Call[Tensor]) -> Pending[Tensor]:
        """Issues the call for the next epoch, and hands out what came of the last."""
        at, kept = (direction, layer), self.keeps[direction]
        if before := self.under_way.pop(at, None):
            came = before.wait()
            with self.ledger.op(Op.COPY, tensor=NAMES[direction]):
                self.last[at].mul_(kept).add_(came, alpha=1 - kept)
        self.under_way[at] = call.later()
        return Landed(self.last[at])
