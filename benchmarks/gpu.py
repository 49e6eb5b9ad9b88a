"""Everything to ask of a GPU, in the order of its worth. Prints markdown; without a part, writes results/gpu.md.

    python benchmarks/gpu.py                the parts, until 40 minutes are over; the next call goes on with the rest
    python benchmarks/gpu.py kit products   some parts, printed; --only distdgl for one strategy

- `rules`: what the fake GPUs of tests/device refuse and wait for, beside what this GPU refuses and waits for.
- `kit`: the laws of every strategy by a quick check, over NCCL, with at most as many ranks as there are GPUs.
- `worlds`: the same laws with up to four ranks on one GPU, whose messages gloo carries through the host.
- `waits`: what makes the host wait in the third epoch of every strategy on one rank, by torch's own count, and the
  calls to the driver that wait, by torch's profiler: one is the ledger's, after the epoch.
- `products`: sparse times dense, each way of ours beside cuSPARSE and PyG's scatter, and the bytes to be moved beside a
  copy's; and a dropout mask by one kernel beside tensor operations.
- `epochs`: serial training beside PyG's GCNConv.
- `strategies`: an epoch of every strategy on one rank: the time, the share of sampling, and memory at the peak beside
  the bytes that the strategy says it holds all the time.
- `samples`: an induced subgraph and its transpose, drawn on the device, beside PyG's `subgraph` there and scipy's
  indexing on the host.

Seconds end when the device has finished. Ways take turns; a number is a median. Needs a CUDA build of torch.
"""

import re
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from epoch import PYG, Case, reference_models
from measuring import Table, alternate, argument_parser, spec_of, trainer_of
from one_gpu import on_one_gpu
from record import keep_page
from spmm import matrix, rmat
from torch import Tensor

from harness.check import check
from harness.check.kit import ON_GPUS, Runner
from harness.comm.engine import Engine, device_of, most_ranks
from harness.errors import UserError
from harness.kernels.csr import Csr, cast, on_device, row_of, to_scipy
from harness.kernels.induced import induced_pair
from harness.kernels.random import MASK, mask_by_tensors
from harness.kernels.shuffle import distinct
from harness.kernels.spmm import by_library, by_library_in_blocks, keep_for_products, spmm
from harness.launch.worker_pool import Pool
from harness.ledger import SAMPLING
from harness.registry import load_strategy, registered
from harness.run.trainer import Trainer
from harness.spec.root import project_root
from harness.strategy.context import Measurements

MINUTES, TURNS, WARM = 40, 20, 3
MOST_ON_ONE_GPU = 4


class Size(NamedTuple):
    """How large the graphs are."""

    dataset: str
    scale: int
    """Other graphs have 2^scale vertices."""
    copied: int
    """The numbers in the copy whose speed is the bound."""
    batch: int


FULL, QUICK = Size("rmat-17", 20, 1 << 28, 1024), Size("tiny-rmat", 8, 1 << 16, 64)
STRATEGIES = sorted({entry.name for entry in registered()})


def settled() -> float:
    """The time when the device has finished all work."""
    torch.cuda.synchronize()
    return perf_counter()


def medians(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median seconds of each way; a way that this device lacks takes forever."""
    possible = {}
    for name, way in ways.items():
        try:
            way()
            possible[name] = way
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
    seconds = alternate(possible, TURNS, warm=WARM, swap=True, clock=settled)
    return {name: median(seconds.get(name, [inf])) for name in ways}


def show_rules(_size: Size) -> None:
    """Neither NCCL's rules nor races: a GPU answers a broken one by a hang or by chance."""
    known = runpy.run_path(str(project_root() / "tests" / "device" / "test_rules.py"))
    table = Table("action", "the fake GPU", "this GPU", "agree")
    for broken, (kind, words) in known["REFUSED"].items():
        try:
            broken()
            answer = "accepts it"
        except Exception as error:  # whatever a GPU says is a row of the table
            answer = f"{type(error).__name__}: {error}"
        agrees = answer.startswith(kind.__name__) and re.search(words, answer) is not None
        table.row(broken.__name__, kind.__name__, answer.split("\n")[0][:120].replace("|", "/"), agrees)
    for name, (action, expected) in known["ACTIONS"].items():
        action()  # the first call may load the kernel, for which the host waits too
        stated = sum(count for what, count in expected.items() if what not in known["PINNED"])
        seen = waits_in(action).total()
        table.row(name, f"{stated} waits", f"{seen} waits", bool(stated) == bool(seen))


def waits_in(action: Callable[[], object]) -> Counter[str]:
    """The waits of the host in an action, by torch's own count: file and line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        action()
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "synchroniz" in str(each.message)]
    return Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)


WAITING_CALL = re.compile(r"(cuda|hip)((Stream|Event|Device)Synchronize|Memcpy)$")
"""The calls to a driver for which the host waits; copies that it queues have other names."""
ACTION = "the action"


def calls_that_wait(action: Callable[[], object]) -> int:
    """The calls to the driver in an action for which the host waits, by torch's profiler."""
    activities = torch.profiler.supported_activities()
    with torch.profiler.profile(activities=activities) as profiler, torch.profiler.record_function(ACTION):
        action()
    events = profiler.events()
    (span,) = (
        event.time_range
        for event in events
        if event.name == ACTION and "cpu" in str(event.device_type).lower()
    )
    return sum(
        WAITING_CALL.match(event.name) is not None and span.start <= event.time_range.start <= span.end
        for event in events
    )


def show_kit(_size: Size) -> None:
    laws_of_all(Engine.NCCL, lambda pool: pool.run, most_ranks(Engine.NCCL))


def show_worlds(_size: Size) -> None:
    laws_of_all(Engine.GLOO, lambda pool: partial(shared, pool), MOST_ON_ONE_GPU)


def shared(pool: Pool, world: int, function: Callable[..., object], *arguments: object) -> list[Any]:
    """The results of the ranks of a world that shares one GPU."""
    return pool.run(world, on_one_gpu, function, *arguments)


def laws_of_all(engine: Engine, runner: Callable[[Pool], Runner], most: int | None) -> None:
    """A pool of ranks for each strategy, since a fault of the device ends all of its processes."""
    print(f"At most {most} ranks.\n")
    table = Table("strategy", "laws", "broken", "seconds", "the first that is broken")
    for name in STRATEGIES:
        begun, laws, broken = monotonic(), 0, []
        try:
            with Pool(engine=engine) as pool:
                for finding in check(name, runner(pool), "quick", ON_GPUS, most):
                    laws += 1
                    broken += [] if finding.holds else [f"{finding.law}: {finding.detail}"]
        except Exception as error:  # one strategy's fault is a row of the table
            broken.append(f"{type(error).__name__}: {error}")
        first = broken[0].replace("\n", " ").replace("|", "/") if broken else ""
        table.row(name, laws, len(broken), f"{monotonic() - begun:.0f}", first[:300])


def show_waits(size: Size) -> None:
    table = Table("strategy", "waits", "where", "calls that wait")
    for name, trainer in alone(size, table):
        places = waits_in(trainer.epoch)
        where = ", ".join(f"{place} {n}" for place, n in places.most_common())
        table.row(name, places.total(), where, calls_that_wait(trainer.epoch))


def show_products(size: Size) -> None:
    device = device_of(Engine.NCCL, 0)
    scale, X = size.scale, torch.ones(size.copied, device=device)
    Y = torch.empty_like(X)
    speed = 2 * X.nbytes / medians({"copy": lambda: Y.copy_(X)})["copy"]
    print(f"A copy moves {speed / 1e9:,.0f} GB/s.\n")
    table = Table(
        *("graph", "type", "f", "ms", "GFLOP/s", "of a copy's speed"),
        *("cuSPARSE over ours", "in blocks over ours", "PyG over ours"),
    )
    generator = torch.Generator().manual_seed(0)
    for name, ends in (
        (f"R-MAT 2^{scale}", rmat(np.random.default_rng(0), scale, 16)),
        (f"uniform 2^{scale}", np.random.default_rng(0).integers(0, 1 << scale, (2, 16 << scale))),
    ):
        graph = matrix(1 << scale, *ends)
        for dtype in (torch.float32, torch.bfloat16):
            A = keep_for_products(on_device(cast(graph, dtype), device), Measurements(device, {}).choose)
            row = row_of(A)
            for width in (16, 64, 128, 256):
                H = torch.rand(A.cols, width, generator=generator).to(device, dtype)
                ours, *theirs = medians(products(A, row, H)).values()
                moved = A.nnz * (H.itemsize * (width + 1) + 4) + A.rows * (H.itemsize * width + 8)
                table.row(
                    name,
                    str(dtype)[6:],
                    width,
                    f"{1e3 * ours:.3f}",
                    f"{2e-9 * A.nnz * width / ours:,.0f}",
                    f"{moved / speed / ours:.2f}",
                    *(f"{seconds / ours:.2f}" for seconds in theirs),
                )

    rows, cols = torch.arange(1 << scale, device=device), range(128)
    key = 1, 2, 1 << 15
    masks: dict[str, Callable[[], Tensor]] = {
        "one kernel": lambda: MASK(rows, cols.start, cols.stop, *key),
        "tensor operations": lambda: mask_by_tensors(rows, cols.start, cols.stop, *key),
    }
    alike = torch.equal(*(draw() for draw in masks.values()))
    one, several = medians(masks).values()
    bits = "the same bits" if alike else "OTHER BITS"
    print(f"\nA mask of 2^{scale} x 128 takes {1e3 * one:.3f} ms by one kernel.")
    print(f"Tensor operations make {bits} in {several / one:.1f} times that.")


def products(A: Csr, row: Tensor, H: Tensor) -> dict[str, Callable[[], object]]:
    """Ours by the faster way, cuSPARSE's whole and in blocks, and PyG's product, each with an output of its own."""
    from torch_geometric.utils import scatter

    col = A.col.long()
    return {
        "ours": lambda: spmm(A, H),
        "cuSPARSE": lambda: by_library(A, H, None),
        "in blocks": lambda: by_library_in_blocks(A, H, None),
        "PyG": lambda: scatter(H.index_select(0, col) * A.val[:, None], row, dim_size=A.rows),
    }


def show_epochs(size: Size) -> None:
    device = device_of(Engine.NCCL, 0)
    table = Table("dataset", "hidden", "serial, ms", *(f"{name} over ours" for name in PYG))
    for dataset in ("sbm-4096", size.dataset):
        for hidden in (16, 128):
            case = Case("serial", dataset, 1, hidden=hidden, order="combine_first")
            models = reference_models(case.spec(), device)
            ours = trainer_of(case.spec(), device=device).epoch
            mine, *theirs = medians({"ours": ours, **{name: models[name].epoch for name in PYG}}).values()
            table.row(dataset, hidden, f"{1e3 * mine:.2f}", *(f"{seconds / mine:.2f}" for seconds in theirs))


def show_strategies(size: Size) -> None:
    table = Table("strategy", "epoch, ms", "to serial", "sampling", "peak, MB", "held all the time, MB")
    serial = 0.0
    for name, trainer in alone(size, table):
        torch.cuda.reset_peak_memory_stats()
        epochs = [trainer.epoch() for _ in range(TURNS)]
        seconds = median(epoch.seconds for epoch in epochs)
        serial = seconds if name == "serial" else serial
        sampled = sum(amounts.seconds for key, amounts in epochs[-1].entries.items() if key.phase in SAMPLING)
        held = sum(trainer.strategy.memory(trainer.ctx.at, trainer.ctx.blocks.counts).values())
        table.row(
            name,
            f"{1e3 * seconds:.2f}",
            f"{seconds / serial:.2f}",
            f"{sampled / epochs[-1].seconds:.0%}",
            f"{torch.cuda.max_memory_allocated() / 1e6:,.1f}",
            f"{held / 1e6:,.1f}",
        )


def alone(size: Size, table: Table) -> Iterator[tuple[str, Trainer]]:
    """Every strategy on one rank after its first epochs, serial training first. One that cannot run is a row."""
    device = device_of(Engine.NCCL, 0)
    for name in sorted(STRATEGIES, key=lambda name: name != "serial"):
        asked = {"strategy": {"name": name}, "dataset": size.dataset, "ranks": 1, "machine": "local-gpu"}
        if load_strategy(name).mini_batches:
            asked["training"] = {"batch": size.batch}
        try:
            trainer = trainer_of(spec_of(asked), device=device)
            for _ in range(WARM - 1):
                trainer.epoch()
        except (UserError, ImportError, RuntimeError) as error:
            table.row(name, error)
            continue
        yield name, trainer
        del trainer
        torch.cuda.empty_cache()


def show_samples(size: Size) -> None:
    from torch_geometric.utils import subgraph

    device = device_of(Engine.NCCL, 0)
    table = Table("graph", "sampled", "ours, ms", "PyG over ours", "scipy over ours")
    scale = size.scale
    graph = matrix(1 << scale, *rmat(np.random.default_rng(0), scale, 16))
    A, of_scipy = on_device(graph, device), to_scipy(graph)
    edges = torch.stack([row_of(A), A.col.long()])
    for part in (3, 6):
        S = distinct((0, 0), A.rows, A.rows >> part, device)
        ways: Mapping[str, Callable[[], object]] = {
            "ours": partial(induced_pair, A, S, S, 0, 1.0),
            "PyG": partial(subgraph, S, edges, A.val, relabel_nodes=True, num_nodes=A.rows),
            "scipy": partial(by_scipy, of_scipy, S.cpu().numpy()),
        }
        ours, *theirs = medians(ways).values()
        over_ours = (f"{seconds / ours:.2f}" for seconds in theirs)
        table.row(f"R-MAT 2^{scale}", f"1/{1 << part}", f"{1e3 * ours:.2f}", *over_ours)


def by_scipy(A: Any, S: Any) -> tuple[Any, Any]:
    """The subgraph at some vertices and its transpose, on the host."""
    sampled = A[S][:, S]
    return sampled, sampled.T.tocsr()


PARTS: dict[str, Callable[[Size], None]] = {
    "rules": show_rules,
    "kit": show_kit,
    "worlds": show_worlds,
    "waits": show_waits,
    "products": show_products,
    "epochs": show_epochs,
    "strategies": show_strategies,
    "samples": show_samples,
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny graphs, to see whether everything works")
    parser.add_argument(
        "--only", metavar="STRATEGY", choices=STRATEGIES, help="of the parts about strategies"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="start no part after this many")
    options = parser.parse_args()
    try:
        device_of(Engine.NCCL, 0)
    except UserError as error:
        parser.error(str(error))
    if options.only:
        STRATEGIES[:] = [options.only]
    if options.parts:
        for part in options.parts:
            PARTS[part](QUICK if options.quick else FULL)
        return
    page = project_root() / "benchmarks" / "results" / "gpu.md"
    quick = " --quick" if options.quick else ""
    commands = [f"benchmarks/gpu.py {part}{quick}" for part in PARTS]
    keep_page(page, commands, monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
