"""Charges the flops and bytes of every operator to the key that is current on a ledger.

Flops are those of torch's own formulas and of ours (`harness.kernels.spmm`); bytes are those of the operands and
of the result, each read or written once. Messages are no kernels: the axes count them.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from harness.ledger import Ledger

ATEN = torch.ops.aten
ONLY_ALLOCATE = {ATEN.empty, ATEN.empty_strided, ATEN.empty_like, ATEN.new_empty, ATEN.new_empty_strided}


class Meter(TorchDispatchMode):
    """`with Meter(ledger):` around what is to be metered, the backward pass included."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if _computes(func):
            formula = flop_registry.get(func.overloadpacket)
            flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
            touched = _bytes(args) + _bytes(kwargs.values()) + _bytes((result,))
            self._ledger.add(self._ledger.here, flops=flops, bytes_touched=touched)
        return result


def _bytes(things: Iterable[Any]) -> int:
    """Of the tensors among arguments, and in lists of them."""
    total = 0
    for thing in things:
        if isinstance(thing, Tensor):
            total += thing.nbytes
        elif isinstance(thing, list | tuple):
            total += _bytes(thing)
    return total


def _computes(func: Any) -> bool:
    return (
        func.namespace not in ("c10d", "prim")
        and not func.is_view
        and func.overloadpacket not in ONLY_ALLOCATE
    )
