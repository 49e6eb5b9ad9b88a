"""What a strategy sees of the world on one rank: its grid, its blocks by rectangle, its kernels, its ledger.

A strategy asks for pieces and never learns whether they come from memory or files, or are shapes only. Pieces
are in the precision and on the device of the run. What is handed out here is what the run holds all the time:
`persistent_bytes` adds it up by tensor.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.comm.layout import Coordinates
from harness.errors import UserError
from harness.graph.blocks import Blocks, Rectangle, feature_rows, multiplied, rectangle_of
from harness.graph.model import SPLITS, TRAIN, labelled
from harness.kernels import Csr, cast, on_device, transpose
from harness.kernels.assemble import beside
from harness.kernels.packed import Form, form_of, pack
from harness.kernels.parts import apart, filled_columns, without_empty_columns
from harness.kernels.recorded import Kernels, quickest
from harness.ledger import TensorName
from harness.models.weights import Weight, initial_weight
from harness.spec.spec import Spec
from harness.strategy.counts import BlockCounts, Counts, Piece, targets_of
from harness.strategy.facts import Facts

# What mini-batches needed of other ranks: counted by whoever fetches it, told in a run's record.


@dataclass
class Remote:
    """Rows of features."""

    rows: int = 0
    """That other ranks have."""
    cached: int = 0
    """Those of them that were at hand."""

    def forget(self) -> None:
        """Counting begins anew."""
        self.rows = self.cached = 0


IGNORED = -100
"""The label of a vertex that does not count."""


class Context:
    """One rank's view of its run."""

    def __init__(self, spec: Spec, facts: Facts, grid: Grid, blocks: Blocks) -> None:
        self.spec = spec
        self.facts = facts
        self.grid = grid
        self.ledger = grid.ledger
        self.kernels = Kernels(grid.ledger)
        self.device = grid.device
        self.dtype: torch.dtype = getattr(torch, spec.precision)
        self.trained_on = self.facts.trained_on(spec.protocol)
        self._blocks = blocks = multiplied(blocks, spec.model.kind)
        self.counts: Counts = BlockCounts(blocks)
        self._adjacency: dict[Rectangle, Csr] = {}
        self._loopless: dict[Rectangle, tuple[Csr, Tensor]] = {}
        self._held: list[tuple[TensorName, Tensor]] = []
        self.chosen: dict[str, str] = {}
        """What was chosen by measuring, or by a strategy as its spec allowed, for the record."""
        self.remote = Remote()
        """What mini-batches needed of other ranks so far, for the record."""

    @property
    def at(self) -> Coordinates:
        """Where this rank stands."""
        return self.grid.coordinates

    def adjacency(self, rows: range, cols: range, order: int = 0, *, transposed: bool = False) -> Csr:
        """A[rows, cols], (len(rows), len(cols)) with local indices, or A^T there. What is asked for twice is held once.

        Orders alternate: an even one is order 0, an odd one order 1 (`harness.graph.order`).
        """
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._adjacency:
            self._adjacency[where] = self.hold_matrix(self._read(where))
        return self._adjacency[where]

    def sampling_matrix(self, rows: range, cols: range) -> Csr:
        """A[rows, cols] on the host, to draw samples from: as `adjacency` has it, but with its entries in a replay."""
        held = self.adjacency(rows, cols)
        return self.host_block(rows, cols) if self.device.type == "meta" else on_device(held, "cpu")

    def replay_graph(self) -> Callable[[], Csr] | None:
        """Reads all of A in a replay, where no other rank can be asked for its part; nobody holds it. None in a run."""
        everyone = range(self.facts.vertices)
        return partial(self.host_block, everyone, everyone) if self.device.type == "meta" else None

    def require_entries(self, A: Csr, what: str, reason: str, way_out: str) -> None:
        """Refuses the replay by facts alone of what hangs on the entries of A."""
        if A.val.is_meta:
            raise UserError(
                f"{what} cannot be replayed by facts alone: {reason}. Build the dataset, or {way_out}."
            )

    def targets(self) -> Tensor:
        """All vertices that the loss counts, ascending, with their numbers even in a replay; nobody holds them."""
        return targets_of(self._blocks, self.spec.protocol)[: self.trained_on]

    def hold(self, name: TensorName, tensor: Tensor) -> Tensor:
        """A tensor that the rank keeps all the time, as it is, on its device."""
        self._held.append((name, tensor.to(self.device)))
        return self._held[-1][1]

    def release(self, tensor: Tensor) -> None:
        """A tensor that was handed out and is no longer kept."""
        self._held = [(name, held) for name, held in self._held if held is not tensor]

    def transposed(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A^T[rows, cols]."""
        return self.adjacency(rows, cols, order, transposed=True)

    def loopless(
        self, rows: range, cols: range, order: int = 0, *, transposed: bool = False
    ) -> tuple[Csr, Tensor]:
        """A or A^T at [rows, cols] without its loops; and these, of the vertices that are both rows and columns."""
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._loopless:
            A, loops = apart(self._read(where), rows.start - cols.start)
            self._loopless[where] = self.hold_matrix(A), self._hold(TensorName.A, loops)
        return self._loopless[where]

    def packed(self, rows: range, cols: range, *, transposed: bool = False) -> tuple[Tensor, Form]:
        """A[rows, cols] or A^T[rows, cols] as bytes that can be sent, and what a receiver must know of them."""
        A = self.host_block(rows, cols, transposed=transposed)
        return self._hold(TensorName.A, pack(A)), form_of(A)

    def form(self, rows: range, cols: range, *, transposed: bool = False) -> Form:
        """What a receiver must know of such a matrix."""
        return Form(len(rows), len(cols), self.counts.nonzeros(rows, cols, transposed=transposed), self.dtype)

    def needed(
        self, others: Sequence[range], cols: range, *, transposed: bool = False
    ) -> tuple[Tensor, list[int]]:
        """Which of `cols`, counted from their start, have a nonzero in A[rows, cols] or A^T[rows, cols].

        For each of the rows in `others` in turn, and how many they are for each.
        """
        needed = [filled_columns(self._block(rows, cols, transposed)) for rows in others]
        nothing = torch.empty(0, dtype=torch.int64)
        return self._hold(TensorName.INDEX, torch.cat(needed or [nothing])), list(map(len, needed))

    def compact_on_host(
        self, rows: range, blocks: Sequence[range], *, transposed: bool = False
    ) -> tuple[Csr, list[int]]:
        """A[rows, blocks] or A^T[rows, blocks], side by side and without empty columns; the columns left of each.

        Where samplers work, in the precision of the run; not held before it is handed to `hold_matrix`.
        """
        pieces = [without_empty_columns(self._block(rows, cols, transposed)) for cols in blocks or [range(0)]]
        return cast(beside(pieces), self.dtype), [piece.cols for piece in pieces] if blocks else []

    def host_block(self, rows: range, cols: range, *, transposed: bool = False) -> Csr:
        """A[rows, cols] or A^T[rows, cols] where schedules are made, in the precision of the run; not held."""
        return cast(self._block(rows, cols, transposed), self.dtype)

    def hold_matrix(self, A: Csr, name: TensorName = TensorName.A) -> Csr:
        """A matrix that a strategy made of others, held from now on."""
        parts = [self._hold(name, part) for part in (A.rowptr, A.col, A.val)]
        return Csr(parts[0], parts[1], parts[2], A.cols)

    def kept_on_host(self, A: Csr) -> Csr:
        """A matrix that takes no memory of a device, in the precision of the run."""
        A = A._replace(val=self._precise(A.val))
        if self.device.type != "cuda":
            return A
        return Csr(A.rowptr.pin_memory(), A.col.pin_memory(), A.val.pin_memory(), A.cols)

    def to_device(self, A: Csr) -> Csr:
        """The matrix of one step, in the precision and on the device of the run; nobody holds it."""
        return on_device(A._replace(val=self._precise(A.val)), self.device)

    def buffer(self, name: TensorName, *shape: int) -> Tensor:
        """Zeros that are held: what stays from one step to the next."""
        return self._hold(name, torch.zeros(shape, dtype=self.dtype))

    def _block(self, rows: range, cols: range, transposed: bool) -> Csr:
        return self._read(rectangle_of(self._blocks, rows, cols, 0, transposed=transposed))

    def _read(self, where: Rectangle) -> Csr:
        A = self._blocks.adjacency(where.rows, where.cols, where.order)
        fine = A.val.is_meta or A.val.dtype.itemsize >= self.dtype.itemsize
        assert fine, f"a run in {self.dtype} was given A in {A.val.dtype}: open its store in that precision"
        return transpose(A) if where.turned else A

    def features(self, rows: range, cols: range, beyond: Tensor | None = None) -> Tensor:
        """X[rows, cols], and below it the rows of more vertices; a leaf of autograd where the features are trained."""
        X = self._blocks.feature_block(rows, cols)
        if beyond is not None:
            X = torch.cat([X, feature_rows(self._blocks, beyond, cols)])
        return self._hold(TensorName.X, X).requires_grad_(self.spec.training.features)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on the device, in the precision of the run; nobody holds them."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def training_labels(self, piece: Piece, order: int = 0) -> Tensor:
        """The labels that the loss counts, of the vertices of a piece of the output; IGNORED elsewhere.

        One class a vertex, (rows,) int64; or for every class of the piece whether the vertex has it, (rows, cols) int8.
        The faithful protocol counts every labelled vertex.
        """
        labels = self._labels(piece, order)
        counts = labels.new_ones(len(labels), dtype=torch.bool)
        if self.spec.protocol == "corrected":
            counts = self._blocks.split(piece.rows, order) == TRAIN
        return self._labels_where(labels, counts)

    def split_labels(self, piece: Piece, order: int = 0) -> dict[str, Tensor]:
        """The labels of each split in the same form; IGNORED outside it."""
        labels, split = self._labels(piece, order), self._blocks.split(piece.rows, order)
        return {name: self._labels_where(labels, split == number) for name, number in SPLITS.items()}

    def weight(self, number: int, weight: Weight, piece: Piece) -> Tensor:
        """A piece of the number-th matrix of the model as it begins: the same matrix for every strategy and grid."""
        W = initial_weight(self.spec.seed, number, weight, piece.rows, piece.cols)
        return self._hold(TensorName.W, W).requires_grad_()

    def choose(self, what: str, ways: Mapping[str, Callable[[], object]]) -> str:
        """The quickest of some ways to compute the same, measured on this device; of shapes alone, the first."""
        self.chosen[what] = quickest(ways, self.device)
        return self.chosen[what]

    def persistent_bytes(self) -> dict[TensorName, int]:
        """Bytes of what was handed out, by tensor, each piece of memory counted once."""
        total: dict[TensorName, int] = defaultdict(int)
        seen = set()
        for name, tensor in self._held:
            memory = tensor.untyped_storage()._cdata  # unlike its address, shapes without memory have one too
            if memory not in seen:
                seen.add(memory)
                total[name] += tensor.nbytes
        return dict(total)

    def _labels(self, piece: Piece, order: int) -> Tensor:
        y = self._blocks.labels(piece.rows, order)
        return y if y.dim() == 1 else y[:, piece.cols.start : piece.cols.stop]

    def _labels_where(self, labels: Tensor, counts: Tensor) -> Tensor:
        counted = (counts if labels.dim() == 1 else counts[:, None]) & (labels >= 0)
        return self._hold(TensorName.LABELS, torch.where(counted, labels, IGNORED))

    def _hold(self, name: TensorName, tensor: Tensor) -> Tensor:
        tensor = self._precise(tensor).to(self.device)
        self._held.append((name, tensor))
        return tensor

    def _precise(self, tensor: Tensor) -> Tensor:
        """In the precision of the run; whole numbers stay what they are."""
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def facts_of(blocks: Blocks) -> Facts:
    """The facts of a store, counted."""
    everyone = range(blocks.n)
    known = labelled(blocks.labels(everyone))
    trains = known & (blocks.split(everyone) == TRAIN)
    return Facts(
        vertices=blocks.n,
        nonzeros=blocks.nnz,
        features=blocks.features,
        task=blocks.task,
        classes=blocks.classes,
        directed=blocks.directed,
        labelled=int(known.sum()),
        training=int(trains.sum()),
        bounds=blocks.bounds,
    )
