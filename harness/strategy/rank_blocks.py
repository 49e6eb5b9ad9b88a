"""Pieces of the graph for one rank, read by rectangle, in the precision of the run.

A strategy cannot tell whether a piece comes from memory or from files, or is a meta tensor. Pieces on the device are
held (`harness.strategy.memory`); pieces on the host are not.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.graph.blocks import Blocks, Rectangle, gather_features, resolve_rectangle
from harness.graph.model import SPLITS, TRAIN
from harness.kernels import Csr, cast, transpose
from harness.kernels.csr import META, PackedFormat, get_packed_format, make_meta_csr, pack
from harness.kernels.parts import (
    compact_columns,
    nonempty_columns_by_block,
    split_diagonal,
)
from harness.ledger import TensorName
from harness.spec.spec import Spec
from harness.strategy.counts import BlockCounts, Counts, Piece, find_targets
from harness.strategy.facts import Facts
from harness.strategy.memory import DeviceMemory

STRIP = 1 << 20
"""The most rows to read at a time when looking for the rows that other ranks need."""

IGNORED = -100
"""The label of a vertex that the loss ignores."""


class RankBlocks:
    """The blocks of A, X and the labels for one rank. Indices are local: a block's first row and column are 0.

    Orders alternate: an even one is order 0, an odd one order 1 (`harness.graph.order`).
    """

    def __init__(self, spec: Spec, facts: Facts, blocks: Blocks, memory: DeviceMemory) -> None:
        self.counts: Counts = BlockCounts(blocks)
        self._spec, self._facts, self._blocks, self._memory = spec, facts, blocks, memory
        self.has_only_shapes = blocks.feature_block(range(0), range(0)).is_meta
        """True in a replay of a graph that is not built: no entry can be read."""
        self._adjacency: dict[Rectangle, Csr] = {}
        self._loopless: dict[Rectangle, tuple[Csr, Tensor]] = {}

    # Pieces on the device, which are held.

    def adjacency(self, rows: range, cols: range, order: int = 0, *, transposed: bool = False) -> Csr:
        """Return A[rows, cols] or A^T[rows, cols]. A block that is read twice is held once."""
        where = resolve_rectangle(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._adjacency:
            self._adjacency[where] = self._memory.hold_matrix(self._read(where))
        return self._adjacency[where]

    def adjacency_without_loops(
        self, rows: range, cols: range, order: int = 0, *, transposed: bool = False
    ) -> tuple[Csr, Tensor]:
        """Return `adjacency` without self-loops, and the self-loops of vertices that are both a row and a column."""
        where = resolve_rectangle(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._loopless:
            A, loops = split_diagonal(self._read(where), rows.start - cols.start)
            loops = self._memory.hold(TensorName.A, loops.to(self._memory.dtype))
            self._loopless[where] = self._memory.hold_matrix(A), loops
        return self._loopless[where]

    def pack_adjacency(
        self, rows: range, cols: range, *, transposed: bool = False
    ) -> tuple[Tensor, PackedFormat]:
        """Pack A[rows, cols] or A^T[rows, cols] into bytes; return them and their format, which a receiver needs."""
        if self.has_only_shapes:
            form = self.packed_form(rows, cols, transposed=transposed)
            buffer = torch.empty(form.nbytes, dtype=torch.uint8, device=META)
            return self._memory.hold(TensorName.A, buffer), form
        A = self.host_adjacency(rows, cols, transposed=transposed)
        return self._memory.hold(TensorName.A, pack(A)), get_packed_format(A)

    def packed_form(self, rows: range, cols: range, *, transposed: bool = False) -> PackedFormat:
        """Return the format of a packed block that another rank sends."""
        nonzeros = self.counts.nonzeros(rows, cols, transposed=transposed)
        return PackedFormat(len(rows), len(cols), nonzeros, self._memory.dtype)

    def needed_columns(
        self, others: Sequence[range], cols: range, *, transposed: bool = False
    ) -> tuple[Tensor, list[int]]:
        """Return the columns of A[rows, cols] or A^T[rows, cols] that have a nonzero, for each `rows` in `others`.

        Columns are relative to the start of `cols`. The list has the number of columns for each of `others`.
        """
        if self.has_only_shapes:
            counts = [self.counts.nonempty_columns(rows, cols, transposed=transposed) for rows in others]
            columns = torch.empty(sum(counts), dtype=torch.int64, device=META)
            return self._memory.hold(TensorName.INDEX, columns), counts
        needed, counts = list[Tensor](), list[int]()
        for strip in self._group_into_strips(others):
            A = self._block(range(strip[0].start, strip[-1].stop), cols, transposed)
            columns, numbers = nonempty_columns_by_block(A, [len(rows) for rows in strip])
            needed.append(columns)
            counts += numbers
        empty = torch.empty(0, dtype=torch.int64)
        return self._memory.hold(TensorName.INDEX, torch.cat(needed or [empty])), counts

    def features(self, rows: range, cols: range, others: Tensor | None = None) -> Tensor:
        """Return X[rows, cols] followed by the rows of the vertices `others`; a leaf tensor if features are trained."""
        X = self._blocks.feature_block(rows, cols)
        if others is not None:
            X = torch.cat([X, gather_features(self._blocks, others, cols)])
        X = self._memory.hold(TensorName.X, X.to(self._memory.dtype))
        return X.requires_grad_(self._spec.training.features)

    def training_labels(self, piece: Piece, order: int = 0) -> Tensor:
        """Return the labels that the loss counts, for a piece of the output; IGNORED elsewhere.

        The shape is (rows,), int64, with one class per vertex; or (rows, cols), int8, with one flag per vertex and
        class. The faithful protocol counts every labelled vertex.
        """
        labels = self._labels(piece, order)
        counts = labels.new_ones(len(labels), dtype=torch.bool)
        if self._spec.protocol == "corrected":
            counts = self._blocks.split(piece.rows, order) == TRAIN
        return self._labels_where(labels, counts)

    def split_labels(self, piece: Piece, order: int = 0) -> dict[str, Tensor]:
        """Return the labels of each split in the same format; IGNORED outside the split."""
        labels, split = self._labels(piece, order), self._blocks.split(piece.rows, order)
        return {name: self._labels_where(labels, split == number) for name, number in SPLITS.items()}

    # Pieces on the host, for schedules, which are not held.

    def host_adjacency(self, rows: range, cols: range, *, transposed: bool = False) -> Csr:
        """Return A[rows, cols] or A^T[rows, cols] on the host."""
        return self._memory.keep_on_host(cast(self._block(rows, cols, transposed), self._memory.dtype))

    def edge_parts(self, rows: range) -> Tensor | None:
        """Return the part of every entry of whole rows, row by row, if the partition is a vertex cut."""
        return self._blocks.edge_parts(rows)

    def compact_adjacency(
        self, rows: range, blocks: Sequence[range], *, transposed: bool = False
    ) -> tuple[Csr, list[int]]:
        """Return A[rows, blocks] or A^T[rows, blocks] without empty columns, and how many columns each block keeps.

        The blocks must be in ascending order.
        """
        if self.has_only_shapes:  # the expected nonzeros are rounded block by block
            nonzeros = sum(self.counts.nonzeros(rows, cols, transposed=transposed) for cols in blocks)
            counts = [self.counts.nonempty_columns(rows, cols, transposed=transposed) for cols in blocks]
            return make_meta_csr(len(rows), sum(counts), nonzeros, self._memory.dtype), counts
        start, stop = (blocks[0].start, blocks[-1].stop) if blocks else (0, 0)
        A = self._block(rows, range(start, stop), transposed)
        A, counts = compact_columns(A, [range(each.start - start, each.stop - start) for each in blocks])
        return cast(A, self._memory.dtype), counts

    def sampling_matrix(self, rows: range, cols: range) -> Csr:
        """Return A[rows, cols] to sample from: on the device, or on the host in a replay, which reads its entries."""
        held = self.adjacency(rows, cols)
        return self.host_adjacency(rows, cols) if self._is_replay else held

    def replay_reader(self) -> Callable[[], Csr] | None:
        """Return a function that reads all of A in a replay, which cannot ask other ranks; None in a run."""
        everyone = range(self._blocks.n)
        return partial(self.host_adjacency, everyone, everyone) if self._is_replay else None

    def targets(self) -> Tensor:
        """Return all vertices that the loss counts, in ascending order; with shapes only, as many as expected."""
        expected = self._facts.count_trained_vertices(self._spec.protocol)
        found = find_targets(self._blocks, self._spec.protocol)
        return found if len(found) == expected else found[:expected].clone()

    @property
    def _is_replay(self) -> bool:
        return self._memory.device.type == "meta"

    def _group_into_strips(self, blocks: Sequence[range]) -> list[list[range]]:
        """Group adjacent blocks into strips of at most `STRIP` rows."""
        runs = list[list[range]]()
        for each in blocks:
            joins = runs and runs[-1][-1].stop == each.start and each.stop - runs[-1][0].start <= STRIP
            if joins:
                runs[-1].append(each)
            else:
                runs.append([each])
        return runs

    def _block(self, rows: range, cols: range, transposed: bool) -> Csr:
        return self._read(resolve_rectangle(self._blocks, rows, cols, 0, transposed=transposed))

    def _read(self, where: Rectangle) -> Csr:
        A, dtype = self._blocks.adjacency(where.rows, where.cols, where.order), self._memory.dtype
        is_precise = A.val.is_meta or A.val.dtype.itemsize >= dtype.itemsize
        assert is_precise, f"a run in {dtype} was given A in {A.val.dtype}: open its store in that precision"
        return transpose(A) if where.transposed else A

    def _labels(self, piece: Piece, order: int) -> Tensor:
        y = self._blocks.labels(piece.rows, order)
        return y if y.dim() == 1 else y[:, piece.cols.start : piece.cols.stop]

    def _labels_where(self, labels: Tensor, counts: Tensor) -> Tensor:
        counted = (counts if labels.dim() == 1 else counts[:, None]) & (labels >= 0)
        return self._memory.hold(TensorName.LABELS, torch.where(counted, labels, IGNORED))


def require_entries(A: Csr, what: str, reason: str, way_out: str) -> None:
    """Raise `UserError` if A has shapes only, as in a replay of a dataset that is not built."""
    if A.val.is_meta:
        raise UserError(
            f"{what} cannot be replayed from facts only: {reason}. Build the dataset, or {way_out}."
        )
