"""Members compare their collectives in `compare_calls`: sizes that do not fit are an error, and not an abort."""

import re
from contextlib import nullcontext

import pytest
import torch

from harness.comm import engine
from harness.comm.call import compare_calls
from harness.comm.grid import Grid
from harness.ledger import AxisName, Key, Ledger, TensorName
from harness.ledger.tape import OutlineEvent, Tape, outline_events
from harness.prediction.replay import Meter

P, H, W, DH = AxisName.P, TensorName.H, TensorName.W, TensorName.DH
ROWS = (3, 2, 2)
FAULTS = {
    "no sizes": r"all_gather of H over p, member \d: .* they pass 3, 2, 2\. Pass sizes=\[3, 2, 2\]",
    "no sizes, later": r"they pass 3, 2, 2\. Pass sizes=\[3, 2, 2\]",
    "widths": r"member 1: all_gather of H, shape \[2, 4\], float32, sizes=\[3, 2, 2\]; member 2",
    "sums": r"member 0: all_reduce of H, shape \[3, 4\], float32; member 1: .* shape \[2, 4\]",
    "gradients": r"member 0: all_reduce of H, shape \[12\], float32; member 1: .* shape \[8\]",
    "terms": r"different sizes.* member 2: reduce_scatter of H, shape \[7, 6\]",
    "broadcast": r"different sizes.* member 2: broadcast of H, shape \[3, 8\]",
    "exchange": r"member 2 sends 1 rows to member 0, which expects 2: `send\[0\]` of member 2 and `receive\[2\]`",
    "another tensor": r"different calls\. member 0: all_reduce of H, .*; member 1: all_reduce of W",
}


def collect_faults() -> dict[str, str]:
    """Return the messages of calls whose sizes do not fit those of the other members."""
    axis = Grid.build({P: engine.world_size()}, Ledger())[P]
    me, x, whole = axis.index, torch.ones(ROWS[axis.index], 4), torch.ones(3, 4)
    calls = {
        "no sizes": lambda: axis.gather(x.clone().requires_grad_(), tensor=H, gradient=DH),
        "no sizes, later": lambda: axis.all_gather.later(x, tensor=H).wait(),
        "widths": lambda: axis.all_gather(x[:, : 3 + (me == 1)], tensor=H, sizes=ROWS),
        "sums": lambda: axis.all_reduce(x, tensor=H),
        "gradients": lambda: axis.all_reduce_coalesced([x], layers=[0], tensor=H),
        "terms": lambda: axis.reduce_scatter(torch.ones(7, 4 + me), tensor=H, sizes=ROWS),
        "broadcast": lambda: axis.broadcast(whole, root=0, shape=(3, 4 + 4 * (me == 2)), tensor=H),
        "exchange": lambda: axis.all_to_all(whole, send=[1, 1, 1], receive=[1, 1, 1 + (me == 0)], tensor=H),
        "another tensor": lambda: axis.all_reduce(whole, tensor=W if me else H),
    }
    faults = {}
    with compare_calls():
        for name, call in calls.items():
            with pytest.raises(ValueError, match="member") as caught:
                call()
            faults[name] = str(caught.value)
    return faults


def test_call_that_does_not_fit_is_an_error_that_names_every_member(ranks) -> None:
    for faults in ranks(3, collect_faults):
        assert faults.keys() == FAULTS.keys()
        for name, told in FAULTS.items():
            assert re.search(told, faults[name]), faults[name]


def record_fitting_calls(compared: bool) -> tuple[dict[Key, list[float]], list[OutlineEvent]]:
    """Return the rows of the ledger without times, and the events, of calls that fit."""
    tape = Tape()
    axis = Grid.build({P: engine.world_size()}, tape)[P]
    x = torch.ones(ROWS[axis.index], 4)
    tape.start()
    with Meter(tape), compare_calls() if compared else nullcontext():
        axis.all_gather(x, tensor=H, sizes=ROWS)
        pending = axis.all_to_all.later(torch.ones(3, 4), send=[1, 1, 1], receive=[1, 1, 1], tensor=H)
        axis.all_reduce(torch.ones(3), tensor=H)
        pending.wait()
    rows = {
        key: [row.calls, row.elements_payload, row.elements_received, row.bytes]
        for key, row in tape.stop().items()
    }
    return rows, outline_events(tape.events)


def test_comparison_of_calls_is_not_recorded(ranks) -> None:
    compared, plain = ranks(3, record_fitting_calls, True), ranks(3, record_fitting_calls, False)
    assert compared == plain
    assert all(events for _, events in plain)
