"""Products of matrices that three axes split: rows, the dimension that is summed over, and columns.

Z = X Y, where X is split over `rows` and `inner`, Y over `inner` and `cols`, Z over `rows` and `cols`: each rank
multiplies its blocks, and the partial products are added up over `inner`. A gradient is a product of the same kind,
added up over the axis that it lacks: dX = G Y^T over `cols`, dY = X^T G over `rows`.

Legend: N rows of the output, K vertices of the input, F features in, H features out; which axis splits which is said by
the caller.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import Axis
from harness.kernels import Csr
from harness.kernels.recorded import Kernels
from harness.ledger import Op, TensorName, apply
from harness.ranges import common, split, within
from harness.strategy import Context, Piece

Gradient = Callable[[Tensor, Tensor], Tensor]
"""dW of T and G."""


class Loops(NamedTuple):
    """Entries A[v, v] that are not in A: rows of the input are scaled and added to rows of the output."""

    rows: slice
    cols: slice
    values: Tensor


class Stripe(NamedTuple):
    """Some of a rank's rows of A, which are multiplied and added up together."""

    rows: slice
    """Where they stand among all."""
    A: Csr
    loops: Loops | None


class Sparse(NamedTuple):
    """A rank's block of A or of A^T, and how it is multiplied."""

    stripes: Sequence[Stripe]
    over: Axis | None
    """The axis over which its columns are split; None leaves partial products."""
    overlap: bool = False
    """The sum of a stripe is under way while the next is multiplied."""
    wire: torch.dtype | None = None
    """The type in which partial products travel, if not their own."""


class Striping(NamedTuple):
    """How blocks of A are multiplied."""

    stripes: int = 1
    overlap: bool = False
    loops_apart: bool = False

    def of(self, rows: range) -> list[range]:
        """The rows of every stripe."""
        return [within(rows, part) for part in split(len(rows), self.stripes)]


def cut_out(
    ctx: Context, piece: Piece, order: int, *, transposed: bool, over: Axis | None, striping: Striping
) -> Sparse:
    """A or A^T at this rectangle, ready to be multiplied by; `over` splits its columns."""
    rows, cols = piece
    stripes = []
    for here in striping.of(rows):
        loops = None
        if striping.loops_apart:
            A, values = ctx.blocks.loopless(here, cols, order, transposed=transposed)
            if both := common(here, cols):
                loops = Loops(_slice(both, here), _slice(both, cols), values)
        else:
            A = ctx.blocks.adjacency(here, cols, order, transposed=transposed)
        stripes.append(Stripe(_slice(here, rows), A, loops))
    return Sparse(stripes, over, striping.overlap)


def _slice(part: range, whole: range) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


def aggregate(kernels: Kernels, A_NK: Sparse, A_T_KN: Sparse | None, H_KF: Tensor) -> Tensor:
    """T = A H; its backward dH = A^T dT, if anybody asks for it."""
    T_NF: Tensor = apply(kernels.ledger, Aggregate, H_KF, kernels, A_NK, A_T_KN)
    return T_NF


def combine(
    kernels: Kernels,
    T_NF: Tensor,
    W: Tensor,
    plane: "Plane",
    sizes: Sequence[int],
    gradient: Gradient,
) -> Tensor:
    """Z = T W. W is split over `rows` too, in so many of its rows each, and gathered whenever it is needed.

    `gradient` multiplies dW, one way or another (`WEIGHT_GRADIENTS`).
    """
    Z_NH: Tensor = apply(kernels.ledger, Combine, T_NF, W, kernels, plane, sizes, gradient)
    return Z_NH


class Plane(NamedTuple):
    """The axes that split a product."""

    rows: Axis
    inner: Axis
    cols: Axis


class Aggregate(Function):
    """T = A H, dH = A^T dT."""

    @staticmethod
    def forward(saved: Any, H_KF: Tensor, kernels: Kernels, A_NK: Sparse, A_T_KN: Sparse) -> Tensor:
        saved.kernels, saved.A_T_KN = kernels, A_T_KN
        return _multiply(kernels, A_NK, H_KF, TensorName.T)

    @staticmethod
    def backward(saved: Any, dT_NF: Tensor) -> tuple[Tensor, None, None, None]:
        return _multiply(saved.kernels, saved.A_T_KN, dT_NF, TensorName.DH), None, None, None


class Combine(Function):
    """Z = T W, dW = T^T G, dT = G W^T."""

    @staticmethod
    def forward(
        saved: Any,
        T_NF: Tensor,
        W: Tensor,
        kernels: Kernels,
        plane: Plane,
        sizes: Sequence[int],
        gradient: Gradient,
    ) -> Tensor:
        saved.kernels, saved.plane, saved.sizes, saved.gradient = kernels, plane, sizes, gradient
        saved.save_for_backward(T_NF, W)
        W_FH = plane.rows.all_gather(W, sizes=sizes, tensor=TensorName.W)
        Z_NH = kernels.gemm(T_NF, W_FH, TensorName.Z)
        return plane.inner.all_reduce(Z_NH, tensor=TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None, None, None]:
        kernels, plane, sizes, (T_NF, W) = saved.kernels, saved.plane, saved.sizes, saved.saved_tensors
        dW_FH = kernels.run(Op.GEMM, TensorName.DW, saved.gradient, T_NF, G_NH)
        dW = plane.rows.reduce_scatter(dW_FH, sizes=sizes, tensor=TensorName.DW)
        dT_NF = None
        if saved.needs_input_grad[0]:
            W_FH = plane.rows.all_gather(W, sizes=sizes, tensor=TensorName.W)
            dT_NF = kernels.gemm(G_NH, W_FH.T, TensorName.DT)
            dT_NF = plane.cols.all_reduce(dT_NF, tensor=TensorName.DT)
        return dT_NF, dW, None, None, None, None


def _multiply(kernels: Kernels, A: Sparse, H: Tensor, makes: TensorName) -> Tensor:
    """Stripe by stripe; a sum may be under way while the next stripe is multiplied."""
    if len(A.stripes) == 1:
        product = _with_loops(kernels, A.stripes[0], H, kernels.spmm(A.stripes[0].A, H, makes), makes)
        return product if A.over is None else A.over.all_reduce(product, tensor=makes, wire=A.wire)
    rows = A.stripes[-1].rows.stop
    product, under_way = H.new_zeros((rows, H.shape[1])), []
    for stripe in A.stripes:
        part = kernels.spmm(stripe.A, H, makes, add_to=product[stripe.rows])
        part = _with_loops(kernels, stripe, H, part, makes)
        if A.over is not None and A.overlap:
            under_way.append(A.over.all_reduce.later(part, tensor=makes, wire=A.wire))
        elif A.over is not None:
            A.over.all_reduce(part, tensor=makes, wire=A.wire)
    for pending in under_way:
        pending.wait()
    return product


def _with_loops(kernels: Kernels, stripe: Stripe, H: Tensor, part: Tensor, makes: TensorName) -> Tensor:
    if stripe.loops is not None:
        rows, cols, values = stripe.loops
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=makes):
            part[rows].addcmul_(values[:, None], H[cols])
    return part


def _straight(T_NF: Tensor, G_NH: Tensor) -> Tensor:
    return T_NF.T @ G_NH


def _flipped(T_NF: Tensor, G_NH: Tensor) -> Tensor:
    return (G_NH.T @ T_NF).T.contiguous()


WEIGHT_GRADIENTS: dict[str, Gradient] = {"straight": _straight, "flipped": _flipped}
"""The ways to multiply dW = T^T G; which is the faster depends on the library."""
