"""RMSNorm, ReLU and dropout of rows whose features an axis splits, as three operators or as one fused kernel.

One number a row travels each way: the sum of squares forward; backward, of the products of the normalised row with its
gradient. Everything else is local to an element, and so may be fused (ScaleGNN, sections IV-C and V-C).

Legend: N rows over `down`, H features over `across`.
Verifier (tests/parallel/test_norm.py): torch's own rms_norm on whole rows.
"""

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import Axis
from harness.kernels.recorded import Kernels
from harness.ledger import Op, TensorName, apply
from harness.parallel.gradients import Gradients
from harness.parallel.rows import EPSILON


class Finish(NamedTuple):
    """What follows a convolution."""

    width: int
    """The features of a whole row."""
    relu: bool
    kept: Tensor | None
    """What dropout keeps; None keeps everything."""
    scale: float
    """By what it is multiplied."""


def normalised(
    kernels: Kernels,
    Z_NH: Tensor,
    gamma_1H: Tensor,
    finish: Finish,
    way: "Way",
) -> Tensor:
    """dropout(ReLU(Z / rms(Z) * gamma))."""
    H_NH: Tensor = apply(kernels.ledger, Normalise, Z_NH, gamma_1H, kernels, finish, way)
    return H_NH


class Way(NamedTuple):
    """How it is done."""

    across: Axis
    """The ranks that have a row together."""
    down: Axis
    """Those that have all rows."""
    gradients: Gradients
    fused: bool
    """Compiled into one kernel each way."""

    def run(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Shapes alone are not compiled."""
        if not self.fused or operands[0].is_meta:
            return function(*operands)
        # The tracer asks tensors for their gradients, and those that are computed warn.
        return _compiled(function)(
            *(each.detach() if isinstance(each, Tensor) else each for each in operands)
        )


class Normalise(Function):
    """H of Z and gamma; dZ, and dgamma summed over the rows."""

    @staticmethod
    def forward(
        saved: Any, Z_NH: Tensor, gamma_1H: Tensor, kernels: Kernels, finish: Finish, way: Way
    ) -> Tensor:
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=TensorName.SQUARES):
            squares_N = way.run(_squares, Z_NH)
        way.across.all_reduce(squares_N, tensor=TensorName.SQUARES)
        saved.kernels, saved.finish, saved.way, saved.gamma = kernels, finish, way, gamma_1H
        saved.save_for_backward(Z_NH, squares_N, gamma_1H)
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            H_NH: Tensor = way.run(_forward, Z_NH, squares_N, gamma_1H, finish)
        return H_NH

    @staticmethod
    def backward(saved: Any, dH_NH: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        ledger, finish, way = saved.kernels.ledger, saved.finish, saved.way
        Z_NH, squares_N, gamma_1H = saved.saved_tensors
        with ledger.op(Op.ELEMENTWISE, tensor=TensorName.SQUARES):
            products_N, dgamma_1H = way.run(_products, dH_NH, Z_NH, squares_N, gamma_1H, finish)
        way.across.all_reduce(products_N, tensor=TensorName.SQUARES)
        with ledger.op(Op.ELEMENTWISE, tensor=TensorName.DH):
            dZ_NH = way.run(_backward, dH_NH, Z_NH, squares_N, products_N, gamma_1H, finish)
        dgamma = way.gradients.sum(saved.gamma, dgamma_1H, way.down, TensorName.DGAMMA)
        return dZ_NH, dgamma, None, None, None


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel for all numbers of rows. The compiler is heard once: it uses what its own library deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._inductor.compile_fx")
    return torch.compile(function, dynamic=True)


def _squares(Z: Tensor) -> Tensor:
    return Z.square().sum(dim=1)


def _normal(Z: Tensor, squares: Tensor, finish: Finish) -> tuple[Tensor, Tensor]:
    """Rows of mean square 1, and by what each was multiplied."""
    inverse = torch.rsqrt(squares / finish.width + EPSILON)[:, None]
    return Z * inverse, inverse


def _forward(Z: Tensor, squares: Tensor, gamma: Tensor, finish: Finish) -> Tensor:
    H = _normal(Z, squares, finish)[0] * gamma
    H = H.clamp(min=0) if finish.relu else H
    return H if finish.kept is None else torch.where(finish.kept, H * finish.scale, 0)


def _pulled(dH: Tensor, Q: Tensor, gamma: Tensor, finish: Finish) -> Tensor:
    """The gradient of the normalised rows times gamma, back through dropout and ReLU."""
    G = dH if finish.kept is None else torch.where(finish.kept, dH * finish.scale, 0)
    return torch.where(Q * gamma > 0, G, 0) if finish.relu else G


def _products(dH: Tensor, Z: Tensor, squares: Tensor, gamma: Tensor, finish: Finish) -> tuple[Tensor, Tensor]:
    """The product of each normalised row with its gradient; and the gradient of gamma."""
    Q, _ = _normal(Z, squares, finish)
    QG = Q * _pulled(dH, Q, gamma, finish)
    return (QG * gamma).sum(dim=1), QG.sum(dim=0, keepdim=True)


def _backward(
    dH: Tensor, Z: Tensor, squares: Tensor, products: Tensor, gamma: Tensor, finish: Finish
) -> Tensor:
    Q, inverse = _normal(Z, squares, finish)
    G = _pulled(dH, Q, gamma, finish)
    return (G * gamma - Q * (products / finish.width)[:, None]) * inverse
