"""Charges the backward pass of an operator to the place where its forward pass stood.

Autograd runs backward nodes in an order of its own. A hook before and a hook after a node bracket it exactly,
so its time lands on the phase and layer of its forward pass, with direction backward. Hooks on tensors would
not do: those of one tensor fire in the order of registration, and the producer's would run before the
consumer's had ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.ledger.ledger import Key, Ledger
from harness.ledger.vocabulary import Direction, Op, TensorName

if TYPE_CHECKING:
    import torch


def follow(
    ledger: Ledger,
    result: torch.Tensor,
    inputs: tuple[torch.Tensor, ...] = (),
    *,
    op: Op = Op.GLUE,
    tensor: TensorName | None = None,
) -> torch.Tensor:
    """Charges every backward node between `inputs` and `result` to where the ledger stands now."""
    if ledger.recording and result.grad_fn is not None:
        here = ledger.here
        key = Key(here.phase, here.layer, Direction.BACKWARD, op, tensor=tensor)
        for node in _nodes(result, inputs):
            _bracket(ledger, node, key)
    return result


def apply(ledger: Ledger, function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply`, its backward charged to where the ledger stands now; ops inside name themselves."""
    return follow(ledger, function.apply(*arguments), _tensors(arguments))


def _tensors(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(argument for argument in arguments if hasattr(argument, "grad_fn"))


def _nodes(result: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """The nodes from `result` back to `inputs`, which belong to somebody else."""
    foreign = {tensor.grad_fn for tensor in inputs}
    found: list[Any] = []
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in foreign or node in found or hasattr(node, "variable"):
            continue
        found.append(node)
        waiting.extend(parent for parent, _ in node.next_functions)
    return found


def _bracket(ledger: Ledger, node: Any, key: Key) -> None:
    before: list[Key] = []

    def enter(_: Any) -> None:
        before.append(ledger.move_to(key))

    def leave(_: Any, __: Any) -> None:
        ledger.move_to(before.pop())

    node.register_prehook(enter)
    node.register_hook(leave)
