"""The places of all nonzeros of a graph, in memory: what those who partition have to see whole.

It is one block of a store that has no others (`harness.store.entries`).
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from harness.kernels.csr import Csr
from harness.sources.stream import Edges, Piece
from harness.store.adjacency import LARGEST
from harness.store.compose import Contents
from harness.store.entries import BYTES, Layout, scatter, settle

PER_ENTRY, PER_VERTEX = BYTES + 8, 16
"""Bytes that it takes at most: keys and columns beside each other, row pointers of 32 bits and of 64."""


def bytes_of_structure(contents: Contents) -> int:
    """What `structure` takes at most."""
    return PER_ENTRY * _most(contents) + PER_VERTEX * contents.n


def structure(contents: Contents) -> Csr:
    """The pattern of A, in the graph's own order; its values say nothing and take no room."""
    n, keys, filled = contents.n, np.empty(_most(contents), np.uint64), 0
    pieces: list[Piece] = [*contents.stream.pieces(LARGEST), partial(_loops, n)]
    for piece in pieces:
        for source, target in piece():  # a loop is its own mirror image
            found = scatter(source, target, Layout(n, 1), both=not contents.card.directed).keys
            keys[filled : filled + len(found)] = found
            filled += len(found)
    block = settle(keys[:filled], n)
    rowptr, col = torch.from_numpy(block.rowptr).long(), torch.from_numpy(block.col)
    return Csr(rowptr, col, torch.ones((), dtype=torch.bool).expand(len(col)), n)


def _loops(n: int) -> Iterator[Edges]:
    for start in range(0, n, LARGEST):
        some = np.arange(start, min(start + LARGEST, n))
        yield some, some


def _most(contents: Contents) -> int:
    """Entries that there can be, repetitions among them."""
    return contents.stream.entries * (1 if contents.card.directed else 2) + contents.n
