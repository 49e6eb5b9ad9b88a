"""Measures sparse products, and fits the terms of a card to their times.

Graphs of two kinds, several sizes and several widths are multiplied. On a GPU the sizes lie around the one whose dense
matrix fills the cache, so that the times tell what the cache saves.
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
from harness.doctor.measurements import Measuring
from harness.doctor.term_fit import compute_factor, compute_held_out_ratios, fit_terms
from harness.errors import RunError
from harness.formatting import MB
from harness.kernels import Csr, cast, from_coo
from harness.kernels.spmm import cache_for_products, spmm
from harness.ledger.tape import ProductShape
from harness.predict.pricing import BYTES_PER_VALUE, FITTED_BYTES, NANO, compute_spmm_factors, price_spmm
from harness.sources.rmat import Rmat
from harness.spec.machine_card import SpmmTerms
from harness.strategy.context import Measurements

UNKNOWN_CACHE = 32 << 20
"""The bytes of a GPU's cache of which torch does not tell the size; assumed."""
SCALES, WIDTHS = (11, 14, 17), (1, 4, 16, 41, 128, 256)
"""The sizes of graphs as powers of two, and the columns of the dense matrices: on a CPU."""
DEGREES, KINDS = (4, 24), 2
"""The entries of a row, and the kinds of graphs: with a power law, and uniform."""
WIDTHS_ON_GPU, WIDTHS_IN_HALF = (1, 2, 4, 8, 16, 32, 41, 64, 128, 256), (64, 256)
APART, LARGEST, SMALLEST = (-4, -2, 0, 2), 21, 4
"""On a GPU: powers of two between the sizes of the graphs and the size whose 64 columns fill the cache; the bounds."""
NAMES = ("entry_column", "entry", "row_column", "row", "call", "missed_column")
"""The terms of `harness.predict.pricing.compute_spmm_factors`, in order."""


class SizedGraph(NamedTuple):
    """A matrix on the device, and how large its graph is."""

    scale: int
    degree: int
    A: Csr


class ProductTime(NamedTuple):
    """A measured sparse product, and the size of its graph as a power of two."""

    scale: int
    product: ProductShape
    seconds: float


def measure_spmm_constants(measuring: Measuring, launch: float) -> dict[str, Any]:
    """The terms, fitted to relative errors, and the interval of products whose sizes and widths were held out."""
    device = measuring.device
    if not is_gpu(device):
        return {
            **fit_spmm(_measure_products(measuring, SCALES, WIDTHS), None, launch),
            "source": measuring.source,
        }
    cache = gpu_properties(device).cache or UNKNOWN_CACHE
    measured = _measure_products(measuring, choose_gpu_scales(cache, free_memory(device)), WIDTHS_ON_GPU)
    full = [each for each in measured if each.product.values == "float32"]
    terms = fit_spmm([each for each in full if each.product.columns > 1], cache / MB, launch)
    _note_others(measuring, measured, terms, launch)
    return {**terms, "source": measuring.source}


def _measure_products(
    measuring: Measuring, scales: Sequence[int], widths: Sequence[int]
) -> list[ProductTime]:
    """The products of all graphs; on a GPU, some of them in bfloat16 too."""
    found, has_half = list[ProductTime](), is_gpu(measuring.device)
    done, of = 0, len(scales) * len(DEGREES) * KINDS * len(widths)
    for graph in make_graphs(scales, measuring.device):
        for width in widths:
            measuring.on_step(done, of, f"a sparse product of {graph.A.nnz:,} entries x {width}")
            done += 1
            in_half = has_half and width in WIDTHS_IN_HALF and graph.degree == DEGREES[-1]
            for values in [torch.float32, torch.bfloat16] if in_half else [torch.float32]:
                if measuring.is_over():
                    measuring.notes.append(f"{of - done + 1} sparse products left out: their time was over")
                    return found
                A = cast(graph.A, values)
                taken = measuring.attempt(
                    f"a sparse product {_count_words(A, width)}", partial(_time_product, measuring, A, width)
                )
                if taken is not None:
                    found.append(ProductTime(graph.scale, _make_product(A, width), taken))
                elif values == torch.bfloat16:  # the library lacks this product, and is not asked again
                    has_half = False
    return found


def _time_product(measuring: Measuring, A: Csr, width: int) -> float:
    """The seconds of a product, in the way that training would choose."""
    H = torch.rand(A.cols, width, device=measuring.device).to(A.val.dtype)
    kept = cache_for_products(A, Measurements(measuring.device, {}).choose_fastest)
    return measuring.seconds("sparse", lambda: spmm(kept, H), _make_product(A, width))


def _note_others(
    measuring: Measuring, measured: Sequence[ProductTime], terms: dict[str, Any], launch: float
) -> None:
    """Notes how far the terms hold where nothing was fitted: for one column, and in bfloat16."""
    card = SpmmTerms(**terms, source=measuring.source)
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
            measuring.notes.append(
                f"sparse products {what} take {median(ratios):.2f} of the time that the terms predict for them"
            )


def fit_spmm(measured: Sequence[ProductTime], cache_mb: float | None, launch: float) -> dict[str, Any]:
    """The terms by name, in nanoseconds, and their interval. A launch is part of every time, and priced apart."""
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


def _count_words(A: Csr, width: int) -> str:
    return f"of {A.nnz:,} entries x {width} in {str(A.val.dtype).removeprefix('torch.')}"


def _make_product(A: Csr, width: int) -> ProductShape:
    values, indices = (str(dtype).removeprefix("torch.") for dtype in (A.val.dtype, A.col.dtype))
    return ProductShape(A.rows, A.cols, width, A.nnz, values, indices)


def choose_gpu_scales(cache: float, free: int) -> list[int]:
    """The sizes of graphs, as powers of two, around that whose 64 columns in float32 fill the cache."""
    middle = round(log2(cache / (64 * 4)))
    widest = max(WIDTHS_ON_GPU)
    fits = int(log2(free / (4 * 4 * widest)))  # the dense matrix and the product, in half of the memory
    scales = {min(max(middle + apart, SMALLEST), LARGEST, fits) for apart in APART}
    return sorted(scales, reverse=True)  # if the time ends, small graphs are left out


def make_graphs(scales: Sequence[int], device: torch.device) -> Iterator[SizedGraph]:
    """Graphs with a power law and uniform ones, of few and of many entries in a row."""
    for scale in scales:
        for degree in DEGREES:
            generator = Rmat(scale, degree, seed=0)
            yield SizedGraph(
                scale, degree, _make_matrix(generator.n, generator.edges(range(generator.draws)), device)
            )
            yield SizedGraph(scale, degree, make_uniform_graph(generator.n, generator.draws, device))


def make_uniform_graph(n: int, draws: int, device: torch.device) -> Csr:
    ends = torch.randint(n, (2, draws), generator=torch.Generator().manual_seed(0))
    return _make_matrix(n, (ends[0], ends[1]), device)


def _make_matrix(n: int, ends: tuple[Tensor, Tensor], device: torch.device) -> Csr:
    """The matrix on the device, where entries are sorted too."""
    source, target = (each.to(device) for each in ends)
    ones = torch.ones(len(source), dtype=torch.int32, device=device)
    return cast(from_coo(target, source, ones, (n, n), sum_duplicates=True), torch.float32)
