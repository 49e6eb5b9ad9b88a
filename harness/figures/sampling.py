"""Where sampling goes: distributions, draws and extraction, each computed and sent (bulk sampling's figure 5)."""

from harness.figures.kind import Kind, Tables
from harness.figures.palette import STEPS
from harness.figures.panels import Panel
from harness.figures.stacked import Rows, Stack
from harness.ledger import MOVING, SAMPLING, Op, Phase

STEP = dict(zip(SAMPLING, ("distributions", "sampling", "extraction"), strict=True))


def group_of(phase: Phase, op: Op, _: str) -> str | None:
    """Of the phases of sampling alone."""
    if phase not in STEP:
        return None
    return f"{STEP[phase]}, sent" if op in MOVING else STEP[phase]


STACK = Stack(STEPS, group_of, "sampling in the median epoch")


def rows(panel: Panel, tables: Tables) -> Rows:
    """Of curves that sample."""
    return [group for group in STACK.rows(panel, tables) if any(bar.total for bar in group.bars)]


KIND = Kind("sampling", "Where sampling goes", rows, STACK.page)
