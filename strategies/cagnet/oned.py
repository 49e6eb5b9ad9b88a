"""CAGNET 1D: block rows (Reducing Communication in Graph Neural Network Training, SC'20, section IV-A).

A, H and G are split by rows over the axis p, W is whole on every rank.

Legend: N this rank's vertices, K the vertices of one block, F features in, H features out, C classes.
Our A is the paper's A^T: Z = A H W. T = A H. G = dL/dZ. S = A^T G, dH = S W^T, Y = dL/dW = H^T S = T^T G.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import log2
from typing import Any, Literal

from pydantic import model_validator
from torch import Tensor
from torch.autograd import Function

from harness.kernels import Csr
from harness.ledger import AxisName, Op, Phase, TensorName, apply
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Counts, Piece, Promise, Published, Quantity, Words
from harness.validation import Frozen
from strategies.cagnet.summa import arrivals
from strategies.cagnet.terms import BACKWARD, FORWARD, Moved, nothing_to_keep

P = AxisName.P


class RowParams(Frozen):
    """What may be chosen wherever rows stay whole. The first choice is the paper's."""

    weight_gradient: Literal["S", "T"] = "S"
    """Y = H^T S; or Y = T^T G with T kept from the forward pass, which spares the first layer its S."""
    overlap: bool = False
    """Rows of the next stage are under way while those of this one are multiplied."""


class Convolve(Function):
    """Z = A H W by Algorithm 1, its backward by the same loop over A^T."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W_FH: Tensor, ops: "WholeRows") -> Tensor:
        gemm, aggregate, T = ops.kernels.gemm, ops.aggregate, TensorName.T
        saved.ops = ops
        if ops.combine_first:
            saved.save_for_backward(H_NF, W_FH)
            return aggregate(ops.A_NK, gemm(H_NF, W_FH, T), moves=T, makes=TensorName.Z)
        T_NF = aggregate(ops.A_NK, H_NF, moves=TensorName.H, makes=T)
        saved.save_for_backward(T_NF if ops.keeps_T else H_NF, W_FH)
        return gemm(T_NF, W_FH, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None]:
        ops, (kept_NF, W_FH) = saved.ops, saved.saved_tensors
        gemm, wants_dH = ops.kernels.gemm, saved.needs_input_grad[0]
        S_NH = dH_NF = None
        if wants_dH or not ops.keeps_T:
            S_NH = ops.aggregate(ops.A_T_NK, G_NH, moves=TensorName.G, makes=TensorName.S)
        Y_FH = gemm(kept_NF.T, G_NH if ops.keeps_T else S_NH, TensorName.DW)
        Y_FH = ops.over.all_reduce(Y_FH, tensor=TensorName.DW)
        if wants_dH:
            dH_NF = gemm(S_NH, W_FH.T, TensorName.DH)
        return dH_NF, Y_FH, None


class WholeRows(RowOperators, ABC):
    """A convolution over whole rows of H, however they are aggregated."""

    A_NK: Any
    A_T_NK: Any

    def __init__(self, ctx: Context, strategy: "RowScheme") -> None:
        super().__init__(ctx, strategy, over=(strategy.rows_over,))
        self.combine_first = ctx.spec.model.order == "combine_first"
        self.keeps_T = strategy.params.weight_gradient == "T"
        self.overlap = strategy.params.overlap

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            return apply(self.ledger, Convolve, H_NF, W_FH, self)

    @abstractmethod
    def aggregate(self, A_NK: Any, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """A H."""


class BlockRows(WholeRows):
    """One rank's block row of A and of A^T, cut into blocks at the vertices of the other ranks."""

    def __init__(self, ctx: Context, strategy: "RowScheme") -> None:
        super().__init__(ctx, strategy)
        self.blocks = strategy.blocks()
        self.stages = strategy.stages(ctx.at)
        pieces = strategy.multiplied(ctx.at)
        self.A_NK = [ctx.blocks.adjacency(rows, block) for rows, block in pieces]
        self.A_T_NK = [ctx.blocks.adjacency(rows, block, transposed=True) for rows, block in pieces]

    def aggregate(self, A_NK: Sequence[Csr], H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """A H: every block of H arrives in turn and is multiplied (Algorithm 1)."""
        T_NF = None
        for A, H_KF in zip(A_NK, self.arriving(H_NF, moves), strict=True):
            T_NF = self.kernels.spmm(A, H_KF, makes, add_to=T_NF)
        return H_NF.new_zeros(H_NF.shape) if T_NF is None else T_NF

    def arriving(self, H_NF: Tensor, moves: TensorName) -> Iterator[Tensor]:
        """The blocks of H by which this rank multiplies."""

        shapes = {j: (len(self.blocks[j]), H_NF.shape[1]) for j in self.stages}
        broadcast = self.over.broadcast.call
        stages = ([broadcast(H_NF, root=j, shape=shape, tensor=moves)] for j, shape in shapes.items())
        return (H_KF for (H_KF,) in arrivals(stages, overlap=self.overlap))


class GatheredRows(BlockRows):
    """One rank's block row of A and of A^T, uncut: H arrives as a whole."""

    def arriving(self, H_NF: Tensor, moves: TensorName) -> Iterator[Tensor]:
        sizes = [len(block) for block in self.blocks]
        yield self.over.all_gather(H_NF, sizes=sizes, tensor=moves)


class RowScheme(RowStrategy):
    """What the schemes over whole rows of H have in common."""

    promise = Promise.EXACT
    Params = RowParams
    params: RowParams

    def refuse(self) -> str | None:
        return nothing_to_keep(self.params.weight_gradient, self.spec.model.order) or super().refuse()

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Section IV-A: rows of width f_(l-1) forward, of f_l backward, and f_(l-1) f_l; one word for the loss."""
        words = Words(self.grid)
        combines, keeps_T = self.spec.model.order == "combine_first", self.params.weight_gradient == "T"
        forward, backward = self.moved(at, counts), self.moved(at, counts, transposed=True)
        for layer, (f_in, f_out) in enumerate(self.shapes):
            for op, axis, rows, sums in forward:
                T, Z = (TensorName.T, TensorName.Z) if combines else (TensorName.H, TensorName.T)
                words.put(FORWARD, layer, op, axis, Z if sums else T, rows * (f_out if combines else f_in))
            for op, axis, rows, sums in backward if self.wants_dH(layer) or not keeps_T else ():
                words.put(BACKWARD, layer, op, axis, TensorName.S if sums else TensorName.G, rows * f_out)
            words.put(BACKWARD, layer, Op.ALL_REDUCE, self.rows_over, TensorName.DW, f_in * f_out)
        words.put(FORWARD, -1, Op.ALL_REDUCE, self.rows_over, TensorName.LOSS, 1)
        return words

    def stages(self, at: Coordinates) -> range:
        """The blocks of H by which the rank at `at` multiplies."""
        return range(self.grid[self.rows_over])

    def multiplied(self, at: Coordinates) -> list[Piece]:
        blocks = self.blocks()
        return [Piece(blocks[at[self.rows_over]], blocks[j]) for j in self.stages(at)]

    @abstractmethod
    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        """What one multiplication by A, or by A^T, moves."""


class OneD(RowScheme):
    """CAGNET's 1D algorithm, for any number of ranks up to the number of vertices."""

    name = "cagnet-1d"

    class Params(RowParams):
        """Of the 1D algorithm."""

        moves: Literal["broadcasts", "all_gather"] = "broadcasts"
        """The blocks of H come one by one, or all at once."""

        @model_validator(mode="after")
        def _overlaps_stages(self) -> "OneD.Params":
            if self.overlap and self.moves == "all_gather":
                raise ValueError("overlap is of one stage with the next, and an all_gather has no stages")
            return self

    params: Params

    def multiplied(self, at: Coordinates) -> list[Piece]:
        if self.params.moves == "all_gather":
            return [Piece(self.rows(at), range(self.facts.vertices))]
        return super().multiplied(at)

    def operators(self, ctx: Context) -> BlockRows:
        return (GatheredRows if self.params.moves == "all_gather" else BlockRows)(ctx, self)

    def published(self) -> list[Published]:
        """Section IV-A5."""
        n, ranks, shapes = self.facts.vertices, self.spec.ranks, self.shapes
        return [
            Published(
                Quantity.WORDS,
                "sum of n f_(l-1) + n f_l + f_(l-1) f_l",
                ("CAG-006", "CAG-007"),
                sum(n * f_in + n * f_out + f_in * f_out for f_in, f_out in shapes),
                "one word more, of the loss; another order or weight gradient sends rows of other widths",
            ),
            Published(
                Quantity.CALLS,
                "sum of lg P + 2 P",
                ("CAG-015",),
                len(shapes) * (log2(ranks) + 2 * ranks),
                "an all-reduce is one call here and lg P messages there; one call more, of the loss",
            ),
        ]

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        op = Op.ALL_GATHER if self.params.moves == "all_gather" else Op.BROADCAST
        return [Moved(op, P, self.facts.vertices)]
