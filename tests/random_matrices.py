"""Sparse matrices of numpy's random numbers."""

import numpy as np
from scipy.sparse import csr_array


def random_matrix(n: int, density: float, seed: int) -> csr_array:
    """Return a square matrix in which about `density` of all entries are stored.

    scipy has this too, but renamed the argument of its generator from one release to the next.
    """
    random = np.random.default_rng(seed)
    return csr_array(np.where(random.random((n, n)) < density, 1 - random.random((n, n)), 0))
