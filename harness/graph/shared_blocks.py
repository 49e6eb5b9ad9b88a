"""A graph that many replays read in one process: A stays in memory, with results that are the same for all ranks.

Without this cache, every replay of a rank would read the graph again, and compute the mini-batches of all other ranks
again. Whatever does not fit within `MAX_BYTES` is read, or computed, each time.
Verifier (tests/replay/test_shared_blocks.py): the blocks themselves.
"""

from collections.abc import Hashable
from typing import Any

from harness.graph.blocks import Blocks, assert_within
from harness.kernels.csr import Csr
from harness.kernels.parts import extract_block

MAX_BYTES = 1 << 30
"""The memory limit of A, and separately of the results."""
ENTRY_BYTES, ROW_BYTES = 16, 8
"""Upper bounds on the bytes of an entry of A, and of a row."""


class SharedBlocks:
    """Wraps the `Blocks` of a graph, with A in memory if it fits, and a cache of results."""

    def __init__(self, blocks: Blocks, max_bytes: int = MAX_BYTES) -> None:
        self._blocks, self._max_bytes = blocks, max_bytes
        self._adjacency: dict[int, Csr] = {}
        self._results: dict[Hashable, Any] = {}
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """Return a rectangle of A, which belongs to the caller."""
        graph = self._blocks
        assert_within(graph.n, rows, cols)
        orders = 2 if graph.permutation == "double" else 1
        if orders * (ENTRY_BYTES * graph.nnz + ROW_BYTES * graph.n) > self._max_bytes:
            return graph.adjacency(rows, cols, order)
        order %= orders
        if order not in self._adjacency:
            self._adjacency[order] = graph.adjacency(range(graph.n), range(graph.n), order)
        A = extract_block(self._adjacency[order], rows, cols)
        return A if len(cols) < graph.n else Csr(A.rowptr, A.col.clone(), A.val.clone(), A.cols)

    def get_result(self, key: Hashable) -> Any | None:
        """Return the result of a key, or None. Results are shared and must not be changed."""
        try:
            return self._results.get(key)
        except TypeError:  # the key contains a stateful sampler, so no two keys are equal
            return None

    def add_result(self, key: Hashable, result: Any, size: int) -> None:
        """Keep a result of `size` bytes if there is room."""
        if self._bytes + size <= self._max_bytes:
            try:
                self._results[key] = result
            except TypeError:
                return
            self._bytes += size


def share_blocks(blocks: Blocks) -> SharedBlocks:
    """Wrap blocks for several replays. Shared blocks are returned unchanged."""
    return blocks if isinstance(blocks, SharedBlocks) else SharedBlocks(blocks)
