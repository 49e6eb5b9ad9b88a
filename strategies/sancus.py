"""SANCUS: the 1D algorithm, whose ranks skip a broadcast while others have fresh copies (Peng et al., PVLDB 2022).

A is cut by rows, and T_i = sum over j of A_ij H_j, where the blocks H_j arrive one after the other. Every rank keeps
the blocks of all others from epoch to epoch. With a bound of S epochs, a layer goes through the ranks j in order:

    1. In the first epoch, and from then on in every (S + 1)-th, rank j broadcasts H_j, and all others keep it.
    2. In any other epoch nothing moves. The others multiply by the kept block, which is at most S epochs old.
    3. A rank's own rows are always those of the epoch.

Ranks take turns: those whose turn is in the same epoch are every (S + 1)-th. An input that never changes, as given
features are, is never stale: it is broadcast in the first epoch alone. Gradients are never kept: the backward pass is
that of the 1D algorithm, on the current rows of H. With S = 0 nothing is kept, and this is the 1D algorithm itself.

Legend: N this rank's vertices, K those of rank j; F features in, H features out.
"""

from collections import Counter

from pydantic import Field
from torch import Tensor

from harness.comm.call import Call, EmptyCall
from harness.ledger import AxisName, Op, TensorName
from harness.strategies.cagnet.oned import RowParams, RowScheme, WholeRows
from harness.strategies.cagnet.terms import FORWARD
from harness.strategy import WORD, Context, Coordinates, Counts, Promise, Words


class StaleRows(WholeRows):
    """One rank's convolution over whole rows, with the blocks of the others as they were last sent."""

    def __init__(self, ctx: Context, strategy: "Sancus") -> None:
        super().__init__(ctx, strategy)
        self.sancus, self.layer, self.own = strategy, 0, self.over.index
        self.kept = {
            (layer, j): ctx.memory.buffer(TensorName.H, len(block), width)
            for layer, width in enumerate(strategy.kept_widths())
            for j, block in enumerate(self.blocks)
            if j != self.own
        }
        self.broadcasts, self.chosen = Counter[str](), ctx.measured.chosen

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        self.layer = layer
        return super().convolve(layer, H_NF, W_FH)

    def block_of(self, j: int, H_NF: Tensor, moves: TensorName) -> Call[Tensor]:
        """H_j by a broadcast, which renews the kept block, or as it was kept."""
        if not self.kept or moves is TensorName.G or self.step is None:
            return super().block_of(j, H_NF, moves)
        kept, sends = self.kept.get((self.layer, j)), self.sancus.sends(j, self.layer, self.step)
        self.count(sends)
        if sends:
            shape = len(self.blocks[j]), H_NF.shape[1]
            return self.over.broadcast.call(H_NF, root=j, shape=shape, tensor=moves, out=kept)
        return EmptyCall(H_NF if kept is None else kept)

    def count(self, sends: bool) -> None:
        """Counts a broadcast that was sent or skipped, for the run's record: the same numbers on every rank."""
        self.broadcasts["sent" if sends else "skipped"] += 1
        skipped, all_ = self.broadcasts["skipped"], self.broadcasts.total()
        self.chosen["broadcasts of H"] = f"{skipped:,} of {all_:,} skipped"


class SancusParams(RowParams):
    """The bound, beside the parameters of the 1D algorithm."""

    stale: int = Field(1, ge=0, examples=[0, 3])
    """The age in epochs that the rows of other ranks may reach."""


class Sancus(RowScheme):
    """Full-graph training with bounded staleness, for any number of ranks up to the number of vertices."""

    name = "sancus"
    paper = "SANCUS (PVLDB 2022)"
    promise = Promise.APPROXIMATE
    Params = SancusParams
    params: SancusParams

    def operators(self, ctx: Context) -> StaleRows:
        return StaleRows(ctx, self)

    def promised(self) -> Promise:
        """Training is exact if no layer multiplies by rows that have changed since they were sent."""
        stale = self.keeps and any(map(self.changes, range(len(self.shapes))))
        return Promise.APPROXIMATE if stale else Promise.EXACT

    def is_owner_computes(self) -> bool:
        return self.params.stale == 0

    @property
    def keeps(self) -> bool:
        """True if ranks keep the blocks of others."""
        return self.params.stale > 0 and self.spec.ranks > 1

    @property
    def opening(self) -> int:
        """In the first epoch all ranks broadcast."""
        return int(self.keeps)

    def changes(self, layer: int) -> bool:
        """False for the rows of given features: they are the same in every epoch."""
        return self.wants_dH(layer) or self.combine_first

    def sends(self, j: int, layer: int, epoch: int) -> bool:
        """True if rank j broadcasts its rows for a layer in this epoch; epochs count from 0 through warm-up."""
        turn = (epoch - 1 - j) % (self.params.stale + 1) == 0
        return epoch == 0 or (turn and self.changes(layer))

    def kept_widths(self) -> list[int]:
        """The width of the rows that a layer multiplies by, for every layer whose blocks are kept."""
        return [shape[self.combine_first] for shape in self.shapes] if self.keeps else []

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """The words of the 1D algorithm, less the rows whose broadcast is skipped."""
        words, moves = super().words(at, counts), TensorName.T if self.combine_first else TensorName.H
        for layer, width in enumerate(self.kept_widths()):
            skipped = [len(block) for j, block in enumerate(self.blocks()) if not self.sends(j, layer, epoch)]
            words.put(FORWARD, layer, Op.BROADCAST, AxisName.P, moves, -width * sum(skipped))
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A rank holds the rows of all others, too, as wide as each layer multiplies by."""
        held, others = super().memory(at, counts), self.facts.vertices - len(self.rows(at))
        kept = WORD[self.spec.precision] * others * sum(self.kept_widths())
        return {**held, TensorName.H: held.get(TensorName.H, 0) + kept}
