"""Mt-KaHyPar: parts of equal numbers of nonzeros that exchange few rows. It stands for CAGNET's Graph-VB.

The column-net model (Çatalyürek and Aykanat, 1999): vertex i is row i of A and weighs its nonzeros; net j holds the
rows with a nonzero in column j, and row j itself. A net that touches k parts is a row of H that k - 1 others need,
so the metric km1, which is minimised, is the number of rows sent in an aggregation, exactly. Graph-VB bounds the
largest part's share as well; here that share is what it turns out to be (`harness.graph.volume` counts it).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.partition_engine import library
from harness.kernels.csr import Csr
from harness.kernels.random import Purpose, shuffled

BYTES_AN_ENTRY = 320
"""Of memory, for every nonzero."""
EPSILON = 0.03
"""How much heavier than the mean a part may be."""


def hypergraph_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex.

    The preset gives the same partition on any number of threads and, up to version 1.7, whatever `set_seed` was told:
    here the seed decides how the vertices are numbered.
    """
    mtkahypar = library("hypergraph")
    number = shuffled(seed, Purpose.PARTITION, range(A.rows))
    weights = np.empty(A.rows, dtype=np.int64)
    weights[number] = A.rowptr.diff().numpy()
    start = mtkahypar.initialize(torch.get_num_threads(), False)
    context = start.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, EPSILON, mtkahypar.Objective.KM1)
    context.logging = False
    ones = np.ones(A.cols, dtype=np.int64)
    graph = start.create_hypergraph(context, A.rows, A.cols, nets(A, number.numpy()), weights, ones)
    part = np.asarray(graph.partition(context).get_partition(), dtype=np.int64)
    return torch.from_numpy(part)[number]


def nets(A: Csr, number: Any) -> list[Any]:
    """For every column, the numbers of the rows with a nonzero in it and of the row of the same name."""
    from scipy.sparse import csr_array, eye_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    columns = (pattern + eye_array(A.rows, dtype=bool)).tocsc()
    return np.split(number[columns.indices], columns.indptr[1:-1])
