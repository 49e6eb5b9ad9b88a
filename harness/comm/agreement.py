"""Checks that the members of an axis issue the same collective, with sizes that fit together.

In `harness.comm.call.compare_calls`, which `harness check` uses, the members tell each other what they are about to
issue. Otherwise a mistake in the sizes makes gloo abort the process, or wait for rows that never come. Runs compare
nothing, and do not load this module.
"""

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

from harness.comm.collectives import Group, gather_bytes
from harness.ledger import Op, TensorName


class CallSignature(NamedTuple):
    """A collective that one member is about to issue."""

    op: Op
    tensor: TensorName
    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    """The argument `sizes` of an all-gather or a reduce-scatter."""
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()

    def __str__(self) -> str:
        given = {"sizes": self.sizes, "send": self.send, "receive": self.receive}
        named = "".join(f", {name}={list(sizes)}" for name, sizes in given.items() if sizes)
        return f"{self.op} of {self.tensor}, shape {list(self.shape)}, {self.dtype}{named}"


def check_agreement(axis: str, group: Group, index: int, call: CallSignature) -> None:
    """Raise ValueError if the members' calls do not fit together; called by every member, before its call."""
    calls = exchange_calls(group, call)
    if fault := find_disagreement(calls):
        raise ValueError(f"{call.op} of {call.tensor} over {axis}, member {index}: {fault}")


def exchange_calls(group: Group, call: CallSignature) -> list[CallSignature]:
    """Return the calls of all members.

    The exchange runs on a thread of its own, because the modes that count a thread's kernels must not see it.
    """
    length = 512 + 64 * group.size()  # ample for three lists of a number for each member
    data = pickle.dumps(call)
    exchanged = _get_thread().submit(gather_bytes, group, data.ljust(length, b"\0")).result()
    return [pickle.loads(each) for each in exchanged]  # which ignores what follows the pickle


@cache
def _get_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def find_disagreement(calls: Sequence[CallSignature]) -> str:
    """Say why the members' calls do not fit together; an empty string if they do."""
    first = calls[0]
    if _differ(calls, lambda call: (call.op, call.tensor, call.dtype)):
        return f"the members issue different calls. {_list_calls(calls)}"
    if first.op is Op.ALL_GATHER:
        return _find_uneven_gather(calls)
    if first.op is Op.ALL_TO_ALL:
        return _find_unmatched_rows(calls)
    if _differ(calls, lambda call: (call.shape, call.sizes)):
        return f"the members issue calls of different sizes. {_list_calls(calls)}"
    return ""


def _find_uneven_gather(calls: Sequence[CallSignature]) -> str:
    rows = [call.shape[0] for call in calls]
    if all(call.sizes is None for call in calls) and len(set(rows)) > 1:
        return (
            f"without `sizes`, all members must pass equally many rows, but they pass {', '.join(map(str, rows))}. "
            f"Pass sizes={rows}, the same list on every member."
        )
    if _differ(calls, lambda call: (call.shape[1:], call.sizes)):
        return f"the members issue calls of different sizes. {_list_calls(calls)}"
    return ""


def _find_unmatched_rows(calls: Sequence[CallSignature]) -> str:
    for source, sender in enumerate(calls):
        for target, receiver in enumerate(calls):
            sent, expected = sender.send[target], receiver.receive[source]
            if sent != expected:
                return (
                    f"member {source} sends {sent} rows to member {target}, which expects {expected}: "
                    f"`send[{target}]` of member {source} and `receive[{source}]` of member {target} must be equal."
                )
    return ""


def _differ(calls: Sequence[CallSignature], select: Callable[[CallSignature], object]) -> bool:
    return any(select(call) != select(calls[0]) for call in calls)


def _list_calls(calls: Sequence[CallSignature]) -> str:
    return "; ".join(f"member {index}: {call}" for index, call in enumerate(calls))
