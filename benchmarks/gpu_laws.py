"""The laws that benchmarks/gpu.py holds a GPU to. A law that does not hold raises `BrokenLawError` after its row."""

import re
import runpy
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu_common import QUICK, BrokenLawError, Row, Size, device, strategies, trainer_alone
from benchmarks.one_gpu import on_one_gpu
from harness.base.device import can_run_triton, gpu_count, upload
from harness.base.errors import UserError
from harness.comm import collectives
from harness.comm.collectives import Reduction
from harness.comm.engine import Engine, max_ranks
from harness.conformance import check
from harness.conformance.case import Case
from harness.conformance.graphs import compare_graph
from harness.conformance.suite import ON_GPUS
from harness.graph.generators.rmat import Rmat
from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_device
from harness.kernels.induced import induced_pair
from harness.kernels.random import Purpose, random_mask, uniform
from harness.kernels.shuffle import sample_distinct
from harness.kernels.spmm import PRODUCT_KERNELS, TRITON, inner_products
from harness.registry import load_strategy
from harness.results.record import read_record
from harness.runtime.launch.worker_pool import Pool
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategies.sampling.sampler import sample_neighbours

MOST_ON_ONE_GPU = 4


# Basics: what the project needs of the software and of the GPU.

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-8 + 1e-5}
"""The largest relative error of a sparse product by dtype. In bfloat16, one rounding is allowed."""
ROUNDING = 1e-5
"""The largest relative difference of losses in float32 that have other roundings."""
LONG = 20_000
"""The length of a row of equal entries: a sum of them in bfloat16 stops growing."""


def numba() -> str:
    numba = import_module("numba")
    assert numba.njit(lambda x: x + 1)(1) == 2
    return f"numba {numba.__version__} compiles"


def imports() -> str:
    for name in strategies():
        load_strategy(name)
    return f"{len(strategies())} strategies"


def driver() -> str:
    free, total = torch.cuda.mem_get_info()
    made = f"torch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}"
    return f"{made}, {torch.cuda.get_device_name()}, {free >> 30} of {total >> 30} GiB free"


def sparse_product(dtype: torch.dtype, column: torch.dtype) -> str:
    """Every way of a product on a graph with empty and long rows, plain and added, beside float64 on the host."""
    A, H = long_rows(dtype, column)
    dense = torch.zeros(A.shape, dtype=torch.float64)
    dense.index_put_((row_indices(A), A.col.long()), A.val.double(), accumulate=True)
    product, here = dense @ H.double(), to_device(A, device())
    errors: dict[str, float] = {}
    for name, way in PRODUCT_KERNELS.items():
        if name == TRITON and not can_run_triton():
            continue
        for add_to in (None, torch.ones(product.shape, dtype=dtype, device=device())):
            expected = product + int(add_to is not None)
            Z = way(here, H.to(device()), add_to).cpu().double()
            error = float(((Z - expected).abs() / expected.clamp(min=1e-9)).max())  # no number is negative
            errors[name] = max(errors.get(name, 0.0), error)
            if not error <= TOLERANCES[dtype]:
                raise BrokenLawError(f"{name}: an element is wrong by {error:.0e} of it")
    return ", ".join(f"{name} {error:.0e}" for name, error in errors.items())


def long_rows(dtype: torch.dtype, column: torch.dtype) -> tuple[Csr, Tensor]:
    """A graph with empty rows, a row of 1,000 random entries and one of LONG equal ones; and a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(500, (2, 4000 + LONG), generator=generator)
    val = torch.rand(4000 + LONG, generator=generator, dtype=torch.float64)
    row[:1000], row[4000:], val[4000:] = 7, 500, 1.0
    A = from_coo(row, col, val, (502, 500))
    H = torch.randint(1, 257, (500, 130), generator=generator) / 256  # sums of it are exact in float32
    return cast(A, dtype)._replace(col=A.col.to(column)), H.to(dtype)


def inner_product(dtype: torch.dtype) -> str:
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(50, (2, 400), generator=generator)
    A = cast(from_coo(row, col, torch.rand(400, generator=generator), (50, 50)), dtype)
    X = torch.rand(50, 16, generator=generator, dtype=torch.float64).to(dtype)
    found = inner_products(to_device(A, device()), X.to(device()), X.to(device())).cpu().double()
    expected = (X[row_indices(A)].double() * X[A.col.long()].double()).sum(1)
    error = float(((found - expected).abs() / expected).max())
    if not error <= TOLERANCES[dtype]:
        raise BrokenLawError(f"an element is wrong by {error:.0e} of it")
    return f"{error:.0e}"


def dropout_mask() -> str:
    masks = [
        random_mask(0, Purpose.DROPOUT, x, range(3, 40), 1 << 15)
        for x in (torch.arange(999), torch.arange(999).to(device()))
    ]
    assert torch.equal(masks[0], masks[1].cpu()), "other bits than the host's"
    return "the host's bits"


def sampled_neighbours() -> str:
    """Draws with the bits of the host's compiled loops."""
    if not can_run_triton():
        raise UserError("Triton cannot run on this GPU; neighbours are drawn by tensor operations")
    A = half_with_loops()
    rows = torch.arange(A.rows)
    for dtype, fanout, kept in product((torch.float32, torch.float64), (1, 5, 15, 40, 127), (False, True)):
        here = to_device(cast(A, dtype), device()), rows.to(device()), rows.to(device())
        expected = sample_neighbours(cast(A, dtype), rows, rows, fanout, (fanout, 1), loops=kept)
        drawn = sample_neighbours(*here, fanout, (fanout, 1), loops=kept)
        assert_same_bits(drawn, expected, (dtype, fanout, kept))
    return f"the host's bits, of rows up to {int(A.rowptr.diff().max())} entries"


def induced_submatrices() -> str:
    """Submatrices with the bits of the host's compiled loops: of few, some and all vertices."""
    if not can_run_triton():
        raise UserError("Triton cannot run on this GPU; submatrices are induced by tensor operations")
    A, sizes = half_with_loops(), (1, 100, 3000, 4096)
    for dtype, size in product((torch.float32, torch.float64), sizes):
        S = sample_distinct((1, size), A.rows, size)
        expected = induced_pair(cast(A, dtype), S, S, 0, 0.3)
        found = induced_pair(to_device(cast(A, dtype), device()), S.to(device()), S.to(device()), 0, 0.3)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same_bits(mine, theirs, (dtype, size))
    return f"the host's bits, of {', '.join(map(str, sizes))} vertices"


def half_with_loops() -> Csr:
    """An R-MAT graph where every second row has a loop."""
    generator = Rmat(12, 16, seed=0)
    row, col = generator.edges(range(generator.draws))
    loops = torch.arange(1, generator.n, 2)
    row, col = torch.cat([row, loops]), torch.cat([col, loops])
    ones = torch.ones(len(row), dtype=torch.int64)
    A = from_coo(row, col, ones, (generator.n, generator.n), sum_duplicates=True)
    return A._replace(val=uniform(1, Purpose.TEST, range(A.nnz)))


def assert_same_bits(found: Csr, expected: Csr, case: object) -> None:
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        assert mine.dtype == theirs.dtype, case
        assert torch.equal(mine.cpu(), theirs), case


def pinned_upload() -> str:
    assert float(upload(torch.ones(3), device()).sum()) == 3
    return "arrives"


def utilisation() -> str:
    return f"{torch.cuda.utilization(device())} %"


def doctor() -> str:
    """The words of `harness doctor` about its test of the GPUs."""
    done = subprocess.run([sys.executable, "-m", "harness", "doctor"], capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    (told,) = [line for line in done.stdout.splitlines() if "self-test" in line] or ["no line of a self-test"]
    return " ".join(told.split())


def one_run() -> str:
    """A run on the GPU, as a user starts one."""
    with TemporaryDirectory() as runs:
        words = ["run", "--strategy", "cagnet-1d", "--dataset", "tiny-sbm", "--ranks", "1", "--out", runs]
        command = [sys.executable, "-m", "harness", *words, "--set", "machine=local-gpu"]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, done.stderr, file=sys.stderr)
        (folder,) = Path(runs).glob("*/")
        record = read_record(folder).record
    if record["status"] != "ok":
        raise BrokenLawError(f"{record['status']}: {record['error']}")
    return f"ok on {record['provenance']['gpu']}"


BASICS: dict[str, Callable[[], str]] = {
    "numba": numba,
    "imports": imports,
    "driver": driver,
    **{
        f"sparse product, {str(dtype)[6:]}, {str(column)[6:]}": partial(sparse_product, dtype, column)
        for dtype, column in (
            (torch.float64, torch.int32),
            (torch.float32, torch.int32),
            (torch.float32, torch.int64),
            (torch.bfloat16, torch.int32),
        )
    },
    **{f"inner products, {str(dtype)[6:]}": partial(inner_product, dtype) for dtype in TOLERANCES},
    "dropout mask by one kernel": dropout_mask,
    "sampled neighbours by Triton": sampled_neighbours,
    "induced submatrices by Triton": induced_submatrices,
    "pinned upload": pinned_upload,
    "utilisation by the driver": utilisation,
    "harness doctor": doctor,
    "harness run": one_run,
}


def ask_basics(item: str, _size: Size) -> Iterator[Row]:
    yield item, BASICS[item]()


# NCCL in a world of one. A run of one rank has no process group, so it would never meet NCCL.


def ask_nccl(item: str, _size: Size) -> Iterator[Row]:
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        # A fake GPU has no group bound to it.
        warnings.filterwarnings("ignore", "barrier..: using the device")
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
        dist.init_process_group("nccl", rank=0, world_size=1, store=store, device_id=device())
        try:
            for later in (False, True):
                x = torch.arange(6.0, device=device())
                result = NCCL_CALLS[item](x, later)
                if not torch.equal(result.cpu().float(), torch.arange(6.0)):
                    raise BrokenLawError(f"later={later}: {result.tolist()}")
            torch.cuda.synchronize()
        finally:
            dist.destroy_process_group()
    yield item, "the same numbers, waited for at once and later"


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD
    return dist.group.WORLD


def _landed(started: Any) -> Tensor:
    for work in started.works:
        work.wait()
    result: Tensor = started.result()
    return result


def _waited(out: Tensor, work: dist.Work | None) -> Tensor:
    if work is not None:
        work.wait()
    return out


def _exchanged(x: Tensor, later: bool) -> Tensor:
    out = torch.empty_like(x)
    return _waited(out, dist.all_to_all_single(out, x, [len(x)], [len(x)], async_op=later))


def _reduced(x: Tensor, later: bool, wire: torch.dtype | None = None) -> Tensor:
    return _landed(collectives.all_reduce(_world(), x.clone(), Reduction.SUM, wire, later=later))


def _gathered(x: Tensor, later: bool) -> Tensor:
    return _landed(collectives.all_gather(_world(), x, [len(x)], None, None, later=later))


def _scattered(x: Tensor, later: bool) -> Tensor:
    return _landed(collectives.reduce_scatter(_world(), x, [len(x)], None, later=later))


NCCL_CALLS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "all_reduce": _reduced,
    "all_reduce in bf16": partial(_reduced, wire=torch.bfloat16),
    "all_gather": _gathered,
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    "broadcast": lambda x, later: _waited(x, dist.broadcast(x, 0, async_op=later)),
    "barrier": lambda x, later: _waited(x, dist.barrier(async_op=later)),
}


# Rules: what the fake GPUs of tests/device refuse and wait for, compared with this GPU. NCCL's rules and races between
# streams are left out: a GPU answers a broken one by a hang or by chance.


@cache
def rules() -> dict[str, Any]:
    return runpy.run_path(str(find_root() / "tests" / "device" / "test_rules.py"))


def rule_names(_size: Size) -> list[str]:
    needs_two = {"add_two_gpus"} if gpu_count() < 2 else set()
    return [broken.__name__ for broken in rules()["REFUSED"] if broken.__name__ not in needs_two] + [
        *rules()["ACTIONS"]
    ]


def ask_rules(item: str, _size: Size) -> Iterator[Row]:
    refused = {broken.__name__: broken for broken in rules()["REFUSED"]}
    if item in refused:
        kind, words = rules()["REFUSED"][refused[item]]
        try:
            refused[item]()
            answer = "accepts it"
        except Exception as error:  # whatever a GPU says is a row of the table
            answer = f"{type(error).__name__}: {error}"
        agrees = answer.startswith(kind.__name__) and re.search(words, answer) is not None
        yield item, kind.__name__, answer.split("\n")[0][:120], agrees
    else:
        action, expected = rules()["ACTIONS"][item]
        action()  # the first call may load a kernel, for which the host waits too
        stated = sum(count for what, count in expected.items() if what not in rules()["PINNED"])
        seen = waits_in(action).total()
        agrees = bool(stated) == bool(seen)
        yield item, f"{stated} waits", f"{seen} waits", agrees
    if not agrees:
        raise BrokenLawError("this GPU does not do what the fake one does")


SYNCHRONISES = "called a synchronizing CUDA operation"
"""The words of torch's warning of a wait. It also warns once that this mode is a prototype."""


def waits_in(action: Callable[[], object]) -> Counter[str]:
    """The waits of the host in an action, by torch's own count: file and line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        action()
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if SYNCHRONISES in str(each.message)]
    return Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)


# Laws of strategies.


def ask_kit(item: str, _size: Size) -> Iterator[Row]:
    yield from laws_of(item, Engine.NCCL, max_ranks(Engine.NCCL))


def ask_worlds(item: str, _size: Size) -> Iterator[Row]:
    yield from laws_of(item, Engine.GLOO, MOST_ON_ONE_GPU)


def laws_of(name: str, engine: Engine, most: int | None) -> Iterator[Row]:
    """The laws of a strategy by a quick check, over NCCL, or over gloo with several ranks on one GPU."""
    laws, broken = 0, []
    with Pool(engine=engine, patience=60.0) as pool:
        run = pool.run if engine is Engine.NCCL else partial(shared_by_ranks, pool)
        for finding in check(name, run, "quick", ON_GPUS, most):
            laws += 1
            if not finding.holds:
                broken.append(f"{finding.check}: {finding.detail}")
                print(f"{name}: {broken[-1]}", file=sys.stderr, flush=True)
    yield name, most, laws, len(broken)
    if broken:
        raise BrokenLawError(broken[0])


def shared_by_ranks(pool: Pool, world: int, function: Callable[..., object], *arguments: object) -> list[Any]:
    """The results of the ranks of a world that shares one GPU."""
    return pool.run(world, on_one_gpu, function, *arguments)


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


def ask_waits(item: str, _size: Size) -> Iterator[Row]:
    """What makes the host wait does not depend on the size, so the graph is the smallest."""
    trainer = trainer_alone(item, QUICK)
    for _ in range(2):
        trainer.epoch()
    places = waits_in(trainer.epoch)
    where = ", ".join(f"{place} {n}" for place, n in places.most_common())
    yield item, places.total(), where, calls_that_wait(trainer.epoch)


def ask_cuda_graphs(item: str, _size: Size) -> Iterator[Row]:
    """A small training with and without a CUDA graph. What a graph gains on large graphs is a column of `epochs`."""
    spec = {
        "strategy": {"name": item},
        "dataset": "check",
        "ranks": 1,
        "grid": load_strategy(item).grids(1)[0],
        "model": {"layers": 3, "hidden": 8},
        "machine": ON_GPUS.model_dump(),
    }
    compared = compare_graph(Case("graph", Spec.model_validate(spec), 211))
    times = f"{1e3 * compared.seconds:.2f}", f"{1e3 * compared.graph_seconds:.2f}"
    same = compared.same_losses, compared.same_parameters, compared.same_amounts
    yield item, *times, *same, f"{compared.difference:.0e}", ", ".join(sorted(compared.unordered))
    # Without a deterministic implementation of an operation, bits may differ without a graph, too.
    same_numbers = compared.same or (compared.unordered and compared.difference <= ROUNDING)
    if not (same_numbers and compared.same_amounts):
        raise BrokenLawError("a CUDA graph changes the training")
