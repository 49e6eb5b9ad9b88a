"""FLOP counts of all operators. Formulas for the sparse operators are registered here, next to torch's own.

Ranks do not import this module: torch's counter imports Triton where it is installed, which takes as long as numba.
"""

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import flop_registry, register_flop_formula

from harness.kernels.attention import ATTEND, ATTEND_COLUMNS_BACKWARD, ATTEND_ROWS_BACKWARD
from harness.kernels.spmm import PRODUCT, PRODUCT_ADD


def get_flop_formula(operator: Any) -> Callable[..., int] | None:
    """Return the formula of an operator's FLOPs, or None."""
    return flop_registry.get(operator.overloadpacket)


@register_flop_formula([PRODUCT.overloadpacket, PRODUCT_ADD.overloadpacket], get_raw=True)
def spmm_flops(*operands: Any, **_options: Any) -> int:
    """Count a multiplication and an addition for each nonzero and feature."""
    *_, val, _cols, H = operands
    return 2 * int(val.numel()) * int(H.shape[1])


@register_flop_formula(
    [each.overloadpacket for each in (ATTEND, ATTEND_ROWS_BACKWARD, ATTEND_COLUMNS_BACKWARD)], get_raw=True
)
def attention_flops(*operands: Any, **_options: Any) -> int:
    """Count a multiplication and an addition for each entry, feature and head, in all three operators."""
    _pointers, index, *_rest, x_QXF = operands
    return 2 * int(index.numel()) * int(x_QXF.shape[0] * x_QXF.shape[2])
