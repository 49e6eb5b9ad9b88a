"""The vocabularies of the ledger: the only values that its columns can have.

Phase, layer and direction are a position in the algorithm; op is the operation that ran; axis, peer and tensor are its
ranks and its operand. Figures group these values and never rename them.
"""

from enum import StrEnum


class Phase(StrEnum):
    """The part of the algorithm that a slice of an epoch belongs to.

    Matrix-based sampling has three phases: it computes distributions, samples from them, and extracts rows and columns.
    """

    LOAD = "load"
    DISTRIBUTE = "distribute"
    SAMPLE = "sample"
    EXTRACT = "extract"
    FETCH = "fetch"
    CONVOLVE = "convolve"
    LINEAR = "linear"
    ACTIVATE = "activate"
    LABELS = "labels"
    LOSS = "loss"
    SYNC = "sync"
    OPTIMIZE = "optimize"
    EVALUATE = "evaluate"
    OTHER = "other"


SAMPLING = (Phase.DISTRIBUTE, Phase.SAMPLE, Phase.EXTRACT)
"""The phases of sampling."""


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class Op(StrEnum):
    """The operation that ran. Time outside any op is glue; the wait for stragglers is skew, if it is measured."""

    SPMM = "spmm"
    GEMM = "gemm"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    RECV = "recv"
    GLUE = "glue"
    SKEW = "skew"


COMPUTING = frozenset({Op.SPMM, Op.GEMM, Op.ELEMENTWISE, Op.COPY})
"""The ops that compute on local tensors."""

MOVING = frozenset(
    {Op.BROADCAST, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL, Op.SEND, Op.RECV}
)
"""The ops that communicate."""


class AxisName(StrEnum):
    """The name of an axis of a grid. P is the only axis of a one-dimensional grid."""

    P = "p"
    ROW = "row"
    COL = "col"
    FIBRE = "fibre"
    D = "d"
    X = "x"
    Y = "y"
    Z = "z"


class TensorName(StrEnum):
    """The tensor that a collective sent or an op computed: Z = A H W, T = A H, G = dL/dZ, S = A^T G, dT = G W^T.

    For normalisation, SQUARES are the row sums of squares (of products in the backward pass), and DGAMMA is the
    gradient of the scale. For attention, T = H W, and SCORES are the contributions of both endpoints to the edge
    scores.
    """

    A = "A"
    X = "X"
    H = "H"
    T = "T"
    W = "W"
    Z = "Z"
    G = "G"
    S = "S"
    DT = "dT"
    DH = "dH"
    DX = "dX"
    DW = "dW"
    SCORES = "scores"
    SQUARES = "squares"
    DGAMMA = "dgamma"
    INDEX = "index"
    LABELS = "labels"
    LOSS = "loss"
    COUNT = "count"
    CHANCE = "chance"
    PARAMETERS = "parameters"
