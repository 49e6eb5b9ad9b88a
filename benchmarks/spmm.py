"""Products of sparse and dense matrices, compared with C and with libraries."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import scatter

from benchmarks.measuring import alternate, in_a_process, median_ratio
from benchmarks.registry import Results, Table, benchmark
from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_scipy, transpose
from harness.kernels.spmm import aggregate, inner_products, multiply, multiply_library
from harness.kernels.spmm import spmm as multiply_sparse
from harness.kernels.tiles import multiply_into

WIDTHS = (1, 3, 5, 8, 16, 32, 41, 47, 64, 100, 128, 256)
FEW_WIDTHS = (3, 16, 41, 64, 128)
SECONDS, TURNS = 0.2, (5, 200)
"""The time of a cell, and the fewest and most turns."""
VALUES = {torch.float32: "float", torch.float64: "double"}
WAYS = ("ours", "C", "numba", "torch mm sum", "torch @", "scipy", "PyG edge_index")
COLUMNS = {torch.int32: "int32_t", torch.int64: "int64_t"}
TEMPORARY = TemporaryDirectory()


class SpmmCase(NamedTuple):
    """What a row of a table has besides its graph."""

    dtype: torch.dtype
    about: str = ""
    add: bool = False
    threads: int = 1
    column: torch.dtype = torch.int32
    widths: tuple[int, ...] = WIDTHS


CASES = (
    SpmmCase(torch.float32),
    SpmmCase(torch.float64),
    SpmmCase(torch.float32, "added", add=True),
    SpmmCase(torch.float32, "int64 columns", column=torch.int64, widths=FEW_WIDTHS),
    SpmmCase(torch.float32, "2 threads", threads=2),
    SpmmCase(torch.float64, "2 threads", threads=2, widths=FEW_WIDTHS),
)
FRESH_CASES = (
    SpmmCase(torch.float32),
    SpmmCase(torch.float64, widths=FEW_WIDTHS),
)


@benchmark
def spmm(quick: bool = False) -> Results:
    """Compare our product of a sparse and a dense matrix with a tiled C kernel (spmm.c), and with those of libraries.

    gcc compiles the C kernel for this machine into a temporary folder. In a cell, the C kernel and ours take turns in
    both orders. The ratio is the median of the turns' ratios, seconds in C over our seconds: above 1, ours is faster.
    Our GFLOP/s are in brackets (2 nnz f over the median). Every pair of results is compared before it is measured. All
    cells but those of two threads count the thread's own time, without the time in which other processes had the core.

    Args:
        quick: only the two graphs that stay in cache
    """
    if not which("gcc"):
        sys.exit("The competitor is written in C, and there is no gcc to compile it: install gcc.")
    known = dict(make_graphs(quick))
    hubs = {} if quick else {"hub": make_hub(np.random.default_rng(0))}
    sizes = (
        f"{name}: {A.rows:,} rows, {A.nnz:,} entries, at most {int(A.rowptr.diff().max()):,} in a row."
        for name, A in (known | hubs).items()
    )
    yield " ".join([f"A copy moves {measure_copy() / 1e9:.1f} GB/s.", *sizes])
    yield "### Outputs allocated before"
    yield from compare_with_c(
        known | hubs, CASES, lambda A, H, Z, case: lambda: multiply_into(A, H, Z, add=case.add)
    )
    yield "### Outputs allocated by each call"
    yield from compare_with_c(
        known, FRESH_CASES, lambda A, H, _Z, _case: lambda: multiply(A, H, None), fresh=True
    )
    yield from compare_allocation()
    yield from compare_libraries(known)
    yield from compare_inner_products(known)
    yield from compare_calls()


def make_graphs(quick: bool) -> Iterator[tuple[str, Csr]]:
    """Yield names and adjacencies, with float32 weights; the same every time."""
    rng = np.random.default_rng(0)
    yield "uniform 2^12", make_matrix(1 << 12, *rng.integers(0, 1 << 12, (2, 16 << 12)))
    yield "R-MAT 2^14", make_matrix(1 << 14, *draw_rmat(rng, 14, 16))
    if not quick:
        yield "R-MAT 2^17", make_matrix(1 << 17, *draw_rmat(rng, 17, 16))
        yield "uniform 2^17", make_matrix(1 << 17, *rng.integers(0, 1 << 17, (2, 16 << 17)))


def make_hub(rng: np.random.Generator) -> Csr:
    """Return a graph of which one row has two million entries, as many as all others together; entries repeat."""
    size = 4 << 20
    row, col = rng.integers(0, 1 << 15, (2, size))
    return make_matrix(1 << 15, row * (rng.random(size) < 0.5), col, sum_duplicates=False)


def make_matrix(n: int, row: np.ndarray, col: np.ndarray, *, sum_duplicates: bool = True) -> Csr:
    """Return a square matrix with random weights."""
    val = torch.rand(len(row), generator=torch.Generator().manual_seed(0))
    return from_coo(torch.from_numpy(row), torch.from_numpy(col), val, (n, n), sum_duplicates=sum_duplicates)


def draw_rmat(rng: np.random.Generator, scale: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the edges of an R-MAT graph."""
    row, col = np.zeros((2, degree << scale), dtype=np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(len(row)))
        row, col = row * 2 + quadrant // 2, col * 2 + quadrant % 2
    return row, col


def measure_copy() -> float:
    """Return bytes a second of the best of ten copies far larger than any cache, read and write both counted."""
    source = torch.ones(1 << 25)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(alternate({"copy": lambda: target.copy_(source)}, 10)["copy"])


@cache
def compile_competitor(dtype: torch.dtype, column: torch.dtype) -> Any:
    """Compile the C kernel for a type of values and a type of columns."""
    library = Path(TEMPORARY.name) / f"{dtype}-{column}.so"
    source = Path(__file__).with_suffix(".c")
    options = (
        "-O3",
        "-march=native",
        "-fopenmp",
        "-shared",
        "-fPIC",
        "-Wno-psabi",
        f"-DCOLUMN={COLUMNS[column]}",
        f"-DVALUE={VALUES[dtype]}",
    )
    subprocess.run(["gcc", *options, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).spmm
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (*(pointer,) * 5, *(number,) * 3, ctypes.c_int, ctypes.c_int)
    function.restype = None
    return function


def multiply_in_c(A: Csr, H: Tensor, Z: Tensor, *, add: bool = False, threads: int = 1) -> None:
    """Compute Z = A H, or Z += A H, by the competitor."""
    addresses = (operand.data_ptr() for operand in (A.rowptr, A.col, A.val, H, Z))
    compile_competitor(H.dtype, A.col.dtype)(*addresses, A.rows, A.cols, H.shape[1], add, threads)


def compare_with_c(
    known: Mapping[str, Csr],
    cases: tuple[SpmmCase, ...],
    ours: Callable[[Csr, Tensor, Tensor, SpmmCase], Callable[[], object]],
    *,
    fresh: bool = False,
) -> Results:
    """Show ratios, and the worst cell."""
    yield Table("graph", "type", "", *(f"f {width}" for width in WIDTHS))
    worst = []
    for name, graph in known.items():
        for case in cases:
            A = cast(graph, case.dtype)._replace(col=graph.col.to(case.column))
            torch.set_num_threads(case.threads)
            cells = {}
            for width in case.widths:
                H, Z = (make_dense(size, width, case.dtype) for size in (A.cols, A.rows))
                ratio, seconds = compare_pair(A, H, Z, case, ours(A, H, Z, case), fresh=fresh)
                cells[width] = f"{ratio:.2f} ({2e-9 * A.nnz * width / seconds:.0f})"
                worst.append((ratio, f"{name}, {str(case.dtype)[6:]} {case.about}, f = {width}"))
            yield name, str(case.dtype)[6:], case.about, *(cells.get(width) for width in WIDTHS)
    torch.set_num_threads(1)
    yield "The worst cell: {:.2f} ({}).".format(*min(worst))


def compare_pair(
    A: Csr, H: Tensor, Z: Tensor, case: SpmmCase, ours: Callable[[], object], *, fresh: bool
) -> tuple[float, float]:
    """Return the seconds in C over our seconds, and our seconds."""

    def c() -> None:
        multiply_in_c(A, H, torch.empty_like(Z) if fresh else Z, add=case.add, threads=case.threads)

    expected = Z.clone()
    multiply_in_c(A, H, expected, add=case.add, threads=case.threads)
    torch.testing.assert_close(
        multiply_sparse(A, H, add_to=Z.clone() if case.add else None), expected, rtol=1e-2, atol=1e-2
    )
    clock = thread_time if case.threads == 1 else perf_counter
    once = min(alternate({"ours": ours}, 2, clock=clock)["ours"])
    turns = min(max(int(SECONDS / 2 / once), TURNS[0]), TURNS[1])
    seconds = alternate({"c": c, "ours": ours}, turns, swap=True, clock=clock)
    return median(a / b for a, b in zip(*seconds.values(), strict=True)), median(seconds["ours"])


def make_dense(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """Return a dense matrix of random numbers."""
    return (torch.rand(rows, cols, generator=torch.Generator().manual_seed(1)) - 0.5).to(dtype)


def compare_allocation() -> Results:
    """Time outputs in new processes, since the C library reads the settings of its allocator once."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    titles = (
        f"{way}, {how}:.2f"
        for how in ("no settings", "the settings of ranks")
        for way in ("allocated before", "by each call")
    )
    yield Table("f", *titles, title="### What an output costs: milliseconds, uniform 2^17, float32")
    for name in settings:
        del os.environ[name]
    without = in_a_process(time_allocation)
    os.environ.update(settings)
    for width, one, other in zip(FEW_WIDTHS, without, in_a_process(time_allocation), strict=True):
        yield width, *(1e3 * seconds for seconds in (*one, *other))


def time_allocation() -> list[tuple[float, float]]:
    """Return seconds of a product into an output allocated before, and into one allocated by the call."""
    torch.set_num_threads(1)
    rng, pairs = np.random.default_rng(0), []
    A = make_matrix(1 << 17, *rng.integers(0, 1 << 17, (2, 16 << 17)))
    for width in FEW_WIDTHS:
        H, Z = (make_dense(size, width, torch.float32) for size in (A.cols, A.rows))
        ways = {"before": lambda: multiply_into(A, H, Z, add=False), "call": lambda: multiply(A, H, None)}  # noqa: B023
        seconds = alternate(ways, 8, swap=True, clock=thread_time)
        pairs.append((median(seconds["before"]), median(seconds["call"])))
    return pairs


def compare_libraries(known: Mapping[str, Csr]) -> Results:
    """Time the products of libraries."""
    title = "### The ways of libraries, outputs allocated by each call: GFLOP/s"
    yield Table("graph", "type", "f", *(f"{way}:.1f" for way in WAYS), title=title)
    for name, graph in known.items():
        for dtype, width in ((torch.float32, 16), (torch.float32, 64), (torch.float64, 64)):
            A, H = cast(graph, dtype), make_dense(graph.cols, width, dtype)
            ways = make_competitors(A, H) | {"numba": partial(multiply_in_numba, A, H)}
            seconds = alternate(ways, 6, swap=True, clock=thread_time)
            flops = 2e-9 * A.nnz * width
            speeds = {way: flops / median(each) for way, each in seconds.items()}
            yield name, str(dtype)[6:], width, *map(speeds.get, WAYS)


def multiply_in_numba(A: Csr, H: Tensor) -> Tensor:
    """Return A H by plain loops of numba. A row of the product has one tile, so that columns need no loop of tiles."""
    Z = H.new_empty((A.rows, H.shape[1]))
    multiply_rows_plainly(*(x.numpy() for x in (A.rowptr, A.col, A.val, H, Z)))
    return Z


@numba.njit(fastmath={"contract"})
def multiply_rows_plainly(rowptr: Any, col: Any, val: Any, H: Any, Z: Any) -> None:
    """Compute the rows of Z, one after the other."""
    for i in range(len(Z)):
        Z[i] = 0
        for e in range(rowptr[i], rowptr[i + 1]):
            for f in range(Z.shape[1]):
                Z[i, f] += val[e] * H[col[e], f]


def make_competitors(A: Csr, H: Tensor) -> dict[str, Callable[[], object]]:
    """Return the competitors; each allocates its output."""
    rowptr, output = A.rowptr.to(A.col.dtype), partial(H.new_empty, (A.rows, H.shape[1]))
    sparse = torch.sparse_csr_tensor(rowptr, A.col, A.val, A.shape, check_invariants=False)
    M, X, row = to_scipy(A), H.numpy(), row_indices(A)
    return {
        "ours": lambda: multiply_sparse(A, H),
        "C": lambda: multiply_in_c(A, H, output()),
        "torch mm sum": lambda: torch.sparse.mm(sparse, H, "sum"),
        "torch @": lambda: multiply_library(A, H, None),
        "scipy": lambda: M @ X,
        "PyG edge_index": lambda: scatter(H.index_select(0, A.col) * A.val[:, None], row, dim_size=A.rows),
    }


def compare_inner_products(known: Mapping[str, Csr]) -> Results:
    """Time inner products along the entries."""
    titles = ("ours:.2f", "torch.sparse.sampled_addmm:.2f", "ratio:.2f")
    yield Table("graph", "f", *titles, title="### Inner products along the entries, float32: milliseconds")
    for name, A in known.items():
        for width in FEW_WIDTHS:
            X, Y = (make_dense(size, width, torch.float32) for size in A.shape)
            col = A.col
            places = torch.sparse_csr_tensor(A.rowptr.to(col.dtype), col, torch.zeros(A.nnz), A.shape)
            seconds = alternate(
                {
                    "ours": lambda: inner_products(A, X, Y),  # noqa: B023
                    "torch": lambda: torch.sparse.sampled_addmm(places, X, Y.T, beta=0),  # noqa: B023
                },
                8,
                swap=True,
                clock=thread_time,
            )
            ours, theirs = map(median, seconds.values())
            yield name, width, 1e3 * ours, 1e3 * theirs, median_ratio(seconds)


def compare_calls() -> Results:
    """Time what a product costs besides its arithmetic."""
    rng = np.random.default_rng(1)
    A = make_matrix(16, *rng.integers(0, 16, (2, 240)))
    A_T, H, G, Z = (
        transpose(A),
        torch.rand(16, 64, requires_grad=True),
        torch.rand(16, 64),
        torch.rand(16, 64),
    )
    X = H.detach()
    ways = {
        "C by ctypes": lambda: multiply_in_c(A, X, Z),
        "into an output": lambda: multiply_into(A, X, Z, add=False),
        "with an output": lambda: multiply(A, X, None),
        "the operator": lambda: multiply_sparse(A, X),
        "two operators": lambda: (multiply_sparse(A, X), multiply_sparse(A_T, G)),
        "forward and backward": lambda: torch.autograd.grad(aggregate(A, A_T, H), H, G),
    }
    seconds = alternate(ways, 2000, warm=20, swap=True)
    title = "### A call on 16 rows, float32, f = 64: microseconds"
    yield Table(*(f"{way}:.1f" for way in ways), title=title)
    yield tuple(1e6 * median(seconds[way]) for way in ways)
