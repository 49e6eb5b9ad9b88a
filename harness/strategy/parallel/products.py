"""3D matrix products: three axes split the rows, the inner dimension and the columns.

For Z = X Y, X is split over `rows` and `inner`, Y over `inner` and `cols`, and Z over `rows` and `cols`. Each rank
multiplies its blocks, and the partial products are summed over `inner`. Gradients are products of the same kind, summed
over the remaining axis: dX = G Y^T over `cols`, dY = X^T G over `rows`.

`aggregate` is T = A H, `combine` is Z = T W with W split over `rows` too, and `linear` is Z = H W with W whole along
`rows` (ScaleGNN, equation 28).

Legend: N rows of the output, K vertices of the input, F features in, H features out; the caller assigns the axes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from harness.base.ranges import intersect_ranges, slice_range, split_range
from harness.comm.axis import Axis
from harness.kernels import Csr
from harness.kernels.recorded import Kernels, matmul
from harness.ledger import Op, TensorName, apply
from harness.strategy import Context, Piece
from harness.strategy.parallel.gradients import Gradients


class ProductAxes(NamedTuple):
    """The axes of a dense product, and the names of its results on the ledger."""

    rows: Axis
    inner: Axis
    cols: Axis
    makes: TensorName = TensorName.Z
    gradient: TensorName = TensorName.DT
    """The name of the gradient of the left factor."""


# T = A H, with a sparse factor in stripes of rows.


class Diagonal(NamedTuple):
    """Entries A[v, v] that are stored separately from A, and multiplied as a row-wise scaling of the input."""

    rows: slice
    cols: slice
    values: Tensor


class Stripe(NamedTuple):
    """Consecutive rows of a rank's block of A, which are multiplied and reduced together."""

    rows: slice
    """The position of these rows in the block."""
    A: Csr
    diagonal: Diagonal | None


class SparseFactor(NamedTuple):
    """A rank's block of A or A^T, and how to multiply by it."""

    stripes: Sequence[Stripe]
    over: Axis | None
    """The axis over which products are summed; None leaves them partial."""
    overlap: bool = False
    """Overlap the reduction of a stripe with the product of the next one."""


class Striping(NamedTuple):
    """The number of stripes in a block of A, and how to multiply them."""

    stripes: int = 1
    overlap: bool = False
    separate_diagonal: bool = False

    def split_rows(self, rows: range) -> list[range]:
        """Return the rows of every stripe."""
        return [slice_range(rows, part) for part in split_range(len(rows), self.stripes)]


def build_sparse_factor(
    ctx: Context, piece: Piece, order: int, *, transposed: bool, over: Axis | None, striping: Striping
) -> SparseFactor:
    """Build a factor from the rectangle `piece` of A or A^T; `over` splits its columns."""
    rows, cols = piece
    stripes = []
    for part in striping.split_rows(rows):
        loops = None
        if striping.separate_diagonal:
            A, values = ctx.blocks.adjacency_without_loops(part, cols, order, transposed=transposed)
            if both := intersect_ranges(part, cols):
                loops = Diagonal(_slice(both, part), _slice(both, cols), values)
        else:
            A = ctx.blocks.adjacency(part, cols, order, transposed=transposed)
        stripes.append(Stripe(_slice(part, rows), A, loops))
    return SparseFactor(stripes, over, striping.overlap)


def _slice(part: range, whole: range) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


def aggregate_3d(kernels: Kernels, A_NK: SparseFactor, A_T_KN: SparseFactor | None, H_KF: Tensor) -> Tensor:
    """Return T = A H, differentiable in H: dH = A^T dT."""
    T_NF: Tensor = apply(kernels.ledger, Aggregate3D, H_KF, kernels, A_NK, A_T_KN)
    return T_NF


class Aggregate3D(Function):
    """T = A H, dH = A^T dT."""

    @staticmethod
    def forward(
        saved: Any, H_KF: Tensor, kernels: Kernels, A_NK: SparseFactor, A_T_KN: SparseFactor
    ) -> Tensor:
        saved.kernels, saved.A_T_KN = kernels, A_T_KN
        return _multiply(kernels, A_NK, H_KF, TensorName.T)

    @staticmethod
    def backward(saved: Any, dT_NF: Tensor) -> tuple[Tensor, None, None, None]:
        return _multiply(saved.kernels, saved.A_T_KN, dT_NF, TensorName.DH), None, None, None


def _multiply(kernels: Kernels, A: SparseFactor, H: Tensor, makes: TensorName) -> Tensor:
    """Compute A H by stripes, overlapping reductions with products if `A.overlap`."""
    if len(A.stripes) == 1:
        product = _add_diagonal(kernels, A.stripes[0], H, kernels.spmm(A.stripes[0].A, H, makes), makes)
        return product if A.over is None else A.over.all_reduce(product, tensor=makes)
    rows = A.stripes[-1].rows.stop
    product, in_flight = H.new_zeros((rows, H.shape[1])), []
    for stripe in A.stripes:
        part = kernels.spmm(stripe.A, H, makes, add_to=product[stripe.rows])
        part = _add_diagonal(kernels, stripe, H, part, makes)
        if A.over is not None and A.overlap:
            in_flight.append(A.over.all_reduce.later(part, tensor=makes))
        elif A.over is not None:
            A.over.all_reduce(part, tensor=makes)
    for pending in in_flight:
        pending.wait()
    return product


def _add_diagonal(kernels: Kernels, stripe: Stripe, H: Tensor, part: Tensor, makes: TensorName) -> Tensor:
    if stripe.diagonal is not None:
        rows, cols, values = stripe.diagonal
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=makes):
            part[rows].addcmul_(values[:, None], H[cols])
    return part


# Z = T W, with W split over all three axes.


def _multiply_direct(T_NF: Tensor, G_NH: Tensor) -> Tensor:
    return matmul(T_NF.T, G_NH)


def _multiply_transposed(T_NF: Tensor, G_NH: Tensor) -> Tensor:
    return (G_NH.T @ T_NF).T.contiguous()


WeightGradient = Callable[[Tensor, Tensor], Tensor]
"""Computes dW = T^T G from T and G."""

WEIGHT_GRADIENTS: dict[str, WeightGradient] = {"straight": _multiply_direct, "flipped": _multiply_transposed}
"""The ways to compute dW = T^T G. Which one is faster depends on the library; on a CPU it is always `straight`."""


def combine_3d(
    kernels: Kernels,
    T_NF: Tensor,
    W: Tensor,
    axes: ProductAxes,
    sizes: Sequence[int],
    gradient: WeightGradient,
) -> Tensor:
    """Return Z = T W. W is also split over `rows`, with `sizes` rows on each member, and gathered when it is needed.

    `gradient` is one of `WEIGHT_GRADIENTS`.
    """
    Z_NH: Tensor = apply(kernels.ledger, Combine3D, T_NF, W, kernels, axes, sizes, gradient)
    return Z_NH


class Combine3D(Function):
    """Z = T W, dW = T^T G, dT = G W^T."""

    @staticmethod
    def forward(
        saved: Any,
        T_NF: Tensor,
        W: Tensor,
        kernels: Kernels,
        axes: ProductAxes,
        sizes: Sequence[int],
        gradient: WeightGradient,
    ) -> Tensor:
        saved.kernels, saved.axes, saved.sizes, saved.gradient = kernels, axes, sizes, gradient
        saved.save_for_backward(T_NF, W)
        W_FH = axes.rows.all_gather(W, sizes=sizes, tensor=TensorName.W)
        Z_NH = kernels.gemm(T_NF, W_FH, axes.makes)
        return axes.inner.all_reduce(Z_NH, tensor=axes.makes)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None, None, None]:
        kernels, axes, sizes, (T_NF, W) = saved.kernels, saved.axes, saved.sizes, saved.saved_tensors
        dW_FH = kernels.run(Op.GEMM, TensorName.DW, saved.gradient, T_NF, G_NH)
        dW = axes.rows.reduce_scatter(dW_FH, sizes=sizes, tensor=TensorName.DW)
        dT_NF = None
        if saved.needs_input_grad[0]:
            W_FH = axes.rows.all_gather(W, sizes=sizes, tensor=TensorName.W)
            dT_NF = kernels.gemm(G_NH, W_FH.T, axes.gradient)
            dT_NF = axes.cols.all_reduce(dT_NF, tensor=axes.gradient)
        return dT_NF, dW, None, None, None, None


# Z = H W, with W replicated along the axis that splits the rows: a combination, a projection or a head.


class LinearOptions(NamedTuple):
    """The options for the reductions of a linear product."""

    overlap: bool
    """Overlap the reduction of dH with the computation of dW."""
    gradients: Gradients


def linear_3d(
    kernels: Kernels, H_NF: Tensor, W_FH: Tensor, axes: ProductAxes, options: LinearOptions
) -> Tensor:
    """Return Z = H W. Partial sums of dW are sent in the wire dtype, like those of H and dH (ScaleGNN, section V-B)."""
    Z_NH: Tensor = apply(kernels.ledger, Linear3D, H_NF, W_FH, kernels, axes, options)
    return Z_NH


class Linear3D(Function):
    """Z = H W, dH = G W^T, dW = H^T G."""

    @staticmethod
    def forward(
        saved: Any, H_NF: Tensor, W_FH: Tensor, kernels: Kernels, axes: ProductAxes, options: LinearOptions
    ) -> Tensor:
        saved.kernels, saved.axes, saved.options, saved.W = kernels, axes, options, W_FH
        saved.save_for_backward(H_NF, W_FH)
        Z_NH = kernels.gemm(H_NF, W_FH, axes.makes)
        return axes.inner.all_reduce(Z_NH, tensor=axes.makes)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        kernels, axes, (overlap, gradients) = saved.kernels, saved.axes, saved.options
        H_NF, W_FH = saved.saved_tensors
        pending, dH_NF = None, None
        if saved.needs_input_grad[0]:
            dH_NF = kernels.gemm(G_NH, W_FH.T, axes.gradient)
            send = axes.cols.all_reduce.call(dH_NF, tensor=axes.gradient)
            pending, dH_NF = (send.later(), None) if overlap else (None, send.now())
        dW_FH = kernels.gemm(H_NF.T, G_NH, TensorName.DW)
        if pending is not None:
            dH_NF = pending.wait()
        dW = gradients.reduce(saved.W, dW_FH, axes.rows, TensorName.DW, axes.rows.wire)
        return dH_NF, dW, None, None, None
