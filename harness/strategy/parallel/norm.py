"""RMSNorm, ReLU and dropout of rows whose features are split over an axis, as separate operators or one fused kernel.

Each pass reduces one number per row: forward the sum of squares, backward the inner product of the normalised row and
its gradient. Everything else is elementwise and can be fused (ScaleGNN, sections IV-C and V-C).

Legend: N rows over `down`, H features over `across`.
Verifier (tests/parallel/test_norm.py): torch's own rms_norm on whole rows.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.base.errors import UserError
from harness.comm.axis import Axis
from harness.kernels.recorded import Kernels
from harness.ledger import Op, TensorName, apply
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.row_strategy import EPSILON


class Epilogue(NamedTuple):
    """The operators that follow the norm of a layer."""

    width: int
    """The number of features of a whole row."""
    relu: bool
    mask: Tensor | None
    """The elements that dropout keeps; None for all."""
    scale: float
    """The factor of the kept elements."""


class NormPlan(NamedTuple):
    """The axes of a norm, and whether its operators are fused."""

    across: Axis
    """The axis that splits the features of a row."""
    down: Axis
    """The axis that splits the rows."""
    gradients: Gradients
    fused: bool
    """Compile the operators into one kernel per pass."""

    def run(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Call a function, compiled if the plan is fused. Functions of meta tensors are never compiled."""
        if not self.fused:
            return function(*operands)
        if operands[0].is_meta:
            return self.across.ledger.run_fused(function, *operands)
        if operands[0].is_cpu:
            require_compiler()
        # Detached, because the tracer reads the `grad` of every tensor, which warns for non-leaf tensors.
        return _compiled(function)(
            *(each.detach() if isinstance(each, Tensor) else each for each in operands)
        )


def normalise_rows(
    kernels: Kernels, Z_NH: Tensor, gamma_1H: Tensor, epilogue: Epilogue, plan: NormPlan
) -> Tensor:
    """Return H = dropout(ReLU(Z / rms(Z) * gamma))."""
    H_NH: Tensor = apply(kernels.ledger, Normalise, Z_NH, gamma_1H, kernels, epilogue, plan)
    return H_NH


class Normalise(Function):
    """H from Z and gamma; the backward pass returns dZ, and dgamma summed over the rows."""

    @staticmethod
    def forward(
        saved: Any, Z_NH: Tensor, gamma_1H: Tensor, kernels: Kernels, epilogue: Epilogue, plan: NormPlan
    ) -> Tensor:
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=TensorName.SQUARES):
            squares_N = plan.run(_sum_squares, Z_NH)
        plan.across.all_reduce(squares_N, tensor=TensorName.SQUARES)
        saved.kernels, saved.epilogue, saved.plan, saved.gamma = kernels, epilogue, plan, gamma_1H
        saved.save_for_backward(Z_NH, squares_N, gamma_1H)
        with kernels.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            H_NH: Tensor = plan.run(_forward, Z_NH, squares_N, gamma_1H, epilogue)
        return H_NH

    @staticmethod
    def backward(saved: Any, dH_NH: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        ledger, epilogue, plan = saved.kernels.ledger, saved.epilogue, saved.plan
        Z_NH, squares_N, gamma_1H = saved.saved_tensors
        with ledger.op(Op.ELEMENTWISE, tensor=TensorName.SQUARES):
            products_N, dgamma_1H = plan.run(_norm_backward_sums, dH_NH, Z_NH, squares_N, gamma_1H, epilogue)
        plan.across.all_reduce(products_N, tensor=TensorName.SQUARES)
        with ledger.op(Op.ELEMENTWISE, tensor=TensorName.DH):
            dZ_NH = plan.run(_backward, dH_NH, Z_NH, squares_N, products_N, gamma_1H, epilogue)
        dgamma = plan.gradients.reduce(saved.gamma, dgamma_1H, plan.down, TensorName.DGAMMA)
        return dZ_NH, dgamma, None, None, None


@cache
def require_compiler() -> None:
    """Raise an error without the C++ compiler that torch uses on CPUs."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"fused=true needs a C++ compiler on a CPU, and there is no {compiler}. Install g++, name another compiler "
            "in CXX, or leave fused at false."
        )


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile one kernel for all numbers of rows. Deprecation warnings of the compiler's own import are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._inductor.compile_fx")
    return torch.compile(function, dynamic=True)


def _sum_squares(Z: Tensor) -> Tensor:
    return Z.square().sum(dim=1)


def _scale_rows(Z: Tensor, squares: Tensor, epilogue: Epilogue) -> tuple[Tensor, Tensor]:
    """Return the rows scaled to mean square 1, and the factor of each row."""
    inverse = torch.rsqrt(squares / epilogue.width + EPSILON)[:, None]
    return Z * inverse, inverse


def _forward(Z: Tensor, squares: Tensor, gamma: Tensor, epilogue: Epilogue) -> Tensor:
    H = _scale_rows(Z, squares, epilogue)[0] * gamma
    H = H.clamp(min=0) if epilogue.relu else H
    return H if epilogue.mask is None else torch.where(epilogue.mask, H * epilogue.scale, 0)


def _epilogue_backward(dH: Tensor, Q: Tensor, gamma: Tensor, epilogue: Epilogue) -> Tensor:
    """Backpropagate through dropout and ReLU to the scaled rows."""
    G = dH if epilogue.mask is None else torch.where(epilogue.mask, dH * epilogue.scale, 0)
    return torch.where(Q * gamma > 0, G, 0) if epilogue.relu else G


def _norm_backward_sums(
    dH: Tensor, Z: Tensor, squares: Tensor, gamma: Tensor, epilogue: Epilogue
) -> tuple[Tensor, Tensor]:
    """Return the inner product of each normalised row with its gradient, and the gradient of gamma."""
    Q, _ = _scale_rows(Z, squares, epilogue)
    QG = Q * _epilogue_backward(dH, Q, gamma, epilogue)
    return (QG * gamma).sum(dim=1), QG.sum(dim=0, keepdim=True)


def _backward(
    dH: Tensor, Z: Tensor, squares: Tensor, products: Tensor, gamma: Tensor, epilogue: Epilogue
) -> Tensor:
    Q, inverse = _scale_rows(Z, squares, epilogue)
    G = _epilogue_backward(dH, Q, gamma, epilogue)
    return (G * gamma - Q * (products / epilogue.width)[:, None]) * inverse
