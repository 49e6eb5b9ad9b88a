"""CAGNET 1D and 1.5D: block rows (Reducing Communication in Graph Neural Network Training, SC'20, IV-A and IV-B).

A, H and G are split by rows over the axis p, and W is replicated. All schemes on whole rows, including 1.5D and the
sparsity-aware ones, share one convolution (`Convolve1D`). They differ in the axes of the grid and in their
`Aggregation`, which brings rows of H to the ranks that multiply by them.

Legend: N this rank's vertices, K the vertices of one block, F features in, H features out, C classes.
Our A is the paper's A^T: Z = A H W. T = A H. G = dL/dZ. S = A^T G, dH = S W^T, Y = dL/dW = H^T S = T^T G.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import log2
from typing import Any, ClassVar, Literal

from pydantic import model_validator
from torch import Tensor
from torch.autograd import Function

from harness.base.ranges import split_evenly
from harness.comm.call import Call
from harness.kernels import Csr
from harness.ledger import AxisName, Op, Phase, TensorName, apply
from harness.strategies.cagnet.summa import run_stages
from harness.strategies.cagnet.terms import (
    BACKWARD,
    COL,
    FORWARD,
    ROW,
    MovedRows,
    explain_kept_T,
    refuse_kept_T,
)
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Piece,
    Promise,
    PublishedCost,
    Quantity,
    Words,
)
from harness.strategy.models import Part
from harness.strategy.parallel.halo import Boundary
from harness.strategy.parallel.row_strategy import (
    RowOperators,
    RowStrategy,
    dense_bytes,
    reduce_all_gradients,
)


class RowParams(MessageParams):
    """The parameters of all schemes on whole rows. The first choice is the paper's."""

    weight_gradient: Literal["S", "T"] = "S"
    """Y = H^T S; or Y = T^T G with T saved in the forward pass, so that the first layer needs no S."""
    overlap: bool = False
    """Rows of the next stage are in flight while the rows of this stage are multiplied."""


class Convolve1D(Function):
    """Z = A H W by Algorithm 1. The backward pass is the same loop over A^T."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W_FH: Tensor, ops: "WholeRows", combines_first: bool) -> Tensor:
        gemm, multiply, T = ops.kernels.gemm, ops.multiply, TensorName.T
        saved.ops = ops
        if combines_first:
            saved.save_for_backward(H_NF, W_FH)
            return multiply(ops.A_NK, gemm(H_NF, W_FH, T), moves=T, makes=TensorName.Z)
        T_NF = multiply(ops.A_NK, H_NF, moves=TensorName.H, makes=T)
        saved.save_for_backward(T_NF if ops.keeps_T else H_NF, W_FH)
        return gemm(T_NF, W_FH, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        ops, (kept_NF, W_FH) = saved.ops, saved.saved_tensors
        gemm, needs_dH = ops.kernels.gemm, saved.needs_input_grad[0]
        S_NH = dH_NF = None
        if needs_dH or not ops.keeps_T:
            S_NH = ops.multiply(ops.A_T_NK, G_NH, moves=TensorName.G, makes=TensorName.S)
        Y_FH = gemm(kept_NF.T, G_NH if ops.keeps_T else S_NH, TensorName.DW)
        Y_FH = ops.over.all_reduce(Y_FH, tensor=TensorName.DW)
        if needs_dH:
            dH_NF = gemm(S_NH, W_FH.T, TensorName.DH)
        return dH_NF, Y_FH, None, None


class WholeRows(RowOperators):
    """One rank's convolution over whole rows of H."""

    def __init__(self, ctx: Context, strategy: "RowScheme") -> None:
        super().__init__(ctx, strategy, over=(strategy.rows_over,))
        self.keeps_T = strategy.params.weight_gradient == "T"
        self.overlap, self.at, self.model_weights = strategy.params.overlap, ctx.at, strategy.weights
        self.blocks = strategy.blocks()
        self.aggregation, self.replicas = strategy.aggregation, ctx.grid.axis(strategy.replicated_over)
        self.A_NK = self.A_T_NK = self.aggregation.load_block_row(ctx)
        if ctx.facts.directed:
            self.A_T_NK = self.aggregation.load_block_row(ctx, transposed=True)

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            Z_NH: Tensor = apply(self.ledger, Convolve1D, H_NF, W_FH, self, self.combines_first(layer))
            return Z_NH

    def multiply(self, A_NK: Any, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """Return A H: the product over this rank's stages (Algorithm 1), then in 1.5D the sum over replicas (2)."""
        T_NF = self.aggregation.multiply(self, A_NK, H_NF, moves=moves, makes=makes)
        return self.replicas.all_reduce(T_NF, tensor=makes)

    def fetch_block(self, j: int, H_NF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Return the broadcast of H_j, where `H_NF` are this rank's own rows."""
        shape = len(self.blocks[j]), H_NF.shape[1]
        return self.over.broadcast.call(H_NF, root=j, shape=shape, tensor=moves)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum all gradients except those of convolutions, which `Convolve1D` has summed."""
        others = [
            (W, weight.layer)
            for W, weight in zip(weights, self.model_weights, strict=True)
            if weight.part is not Part.CONVOLUTION
        ]
        if others:
            reduce_all_gradients([W for W, _ in others], self.over, [layer for _, layer in others])


class Aggregation(ABC):
    """How a scheme brings rows of H to the ranks that multiply by them."""

    def __init__(self, scheme: "RowScheme") -> None:
        self.scheme = scheme

    def pieces(self, at: Coordinates) -> list[Piece]:
        """Return the rectangles of A that the rank at `at` multiplies by, one for each stage."""
        blocks, own = self.scheme.blocks(), at[self.scheme.rows_over]
        return [Piece(blocks[own], blocks[j]) for j in self.scheme.stages(at)]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of A at `pieces`, as `load_block_row` holds it, and of indices."""
        return {TensorName.A: self.scheme.matrices_bytes(self.pieces(at), counts)}

    @abstractmethod
    def load_block_row(self, ctx: Context, *, transposed: bool = False) -> Any:
        """Return this rank's block row of A or of A^T, as `multiply` takes it."""

    @abstractmethod
    def multiply(
        self, ops: WholeRows, A_NK: Any, H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """Return A H over this rank's stages."""

    @abstractmethod
    def moved_rows(self, at: Coordinates, counts: Counts, *, transposed: bool) -> MovedRows:
        """Return the rows of H that a product with A, or with A^T, moves."""


class Broadcasts(Aggregation):
    """Broadcasts the blocks of H one after the other; every rank multiplies by each as it arrives (Algorithm 1)."""

    def load_block_row(self, ctx: Context, *, transposed: bool = False) -> list[Csr]:
        return [ctx.blocks.adjacency(*piece, transposed=transposed) for piece in self.pieces(ctx.at)]

    def multiply(
        self, ops: WholeRows, A_NK: Sequence[Csr], H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """Return T_i = sum over j of A_ij H_j."""
        T_NF = None
        for A, H_KF in zip(A_NK, self.incoming_blocks(ops, H_NF, moves), strict=True):
            T_NF = ops.kernels.spmm(A, H_KF, makes, add_to=T_NF)
        return H_NF.new_zeros(H_NF.shape) if T_NF is None else T_NF

    def incoming_blocks(self, ops: WholeRows, H_NF: Tensor, moves: TensorName) -> Iterator[Tensor]:
        """Yield the blocks of H that this rank multiplies by, stage by stage."""
        stages = ([ops.fetch_block(j, H_NF, moves)] for j in self.scheme.stages(ops.at))
        return (H_KF for (H_KF,) in run_stages(stages, overlap=ops.overlap))

    def moved_rows(self, at: Coordinates, counts: Counts, *, transposed: bool) -> MovedRows:
        """Return n rows in 1D (section IV-A), about n / c in 1.5D (section IV-B)."""
        blocks = self.scheme.blocks()
        arriving = sum(len(blocks[j]) for j in self.scheme.stages(at))
        return MovedRows(Op.BROADCAST, self.scheme.rows_over, arriving)


class AllGather(Aggregation):
    """Gathers all blocks of H in one call and multiplies by the whole block row of A."""

    def pieces(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.scheme.rows(at), range(self.scheme.facts.vertices))]

    def load_block_row(self, ctx: Context, *, transposed: bool = False) -> Csr:
        (piece,) = self.pieces(ctx.at)
        return ctx.blocks.adjacency(*piece, transposed=transposed)

    def multiply(
        self, ops: WholeRows, A_NK: Csr, H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        sizes = [len(block) for block in self.scheme.blocks()]
        return ops.kernels.spmm(A_NK, ops.over.all_gather(H_NF, sizes=sizes, tensor=moves), makes)

    def moved_rows(self, at: Coordinates, counts: Counts, *, transposed: bool) -> MovedRows:
        return MovedRows(Op.ALL_GATHER, self.scheme.rows_over, self.scheme.facts.vertices)


class RowScheme(RowStrategy):
    """A scheme on whole rows of H: block rows over one axis, optionally replicated over another."""

    promise = Promise.EXACT
    has_model_parts = True
    can_recompute = True
    models = ("gcn", "sage")
    Params = RowParams
    params: RowParams
    replicated_over: ClassVar[tuple[AxisName, ...]] = ()
    """The axis over which a block row is replicated; empty in 1D."""

    @property
    def aggregation(self) -> Aggregation:
        return Broadcasts(self)

    def operators(self, ctx: Context) -> WholeRows:
        return WholeRows(ctx, self)

    def refuse(self) -> str | None:
        return refuse_kept_T(self.params.weight_gradient, self.spec.model.order) or super().refuse()

    @property
    def aggregate_first_reason(self) -> str | None:
        return explain_kept_T(self.params.weight_gradient)

    def is_narrower_combined(self, layer: int) -> bool:
        """Return whether H W has fewer columns than H: the backward pass multiplies A^T G in both orders."""
        f_in, f_out = self.shapes[layer]
        return f_out < f_in

    def stages(self, at: Coordinates) -> range:
        """Return the blocks of H that the rank at `at` multiplies by: all blocks, or its replica's share."""
        stages = range(self.grid[self.rows_over])
        for axis in self.replicated_over:
            stages = split_evenly(len(stages), self.grid[axis])[at[axis]]
        return stages

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        return self.aggregation.pieces(at)

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        return Boundary(counts, self.blocks(), at[self.rows_over], self.stages(at))

    def moved_rows(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[MovedRows]:
        """Return the rows that a product with A, or with A^T, moves: rows of H, then the sum over replicas."""
        rows = len(self.rows(at))
        sums = [MovedRows(Op.ALL_REDUCE, axis, rows, sums=True) for axis in self.replicated_over]
        return [self.aggregation.moved_rows(at, counts, transposed=transposed), *sums]

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return rows of width f_(l-1) forward and f_l backward, the weight gradients and the loss (section IV-A)."""
        words = Words(self.grid, self.recomputed_layers)
        keeps_T = self.params.weight_gradient == "T"
        forward, backward = self.moved_rows(at, counts), self.moved_rows(at, counts, transposed=True)
        for layer, (f_in, f_out) in enumerate(self.shapes):
            combines = self.combines_first(layer)
            for op, axis, rows, sums in forward:
                T, Z = (TensorName.T, TensorName.Z) if combines else (TensorName.H, TensorName.T)
                words.add(FORWARD, layer, op, axis, Z if sums else T, rows * (f_out if combines else f_in))
            for op, axis, rows, sums in backward if self.needs_dH(layer) or not keeps_T else ():
                words.add(BACKWARD, layer, op, axis, TensorName.S if sums else TensorName.G, rows * f_out)
        self.add_reductions(words, self.rows_over)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        return {**self.aggregation.memory(at, counts), **dense_bytes(self, at)}


class OneDParams(RowParams):
    """The parameters of the 1D algorithm."""

    moves: Literal["broadcasts", "all_gather"] = "broadcasts"
    """The blocks of H arrive one by one, or all together."""

    @model_validator(mode="after")
    def _overlaps_stages(self) -> "OneDParams":
        if self.overlap and self.moves == "all_gather":
            raise ValueError(
                "overlap sends a stage while another is multiplied; an all_gather has no stages: use broadcasts"
            )
        return self


class OneD(RowScheme):
    """CAGNET's 1D algorithm, for any number of ranks up to the number of vertices."""

    name = "cagnet-1d"
    paper = "CAGNET (SC 2020), section IV-A"
    Params = OneDParams
    params: OneDParams

    def is_owner_computes(self) -> bool:
        return True

    @property
    def aggregation(self) -> Aggregation:
        return (AllGather if self.params.moves == "all_gather" else Broadcasts)(self)

    def published_costs(self) -> list[PublishedCost]:
        """Return the totals of section IV-A5 of the paper."""
        n, ranks, shapes = self.facts.vertices, self.spec.ranks, self.shapes
        return [
            PublishedCost(
                Quantity.WORDS,
                "sum of n f_(l-1) + n f_l + f_(l-1) f_l",
                ("CAG-006", "CAG-007"),
                sum(n * f_in + n * f_out + f_in * f_out for f_in, f_out in shapes),
                "one word more, of the loss; another order or weight gradient sends rows of other widths",
            ),
            PublishedCost(
                Quantity.CALLS,
                "sum of lg P + 2 P",
                ("CAG-015",),
                len(shapes) * (log2(ranks) + 2 * ranks),
                "an all-reduce is one call here and lg P messages there; one call more, of the loss",
            ),
        ]


# 1.5D: block rows, replicated c times (section IV-B).
#
# Ranks P(i, j) form a grid of P/c rows and c columns. The ranks of a grid row hold the same block row of A, H and G,
# and W is replicated. Algorithm 2 is the 1D algorithm on fewer stages:
#
#   1. A grid column multiplies only by its share of the blocks of H: n f / c words arrive.
#   2. A grid row sums its partial products: n f c / P words, where c^2 divides P.
#
# The axis row contains the ranks of a grid column, P(:, j); the axis col the ranks of a grid row, P(i, :). Where c^2
# does not divide P, the stages are spread evenly over the columns; the authors' code gives the rest to the last column.


class OneAndAHalfD(RowScheme):
    """CAGNET's 1.5D algorithm, for any replication that divides the number of ranks."""

    name = "cagnet-1.5d"
    paper = "CAGNET (SC 2020), section IV-B"
    axes = (ROW, COL)
    rows_over = partitioned_over = ROW
    replicated_over = (COL,)

    def published_costs(self) -> list[PublishedCost]:
        """Return the totals of section IV-B5 of the paper."""
        n, ranks, c = self.facts.vertices, self.spec.ranks, self.grid[COL]
        by_one_d = sum(n * (f_in + f_out) for f_in, f_out in self.shapes)
        stages = ranks / c**2
        return [
            PublishedCost(
                Quantity.WORDS,
                "sum of (n f_(l-1) + n f_l) (1/c + c/P)",
                ("CAG-008", "CAG-009"),
                by_one_d * (1 / c + c / ranks),
                "f_(l-1) f_l of the weight gradient, which the paper drops, and one word of the loss; where c^2 does "
                "not divide P some columns have a stage more than others; another order or weight gradient sends "
                "rows of other widths",
            ),
            PublishedCost(
                Quantity.CALLS,
                "sum of 2 (P/c^2) lg(P/c^2)",
                ("CAG-016",),
                len(self.shapes) * 2 * stages * log2(stages) if stages > 1 else 0,
                "the paper drops the reductions and counts lg messages a broadcast: one call each here",
            ),
            PublishedCost(
                Quantity.LAYOUT,
                "input memory, times that of 1D: c",
                ("CAG-003", "CAG-004", "CAG-005"),
                c,
                "A is not replicated: a rank holds the blocks of its own stages, only H and the features c times",
                ranks / self.grid[ROW],
            ),
        ]
