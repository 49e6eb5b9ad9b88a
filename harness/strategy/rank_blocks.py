"""Pieces of the graph that one rank asks for by rectangle, in the precision of the run.

A strategy never learns whether a piece comes from memory or from files, or is a shape alone. Pieces on the device are
held (`harness.strategy.memory`); pieces on the host are not.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.blocks import Blocks, Rectangle, feature_rows, rectangle_of
from harness.graph.model import SPLITS, TRAIN
from harness.kernels import Csr, cast, transpose
from harness.kernels.csr import PackedFormat, get_packed_format, pack
from harness.kernels.parts import (
    compact_columns,
    drop_empty_columns,
    hstack,
    nonempty_columns_by_block,
    split_diagonal,
)
from harness.ledger import TensorName
from harness.spec.spec import Spec
from harness.strategy.counts import BlockCounts, Counts, Piece, targets_of
from harness.strategy.facts import Facts
from harness.strategy.memory import DeviceMemory

STRIP = 1 << 20
"""The most rows that are read at a time in search of what other ranks need."""

IGNORED = -100
"""The label of a vertex that does not count."""


class RankBlocks:
    """The blocks of A, X and the labels for one rank. Indices are local: a block's first row and column are 0.

    Orders alternate: an even one is order 0, an odd one order 1 (`harness.graph.order`).
    """

    def __init__(self, spec: Spec, facts: Facts, blocks: Blocks, memory: DeviceMemory) -> None:
        self.counts: Counts = BlockCounts(blocks)
        self._spec, self._facts, self._blocks, self._memory = spec, facts, blocks, memory
        self._only_shapes = blocks.feature_block(range(0), range(0)).is_meta
        self._adjacency: dict[Rectangle, Csr] = {}
        self._loopless: dict[Rectangle, tuple[Csr, Tensor]] = {}

    # On the device, and held.

    def adjacency(self, rows: range, cols: range, order: int = 0, *, transposed: bool = False) -> Csr:
        """A[rows, cols] or A^T[rows, cols], (len(rows), len(cols)). A block that is asked for twice is held once."""
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._adjacency:
            self._adjacency[where] = self._memory.hold_matrix(self._read(where))
        return self._adjacency[where]

    def loopless(
        self, rows: range, cols: range, order: int = 0, *, transposed: bool = False
    ) -> tuple[Csr, Tensor]:
        """`adjacency` without its loops; and the loops, one for each vertex that is both a row and a column."""
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._loopless:
            A, loops = split_diagonal(self._read(where), rows.start - cols.start)
            loops = self._memory.hold(TensorName.A, loops.to(self._memory.dtype))
            self._loopless[where] = self._memory.hold_matrix(A), loops
        return self._loopless[where]

    def packed(self, rows: range, cols: range, *, transposed: bool = False) -> tuple[Tensor, PackedFormat]:
        """A[rows, cols] or A^T[rows, cols] as bytes that can be sent, and their form, which a receiver needs."""
        A = self.host_block(rows, cols, transposed=transposed)
        return self._memory.hold(TensorName.A, pack(A)), get_packed_format(A)

    def form(self, rows: range, cols: range, *, transposed: bool = False) -> PackedFormat:
        """The form of a packed block that another rank sends."""
        nonzeros = self.counts.nonzeros(rows, cols, transposed=transposed)
        return PackedFormat(len(rows), len(cols), nonzeros, self._memory.dtype)

    def needed(
        self, others: Sequence[range], cols: range, *, transposed: bool = False
    ) -> tuple[Tensor, list[int]]:
        """The filled columns of A[rows, cols] or A^T[rows, cols], for each of the rows in `others` in turn.

        Columns count from the start of `cols`; the list has the number of columns for each of `others`.
        """
        needed, counts = list[Tensor](), list[int]()
        for strip in self._strips(others):
            A = self._block(range(strip[0].start, strip[-1].stop), cols, transposed)
            columns, numbers = nonempty_columns_by_block(A, [len(rows) for rows in strip])
            needed.append(columns)
            counts += numbers
        nothing = torch.empty(0, dtype=torch.int64)
        return self._memory.hold(TensorName.INDEX, torch.cat(needed or [nothing])), counts

    def features(self, rows: range, cols: range, beyond: Tensor | None = None) -> Tensor:
        """X[rows, cols] and, below, the rows of the vertices `beyond`; a leaf of autograd if features are trained."""
        X = self._blocks.feature_block(rows, cols)
        if beyond is not None:
            X = torch.cat([X, feature_rows(self._blocks, beyond, cols)])
        X = self._memory.hold(TensorName.X, X.to(self._memory.dtype))
        return X.requires_grad_(self._spec.training.features)

    def training_labels(self, piece: Piece, order: int = 0) -> Tensor:
        """The labels that the loss counts, of the vertices of a piece of the output; IGNORED elsewhere.

        One class a vertex, (rows,) int64; or for every class of the piece whether the vertex has it, (rows, cols) int8.
        The faithful protocol counts every labelled vertex.
        """
        labels = self._labels(piece, order)
        counts = labels.new_ones(len(labels), dtype=torch.bool)
        if self._spec.protocol == "corrected":
            counts = self._blocks.split(piece.rows, order) == TRAIN
        return self._labels_where(labels, counts)

    def split_labels(self, piece: Piece, order: int = 0) -> dict[str, Tensor]:
        """The labels of each split in the same form; IGNORED outside the split."""
        labels, split = self._labels(piece, order), self._blocks.split(piece.rows, order)
        return {name: self._labels_where(labels, split == number) for name, number in SPLITS.items()}

    # On the host, for schedules; not held.

    def host_block(self, rows: range, cols: range, *, transposed: bool = False) -> Csr:
        """A[rows, cols] or A^T[rows, cols] on the host."""
        return self._memory.on_host(cast(self._block(rows, cols, transposed), self._memory.dtype))

    def edge_parts(self, rows: range) -> Tensor | None:
        """The part of every entry of whole rows, row by row, if the partition is a vertex cut."""
        return self._blocks.edge_parts(rows)

    def compact_on_host(
        self, rows: range, blocks: Sequence[range], *, transposed: bool = False
    ) -> tuple[Csr, list[int]]:
        """A[rows, blocks] or A^T[rows, blocks], side by side without empty columns; the columns left of each block.

        The blocks ascend.
        """
        if self._only_shapes:  # their nonzeros are rounded block by block
            pieces = [drop_empty_columns(self._block(rows, cols, transposed)) for cols in blocks]
            A = hstack(pieces or [self._block(rows, range(0), transposed)])
            return cast(A, self._memory.dtype), [piece.cols for piece in pieces]
        start, stop = (blocks[0].start, blocks[-1].stop) if blocks else (0, 0)
        A = self._block(rows, range(start, stop), transposed)
        A, counts = compact_columns(A, [range(each.start - start, each.stop - start) for each in blocks])
        return cast(A, self._memory.dtype), counts

    def sampling_matrix(self, rows: range, cols: range) -> Csr:
        """A[rows, cols] to draw samples from, where `adjacency` holds it; a replay reads its entries on the host."""
        held = self.adjacency(rows, cols)
        return self.host_block(rows, cols) if self._replayed else held

    def replay_graph(self) -> Callable[[], Csr] | None:
        """In a replay, which cannot ask other ranks for their parts of A: reads all of A. None in a run."""
        everyone = range(self._blocks.n)
        return partial(self.host_block, everyone, everyone) if self._replayed else None

    def targets(self) -> Tensor:
        """All vertices that the loss counts, ascending; of shapes alone, as many as the facts expect."""
        trained_on = self._facts.trained_on(self._spec.protocol)
        return targets_of(self._blocks, self._spec.protocol)[:trained_on]

    @property
    def _replayed(self) -> bool:
        return self._memory.device.type == "meta"

    def _strips(self, blocks: Sequence[range]) -> list[list[range]]:
        """Blocks in runs, each of adjacent blocks with at most `STRIP` rows in all; of shapes alone, one by one."""
        runs = list[list[range]]()
        for each in blocks:
            joins = runs and runs[-1][-1].stop == each.start and each.stop - runs[-1][0].start <= STRIP
            if joins and not self._only_shapes:
                runs[-1].append(each)
            else:
                runs.append([each])
        return runs

    def _block(self, rows: range, cols: range, transposed: bool) -> Csr:
        return self._read(rectangle_of(self._blocks, rows, cols, 0, transposed=transposed))

    def _read(self, where: Rectangle) -> Csr:
        A, dtype = self._blocks.adjacency(where.rows, where.cols, where.order), self._memory.dtype
        fine = A.val.is_meta or A.val.dtype.itemsize >= dtype.itemsize
        assert fine, f"a run in {dtype} was given A in {A.val.dtype}: open its store in that precision"
        return transpose(A) if where.turned else A

    def _labels(self, piece: Piece, order: int) -> Tensor:
        y = self._blocks.labels(piece.rows, order)
        return y if y.dim() == 1 else y[:, piece.cols.start : piece.cols.stop]

    def _labels_where(self, labels: Tensor, counts: Tensor) -> Tensor:
        counted = (counts if labels.dim() == 1 else counts[:, None]) & (labels >= 0)
        return self._memory.hold(TensorName.LABELS, torch.where(counted, labels, IGNORED))


def require_entries(A: Csr, what: str, reason: str, way_out: str) -> None:
    """Refuses the replay by facts alone of anything that depends on the entries of A."""
    if A.val.is_meta:
        raise UserError(
            f"{what} cannot be replayed by facts alone: {reason}. Build the dataset, or {way_out}."
        )
