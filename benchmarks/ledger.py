"""The cost of recording: microseconds an entry on this machine, on and off.

    python benchmarks/ledger.py

An entry is what an operator or a collective writes: a scope entered and left, and a count where words moved. Each
number is the best of several rounds, because the question is the cost and not the load of the machine.
"""

from collections.abc import Callable
from timeit import repeat

import torch
from measuring import one_thread
from torch.autograd.function import FunctionCtx

from harness.ledger import AxisName, Ledger, Op, Phase, TensorName, apply

CALLS, ROUNDS = 500, 100  # an epoch of five layers writes a few hundred entries


class Pass(torch.autograd.Function):
    """y = x: nothing but the cost of autograd."""

    @staticmethod
    def forward(_: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: FunctionCtx, dy: torch.Tensor) -> torch.Tensor:
        return dy


def microseconds(ledger: Ledger, entry: Callable[[], object]) -> float:
    """The cost of one entry, its share of settling the epoch included."""

    def epoch() -> None:
        ledger.start()
        for _ in range(CALLS):
            entry()
        ledger.stop()

    def nothing() -> None:
        for _ in range(CALLS):
            do_nothing()

    def do_nothing() -> None: ...

    full, empty = (min(repeat(what, number=1, repeat=ROUNDS)) for what in (epoch, nothing))
    return 1e6 * (full - empty) / CALLS


def entries(ledger: Ledger) -> dict[str, Callable[[], object]]:
    x = torch.ones(1, requires_grad=True)

    def phase() -> None:
        with ledger.phase(Phase.CONVOLVE, layer=1):
            pass

    def op() -> None:
        with ledger.op(Op.SPMM, tensor=TensorName.T):
            pass

    def collective() -> None:
        with ledger.op(Op.BROADCAST, axis=AxisName.P, tensor=TensorName.H):
            ledger.count_call(payload=1.0, received=1.0, bytes=4)

    def function() -> None:
        apply(ledger, Pass, x).backward()

    return {
        "a phase": phase,
        "an op": op,
        "an op that counts words": collective,
        "a recorded function, forward and backward": function,
    }


def main() -> None:
    one_thread()
    on, off = Ledger(), Ledger(recording=False)
    print(f"{'microseconds':44}{'on':>8}{'off':>8}")
    for (name, entry), silent in zip(entries(on).items(), entries(off).values(), strict=True):
        print(f"{name:44}{microseconds(on, entry):8.2f}{microseconds(off, silent):8.2f}")


if __name__ == "__main__":
    main()
