"""Sparse times dense by every known way, on graphs with and without hubs. Prints markdown.

    MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \\
        OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/spmm.py --threads 1

Ways take turns in a random order, each after an unmeasured turn of its own, so that no way finds the caches as another
way left them. A cell is GFLOP/s (2 nnz f) of the median, and of the best turn in brackets.
`bound` is the speed if every nonzero reads a row of H at the measured speed of memory: a graph whose H stays in cache
exceeds the bound. `loop, near` and `loop, far` are the compiled loop alone, without and with prefetching, no result
allocated. `ours` is `spmm`, operator included.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from statistics import median

import numpy as np
import scipy
import torch
from measuring import Table, argument_parser

from harness.kernels.csr import Csr, cast, from_coo, row_of, to_scipy, transpose
from harness.kernels.spmm import aggregate, by_loop, by_matmul, by_reduction, multiply_rows, spmm

FEATURES = (1, 16, 32, 64, 128)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SECONDS_EACH, TURNS = 0.3, (3, 60)
LARGEST_MESSAGES = 1 << 28  # elements: an edge list makes a row for every edge
WAYS = ("torch @", "torch mm sum", "loop", "loop, near", "loop, far", "ours", "scipy", "PyG edge_index")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small graphs, float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    speed = memory_speed()
    tuned = "set" if "MALLOC_MMAP_THRESHOLD_" in os.environ else "not set"
    copied = f"copy {speed / 1e9:.1f} GB/s; allocator {tuned}; load {os.getloadavg()[0]:.1f}"
    print(f"{options.threads} thread(s); {copied}; scipy {scipy.__version__}.")
    for name, A in graphs(options.quick):
        print_products(name, A, DTYPES[:1] if options.quick else DTYPES, speed)
    print_gradients()


def graphs(quick: bool) -> Iterator[tuple[str, Csr]]:
    """Name and adjacency, float32 weights; the same every time."""
    rng = np.random.default_rng(0)
    yield "uniform 2^8", matrix(1 << 8, *rng.integers(0, 1 << 8, (2, 16 << 8)))
    yield "uniform 2^10", matrix(1 << 10, *rng.integers(0, 1 << 10, (2, 16 << 10)))
    yield "SBM 4096", matrix(4096, *stochastic_blocks(rng, 4096, 15, communities=16))
    yield "R-MAT 2^14", matrix(1 << 14, *rmat(rng, 14, 16))
    if not quick:
        yield "R-MAT 2^17", matrix(1 << 17, *rmat(rng, 17, 16))
        yield "uniform 2^17", matrix(1 << 17, *rng.integers(0, 1 << 17, (2, 16 << 17)))


def matrix(n: int, row: np.ndarray, col: np.ndarray) -> Csr:
    val = torch.rand(len(row), generator=torch.Generator().manual_seed(0))
    return from_coo(torch.from_numpy(row), torch.from_numpy(col), val, (n, n), sum_duplicates=True)


def stochastic_blocks(
    rng: np.random.Generator, n: int, degree: int, communities: int
) -> tuple[np.ndarray, np.ndarray]:
    """Four in five edges stay within a community of neighbouring numbers."""
    row = rng.integers(0, n, n * degree)
    size = n // communities
    near = row // size * size + rng.integers(0, size, len(row))
    return row, np.where(rng.random(len(row)) < 0.8, near, rng.integers(0, n, len(row)))


def rmat(rng: np.random.Generator, scale: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    row, col = np.zeros((2, degree << scale), dtype=np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(len(row)))
        row, col = row * 2 + quadrant // 2, col * 2 + quadrant % 2
    return row, col


def ways(A: Csr, H: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The ways that take the type."""
    usable: dict[str, Callable[[], object]] = {
        "torch mm sum": lambda: by_reduction(A, H, None),
        "ours": lambda: spmm(A, H),
    }
    if H.dtype == torch.bfloat16:
        return usable
    M, X, row, Z = to_scipy(A), H.numpy(), row_of(A), torch.empty(A.rows, H.shape[1], dtype=H.dtype).numpy()
    arrays = (A.rowptr.numpy(), A.col.numpy(), A.val.numpy())
    usable |= {
        "torch @": lambda: by_matmul(A, H, None),
        "loop": lambda: by_loop(A, H, None),
        "scipy": lambda: M @ X,
    }
    if A.nnz * H.shape[1] < LARGEST_MESSAGES:
        usable["PyG edge_index"] = lambda: message_passing(row, A.col, A.val, H, A.rows)
    if torch.get_num_threads() == 1:
        usable["loop, near"] = lambda: multiply_rows(arrays, X, Z, False, False, 0, A.rows)
        usable["loop, far"] = lambda: multiply_rows(arrays, X, Z, False, True, 0, A.rows)
    return usable


def message_passing(
    row: torch.Tensor, col: torch.Tensor, val: torch.Tensor, H: torch.Tensor, rows: int
) -> torch.Tensor:
    """PyG's product by an edge list, without its extension packages: gather, weigh, scatter."""
    from torch_geometric.utils import scatter

    messages = H.index_select(0, col) * val[:, None]
    summed: torch.Tensor = scatter(messages, row, dim=0, dim_size=rows, reduce="sum")
    return summed


def measure(candidates: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each turn. A way has as many turns as fit SECONDS_EACH, within TURNS."""
    fewest, most = TURNS
    for run in candidates.values():
        run()
    turns = {name: min(max(int(SECONDS_EACH / timed(run)), fewest), most) for name, run in candidates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    shuffle = np.random.default_rng(0).permutation
    for turn in range(max(turns.values())):
        for name in shuffle([name for name in candidates if turn < turns[name]]):
            candidates[name]()
            seconds[name].append(timed(candidates[name]))
    return seconds


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def print_products(name: str, A: Csr, dtypes: tuple[torch.dtype, ...], speed: float) -> None:
    print(f"\n### {name}: {A.rows:,} rows, {A.nnz:,} nonzeros, longest row {int(A.rowptr.diff().max()):,}\n")
    table = Table("type", "f", "bound", *WAYS)
    for dtype, features in product(dtypes, FEATURES):
        A_typed, H = cast(A, dtype), torch.rand(A.cols, features).to(dtype)
        seconds = measure(ways(A_typed, H))
        flops = 2 * A.nnz * features
        size = dtype.itemsize
        bytes_moved = A.nnz * (features * size + size + 4) + A.rows * (features * size + 8)
        cells = [cell(flops, seconds.get(way)) for way in WAYS]
        table.row(str(dtype)[6:], features, f"{flops / (bytes_moved / speed) / 1e9:.1f}", *cells)


def cell(flops: int, seconds: list[float] | None) -> str:
    return f"{flops / median(seconds) / 1e9:.1f} ({flops / min(seconds) / 1e9:.1f})" if seconds else "-"


def print_gradients() -> None:
    """The time that differentiating adds to its two products."""
    rng = np.random.default_rng(1)
    print("\n### Forward and backward, float32, f = 64: microseconds, median (best)\n")
    table = Table("rows", "two products", "aggregate, both ways", "added")
    for n in (16, 256, 4096, 1 << 15):
        A = matrix(n, *rng.integers(0, n, (2, 15 * n)))
        A_T, H, dZ = transpose(A), torch.rand(n, 64, requires_grad=True), torch.rand(n, 64)
        seconds = measure(
            {
                "products": partial(two_products, A, A_T, H.detach(), dZ),
                "both": partial(both_ways, A, A_T, H, dZ),
            }
        )
        (a, a_best), (b, b_best) = ((1e6 * median(some), 1e6 * min(some)) for some in seconds.values())
        pairs = (a, a_best), (b, b_best), (b - a, b_best - a_best)
        table.row(f"{n:,}", *(f"{middle:.0f} ({best:.0f})" for middle, best in pairs))


def two_products(A: Csr, A_T: Csr, H: torch.Tensor, dZ: torch.Tensor) -> object:
    return spmm(A, H), spmm(A_T, dZ)


def both_ways(A: Csr, A_T: Csr, H: torch.Tensor, dZ: torch.Tensor) -> object:
    return torch.autograd.grad(aggregate(A, A_T, H), H, dZ)


def memory_speed() -> float:
    """Bytes a second of the best of ten copies far larger than any cache, read and write both counted."""
    source = torch.ones(1 << 25)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(timed(lambda: target.copy_(source)) for _ in range(10))


if __name__ == "__main__":
    main()
