"""Where an epoch's time goes: everything that ran, in seconds, so a bar is as long as the scaling figure says.

Groups have one order and one look everywhere; local work comes first, communication after it.
"""

from harness.figures.palette import GROUPS
from harness.figures.stacked import Stack
from harness.ledger import SAMPLING, Op, Phase, TensorName

SPARSE = "broadcast of A"
GROUP_OF_PHASE = {Phase.LOAD: "fetching", Phase.FETCH: "fetching", **dict.fromkeys(SAMPLING, "sampling")}
GROUP_OF_OP = {
    Op.SPMM: "SpMM",
    Op.GEMM: "GEMM",
    Op.ELEMENTWISE: "elementwise",
    Op.COPY: "elementwise",
    Op.BROADCAST: "broadcast, gather",
    Op.ALL_GATHER: "broadcast, gather",
    Op.REDUCE_SCATTER: "reduce",
    Op.ALL_REDUCE: "reduce",
    Op.ALL_TO_ALL: "exchange",
    Op.SEND: "exchange",
    Op.RECV: "exchange",
    Op.GLUE: "glue, other",
    Op.SKEW: "glue, other",
}


def group_of(phase: Phase, op: Op, tensor: str) -> str:
    """Sampling and fetching whole, the rest by what ran. Broadcasts of the graph itself stand apart."""
    if phase in GROUP_OF_PHASE:
        return GROUP_OF_PHASE[phase]
    return SPARSE if op == Op.BROADCAST and tensor == TensorName.A else GROUP_OF_OP[op]


STACK = Stack(GROUPS, group_of, "time of the median epoch")
KIND = STACK.kind("breakdown", "Where an epoch goes")
