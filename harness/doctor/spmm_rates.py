"""Measures sparse products, and fits the terms of a card to their times.

The products are of graphs of two kinds and several sizes, with dense matrices of several widths. On a GPU the sizes are
chosen around the size whose dense matrix fills the cache, so that the times show the effect of the cache.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import log2
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.device import free_memory, gpu_properties, is_gpu
from harness.doctor.measurements import Calibrator
from harness.doctor.term_fit import compute_factor, compute_held_out_ratios, fit_terms
from harness.errors import RunError
from harness.formatting import MB
from harness.kernels import Csr, cast, from_coo
from harness.kernels.spmm import cache_for_products, spmm
from harness.ledger.tape import ProductShape
from harness.prediction.pricing import BYTES_PER_VALUE, FITTED_BYTES, NANO, compute_spmm_factors, price_spmm
from harness.sources.rmat import Rmat
from harness.spec.machine_card import SpmmTerms
from harness.strategy.context import Measurements

UNKNOWN_CACHE = 32 << 20
"""The assumed cache size in bytes of a GPU for which torch does not report it."""
SCALES, WIDTHS = (11, 14, 17), (1, 4, 16, 41, 128, 256)
"""On a CPU: the base-2 logarithms of the graph sizes, and the columns of the dense matrices."""
DEGREES, KINDS = (4, 24), 2
"""The average entries per row, and the number of kinds of graphs: power-law and uniform."""
WIDTHS_ON_GPU, WIDTHS_IN_HALF = (1, 2, 4, 8, 16, 32, 41, 64, 128, 256), (64, 256)
OFFSETS, LARGEST, SMALLEST = (-4, -2, 0, 2), 21, 4
"""On a GPU: offsets of the graph scales from the scale whose 64 columns fill the cache, and bounds of the scales."""
NAMES = ("entry_column", "entry", "row_column", "row", "call", "missed_column")
"""The terms of `harness.prediction.pricing.compute_spmm_factors`, in order."""


class SizedGraph(NamedTuple):
    """A matrix on the device, with the scale and the degree of its graph."""

    scale: int
    degree: int
    A: Csr


class ProductTime(NamedTuple):
    """The measured time of a sparse product. `scale` is the base-2 logarithm of the graph size."""

    scale: int
    product: ProductShape
    seconds: float


def measure_spmm_constants(calibrator: Calibrator, launch: float) -> dict[str, Any]:
    """Return the fitted terms, and their interval from products whose sizes and widths were held out."""
    device = calibrator.device
    if not is_gpu(device):
        return {
            **fit_spmm(_measure_products(calibrator, SCALES, WIDTHS), None, launch),
            "source": calibrator.source,
        }
    cache = gpu_properties(device).cache or UNKNOWN_CACHE
    measured = _measure_products(calibrator, choose_gpu_scales(cache, free_memory(device)), WIDTHS_ON_GPU)
    full = [each for each in measured if each.product.values == "float32"]
    terms = fit_spmm([each for each in full if each.product.columns > 1], cache / MB, launch)
    _note_extrapolation(calibrator, measured, terms, launch)
    return {**terms, "source": calibrator.source}


def _measure_products(
    calibrator: Calibrator, scales: Sequence[int], widths: Sequence[int]
) -> list[ProductTime]:
    """Return the times of the products of all graphs; on a GPU, of some also in bfloat16."""
    found, has_half = list[ProductTime](), is_gpu(calibrator.device)
    done, of = 0, len(scales) * len(DEGREES) * KINDS * len(widths)
    for graph in make_graphs(scales, calibrator.device):
        for width in widths:
            calibrator.on_step(done, of, f"a sparse product of {graph.A.nnz:,} entries x {width}")
            done += 1
            in_half = has_half and width in WIDTHS_IN_HALF and graph.degree == DEGREES[-1]
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
                    found.append(ProductTime(graph.scale, _make_product(A, width), taken))
                elif values == torch.bfloat16:  # the library has no such product: do not try again
                    has_half = False
    return found


def _time_product(calibrator: Calibrator, A: Csr, width: int) -> float:
    """Return the seconds of a product, computed by the method that training would choose."""
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


def fit_spmm(measured: Sequence[ProductTime], cache_mb: float | None, launch: float) -> dict[str, Any]:
    """Return the terms by name, in nanoseconds, and their interval. The launch in each time is priced separately."""
    if not measured:
        raise RunError("no sparse product could be measured")
    seconds = np.array([each.seconds for each in measured])
    factors = np.array([compute_spmm_factors(each.product, cache_mb) for each in measured], dtype=np.float64)
    labels = [each.scale for each in measured], [each.product.columns for each in measured]
    known = min(launch, float(seconds.min()) / 2)
    found = fit_terms(factors, seconds, known)
    values = {name: float(f"{each / NANO:.4g}") for name, each in zip(NAMES, found.tolist(), strict=False)}
    cache = {} if cache_mb is None else {"cache_mb": float(f"{cache_mb:.4g}")}
    return {
        **values,
        **cache,
        "within": compute_factor(compute_held_out_ratios(factors, seconds, labels, known)),
    }


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
                scale, degree, _make_matrix(generator.n, generator.edges(range(generator.draws)), device)
            )
            yield SizedGraph(scale, degree, make_uniform_graph(generator.n, generator.draws, device))


def make_uniform_graph(n: int, draws: int, device: torch.device) -> Csr:
    """Return the matrix of a graph with `draws` edges between random vertices; duplicates are merged."""
    ends = torch.randint(n, (2, draws), generator=torch.Generator().manual_seed(0))
    return _make_matrix(n, (ends[0], ends[1]), device)


def _make_matrix(n: int, ends: tuple[Tensor, Tensor], device: torch.device) -> Csr:
    """Return the matrix of a graph, sorted on the device."""
    source, target = (each.to(device) for each in ends)
    ones = torch.ones(len(source), dtype=torch.int32, device=device)
    return cast(from_coo(target, source, ones, (n, n), sum_duplicates=True), torch.float32)
