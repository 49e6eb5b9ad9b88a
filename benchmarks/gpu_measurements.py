"""What benchmarks/gpu.py measures. Seconds end when the device has finished; competitors take turns, and a number is a
median."""

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from math import inf
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.epoch import PYG, EpochCase, reference_models
from benchmarks.gpu_common import BrokenLawError, Row, Size, asked_of, device, trainer_alone
from benchmarks.measuring import Ways, alternate, spec_of, trainer_of
from harness.base.device import can_run_triton
from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.files import write_text
from harness.base.validation import validate
from harness.conformance.suite import ON_GPUS
from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_device, to_scipy
from harness.kernels.induced import induced_pair, induced_submatrix, induced_submatrix_torch
from harness.kernels.random import MASK, mask_torch
from harness.kernels.row_schedule import schedule_rows
from harness.kernels.shuffle import sample_distinct
from harness.kernels.spmm import PRODUCT_KERNELS, cache_for_products, spmm
from harness.ledger import SAMPLING
from harness.prediction.calibration.calibrate import calibrate_machine, format_new_card
from harness.prediction.epoch import predict
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import MachineCard
from harness.spec.root import find_root
from harness.strategy import Ready
from harness.strategy.context import Measurements

TURNS, WARM = 10, 3
EPOCH_SECONDS = 3.0
"""The time for the epochs of one strategy; at least two are measured."""


# Measurements.


def finished() -> float:
    """The time when the device has finished all work."""
    torch.cuda.synchronize()
    return perf_counter()


def medians(ways: Ways) -> dict[str, float]:
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


@cache
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


@cache
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
        "tensor operations": lambda: mask_torch(rows, cols.start, cols.stop, *key),
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
    A = cache_for_products(cast(random_graph(kind, size.scale), dtype), measured.choose_fastest)
    H = torch.rand(A.cols, f, device=device()).to(dtype)
    ours, *others = medians({"ours": lambda: spmm(A, H), **ways_of(A, H), "PyG": scattered(A, H)}).values()
    indices = A.nnz * (H.itemsize + A.col.itemsize) + A.rowptr.nbytes
    least = indices + f * H.itemsize * (A.rows + A.cols)
    gathered = indices + f * H.itemsize * (A.rows + A.nnz)
    yield (
        *(f"{kind} 2^{size.scale}", type_name, f, f"{1e3 * ours:.3f}", f"{2e-9 * A.nnz * f / ours:,.0f}"),
        *(f"{least / speed / ours:.2f}", f"{gathered / speed / ours:.2f}"),
        *(f"{seconds / ours:.2f}" for seconds in others),
        ", ".join(measured.chosen.values()) or next(iter(PRODUCT_KERNELS)),
    )


def ways_of(A: Csr, H: Tensor) -> dict[str, Callable[[], object]]:
    return {name: partial(way, A, H, None) for name, way in PRODUCT_KERNELS.items()}


PIECES, PIECE_WIDTHS = (64, 128, 256, 512, 1024), (16, 64, 256)


def piece_items(size: Size) -> list[str]:
    scales = (size.scale - 2, size.scale)
    return [f"{scale} {dtype} {width}" for scale in scales for dtype in TYPES for width in PIECE_WIDTHS]


def ask_pieces(item: str, _size: Size) -> Iterator[Row]:
    """Products by Triton with long rows split into pieces of several lengths, whose schedules are made before."""
    if not can_run_triton():
        raise UserError("Triton does not run on this GPU")
    from harness.kernels.triton_spmm import multiply_into

    scale, type_name, width = item.split()
    A = cast(random_graph("R-MAT", int(scale)), getattr(torch, type_name))
    H = torch.rand(A.cols, int(width), device=device()).to(A.val.dtype)
    Z = torch.empty(A.rows, int(width), device=device(), dtype=A.val.dtype)
    ways = {
        str(piece): partial(multiply_into, A, H, Z, schedule_rows(A.rowptr, piece), add=False)
        for piece in PIECES
    }
    seconds = medians(ways).values()
    yield f"R-MAT 2^{scale}", type_name, width, *(f"{1e3 * each:.3f}" for each in seconds)


def scattered(A: Csr, H: Tensor) -> Callable[[], object]:
    """PyG's product by a gather and a scatter."""
    from torch_geometric.utils import scatter

    row, col = row_indices(A), A.col.long()
    return lambda: scatter(H.index_select(0, col) * A.val[:, None], row, dim_size=A.rows)


def epoch_items(size: Size) -> list[str]:
    return [f"{dataset} {hidden}" for dataset in size.epochs for hidden in (16, 128)]


def ask_epochs(item: str, _size: Size) -> Iterator[Row]:
    dataset, hidden = item.split()
    torch.cuda.reset_peak_memory_stats()
    spec = EpochCase("serial", dataset, 1, hidden=int(hidden), order="combine_first").spec()
    models = reference_models(spec, device())
    on_gpus = {
        "machine": ON_GPUS,
        "training": spec.training.model_copy(update={"cuda_graph": True}),
    }
    graph = trainer_of(spec.model_copy(update=on_gpus), device=device())
    ways: Ways = {
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
    done = calibrate_machine(
        find_root(), "local-gpu", 1, lambda what: print(what, file=sys.stderr, flush=True)
    )
    write_text(size.folder / CARD, format_new_card(find_root(), "local-gpu", done))
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
    card = validate(MachineCard, {"name": "gpu", **read_yaml(path, str(path))}, str(path))
    strategy, blocks = open_run(find_root(), spec_of(asked_of(name, size)))
    return predict(Ready(strategy, blocks), card).seconds.value


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
    on_host, edges = to_scipy(to_device(A, "cpu")), torch.stack([row_indices(A), A.col.long()])
    S = sample_distinct((0, 0), A.rows, A.rows // int(item.removeprefix("1/")), device())
    s = S.cpu().numpy()
    ways: Ways = {
        "ours": partial(induced_submatrix, A, S, S, 0, 1.0),
        "and its transpose": partial(induced_pair, A, S, S, 0, 1.0),
        "tensor operations": partial(induced_submatrix_torch, A, S, S, 0, 1.0),
        "PyG": partial(subgraph, S, edges, A.val, relabel_nodes=True, num_nodes=A.rows),
        "scipy": lambda: on_host[s][:, s],
    }
    ours, *others = medians(ways).values()
    yield f"R-MAT 2^{size.scale}", item, f"{1e3 * ours:.2f}", *(f"{each / ours:.2f}" for each in others)
