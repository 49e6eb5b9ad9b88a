"""The sparsity pattern of a whole graph in memory, as partition methods need it: a store of one block."""

from functools import partial

import numpy as np
import torch

from harness.graph.builders.adjacency import MAX_CHUNK, generate_loops
from harness.graph.builders.entries import KEY_BYTES, Blocking, scatter_entries, sort_block
from harness.graph.sources.stream import Piece
from harness.graph.store.contents import DatasetContents
from harness.kernels.csr import Csr

ENTRY_BYTES, VERTEX_BYTES = KEY_BYTES + 8, 16
"""Memory of `load_pattern`: keys and columns per entry; row pointers of 32 and of 64 bits per vertex."""


def estimate_pattern_memory(contents: DatasetContents) -> int:
    """Return an upper bound on the bytes that `load_pattern` takes."""
    return ENTRY_BYTES * contents.max_entries + VERTEX_BYTES * contents.n


def load_pattern(contents: DatasetContents) -> Csr:
    """Return the pattern of A in the graph's original order. Its values are meaningless and take no memory."""
    n, keys, filled = contents.n, np.empty(contents.max_entries, np.uint64), 0
    pieces: list[Piece] = [*contents.stream.pieces(MAX_CHUNK), partial(generate_loops, n, MAX_CHUNK)]
    for piece in pieces:
        for source, target, *_ in piece():  # a loop is its own mirror image
            chunk = scatter_entries(source, target, Blocking(n, 1), both=not contents.card.directed).keys
            keys[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
    block = sort_block(keys[:filled], n)
    rowptr, col = torch.from_numpy(block.rowptr).long(), torch.from_numpy(block.col)
    return Csr(rowptr, col, torch.ones((), dtype=torch.bool).expand(len(col)), n)
