"""Mt-KaHyPar: parts with equal numbers of nonzeros that exchange few rows, in place of CAGNET's Graph-VB.

The column-net model (Çatalyürek and Aykanat, 1999): vertex i is row i of A, weighted by its nonzeros; net j contains
the rows with a nonzero in column j, and row j itself. A net that touches k parts is a row of H that k - 1 other parts
need. So the metric km1, which is minimised, is exactly the number of rows sent in an aggregation. Graph-VB also bounds
the largest communication of a part; this model does not (`harness.graph.partitions.partition` counts it).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.partitions.partitioners import import_library
from harness.kernels.csr import Csr
from harness.kernels.random import Purpose, random_order

HYPERGRAPH_BYTES_PER_ENTRY = 320
"""Memory for each nonzero."""
EPSILON = 0.03
"""How much heavier than the mean a part may be, relative to the mean."""


def partition_with_hypergraph(A: Csr, parts: int, seed: int) -> Tensor:
    """Return the part of every vertex, by minimising km1.

    The deterministic preset gives the same partition for any number of threads and, up to version 1.7, for any argument
    of `set_seed`. So the seed permutes the vertices instead.
    """
    mtkahypar = import_library("hypergraph")
    number = random_order(seed, Purpose.PARTITION, range(A.rows))
    weights = np.empty(A.rows, dtype=np.int64)
    weights[number] = A.rowptr.diff().numpy()
    start = mtkahypar.initialize(torch.get_num_threads(), False)
    context = start.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, EPSILON, mtkahypar.Objective.KM1)
    context.logging = False
    ones = np.ones(A.cols, dtype=np.int64)
    graph = start.create_hypergraph(context, A.rows, A.cols, build_nets(A, number.numpy()), weights, ones)
    part = np.asarray(graph.partition(context).get_partition(), dtype=np.int64)
    return torch.from_numpy(part)[number]


def build_nets(A: Csr, number: Any) -> list[Any]:
    """Return the net of every column j: the numbers of the rows with a nonzero in column j, and of row j."""
    from scipy.sparse import csr_array, eye_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    columns = (pattern + eye_array(A.rows, dtype=bool)).tocsc()
    return np.split(number[columns.indices], columns.indptr[1:-1])
