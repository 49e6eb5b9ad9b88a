"""The closed vocabularies of the project: what a row of the ledger may say, and nothing else.

Phase, layer and direction say where in the algorithm; op says what ran there; axis, peer and tensor say over
what and with what. A figure groups these words and never renames them.
"""

from enum import StrEnum


class Phase(StrEnum):
    """Where in the algorithm a slice of an epoch was spent.

    Who samples by products of matrices makes distributions, draws from them, and extracts rows and columns.
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
"""What samples."""


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class Op(StrEnum):
    """What ran. Time inside a phase but in no op is glue; straggler time is skew, in runs that ask for it."""

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
"""What works on this rank's own tensors."""

MOVING = frozenset(
    {Op.BROADCAST, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL, Op.SEND, Op.RECV}
)
"""What sends something."""


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
    """What a collective moved or an op made, by layer: Z = A H W, T = A H, G = dL/dZ, S = A^T G; dT = G W^T.

    Of a normalisation: the sums of squares of rows, and in the backward pass of products; the gradient of its scale.
    Of attention T = H W, and what an end adds to the scores of its edges.
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
