"""An epoch of one rank captured in a CUDA graph, with what the ledger recorded during the capture.

The amounts of an epoch are known when its work is issued. Its times come from events inside the graph, which every
replay records again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.base.device import DeviceGraph, GraphClock, has_graph_events
from harness.base.errors import UserError
from harness.ledger import Recording
from harness.strategy import Context


class EpochGraph:
    """An epoch that is captured once and then replayed."""

    def __init__(self, name: str, ctx: Context, issue: Callable[[], list[Tensor]]) -> None:
        """`issue` runs the steps of an epoch of the strategy `name` and returns their losses."""
        self._numbers, self._graph = ctx.numbers, DeviceGraph()
        ledger = ctx.ledger

        def issue_and_record() -> list[Tensor]:
            ledger.start()
            return issue()

        try:
            with self._numbers.capture(), ledger.in_graph(GraphClock()):
                self._losses = self._graph.capture(issue_and_record)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"An epoch of {name} cannot be captured in a CUDA graph, in which the host may neither wait for the "
                f"device nor issue work to streams that the epoch does not wait for: {error}. "
                "Leave training.cuda_graph at false."
            ) from error
        self.recording: Recording = ledger.close()
        """What the ledger recorded during the capture. A replay replaces its first mark and its end."""

    def replay(self) -> list[Tensor]:
        """Run the next epoch and return the losses of its steps."""
        self._numbers.advance()
        self._graph.replay()
        return self._losses


def require_graph_events() -> None:
    """Raise a UserError if the events of this torch cannot be timed inside a CUDA graph."""
    if not has_graph_events():
        raise UserError(
            f"training.cuda_graph: this torch ({torch.__version__}) cannot time the kernels of a CUDA graph, because "
            "its events do not accept external=True. "
            "Install a newer torch, or leave training.cuda_graph at false."
        )
