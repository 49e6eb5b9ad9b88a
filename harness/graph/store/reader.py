"""A dataset on disk: serves any rectangle of the graph, and opens only the blocks that overlap it.

Files are memory-mapped. When a file is first opened, its size and checksum are compared with the manifest, so a
truncated or altered block is refused before anything is computed from it.
"""

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.base.files import map_array
from harness.graph.blocks import assert_within
from harness.graph.normalise import inverse_sqrt
from harness.graph.order import Orders, make_orders
from harness.graph.store.manifest import StoreFiles
from harness.kernels.csr import Csr, row_indices, take, transpose
from harness.kernels.parts import EntryScales, Placement, assemble


class Store:
    """Implements `Blocks` for a folder.

    Values of A are computed from degrees or weights in float64, and rounded once.
    """

    def __init__(self, folder: Path, *, checksums: bool = True, dtype: torch.dtype = torch.float32) -> None:
        """Open a store.

        Args:
            checksums: compare the checksum of each file with the manifest. If False, compare only its size, for large
                stores that were verified before.
            dtype: the dtype of the values of A.
        """
        self.files = StoreFiles(folder)
        self.manifest = manifest = self.files.manifest
        self.folder, self._dtype, self._checksums = folder, dtype, checksums
        self.n, self.features, self.nnz = manifest.n, manifest.features, manifest.counts.nnz_adj
        self.task, self.classes, self.directed = manifest.task, manifest.classes, manifest.directed
        self.permutation, self.weights = manifest.permutation, manifest.weights
        self.bounds = manifest.cut.bounds if manifest.cut else None
        self._opened: set[str] = set()

    @property
    def manifest_hash(self) -> str:
        """The sha256 of the manifest."""
        return self.files.manifest_hash

    @property
    def graph_hash(self) -> str:
        """A hash that identifies the graph, whatever the order of its vertices."""
        return self.manifest.graph_hash

    @property
    def opened_files(self) -> int:
        """The number of files that have been opened."""
        return len(self._opened)

    @property
    def orders(self) -> Orders[Tensor]:
        """The vertex maps of all rows and columns."""
        if self.manifest.cut is None:
            return make_orders(self.permutation, self.n, self.manifest.seed)
        p = torch.from_numpy(self._map_array("orders/p")).long()
        return Orders(p, p)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        assert_within(self.n, rows, cols)
        order = self._resolve_order(order)
        if order not in self.manifest.orders:  # symmetric: A[q][:, p] is the transpose of A[p][:, q]
            return transpose(self.adjacency(cols, rows, 0))
        parts = self._place_blocks(rows, cols, order)
        if self.weights:
            A = assemble(parts, (len(rows), len(cols)))
            return A._replace(val=self._compute_weighted_values(A, rows, cols, order).to(self._dtype))
        scales = EntryScales(
            self._compute_scale(rows, order), self._compute_scale(cols, 1 - order), self._dtype
        )
        return assemble(parts, (len(rows), len(cols)), scales)

    def edge_weights(self, rows: range) -> Tensor:
        """Return the weights of the entries of some rows of A, before normalisation."""
        assert self.weights
        assert_within(self.n, rows)
        return assemble(self._place_blocks(rows, range(self.n), 0), (len(rows), self.n)).val

    def _place_blocks(self, rows: range, cols: range, order: int) -> list[Placement]:
        """Return the blocks that overlap a rectangle, and their places in it."""
        parts = []
        for i, r in self._find_overlaps(rows):
            for j, c in self._find_overlaps(cols):
                top, left = i * self._side + r.start - rows.start, j * self._side + c.start - cols.start
                parts.append(Placement(self._map_block(order, i, j), r, c, top, left))
        return parts

    def _compute_weighted_values(self, A: Csr, rows: range, cols: range, order: int) -> Tensor:
        """Return the values of a rectangle of a weighted graph. `A` holds its weights."""
        if self.weights == "raw" or not A.nnz:
            return A.val
        row_scale, col_scale = (
            inverse_sqrt(self._read_vector("strengths", part, of))
            for part, of in ((rows, order), (cols, 1 - order))
        )
        return A.val * (take(row_scale, row_indices(A)) * take(col_scale, A.col))

    def edge_parts(self, rows: range) -> Tensor | None:
        # The store has the parts in the graph's original order: row by row, and by columns within a row.
        cut = self.manifest.cut
        if cut is None or cut.copies is None:
            return None
        order = self.orders.p
        degrees = torch.empty(self.n, dtype=torch.int64)
        degrees[order] = self.degrees(range(self.n)).long()
        A, vertices = self.adjacency(rows, range(self.n)), order[rows.start : rows.stop]
        row = row_indices(A)
        by_column = torch.argsort(row * self.n + order[A.col.long()])  # within each row
        position = torch.arange(A.nnz) - A.rowptr[row] + (degrees.cumsum(0) - degrees)[vertices][row]
        parts = torch.empty(A.nnz, dtype=torch.int32)
        parts[by_column] = torch.from_numpy(self._map_array("orders/edges"))[position]
        return parts

    def feature_block(self, rows: range, cols: range) -> Tensor:
        assert_within(self.n, rows)
        assert_within(self.features, cols)
        X_NF = torch.empty(len(rows), len(cols))
        width = -(-self.features // self.manifest.grid.features)
        for i, r in self._find_overlaps(rows):
            for j, c in _find_overlaps(cols, width):
                part = self._map_array(f"features/{i}-{j}")[r.start : r.stop, c.start : c.stop]
                top, left = i * self._side + r.start - rows.start, j * width + c.start - cols.start
                X_NF[top : top + len(r), left : left + len(c)] = torch.from_numpy(part)
        return X_NF

    def labels(self, rows: range, order: int = 0) -> Tensor:
        return self._read_vector("labels", rows, order)

    def split(self, rows: range, order: int = 0) -> Tensor:
        return self._read_vector("split", rows, order)

    def degrees(self, rows: range, order: int = 0) -> Tensor:
        """Return the number of entries in each of these rows of A."""
        return self._read_vector("degrees", rows, order)

    @property
    def _side(self) -> int:
        """The number of vertices in a block."""
        return -(-self.n // self.manifest.grid.vertices)

    def _resolve_order(self, order: int) -> int:
        """Return the stored order; both are the same unless the permutation is double."""
        assert order in (0, 1), order
        return order if self.permutation == "double" else 0

    def _find_overlaps(self, part: range) -> list[tuple[int, range]]:
        return _find_overlaps(part, self._side)

    def _map_block(self, order: int, i: int, j: int) -> Csr:
        """Map block (i, j): its pattern, and the weights of its entries if edges have weights."""
        name = f"adjacency/{order}/{i}-{j}"
        rowptr, col = (torch.from_numpy(self._map_array(f"{name}.{piece}")) for piece in ("rowptr", "col"))
        val = torch.from_numpy(self._map_array(f"{name}.val")) if self.weights else torch.empty(0)
        return Csr(rowptr, col, val, min(self._side, self.n - j * self._side))

    def _compute_scale(self, part: range, order: int) -> Tensor:
        """Return the normalisation factors of these rows: one over the square roots of the degrees."""
        return 1 / self.degrees(part, order).double().sqrt()

    def _read_vector(self, name: str, rows: range, order: int) -> Tensor:
        assert_within(self.n, rows)
        vector = self._map_array(f"{name}/{self._resolve_order(order)}")
        return torch.from_numpy(vector[rows.start : rows.stop]).clone()

    def _map_array(self, name: str) -> NDArray[Any]:
        """Check a file and map it. The array is writable, but changes are not written back."""
        name = f"{name}.npy"
        if name not in self._opened:
            self.files.check(name, checksum=self._checksums)
            self._opened.add(name)
        try:
            return map_array(self.folder / name, "c")
        except ValueError as error:
            self.files.refuse(name, f"cannot be read: {error}")
        except OSError as error:
            self.files.refuse_unreadable(name, error)


def _find_overlaps(part: range, size: int) -> list[tuple[int, range]]:
    """Return the blocks of this size that overlap the range, each with the overlap counted from the block's start."""
    if not part:
        return []
    blocks = range(part.start // size, (part.stop - 1) // size + 1)
    return [(b, range(max(part.start - b * size, 0), min(part.stop - b * size, size))) for b in blocks]
