"""A graph in block rows, each on c ranks: products of selections with it, in 1.5D and by need (Algorithm 2).

P(i, j) has block row A_i. What grid row i samples, its c ranks know alike. In a grid column the owners of its share of
the block rows are asked, for the rows that are needed and no others, each once; so of a selection's rows each is on one
rank of a grid row. Sampled rows, masses and extracted columns are put together over the grid row, any c of it: after
sampling and extraction and not before, since these are smaller than rows of A.

In a replay there is nobody to ask: all of A is at hand, what others sample is known, and calls go out in their sizes.
The axis row joins the ranks of a grid column, the axis col those of a grid row.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.comm.axis import Axis
from harness.errors import UserError
from harness.kernels import Csr, from_coo
from harness.kernels.csr import take
from harness.kernels.extract import Places, counted, sum_rows
from harness.kernels.its import draw_rows
from harness.kernels.spgemm import select_rows
from harness.kernels.stack import Stack, one_batch
from harness.ledger import Phase, TensorName
from harness.parallel.asking import ask, inside, inverse, owners
from harness.parallel.asking_rows import rows_from_owners, sums
from harness.ranges import balanced


class PartitionedGraph:
    """`harness.parallel.bulk.Graph`."""

    def __init__(
        self, A_NK: Csr, blocks: Sequence[range], row: Axis, col: Axis, whole: Csr | None = None
    ) -> None:
        """A_NK has the rows of this rank's block; `whole` is all of it, in a replay."""
        if A_NK.val.is_meta:
            raise UserError(
                "Sampling a partitioned graph cannot be replayed by facts alone: what is sent hangs on the rows that "
                "are drawn. Build the dataset, or use graph = replicated."
            )
        self.A, self.blocks, self.row, self.col, self.whole = A_NK, blocks, row, col, whole
        self.ledger = row.ledger
        self.here = blocks[row.index]
        self.stages = balanced(row.size, col.size)
        self.places = Places(A_NK.cols)
        self.others: Iterator[Sequence[Stack]] = iter(())
        """In a replay: what the grid rows select, product after product."""
        self._popularity: Csr | None = None

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        with self.ledger.turn_to(Phase.DISTRIBUTE):
            A, at = self._needed(stack)
        S = draw_rows(A, Stack(at, stack.starts), fanout, keys, own=stack)
        return self.put_together(S, stack)

    def rows(self, stack: Stack) -> Csr:
        return select_rows(*self._needed(stack))

    def popularity(self, summed: Callable[[Csr, Stack], Csr]) -> Csr:
        """Every block row has its sums, and a grid column has all block rows."""
        if self._popularity is None:
            P = summed(self.A, one_batch(range(len(self.here))))
            everywhere = torch.zeros(P.cols, dtype=torch.int64)
            everywhere[P.col.long()] = P.val
            everywhere = self.row.all_reduce(everywhere.to(self.row.device), tensor=TensorName.CHANCE).cpu()
            col = everywhere.nonzero()[:, 0]
            self._popularity = from_coo(torch.zeros_like(col), col, everywhere[col], (1, P.cols))
        return self._popularity

    def sum(self, P: Csr, stack: Stack) -> Csr:
        """What every rank of the grid row has of each row, added up."""
        members, batches = self.col.size, P.rows
        if members == 1:
            return P
        mine = P if self.whole is None else self._share(stack, self.col.index)
        lengths = self._gathered(mine.rowptr.diff(), [batches] * members, TensorName.COUNT)
        if self.whole is not None:
            lengths = torch.cat([self._share(stack, member).rowptr.diff() for member in range(members)])
        sizes = sums(lengths, [batches] * members)
        cols = self._gathered(mine.col, sizes, TensorName.INDEX)
        masses = self._gathered(mine.val, sizes, TensorName.CHANCE)
        if self.whole is not None:
            return P
        row = torch.arange(batches).repeat(members).repeat_interleave(lengths)
        return from_coo(row, cols.long(), masses, P.shape, sum_duplicates=True)

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        """The rows that every rank of the grid row has, in the order of the stack."""
        if self.col.size == 1:
            return A
        member = self._member(stack.vertices)
        order, rows = member.sort(stable=True).indices, member.bincount(minlength=self.col.size).tolist()
        mine = select_rows(A, order[sum(rows[: self.col.index]) :][: rows[self.col.index]])
        lengths = self._gathered(mine.rowptr.diff(), rows, TensorName.COUNT)
        if self.whole is not None:
            lengths = take(A.rowptr.diff(), order)
        sizes = sums(lengths, rows)
        cols = self._gathered(mine.col, sizes, TensorName.INDEX)
        values = self._gathered(mine.val, sizes, TensorName.A)
        if self.whole is not None:
            return A
        return select_rows(Csr(pad(lengths.cumsum(0), (1, 0)), cols, values, A.cols), inverse(order))

    def _gathered(self, x: Tensor, sizes: list[int], tensor: TensorName) -> Tensor:
        """Of all ranks of the grid row, on the host; in a replay nowhere."""
        found = self.col.all_gather(x.to(self.col.device), sizes=sizes, tensor=tensor)
        return found if found.is_meta else found.cpu()

    def _share(self, stack: Stack, member: int) -> Csr:
        """In a replay: which columns the rows have, batch by batch, that a rank of the grid row gets."""
        assert self.whole is not None
        A, at = _with_empty_row(self.whole), stack.vertices
        mine = torch.where(self._member(at) == member, at, self.whole.rows)
        return sum_rows(select_rows(A, mine), stack, counted)

    def _member(self, vertices: Tensor) -> Tensor:
        """Which rank of the grid row gets the rows of these vertices."""
        stops = torch.tensor([stage.stop for stage in self.stages])
        return torch.bucketize(owners(vertices, self.blocks), stops, right=True)

    def _needed(self, stack: Stack) -> tuple[Csr, Tensor]:
        """Rows of A that this rank multiplies by, and where those of the stack are among them: others are empty."""
        here = self._member(stack.vertices) == self.col.index
        named = stack.vertices[here].unique()
        A = self._fetched(named)
        if self.whole is not None:
            return self.whole, stack.vertices
        at = torch.full_like(stack.vertices, len(named))
        at[here] = torch.searchsorted(named, stack.vertices[here])
        return _with_empty_row(A), at

    def _fetched(self, named: Tensor) -> Csr:
        """A[named], ascending, from their owners: how long they are, their columns, their values."""
        counts = owners(named, self.blocks).bincount(minlength=self.row.size).tolist()
        asked = ask(self.row, self.blocks, named.to(self.row.device), counts, self._asked_by_others)
        own = named[asked.before :][: counts[self.row.index]] - self.here.start
        leaving, mine = select_rows(self.A, asked.coming.cpu()), select_rows(self.A, own)
        known = select_rows(self.whole, named) if self.whole is not None else None
        return rows_from_owners(asked, leaving, mine, known)

    def _asked_by_others(self) -> list[Tensor]:
        """In a replay: those of this rank's rows that the others in the grid column need."""
        served = self.row.index in self.stages[self.col.index]
        needed = [stack.vertices.unique() if served else stack.vertices[:0] for stack in next(self.others)]
        return [vertices[inside(vertices, self.here)] for vertices in needed]


def _with_empty_row(A: Csr) -> Csr:
    """A, and below it a row of nothing."""
    return A._replace(rowptr=torch.cat([A.rowptr, A.rowptr[-1:]]))
