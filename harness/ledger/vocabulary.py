"""The closed vocabularies of the ledger: a row has these words and no others.

Phase, layer and direction are a place in the algorithm; op is the operation that ran; axis, peer and tensor are its
ranks and its operand. A figure groups these words and never renames a word.
"""

from enum import StrEnum


class Phase(StrEnum):
    """The part of the algorithm that a slice of an epoch belongs to.

    Sampling by products of matrices makes distributions, draws from these, and extracts rows and columns: three phases.
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
    """The operation that ran. Time in a phase but in no op is glue; straggler time is skew, if asked for."""

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
"""The ops that work on this rank's own tensors."""

MOVING = frozenset(
    {Op.BROADCAST, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL, Op.SEND, Op.RECV}
)
"""The ops that send or receive."""


class AxisName(StrEnum):
    """One named axis of a grid. P is the only axis of a one-dimensional arrangement."""

    P = "p"
    ROW = "row"
    COL = "col"
    FIBRE = "fibre"
    D = "d"
    X = "x"
    Y = "y"
    Z = "z"


class TensorName(StrEnum):
    """The tensor that a collective moved or an op made, by layer: Z = A H W, T = A H, G = dL/dZ, S = A^T G; dT = G W^T.

    Normalisation has SQUARES, sums of squares of rows (in the backward pass of products), and DGAMMA, the gradient of
    the scale. Attention has T = H W, and SCORES, the shares of both ends in the scores of edges.
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
