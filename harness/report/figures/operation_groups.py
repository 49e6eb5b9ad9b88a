"""The groups of operations that a breakdown distinguishes, and the steps of sampling."""

from harness.ledger import MOVING, SAMPLING, Op, Phase, TensorName

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
STEP = dict(zip(SAMPLING, ("distributions", "sampling", "extraction"), strict=True))


def group_of_operation(phase: Phase, op: Op, tensor: str) -> str:
    """Return the group of a ledger row: by phase if it samples or fetches, else by op. Broadcasts of A are a group."""
    if phase in GROUP_OF_PHASE:
        return GROUP_OF_PHASE[phase]
    return SPARSE if op == Op.BROADCAST and tensor == TensorName.A else GROUP_OF_OP[op]


def sampling_step_of(phase: Phase, op: Op, _: str) -> str | None:
    """Return the sampling step of a ledger row; None if the row is not part of sampling."""
    if phase not in STEP:
        return None
    return f"{STEP[phase]}, sent" if op in MOVING else STEP[phase]
