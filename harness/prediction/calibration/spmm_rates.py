"""Measures sparse products, and fits the terms of a card to their times.

The products are of graphs of two kinds and several sizes, with dense matrices of several widths. On a GPU the sizes are
chosen around the size whose dense matrix fills the cache, so that the times show the effect of the cache.

How much of the cache the rows of the dense matrix have, and how many columns the library multiplies in one pass, is
not documented. Of a few choices, the one that predicts held-out products best is taken.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.base.device import free_memory, gpu_properties, is_gpu
from harness.base.errors import RunError
from harness.base.formatting import MB
from harness.graph.generators.rmat import Rmat
from harness.kernels import Csr, cast, from_coo
from harness.kernels.spmm import cache_for_products, spmm
from harness.ledger.tape import ProductShape
from harness.prediction.calibration.measurements import Calibrator, KernelTime
from harness.prediction.calibration.term_fit import (
    Numbers,
    compute_factor,
    compute_held_out_ratios,
    fit_terms,
)
from harness.prediction.pricing import (
    BYTES_PER_VALUE,
    FITTED_BYTES,
    NANO,
    SPMM_TERMS,
    compute_spmm_factors,
    price_spmm,
)
from harness.spec.machine_card import SpmmTerms
from harness.strategy.context import Measurements

TINY = 1e-3
"""A smaller ratio counts as this, because a fit to few times may predict 0."""
UNKNOWN_CACHE = 32 << 20
"""The assumed cache size in bytes of a processor or GPU that does not report it."""
SCALES, WIDTHS = (11, 14, 17), (1, 4, 16, 41, 128, 256)
"""On a CPU: the base-2 logarithms of the graph sizes, and the columns of the dense matrices."""
DEGREES, KINDS = (4, 24), 2
"""The average entries per row, and the number of kinds of graphs: power-law and uniform."""
WIDTHS_ON_GPU, WIDTHS_IN_HALF = (1, 2, 4, 8, 16, 32, 41, 64, 128, 256), (64, 256)
OFFSETS, LARGEST, SMALLEST = (-4, -2, 0, 2), 21, 4
"""On a GPU: offsets of the graph scales from the scale whose 64 columns fill the cache, and bounds of the scales."""
CACHE_PARTS_OF_CPU = (1, 1 / 2, 1 / 4, 1 / 8)
"""The parts of the last cache of a CPU that a core may have, as it is shared with other cores and virtual machines."""
CACHE_PARTS = (1, 1 / 2)
"""The parts of a GPU's cache that rows of the dense matrix may have. The cache of an A100 has two halves; a row that
processors on both sides read may be in both."""
PASSES = (None, 64, 128, 256)
"""The columns that the library of a GPU may multiply in one pass; None means all."""


class SizedGraph(NamedTuple):
    """A matrix on the device, with the degree of its graph."""

    degree: int
    A: Csr


class ProductTime(NamedTuple):
    """The measured time of a sparse product. `scale` names the size of its graph, such as its number of vertices."""

    scale: int
    product: ProductShape
    seconds: float


class SpmmForm(NamedTuple):
    """What is chosen before terms are fitted."""

    cache_mb: float | None = None
    """The size of the cache; None leaves the two terms for missed rows out."""
    pass_columns: int | None = None
    terms: tuple[str, ...] = SPMM_TERMS
    """The terms that are fitted. The others are 0."""


def measure_spmm_constants(calibrator: Calibrator, launch: float) -> dict[str, Any]:
    """Return the fitted terms, and their interval from products whose sizes and widths were held out."""
    device = calibrator.device
    if not is_gpu(device):
        measured = label_products(_measure_products(calibrator, SCALES, WIDTHS))
        forms = list_cpu_forms(find_cpu_cache() / MB)
        return {**fit_spmm(measured, forms, launch), "source": calibrator.source}
    cache = gpu_properties(device).cache or UNKNOWN_CACHE
    times = _measure_products(calibrator, choose_gpu_scales(cache, free_memory(device)), WIDTHS_ON_GPU)
    measured = label_products(calibrator.leave_out_bound_by_host("sparse products", times))
    terms = fit_gpu_spmm(measured, cache / MB, launch)
    _note_extrapolation(calibrator, measured, terms, launch)
    return {**terms, "source": calibrator.source}


def label_products(times: Sequence[KernelTime]) -> list[ProductTime]:
    """Return the times of sparse products, labelled with the numbers of vertices of their graphs."""
    return [
        ProductTime(each.product.rows, each.product, each.seconds)
        for each in times
        if each.product is not None
    ]


def fit_gpu_spmm(measured: Sequence[ProductTime], cache_mb: float, launch: float) -> dict[str, Any]:
    """Return the terms fitted to the products in float32 that have several columns."""
    full = [each for each in measured if each.product.values == "float32"]
    several = [each for each in full if each.product.columns > 1]
    return fit_spmm(several, list_gpu_forms(cache_mb), launch)


def _measure_products(
    calibrator: Calibrator, scales: Sequence[int], widths: Sequence[int]
) -> list[KernelTime]:
    """Return the times of the products of all graphs; on a GPU, of some also in bfloat16."""
    found = list[KernelTime]()
    done, of = 0, len(scales) * len(DEGREES) * KINDS * len(widths)
    for graph in make_graphs(scales, calibrator.device):
        for width in widths:
            calibrator.on_step(done, of, f"a sparse product of {graph.A.nnz:,} entries x {width}")
            done += 1
            in_half = width in WIDTHS_IN_HALF and graph.degree == DEGREES[-1] and is_gpu(calibrator.device)
            for values in [torch.float32, torch.bfloat16] if in_half else [torch.float32]:
                if calibrator.is_time_up():
                    calibrator.notes.append(
                        f"{of - done + 1} sparse products left out: the time limit was reached"
                    )
                    return found
                A = cast(graph.A, values)
                taken = calibrator.try_stage(
                    f"a sparse product {_describe_product(A, width)}",
                    partial(_time_product, calibrator, A, width),
                )
                if taken is not None:
                    found.append(taken)
    return found


def _time_product(calibrator: Calibrator, A: Csr, width: int) -> KernelTime:
    """Return the time of a product, computed by the method that training would choose."""
    H = torch.rand(A.cols, width, device=calibrator.device).to(A.val.dtype)
    kept = cache_for_products(A, Measurements(calibrator.device, {}).choose_fastest)
    return calibrator.time_kernel("sparse", lambda: spmm(kept, H), _make_product(A, width))


def _note_extrapolation(
    calibrator: Calibrator, measured: Sequence[ProductTime], terms: dict[str, Any], launch: float
) -> None:
    """Add notes on the accuracy of the terms outside the fit: for one column, and in bfloat16."""
    card = SpmmTerms(**terms, source=calibrator.source)
    for what, some in (
        ("with one column", [each for each in measured if each.product.columns == 1]),
        ("in bfloat16", [each for each in measured if each.product.values == "bfloat16"]),
    ):
        if some:
            ratios = [
                each.seconds
                / (
                    launch
                    + price_spmm(each.product, card) * BYTES_PER_VALUE[each.product.values] / FITTED_BYTES
                )
                for each in some
            ]
            calibrator.notes.append(
                f"sparse products {what} take {median(ratios):.2f} of the time that the terms predict for them"
            )


def find_cpu_cache() -> int:
    """Return the size of the last cache in bytes."""
    sizes = [
        path.read_text(encoding="utf-8").strip()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max((int(size.removesuffix("K")) << 10 for size in sizes), default=UNKNOWN_CACHE)


def list_cpu_forms(cache_mb: float) -> list[SpmmForm]:
    """Return the forms that a product on a CPU with this last cache may have, the simplest first."""
    return [SpmmForm(), *(SpmmForm(part * cache_mb) for part in CACHE_PARTS_OF_CPU)]


def list_gpu_forms(cache_mb: float) -> list[SpmmForm]:
    """Return the forms that a product on a GPU with this cache may have, the simplest first."""
    return [SpmmForm(part * cache_mb, columns) for columns in PASSES for part in CACHE_PARTS]


def fit_spmm(measured: Sequence[ProductTime], forms: Sequence[SpmmForm], launch: float) -> dict[str, Any]:
    """Return the terms by name, in nanoseconds, with their interval.

    Of the forms, the one with the smallest held-out errors is taken, the first if several are equal. The launch in each
    time is priced separately.
    """
    if not measured:
        raise RunError("no sparse product could be measured")
    form = min(forms, key=lambda each: _measure_spread(hold_out_products(measured, each, launch)))
    factors, seconds = _tabulate(measured, form)
    found = fit_terms(factors, seconds, _limit_launch(launch, seconds))
    values = {name: _round(each / NANO) for name, each in zip(SPMM_TERMS, found.tolist(), strict=True)}
    if form.cache_mb is None:
        del values["missed_column"], values["missed_entry"]
    else:
        values["cache_mb"] = _round(form.cache_mb)
    passes = {} if form.pass_columns is None else {"pass_columns": form.pass_columns}
    return {**values, **passes, "within": compute_factor(hold_out_products(measured, form, launch))}


def hold_out_products(measured: Sequence[ProductTime], form: SpmmForm, launch: float) -> Numbers:
    """Return predicted over measured seconds, each predicted by a fit that saw neither its size nor its width."""
    factors, seconds = _tabulate(measured, form)
    labels = [each.scale for each in measured], [each.product.columns for each in measured]
    return compute_held_out_ratios(factors, seconds, labels, _limit_launch(launch, seconds))


def _tabulate(measured: Sequence[ProductTime], form: SpmmForm) -> tuple[Numbers, Numbers]:
    """Return the factors of the terms of each product, and its seconds."""
    is_fitted = np.array([name in form.terms for name in SPMM_TERMS])
    each = [compute_spmm_factors(time.product, form.cache_mb, form.pass_columns) for time in measured]
    factors = np.array(each, dtype=np.float64) * is_fitted
    return factors, np.array([time.seconds for time in measured])


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _limit_launch(launch: float, seconds: Numbers) -> float:
    """Return the part of each time that is a launch, at most half of the shortest time."""
    return min(launch, float(seconds.min()) / 2)


def _measure_spread(ratios: Numbers) -> float:
    """Return the mean square of the logarithms of held-out ratios; infinite if nothing was held out."""
    logs = np.log(np.maximum(ratios[~np.isnan(ratios)], TINY))
    return float(np.mean(logs**2)) if len(logs) else float("inf")


def _describe_product(A: Csr, width: int) -> str:
    return f"of {A.nnz:,} entries x {width} in {str(A.val.dtype).removeprefix('torch.')}"


def _make_product(A: Csr, width: int) -> ProductShape:
    values, indices = (str(dtype).removeprefix("torch.") for dtype in (A.val.dtype, A.col.dtype))
    return ProductShape(A.rows, A.cols, width, A.nnz, values, indices)


def choose_gpu_scales(cache: float, free: int) -> list[int]:
    """Return graph scales around the one whose 64 columns in float32 fill the cache, the largest first."""
    middle = round(log2(cache / (64 * 4)))
    widest = max(WIDTHS_ON_GPU)
    fits = int(log2(free / (4 * 4 * widest)))  # operand and result may fill half of the memory
    scales = {min(max(middle + offset, SMALLEST), LARGEST, fits) for offset in OFFSETS}
    return sorted(scales, reverse=True)  # at the time limit, small graphs are left out


def make_graphs(scales: Sequence[int], device: torch.device) -> Iterator[SizedGraph]:
    """Yield power-law and uniform graphs with few and with many entries per row."""
    for scale in scales:
        for degree in DEGREES:
            generator = Rmat(scale, degree, seed=0)
            yield SizedGraph(
                degree, _make_matrix(generator.n, generator.edges(range(generator.draws)), device)
            )
            yield SizedGraph(degree, make_uniform_graph(generator.n, generator.draws, device))


def make_uniform_graph(n: int, draws: int, device: torch.device) -> Csr:
    """Return the matrix of a graph with `draws` edges between random vertices; duplicates are merged."""
    ends = torch.randint(n, (2, draws), generator=torch.Generator().manual_seed(0))
    return _make_matrix(n, (ends[0], ends[1]), device)


def _make_matrix(n: int, ends: tuple[Tensor, Tensor], device: torch.device) -> Csr:
    """Return the matrix of a graph, sorted on the device."""
    source, target = (each.to(device) for each in ends)
    ones = torch.ones(len(source), dtype=torch.int32, device=device)
    return cast(from_coo(target, source, ones, (n, n), sum_duplicates=True), torch.float32)
