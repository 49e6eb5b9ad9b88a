"""Bulk sampling beside a plain sampler of neighbours: equal fan-outs, results of equal form. Prints markdown.

    python benchmarks/sampling.py --scale 20 --bulk 1 4 16 64

Both draw from an R-MAT graph without replacement, every set of neighbours as likely, and leave a matrix a layer whose
columns are places in the list of vertices that the next layer asks for. The plain sampler is one compiled loop a batch:
Floyd's algorithm and a random number of two multiplications. The two take turns; a cell is the median of the turns,
and in brackets the least and the most.
"""

import os
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from measuring import Table, alternate, argument_parser, one_thread, rmat_graph
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.jit import compiled
from harness.kernels.random import Purpose
from harness.kernels.shuffle import random_permutation
from harness.strategies.sampling.bulk import Algorithm1, BulkGraph
from harness.strategies.sampling.matrices import PositionMap

FANOUTS = (15, 10, 5)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--bulk", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    one_thread()
    A = rmat_graph(options.scale, options.degree, directed=True)
    batches = drawn_batches(A.rows, options.batch, max(options.bulk))
    longest = int(A.rowptr.diff().max())
    print(
        f"{A.rows:,} vertices, {A.nnz:,} nonzeros, longest row {longest:,}; batches of {options.batch}, "
        f"fan-outs {'-'.join(map(str, FANOUTS))}; one thread; load {os.getloadavg()[0]:.1f}.\n"
    )
    times = ("bulk, ms a batch", "plain, ms a batch", "plain / bulk, pair by pair")
    table = Table("k", *times, "entries a batch")
    for k in options.bulk:
        table.row(k, *compared(A, batches[:k], options.turns))


def drawn_batches(n: int, size: int, count: int) -> list[Tensor]:
    places = range(min(size * count, n))
    return list(random_permutation(0, Purpose.SAMPLE, n).values_at(places).split(size))


def compared(A: Csr, batches: list[Tensor], turns: int) -> list[str]:
    """Both samplers in turn, each first in every other pair."""
    bulk, whole = Algorithm1(0, "graphsage", FANOUTS), BulkGraph(A)
    plain, places = Plain(A), PositionMap(A.rows)
    ways: dict[str, Callable[[], list[int]]] = {
        "bulk": lambda: [layer.A.nnz for layer in bulk.draw(whole, places, 0, range(len(batches)), batches)],
        "plain": lambda: [sum(entries) for entries in zip(*map(plain.draw, batches), strict=True)],
    }
    entries = [sum(way()) for way in ways.values()]
    seconds = alternate(ways, turns, warm=0, swap=True)
    ratios = [b / a for a, b in zip(seconds["bulk"], seconds["plain"], strict=True)]
    cells = [spread([1e3 * each / len(batches) for each in some]) for some in seconds.values()]
    counts = " and ".join(f"{count / len(batches):,.0f}" for count in entries)
    return [*cells, spread(ratios), counts]


def spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Plain:
    """One batch at a time."""

    def __init__(self, A: Csr) -> None:
        self.A = A.rowptr.numpy(), A.col.numpy(), A.val.numpy()
        self.where = np.full(A.rows, -1, dtype=np.int64)
        self.state = np.array([1], dtype=np.uint64)

    def draw(self, batch: Tensor) -> list[int]:
        """The entries of every layer."""
        vertices, entries = batch.numpy(), []
        for fanout in FANOUTS:
            *_, vertices, nnz = sample(self.A, vertices, fanout, self.where, self.state)
            entries.append(nnz)
        return entries[::-1]


@compiled(nogil=True)
def sample(A: Any, vertices: Any, fanout: int, where: Any, state: Any) -> Any:
    """A layer: row pointers, columns, values, the vertices of the columns, and the number of entries."""
    rowptr, col, val = A
    out_rowptr = np.zeros(vertices.size + 1, dtype=np.int64)
    out_col = np.empty(vertices.size * fanout, dtype=np.int32)
    out_val = np.empty(vertices.size * fanout, dtype=val.dtype)
    found = np.empty(vertices.size * (fanout + 1), dtype=np.int64)
    chosen = np.empty(fanout, dtype=np.int64)
    for i in range(vertices.size):
        found[i], where[vertices[i]] = vertices[i], i
    known, at = vertices.size, 0
    for i in range(vertices.size):
        start, of = rowptr[vertices[i]], rowptr[vertices[i] + 1] - rowptr[vertices[i]]
        drawn = min(fanout, of)
        for k in range(drawn):
            pick = np.int64(k)
            if drawn < of:
                pick = np.int64(following(state) % np.uint64(of - drawn + k + 1))
                for j in range(k):
                    if chosen[j] == pick:
                        pick = of - drawn + k
                        break
            chosen[k] = pick
            vertex = col[start + pick]
            if where[vertex] < 0:
                found[known], where[vertex] = vertex, known
                known += 1
            place, last = where[vertex], at
            while last > out_rowptr[i] and out_col[last - 1] > place:
                out_col[last], out_val[last] = out_col[last - 1], out_val[last - 1]
                last -= 1
            out_col[last], out_val[last] = place, val[start + pick] * (of / drawn)
            at += 1
        out_rowptr[i + 1] = at
    for i in range(known):
        where[found[i]] = -1
    return out_rowptr, out_col[:at], out_val[:at], found[:known], at


@compiled(nogil=True)
def following(state: Any) -> Any:
    """Marsaglia's xorshift."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x


if __name__ == "__main__":
    main()
