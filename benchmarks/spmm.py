"""Sparse times dense beside a tiled C kernel (benchmarks/spmm.c), and beside the ways of libraries. Prints markdown.

    MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \\
        OMP_NUM_THREADS=1 python benchmarks/spmm.py

gcc compiles the C kernel for this machine into a temporary folder. In a cell, the C kernel and ours take turns in both
orders. The ratio is the median of the turns' ratios, seconds in C over our seconds: above 1, ours is faster. Our
GFLOP/s stand in brackets (2 nnz f over the median). Every pair of results is compared before it is measured. All cells
but those of two threads count the thread's own time, without the time in which other processes had the core.
"""

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

import numpy as np
import torch
from measuring import Table, alternate, argument_parser, in_a_process
from torch import Tensor
from torch_geometric.utils import scatter

from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_scipy, transpose
from harness.kernels.spmm import aggregate, inner_products, multiply, multiply_library, spmm
from harness.kernels.tiles import multiply_into

WIDTHS = (1, 3, 5, 8, 16, 32, 41, 47, 64, 100, 128, 256)
FEW_WIDTHS = (3, 16, 41, 64, 128)
SECONDS, TURNS = 0.2, (5, 200)
"""The time of a cell, and the fewest and most turns."""
FLAGS = {
    torch.float32: ("-DVALUE=float", "-DSUM=float"),
    torch.float64: ("-DVALUE=double", "-DSUM=double"),
    torch.bfloat16: ("-DVALUE=uint16_t", "-DSUM=float", "-DBF16"),
}
WAYS = ("ours", "C", "torch mm sum", "torch @", "scipy", "PyG edge_index")
COLUMNS = {torch.int32: "int32_t", torch.int64: "int64_t"}
TEMPORARY = TemporaryDirectory()


class Case(NamedTuple):
    """What a row of a table has besides its graph."""

    dtype: torch.dtype
    about: str = ""
    add: bool = False
    threads: int = 1
    column: torch.dtype = torch.int32
    widths: tuple[int, ...] = WIDTHS


CASES = (
    Case(torch.float32),
    Case(torch.float64),
    Case(torch.bfloat16),
    Case(torch.float32, "added", add=True),
    Case(torch.bfloat16, "added", add=True, widths=FEW_WIDTHS),
    Case(torch.float32, "int64 columns", column=torch.int64, widths=FEW_WIDTHS),
    Case(torch.float32, "2 threads", threads=2),
    Case(torch.float64, "2 threads", threads=2, widths=FEW_WIDTHS),
)
FRESH_CASES = (
    Case(torch.float32),
    Case(torch.float64, widths=FEW_WIDTHS),
    Case(torch.bfloat16, widths=FEW_WIDTHS),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="the two graphs that stay in cache")
    options = parser.parse_args()
    if not which("gcc"):
        sys.exit("The competitor is written in C, and there is no gcc to compile it: install gcc.")
    torch.set_num_threads(1)
    known = dict(graphs(options.quick))
    hubs = {} if options.quick else {"hub": hub(np.random.default_rng(0))}
    print(f"A copy moves {memory_speed() / 1e9:.1f} GB/s.", end=" ")
    for name, A in (known | hubs).items():
        print(
            f"{name}: {A.rows:,} rows, {A.nnz:,} entries, at most {int(A.rowptr.diff().max()):,} in a row.",
            end=" ",
        )
    print("\n\n### Outputs allocated before\n")
    beside_c(known | hubs, CASES, lambda A, H, Z, case: lambda: multiply_into(A, H, Z, add=case.add))
    print("\n### Outputs allocated by each call\n")
    beside_c(known, FRESH_CASES, lambda A, H, _Z, _case: lambda: multiply(A, H, None), fresh=True)
    print("\n### What an output costs: milliseconds, uniform 2^17, float32\n")
    print_allocation()
    print("\n### The ways of libraries, outputs allocated by each call: GFLOP/s\n")
    print_libraries(known)
    print("\n### Inner products along the entries, float32: milliseconds\n")
    print_inner_products(known)
    print("\n### A call on 16 rows, float32, f = 64: microseconds\n")
    print_calls()


def graphs(quick: bool) -> Iterator[tuple[str, Csr]]:
    """Name and adjacency, float32 weights; the same every time."""
    rng = np.random.default_rng(0)
    yield "uniform 2^12", matrix(1 << 12, *rng.integers(0, 1 << 12, (2, 16 << 12)))
    yield "R-MAT 2^14", matrix(1 << 14, *rmat(rng, 14, 16))
    if not quick:
        yield "R-MAT 2^17", matrix(1 << 17, *rmat(rng, 17, 16))
        yield "uniform 2^17", matrix(1 << 17, *rng.integers(0, 1 << 17, (2, 16 << 17)))


def hub(rng: np.random.Generator) -> Csr:
    """One row has two million entries, as many as all other rows together; entries repeat."""
    size = 4 << 20
    row, col = rng.integers(0, 1 << 15, (2, size))
    return matrix(1 << 15, row * (rng.random(size) < 0.5), col, sum_duplicates=False)


def matrix(n: int, row: np.ndarray, col: np.ndarray, *, sum_duplicates: bool = True) -> Csr:
    val = torch.rand(len(row), generator=torch.Generator().manual_seed(0))
    return from_coo(torch.from_numpy(row), torch.from_numpy(col), val, (n, n), sum_duplicates=sum_duplicates)


def rmat(rng: np.random.Generator, scale: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    row, col = np.zeros((2, degree << scale), dtype=np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(len(row)))
        row, col = row * 2 + quadrant // 2, col * 2 + quadrant % 2
    return row, col


def memory_speed() -> float:
    """Bytes a second of the best of ten copies far larger than any cache, read and write both counted."""
    source = torch.ones(1 << 25)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(alternate({"copy": lambda: target.copy_(source)}, 10)["copy"])


@cache
def competitor(dtype: torch.dtype, column: torch.dtype) -> Any:
    """The C kernel for a type of values and a type of columns."""
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
        *FLAGS[dtype],
    )
    subprocess.run(["gcc", *options, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).spmm
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (*(pointer,) * 5, *(number,) * 3, ctypes.c_int, ctypes.c_int)
    function.restype = None
    return function


def in_c(A: Csr, H: Tensor, Z: Tensor, *, add: bool = False, threads: int = 1) -> None:
    """Z = A H, or Z += A H, by the competitor."""
    addresses = (operand.data_ptr() for operand in (A.rowptr, A.col, A.val, H, Z))
    competitor(H.dtype, A.col.dtype)(*addresses, A.rows, A.cols, H.shape[1], add, threads)


def beside_c(
    known: Mapping[str, Csr],
    cases: tuple[Case, ...],
    ours: Callable[[Csr, Tensor, Tensor, Case], Callable[[], object]],
    *,
    fresh: bool = False,
) -> None:
    """A table of ratios, and its worst cell."""
    table, worst = Table("graph", "type", "", *(f"f {width}" for width in WIDTHS)), []
    for name, graph in known.items():
        for case in cases:
            A = cast(graph, case.dtype)._replace(col=graph.col.to(case.column))
            torch.set_num_threads(case.threads)
            cells = {}
            for width in case.widths:
                H, Z = (random(size, width, case.dtype) for size in (A.cols, A.rows))
                ratio, seconds = compared(A, H, Z, case, ours(A, H, Z, case), fresh=fresh)
                cells[width] = f"{ratio:.2f} ({2e-9 * A.nnz * width / seconds:.0f})"
                worst.append((ratio, f"{name}, {str(case.dtype)[6:]} {case.about}, f = {width}"))
            table.row(name, str(case.dtype)[6:], case.about, *(cells.get(width, "") for width in WIDTHS))
    torch.set_num_threads(1)
    print("\nThe worst cell: {:.2f} ({}).".format(*min(worst)))


def compared(
    A: Csr, H: Tensor, Z: Tensor, case: Case, ours: Callable[[], object], *, fresh: bool
) -> tuple[float, float]:
    """Seconds in C over our seconds, and our seconds."""

    def c() -> None:
        in_c(A, H, torch.empty_like(Z) if fresh else Z, add=case.add, threads=case.threads)

    expected = Z.clone()
    in_c(A, H, expected, add=case.add, threads=case.threads)
    torch.testing.assert_close(
        spmm(A, H, add_to=Z.clone() if case.add else None), expected, rtol=1e-2, atol=1e-2
    )
    clock = thread_time if case.threads == 1 else perf_counter
    once = min(alternate({"ours": ours}, 2, clock=clock)["ours"])
    turns = min(max(int(SECONDS / 2 / once), TURNS[0]), TURNS[1])
    seconds = alternate({"c": c, "ours": ours}, turns, swap=True, clock=clock)
    return median(a / b for a, b in zip(*seconds.values(), strict=True)), median(seconds["ours"])


def random(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(rows, cols, generator=torch.Generator().manual_seed(1)) - 0.5).to(dtype)


def print_allocation() -> None:
    """In new processes, since the C library reads the settings of its allocator once."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    table = Table(
        "f",
        *(
            f"{way}, {how}"
            for how in ("no settings", "the settings of ranks")
            for way in ("allocated before", "by each call")
        ),
    )
    for name in settings:
        del os.environ[name]
    without = in_a_process(allocation)
    os.environ.update(settings)
    for width, one, other in zip(FEW_WIDTHS, without, in_a_process(allocation), strict=True):
        table.row(width, *(f"{1e3 * seconds:.2f}" for seconds in (*one, *other)))


def allocation() -> list[tuple[float, float]]:
    """Seconds of a product into an output allocated before, and into one allocated by the call."""
    torch.set_num_threads(1)
    rng, pairs = np.random.default_rng(0), []
    A = matrix(1 << 17, *rng.integers(0, 1 << 17, (2, 16 << 17)))
    for width in FEW_WIDTHS:
        H, Z = (random(size, width, torch.float32) for size in (A.cols, A.rows))
        ways = {"before": lambda: multiply_into(A, H, Z, add=False), "call": lambda: multiply(A, H, None)}  # noqa: B023
        seconds = alternate(ways, 8, swap=True, clock=thread_time)
        pairs.append((median(seconds["before"]), median(seconds["call"])))
    return pairs


def print_libraries(known: Mapping[str, Csr]) -> None:
    table = Table("graph", "type", "f", *WAYS)
    for name, graph in known.items():
        for dtype, width in (
            (torch.float32, 16),
            (torch.float32, 64),
            (torch.float64, 64),
            (torch.bfloat16, 64),
        ):
            A, H = cast(graph, dtype), random(graph.cols, width, dtype)
            seconds = alternate(ways(A, H), 6, swap=True, clock=thread_time)
            flops = 2e-9 * A.nnz * width
            speeds = {way: f"{flops / median(each):.1f}" for way, each in seconds.items()}
            table.row(name, str(dtype)[6:], width, *(speeds.get(way, "") for way in WAYS))


def ways(A: Csr, H: Tensor) -> dict[str, Callable[[], object]]:
    """The ways that take the type; each allocates its output."""
    rowptr, output = A.rowptr.to(A.col.dtype), partial(H.new_empty, (A.rows, H.shape[1]))
    sparse = torch.sparse_csr_tensor(rowptr, A.col, A.val, A.shape, check_invariants=False)
    known: dict[str, Callable[[], object]] = {
        "ours": lambda: spmm(A, H),
        "C": lambda: in_c(A, H, output()),
        "torch mm sum": lambda: torch.sparse.mm(sparse, H, "sum"),
    }
    if H.dtype == torch.bfloat16:
        return known
    M, X, row = to_scipy(A), H.numpy(), row_indices(A)
    return known | {
        "torch @": lambda: multiply_library(A, H, None),
        "scipy": lambda: M @ X,
        "PyG edge_index": lambda: scatter(H.index_select(0, A.col) * A.val[:, None], row, dim_size=A.rows),
    }


def print_inner_products(known: Mapping[str, Csr]) -> None:
    table = Table("graph", "f", "ours", "torch.sparse.sampled_addmm", "ratio")
    for name, A in known.items():
        for width in FEW_WIDTHS:
            X, Y = (random(size, width, torch.float32) for size in A.shape)
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
            ratio = median(b / a for a, b in zip(*seconds.values(), strict=True))
            table.row(name, width, f"{1e3 * ours:.2f}", f"{1e3 * theirs:.2f}", f"{ratio:.2f}")


def print_calls() -> None:
    """What a product costs besides its arithmetic."""
    rng = np.random.default_rng(1)
    A = matrix(16, *rng.integers(0, 16, (2, 240)))
    A_T, H, G, Z = (
        transpose(A),
        torch.rand(16, 64, requires_grad=True),
        torch.rand(16, 64),
        torch.rand(16, 64),
    )
    X = H.detach()
    ways = {
        "C by ctypes": lambda: in_c(A, X, Z),
        "into an output": lambda: multiply_into(A, X, Z, add=False),
        "with an output": lambda: multiply(A, X, None),
        "the operator": lambda: spmm(A, X),
        "two operators": lambda: (spmm(A, X), spmm(A_T, G)),
        "forward and backward": lambda: torch.autograd.grad(aggregate(A, A_T, H), H, G),
    }
    seconds = alternate(ways, 2000, warm=20, swap=True)
    table = Table(*ways)
    table.row(*(f"{1e6 * median(seconds[way]):.1f}" for way in ways))


if __name__ == "__main__":
    main()
