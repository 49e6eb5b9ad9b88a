"""What benchmarks/gpu.py asks a GPU, part by part. A part is a list of items, each with rows of one table.

A law raises `BrokenLawError` after its row. Any other error of an item is a finding too, except a refusal (UserError).
Seconds end when the device has finished its work. Competitors take turns; a number is a median.
"""

import re
import runpy
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from epoch import PYG, reference_models
from epoch import Case as SerialCase
from measuring import alternate, spec_of, trainer_of
from one_gpu import on_one_gpu
from torch import Tensor

from harness.check import check
from harness.check.case import Case
from harness.check.graphs import compare_graph
from harness.check.kit import ON_GPUS
from harness.comm import collectives
from harness.comm.collectives import Reduction
from harness.comm.engine import Engine, device_of, most_ranks
from harness.device import gpus, uploaded
from harness.doctor.calibrate import calibrated, new_card_text
from harness.documents import read_yaml
from harness.errors import UserError
from harness.files import write_text
from harness.kernels.csr import Csr, cast, from_coo, on_device, row_of, to_scipy
from harness.kernels.induced import induced_pair
from harness.kernels.random import MASK, Purpose, mask, mask_by_tensors
from harness.kernels.shuffle import distinct
from harness.kernels.spmm import WAYS, inner_products, keep_for_products, spmm
from harness.launch.worker_pool import Pool
from harness.ledger import SAMPLING
from harness.predict.prediction import predict
from harness.registry import load_strategy, registered
from harness.results.record import read_record
from harness.run.open_run import open_run
from harness.run.trainer import Trainer
from harness.spec.machine_card import MachineCard
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.strategy import Ready
from harness.strategy.context import Measurements
from harness.validation import validated

TURNS, WARM = 10, 3
EPOCH_SECONDS = 3.0
"""The time for the epochs of one strategy; at least two are measured."""
MOST_ON_ONE_GPU = 4
Row = Sequence[object]


class BrokenLawError(Exception):
    """A law does not hold. The message says which, and what was found."""


class Size(NamedTuple):
    """How large the graphs are, and where parts leave files."""

    dataset: str
    epochs: tuple[str, ...]
    """The datasets of serial training beside PyG."""
    scale: int
    """Graphs that are no dataset have 2^scale vertices."""
    copied: int
    """Numbers in the copy whose speed is the bound."""
    dense: int
    batch: int
    folder: Path = Path()


FULL = Size("rmat-17", ("sbm-4096", "rmat-17", "rmat-21"), 20, 1 << 28, 8192, 4096)
QUICK = Size("tiny-rmat", ("tiny-sbm",), 8, 1 << 16, 64, 64)


@dataclass(frozen=True)
class Part:
    """A question with one table: the rows of each item."""

    question: str
    columns: tuple[str, ...]
    items: Callable[[Size], Sequence[str]]
    measure: Callable[[str, Size], Iterator[Row]]
    share: float
    """The share of a call's time after which no further item is started."""
    each: float = 60.0
    """The seconds that an item may take."""
    shared: bool = True
    """True for laws, which other processes may disturb; a measurement has the GPU alone."""
    processes: bool = False
    """True if each item has its own process, several at a time."""
    stores: bool = False
    """True if the part opens graphs that the part `data` builds."""


def device() -> torch.device:
    return device_of(Engine.NCCL, 0)


@cache
def strategies(*first: str) -> tuple[str, ...]:
    """The names of all strategies, some of them first."""
    return (*first, *sorted({entry.name for entry in registered()} - set(first)))


def full_graph_strategies(_size: Size) -> list[str]:
    return [name for name in strategies("serial") if not load_strategy(name).mini_batches]


# Basics: what the project needs of the software and of the GPU.

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


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
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(500, (2, 4000), generator=generator)
    row[:1000] = 7
    A = from_coo(row, col, torch.rand(4000, generator=generator, dtype=torch.float64), (501, 500))
    A = cast(A, dtype)._replace(col=A.col.to(column))
    H = torch.rand(500, 130, generator=generator).to(dtype)
    dense = torch.zeros(501, 500, dtype=torch.float64)
    dense.index_put_((row_of(A), A.col.long()), A.val.double(), accumulate=True)
    expected, here = dense @ H.double(), on_device(A, device())
    errors = {}
    for name, way in WAYS.items():
        for add_to in (None, torch.ones(501, 130, dtype=dtype, device=device())):
            Z = way(here, H.to(device()), add_to).cpu().double() - int(add_to is not None)
            errors[name] = float((Z - expected).abs().max() / expected.abs().max())
            assert errors[name] <= TOLERANCES[dtype], errors
    return ", ".join(f"{name} {error:.0e}" for name, error in errors.items())


def inner_product(dtype: torch.dtype) -> str:
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(50, (2, 400), generator=generator)
    A = cast(from_coo(row, col, torch.rand(400, generator=generator), (50, 50)), dtype)
    X = torch.rand(50, 16, generator=generator, dtype=torch.float64).to(dtype)
    found = inner_products(on_device(A, device()), X.to(device()), X.to(device())).cpu().double()
    error = float((found - (X[row_of(A)].double() * X[A.col.long()].double()).sum(1)).abs().max())
    assert error < 1e-3, error
    return f"{error:.0e}"


def dropout_mask() -> str:
    masks = [
        mask(0, Purpose.DROPOUT, x, range(3, 40), 1 << 15)
        for x in (torch.arange(999), torch.arange(999).to(device()))
    ]
    assert torch.equal(masks[0], masks[1].cpu()), "other bits than the host's"
    return "the host's bits"


def pinned_upload() -> str:
    assert float(uploaded(torch.ones(3), device()).sum()) == 3
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
    **{f"inner products, {str(x)[6:]}": partial(inner_product, x) for x in (torch.float64, torch.float32)},
    "dropout mask by one kernel": dropout_mask,
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
    result: Tensor = started.land()
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


# Rules: what the fake GPUs of tests/device refuse and wait for, beside this GPU. Neither NCCL's rules nor races between
# streams: a GPU answers a broken one by a hang or by chance.


@cache
def rules() -> dict[str, Any]:
    return runpy.run_path(str(project_root() / "tests" / "device" / "test_rules.py"))


def rule_names(_size: Size) -> list[str]:
    needs_two = {"add_two_gpus"} if gpus() < 2 else set()
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
    yield from laws_of(item, Engine.NCCL, most_ranks(Engine.NCCL))


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
                broken.append(f"{finding.law}: {finding.detail}")
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
    for _ in range(WARM - 1):
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
    yield item, *times, compared.same_losses, compared.same_parameters, compared.same_amounts
    if not compared.same:
        raise BrokenLawError("a CUDA graph changes the training")


# Measurements.


def finished() -> float:
    """The time when the device has finished all work."""
    torch.cuda.synchronize()
    return perf_counter()


def medians(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median seconds of each way. Ours, the first, has to work; another that this device lacks takes forever."""
    ours, *others = ways
    ways[ours]()
    possible = {ours: ways[ours]}
    for name in others:
        try:
            ways[name]()
            possible[name] = ways[name]
        except (RuntimeError, ImportError, UserError) as error:
            print(f"{name}: {error}", file=sys.stderr)
    seconds = alternate(possible, TURNS, warm=WARM, swap=True, clock=finished)
    return {name: median(seconds.get(name, [inf])) for name in ways}


def random_graph(kind: str, scale: int) -> Csr:
    """A graph of 2^scale vertices with 16 draws each, made on the device: a power law (R-MAT) or uniform."""
    n, on = 1 << scale, device()
    torch.manual_seed(0)
    if kind == "R-MAT":
        row, col = torch.zeros(2, 16 * n, dtype=torch.int64, device=on)
        for _ in range(scale):
            chance = torch.rand(16 * n, device=on)
            right = (chance >= 0.57) & (chance < 0.76) | (chance >= 0.95)
            row, col = 2 * row + (chance >= 0.76), 2 * col + right
    else:
        row, col = torch.randint(n, (2, 16 * n), device=on)
    A = from_coo(row, col, torch.ones_like(row), (n, n), sum_duplicates=True)
    return A._replace(val=torch.rand(A.nnz, device=on))


def copy_speed(size: Size) -> float:
    """Bytes a second that a copy reads and writes."""
    X = torch.ones(size.copied, device=device())
    Y = torch.empty_like(X)
    return 2 * X.nbytes / medians({"copy": lambda: Y.copy_(X)})["copy"]


def ask_peaks(item: str, size: Size) -> Iterator[Row]:
    if item == "copy":
        yield "a copy", f"{copy_speed(size) / 1e9:,.0f} GB/s, read and written"
    elif item == "launch":
        x = torch.ones(1, device=device())
        seconds = medians({"launch": lambda: [x.add_(1) for _ in range(1000)]})["launch"]
        yield "an addition of one number", f"{1e3 * seconds:.2f} us"
    elif item == "mask":
        yield mask_row(size)
    else:
        X, Y = (
            torch.rand(size.dense, size.dense, device=device()).to(getattr(torch, item)) for _ in range(2)
        )
        seconds = medians({"mm": lambda: X @ Y})["mm"]
        yield (
            f"a dense product of {size.dense}^3 in {item}",
            f"{2e-12 * size.dense**3 / seconds:,.1f} TFLOP/s",
        )


def mask_row(size: Size) -> Row:
    rows, cols = torch.arange(1 << size.scale, device=device()), range(128)
    key = 1, 2, 1 << 15
    masks: dict[str, Callable[[], Tensor]] = {
        "one kernel": lambda: MASK(rows, cols.start, cols.stop, *key),
        "tensor operations": lambda: mask_by_tensors(rows, cols.start, cols.stop, *key),
    }
    if not torch.equal(*(draw() for draw in masks.values())):
        raise BrokenLawError("a mask by one kernel has other bits than one by tensor operations")
    one, several = medians(masks).values()
    return (
        f"a dropout mask of 2^{size.scale} x 128",
        f"{1e3 * one:.3f} ms; {several / one:.1f} times that by tensors",
    )


GRAPHS, TYPES, WIDTHS = ("R-MAT", "uniform"), ("float32", "bfloat16"), (16, 64, 128, 256)


def ask_products(item: str, size: Size) -> Iterator[Row]:
    """Ours by the way that it chooses. Bytes at least: all inputs read once, and the output written once.

    Bytes gathered: H is read row by row, for each entry, as if no cache held any of it.
    """
    kind, type_name, width = item.split()
    dtype, f, speed = getattr(torch, type_name), int(width), copy_speed(size)
    measured = Measurements(device(), {})
    A = keep_for_products(cast(random_graph(kind, size.scale), dtype), measured.choose)
    H = torch.rand(A.cols, f, device=device()).to(dtype)
    ours, *others = medians({"ours": lambda: spmm(A, H), **ways_of(A, H), "PyG": scattered(A, H)}).values()
    indices = A.nnz * (H.itemsize + A.col.itemsize) + A.rowptr.nbytes
    least = indices + f * H.itemsize * (A.rows + A.cols)
    gathered = indices + f * H.itemsize * (A.rows + A.nnz)
    yield (
        *(f"{kind} 2^{size.scale}", type_name, f, f"{1e3 * ours:.3f}", f"{2e-9 * A.nnz * f / ours:,.0f}"),
        *(f"{least / speed / ours:.2f}", f"{gathered / speed / ours:.2f}"),
        *(f"{seconds / ours:.2f}" for seconds in others),
        ", ".join(measured.chosen.values()) or next(iter(WAYS)),
    )


def ways_of(A: Csr, H: Tensor) -> dict[str, Callable[[], object]]:
    return {name: partial(way, A, H, None) for name, way in WAYS.items()}


def scattered(A: Csr, H: Tensor) -> Callable[[], object]:
    """PyG's product by a gather and a scatter."""
    from torch_geometric.utils import scatter

    row, col = row_of(A), A.col.long()
    return lambda: scatter(H.index_select(0, col) * A.val[:, None], row, dim_size=A.rows)


def epoch_items(size: Size) -> list[str]:
    return [f"{dataset} {hidden}" for dataset in size.epochs for hidden in (16, 128)]


def ask_epochs(item: str, _size: Size) -> Iterator[Row]:
    dataset, hidden = item.split()
    torch.cuda.reset_peak_memory_stats()
    spec = SerialCase("serial", dataset, 1, hidden=int(hidden), order="combine_first").spec()
    models = reference_models(spec, device())
    on_gpus = {
        "machine": ON_GPUS,
        "training": spec.training.model_copy(update={"cuda_graph": True}),
    }
    graph = trainer_of(spec.model_copy(update=on_gpus), device=device())
    ways = {
        "ours": trainer_of(spec, device=device()).epoch,
        "with a CUDA graph": graph.epoch,
        **{name: models[name].epoch for name in PYG},
    }
    mine, *others = medians(ways).values()
    peak = f"{torch.cuda.max_memory_allocated() / 1e6:,.0f}"
    yield dataset, hidden, f"{1e3 * mine:.2f}", *(f"{seconds / mine:.2f}" for seconds in others), peak


CARD = "gpu-card.yaml"


def ask_card(_item: str, size: Size) -> Iterator[Row]:
    """Calibrates a card, and leaves it and all times beside the page."""
    done = calibrated(project_root(), "local-gpu", 1, lambda what: print(what, file=sys.stderr, flush=True))
    write_text(size.folder / CARD, new_card_text(project_root(), "local-gpu", done))
    write_text(size.folder / "gpu-card.csv", done.table)
    for section in ("rates", "links"):
        for name, each in done.sections.get(section, {}).items():
            value = each.get("value", each) if isinstance(each, dict) else each
            within, source = (
                each.get(key, "") if isinstance(each, dict) else "" for key in ("within", "source")
            )
            yield f"{section}.{name}", value, within, source
    for note in done.notes:
        yield "note", note, "", ""


def predicted_seconds(name: str, size: Size) -> float | None:
    """The epoch by the card of this GPU, if that was calibrated."""
    path = size.folder / CARD
    if not path.exists():
        return None
    card = validated(MachineCard, {"name": "gpu", **read_yaml(path, str(path))}, str(path))
    strategy, blocks = open_run(project_root(), spec_of(asked_of(name, size)))
    return predict(Ready(strategy, blocks), card).seconds.value


def asked_of(name: str, size: Size) -> dict[str, Any]:
    asked = {"strategy": {"name": name}, "dataset": size.dataset, "ranks": 1, "machine": "local-gpu"}
    if load_strategy(name).mini_batches:
        asked["training"] = {"batch": size.batch}
    return asked


def trainer_alone(name: str, size: Size) -> Trainer:
    return trainer_of(spec_of(asked_of(name, size)), device=device())


def median_epoch(trainer: Trainer) -> tuple[float, float]:
    """The seconds of the median epoch after the first two, and the share of sampling in the last."""
    trainer.epoch()
    turns = max(2, min(2 * TURNS, int(EPOCH_SECONDS / max(trainer.epoch().seconds, 1e-6))))
    torch.cuda.reset_peak_memory_stats()
    epochs = [trainer.epoch() for _ in range(turns)]
    sampled = sum(amounts.seconds for key, amounts in epochs[-1].entries.items() if key.phase in SAMPLING)
    return median(epoch.seconds for epoch in epochs), sampled / epochs[-1].seconds


@cache
def serial_seconds(size: Size) -> float:
    """The serial epoch, measured once in each process that compares with it."""
    return median_epoch(trainer_alone("serial", size))[0]


def ask_strategies(item: str, size: Size) -> Iterator[Row]:
    serial, trainer = serial_seconds(size), trainer_alone(item, size)
    seconds, sampled = median_epoch(trainer)
    held = sum(trainer.strategy.memory(trainer.ctx.at, trainer.ctx.blocks.counts).values())
    peak, predicted = torch.cuda.max_memory_allocated(), predicted_seconds(item, size)
    yield (
        *(item, f"{1e3 * seconds:.2f}", f"{seconds / serial:.2f}"),
        *(f"{predicted / seconds:.2f}" if predicted else "no card", f"{sampled:.0%}", trainer.steps),
        *(f"{peak / 1e6:,.1f}", f"{held / 1e6:,.1f}"),
    )


def ask_samples(item: str, size: Size) -> Iterator[Row]:
    from torch_geometric.utils import subgraph

    A = random_graph("R-MAT", size.scale)
    on_host, edges = to_scipy(on_device(A, "cpu")), torch.stack([row_of(A), A.col.long()])
    S = distinct((0, 0), A.rows, A.rows // int(item.removeprefix("1/")), device())
    ways: Mapping[str, Callable[[], object]] = {
        "ours": partial(induced_pair, A, S, S, 0, 1.0),
        "PyG": partial(subgraph, S, edges, A.val, relabel_nodes=True, num_nodes=A.rows),
        "scipy": partial(by_scipy, on_host, S.cpu().numpy()),
    }
    ours, *others = medians(ways).values()
    yield f"R-MAT 2^{size.scale}", item, f"{1e3 * ours:.2f}", *(f"{each / ours:.2f}" for each in others)


def by_scipy(A: Any, S: Any) -> tuple[Any, Any]:
    """The subgraph at some vertices and its transpose, on the host."""
    sampled = A[S][:, S]
    return sampled, sampled.T.tocsr()


# Data: the stores and partitions that other parts open, built on the CPU while laws have the GPU.


def data_items(size: Size) -> list[str]:
    return [*dict.fromkeys((size.dataset, *size.epochs)), "partitions"]


def ask_data(item: str, size: Size) -> Iterator[Row]:
    begun = monotonic()
    if item == "partitions":
        for name in strategies():
            with suppress(UserError):  # a strategy that refuses this graph needs none
                open_run(project_root(), spec_of(asked_of(name, size)))
    else:
        spec_of({"strategy": "serial", "dataset": item, "ranks": 1})
    yield item, f"{monotonic() - begun:.1f}"


KIT_FIRST = ("compose", "plexus", "g3", "scalegnn", "cagnet-3d", "cagnet-2d", "distgnn", "bulk-ladies", "rdm")
"""The strategies whose laws take longest begin first."""
WORLDS_FIRST = (
    "cagnet-1d",
    "bns-gcn",
    "plexus",
    "g3",
    "scalegnn",
    "distdgl",
    "cagnet-sa-1d",
    "adaqp",
    "sancus",
)

PARTS: dict[str, Part] = {
    "data": Part(
        "How long does it take to build the graphs?",
        ("graph", "seconds"),
        data_items,
        ask_data,
        share=0.7,
        each=300,
    ),
    "basics": Part(
        "Does the software work with this GPU?",
        ("what", "answer"),
        lambda _: list(BASICS),
        ask_basics,
        share=0.5,
        each=120,
    ),
    "nccl": Part(
        "Do the project's collectives work over NCCL, in a world of one?",
        ("call", "result"),
        lambda _: list(NCCL_CALLS),
        ask_nccl,
        share=0.5,
    ),
    "rules": Part(
        "Do the fake GPUs refuse what this GPU refuses, and wait where it waits?",
        ("action", "the fake GPU", "this GPU", "agree"),
        rule_names,
        ask_rules,
        share=0.5,
    ),
    "kit": Part(
        "Do the laws of every strategy hold over NCCL, with at most a rank for each GPU?",
        ("strategy", "ranks at most", "laws", "broken"),
        lambda _: strategies(*KIT_FIRST),
        ask_kit,
        share=0.5,
        each=120,
        processes=True,
    ),
    "worlds": Part(
        "Do they hold for several ranks that share one GPU, with messages carried by gloo?",
        ("strategy", "ranks at most", "laws", "broken"),
        lambda _: strategies(*WORLDS_FIRST),
        ask_worlds,
        share=0.55,
        each=120,
        processes=True,
    ),
    "waits": Part(
        "What makes the host wait in an epoch? One call is the ledger's, after the epoch.",
        ("strategy", "waits", "where", "calls that wait"),
        lambda _: strategies("serial"),
        ask_waits,
        share=0.55,
    ),
    "cuda-graphs": Part(
        "Does training with a CUDA graph have the same bits as without?",
        ("strategy", "epoch, ms", "replayed, ms", "same losses", "same weights", "same ledger"),
        full_graph_strategies,
        ask_cuda_graphs,
        share=0.55,
    ),
    "peaks": Part(
        "How fast are the simplest operations?",
        ("operation", "speed"),
        lambda _: ["copy", "launch", "float32", "bfloat16", "mask"],
        ask_peaks,
        share=0.9,
        shared=False,
    ),
    "products": Part(
        "How fast is a product, beside its bounds and beside others? Above 1, ours is faster.",
        (
            *("graph", "type", "f", "ms", "GFLOP/s", "of the bytes at least", "of the bytes gathered"),
            *(f"{name} / ours" for name in (*WAYS, "PyG")),
            "chosen",
        ),
        lambda _: [f"{kind} {dtype} {width}" for kind in GRAPHS for dtype in TYPES for width in WIDTHS],
        ask_products,
        share=0.75,
        shared=False,
    ),
    "epochs": Part(
        "Is a serial epoch as fast as PyG's GCNConv? Above 1, ours is faster.",
        (
            *("dataset", "hidden", "serial, ms", "with a CUDA graph / ours"),
            *(f"{name} / ours" for name in PYG),
            "peak of all, MB",
        ),
        epoch_items,
        ask_epochs,
        stores=True,
        share=0.9,
        each=90,
        shared=False,
    ),
    "card": Part(
        "What are the constants of this GPU's card?",
        ("constant", "value", "within", "source"),
        lambda _: ["card"],
        ask_card,
        share=0.95,
        each=150,
        shared=False,
    ),
    "strategies": Part(
        "What does an epoch of each strategy take on one rank?",
        (
            "strategy",
            "epoch, ms",
            "over serial",
            "predicted / measured",
            "sampling",
            "steps",
            "peak, MB",
            "held all the time, MB",
        ),
        lambda _: strategies("serial"),
        ask_strategies,
        stores=True,
        share=1.0,
        each=60,
        shared=False,
    ),
    "samples": Part(
        "How fast is an induced subgraph with its transpose, drawn on the device? Above 1, ours is faster.",
        ("graph", "sampled", "ours, ms", "PyG / ours", "scipy on the host / ours"),
        lambda _: ["1/8", "1/64"],
        ask_samples,
        share=1.0,
        shared=False,
    ),
}
"""The parts in the order of their worth: laws, then measurements."""
