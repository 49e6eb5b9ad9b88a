"""Kernels on fake GPUs: samples are those of the host to the bit, and a product converts no index twice."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch

from harness.base.ranges import split_evenly
from harness.comm import engine
from harness.comm.engine import Engine
from harness.conformance.case import make_check_graph
from harness.kernels import attention, cast, to_device, transpose
from harness.kernels.csr import Csr, from_coo, row_indices
from harness.kernels.parts import select_rows
from harness.kernels.random import MASK, mask_torch
from harness.kernels.spmm import (
    BLOCK,
    PRODUCT_KERNELS,
    aggregate,
    cache_for_products,
    inner_products,
    multiply_library,
    multiply_library_blocked,
    spmm,
)
from harness.strategies.sampling.bulk import Algorithm1, Bulk
from harness.strategies.sampling.caches import EvictingCache
from harness.strategies.sampling.clusters import JoinedClusters
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.sampler import BatchSchedule, Neighbours, NodesByImportance, Sampler
from harness.strategy import MiniBatch
from harness.strategy.context import Measurements

N, SIZE = 97, 20
TARGETS = torch.arange(0, N, 2)
SCHEDULE = BatchSchedule(5, SIZE, 1, len(TARGETS))

SAMPLERS: dict[str, Sampler] = {
    "neighbours": Neighbours(3, SIZE, (4, 2), 3, 1),
    "nodes by importance": NodesByImportance(3, SIZE, 2, 1, N),
    "clusters, gcn": JoinedClusters(BatchSchedule(3, 3, 1, 8), split_evenly(N, 8), 2, "gcn"),
    "clusters, sage": JoinedClusters(BatchSchedule(3, 3, 1, 8), split_evenly(N, 8), 2, "sage"),
    "bulk-sage": Bulk(SCHEDULE, Algorithm1(5, "graphsage", (4, 3)), 0),
    "bulk-ladies": Bulk(SCHEDULE, Algorithm1(5, "ladies", (9, 7)), 2),
    "bulk-ladies, once": Bulk(SCHEDULE, Algorithm1(5, "ladies", (9, 7), "norms", replacement=False), 2),
    "bulk-fastgcn": Bulk(SCHEDULE, Algorithm1(5, "fastgcn", (9, 7)), 2),
}


def drawn(name: str, dtype: torch.dtype, device: torch.device) -> list[list[torch.Tensor]]:
    """The mini-batches of five steps, of a graph on a device: vertices, matrices and the factors of vertices."""
    graph = WholeGraph(to_device(cast(make_check_graph(N).A, dtype), device), groups=[0])
    sampler = SAMPLERS[name].prepare_for(graph)
    batches = (sampler.mini_batch(step, 0, graph, TARGETS) for step in range(5))
    return [parts(batch) for batch in batches]


def parts(batch: MiniBatch) -> list[torch.Tensor]:
    """Every tensor of a mini-batch."""
    factors = [] if batch.importance is None else [batch.importance]
    return [*batch.vertices, *(part for A in batch.A for part in A[:3]), *factors]


def draws_alike(name: str, dtype: torch.dtype) -> None:
    on_gpu = drawn(name, dtype, engine.select_device(Engine.NCCL, 0))
    on_host = drawn(name, dtype, torch.device("cpu"))
    for theirs, mine in zip(on_gpu, on_host, strict=True):
        assert all(each.is_cuda for each in theirs)
        assert [each.dtype for each in theirs] == [each.dtype for each in mine]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(theirs, mine, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_gpu_draws_what_the_host_draws(
    on_gpus: Callable[..., list[Any]], name: str, dtype: torch.dtype
) -> None:
    on_gpus(1, draws_alike, name, dtype)


def waits_of_an_evicting_cache() -> tuple[set[str], list[list[int]], list[list[int]]]:
    """Return what the host waits for in look-ups that evict rows, and the cached rows on a GPU and on the host."""
    import fake_cuda

    def cached_rows(device: torch.device) -> list[list[int]]:
        boundary = torch.arange(5, 50, device=device)
        cache = EvictingCache(boundary[:4], boundary, N, alpha=0.5, every=1)
        rows = []
        for start in (0, 10, 20, 5):
            cache.look_up(torch.arange(start, start + SIZE, device=device))
            rows.append(cache.vertices.tolist())
        return rows

    on_host = cached_rows(torch.device("cpu"))
    device = engine.select_device(Engine.NCCL, 0)
    fake_cuda.waits.clear()
    on_gpu = cached_rows(device)
    kinds = {what for what, place in fake_cuda.waits if place.startswith("strategies/sampling/caches.py")}
    return kinds, on_gpu, on_host


def test_an_evicting_cache_waits_for_sizes_only(on_gpus: Callable[..., list[Any]]) -> None:
    kinds, on_gpu, on_host = on_gpus(1, waits_of_an_evicting_cache)[0]
    assert kinds == {"nonzero"}
    assert on_gpu == on_host and len({tuple(rows) for rows in on_gpu}) > 1


MASKS = [range(0), range(1), range(3, 9), range(5, 8), range(4, 12), range(6, 41), range(64)]
"""Columns of masks: none, one, and those that begin and end inside and at the ends of eight that a kernel makes."""


def masks_alike() -> None:
    """One kernel draws a mask, in no more memory than eight columns beside it, and no host waits."""
    import fake_cuda

    device = engine.select_device(Engine.NCCL, 0)
    rows = torch.tensor([0, 5, 7, 111_059_955, 1 << 40])
    for cols in MASKS:
        for below in (1, 20_000, 1 << 16):
            expected = mask_torch(rows, cols.start, cols.stop, -3, 1 << 62, below)
            on_device = rows.to(device)
            fake_cuda.waits.clear()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            drawn = MASK(on_device, cols.start, cols.stop, -3, 1 << 62, below)
            columns = -(-cols.stop // 8) - cols.start // 8
            assert torch.cuda.max_memory_allocated() - before <= 8 * columns * (len(rows) + 1)
            assert not fake_cuda.waits
            assert drawn.is_cuda and torch.equal(drawn.cpu(), expected)


def test_a_gpu_draws_a_mask_in_one_pass(on_gpus: Callable[..., list[Any]]) -> None:
    on_gpus(1, masks_alike)


def bytes_of_products() -> list[int]:
    """The bytes beside the result that the first products and later ones take, forward and backward."""
    device = engine.select_device(Engine.NCCL, 0)
    A = cache_for_products(to_device(make_check_graph(N).A, device))
    H = torch.ones(N, 4, dtype=A.val.dtype, device=device, requires_grad=True)

    def taken(product: Callable[[], torch.Tensor]) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = product()
        return int(torch.cuda.max_memory_allocated() - before - result.nbytes)

    products = [lambda: spmm(A, H.detach()), lambda: aggregate(A, A, H)]
    return [taken(product) for product in [*products, *products]]


def chosen_ways() -> tuple[dict[str, str], list[bool]]:
    """The choices of products of several widths, forward and backward, and whether results are the host's."""
    device = engine.select_device(Engine.NCCL, 0)
    graph = cast(make_check_graph(N).A, torch.float64)
    measured = Measurements(device, {})
    A, A_T = (
        cache_for_products(to_device(each, device), measured.choose_fastest)
        for each in (graph, transpose(graph))
    )
    equal = []
    for width in (BLOCK, BLOCK + 1, 3 * BLOCK):
        host = torch.rand(N, width, dtype=torch.float64)
        H = host.to(device).requires_grad_()
        Z = aggregate(A, A_T, H)
        Z.backward(H.detach())
        sums = spmm(A, H.detach(), add_to=H.detach().clone())
        assert H.grad is not None
        results = (Z.detach(), H.grad, sums)
        expected = (spmm(graph, host), spmm(transpose(graph), host), host + spmm(graph, host))
        equal += [torch.allclose(a.cpu(), b) for a, b in zip(results, expected, strict=True)]
    again = Measurements(device, dict.fromkeys(measured.chosen, "library"))
    kept = cache_for_products(A, again.choose_fastest)
    spmm(kept, torch.rand(N, BLOCK + 1, dtype=torch.float64, device=device))
    assert set(again.chosen.values()) == {"library"}, "an earlier choice stays"
    return measured.chosen, equal


def choices_of_three_ways() -> dict[str, str]:
    """The choices where a third way does nothing after its first result, and a fourth one raises."""
    device = engine.select_device(Engine.NCCL, 0)
    A = to_device(cast(make_check_graph(N).A, torch.float64), device)
    measured = Measurements(device, {})
    results: dict[int, torch.Tensor] = {}

    def third(A: Csr, H: torch.Tensor, add_to: torch.Tensor | None) -> torch.Tensor:
        if H.shape[1] in results:
            return results[H.shape[1]]
        results[H.shape[1]] = multiply_library(A, H, add_to)
        return results[H.shape[1]].clone()

    def fourth(A: Csr, H: torch.Tensor, add_to: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError("no compiler")

    cache_for_products(A, measured.choose_fastest)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setitem(PRODUCT_KERNELS, "third", third)
        patch.setitem(PRODUCT_KERNELS, "fourth", fourth)
        for width in (4, 3 * BLOCK):
            spmm(A, torch.ones(N, width, dtype=torch.float64, device=device))
    return measured.chosen


def test_a_third_way_wins_where_it_is_faster(on_gpus: Callable[..., list[Any]]) -> None:
    chosen = on_gpus(1, choices_of_three_ways)[0]
    assert list(chosen.values()) == ["third", "third"]


def test_a_wide_product_takes_the_faster_way(on_gpus: Callable[..., list[Any]]) -> None:
    chosen, equal = on_gpus(1, chosen_ways)[0]
    nnz, transposed = (each.nnz for each in (make_check_graph(N).A, transpose(make_check_graph(N).A)))
    assert nnz == transposed and all(equal) and len(equal) == 9
    widths = (BLOCK + 1, 3 * BLOCK)
    assert set(chosen) == {f"product of {N} x {N} with {nnz} entries by {width} columns" for width in widths}
    assert set(chosen.values()) <= set(PRODUCT_KERNELS)


LONG = 20_000
"""The length of a row whose sum in bfloat16 would stop growing."""


def multiply_in_parts(
    A: Csr, H: torch.Tensor, add_to: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Add parts of 64 entries one after the other in a given dtype."""
    row, total = row_indices(A), H.new_zeros((A.rows, H.shape[1]), dtype=dtype)
    for start in range(0, A.nnz, 64):
        part = slice(start, start + 64)
        terms = A.val[part, None] * H.index_select(0, A.col[part])
        total.index_add_(0, row[part], terms.to(dtype))
    return total.to(H.dtype) if add_to is None else add_to.add_(total)


def products_of_a_long_row() -> tuple[list[bool], list[bool], list[str]]:
    """Return whether sums and inner products in bfloat16 are right, and the names of the kernels that may be chosen."""
    device, width, offered = engine.select_device(Engine.NCCL, 0), BLOCK + 1, list[str]()

    def choose(_what: str, kernels: Mapping[str, Callable[[], object]]) -> str:
        offered.extend(kernels)
        return "library"

    ones = torch.ones(LONG, dtype=torch.bfloat16)
    host = from_coo(torch.zeros(LONG).long(), torch.arange(LONG), ones, (1, LONG))
    A = cache_for_products(to_device(host, device), choose)
    H, expected = ones[:, None].expand(LONG, width), torch.full((1, width), LONG).bfloat16()
    right = [
        torch.equal(kernel(A, H.to(device), None).cpu(), expected)
        for kernel in (multiply_library, multiply_library_blocked)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, dtype in (("narrow", torch.bfloat16), ("wide", torch.float32)):
            patch.setitem(PRODUCT_KERNELS, name, partial(multiply_in_parts, dtype=dtype))
        with pytest.warns(UserWarning, match="'narrow' is disabled on this GPU: it differs from the library"):
            right.append(torch.equal(spmm(A, H.to(device)).cpu(), expected))
    row, ones = ones[None].to(device), ones[:2, None].expand(2, LONG).to(device)
    pair = to_device(from_coo(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.ones(2), (1, 2)), device)
    products = inner_products(cast(pair, torch.bfloat16), row, ones)
    assert products.dtype == torch.bfloat16
    return right, (products.cpu() == expected[0, 0]).tolist(), offered


def test_bf16_products_sum_in_float32_and_kernels_that_do_not_are_disabled(
    on_gpus: Callable[..., list[Any]],
) -> None:
    right, inner, offered = on_gpus(1, products_of_a_long_row)[0]
    assert right == [True] * 3 and inner == [True] * 2
    assert offered == ["library", f"library, {BLOCK} columns at a time", "wide"]


def test_row_pointers_are_made_narrow_once(on_gpus: Callable[..., list[Any]]) -> None:
    (first, *others) = on_gpus(1, bytes_of_products)[0]
    assert first >= 4 * (N + 1)
    assert others == [0, 0, 0]


HEADS, FEATURES = 5, 3


def attends_alike(heads: int) -> None:
    """Attention in groups of `heads` heads equals the host's, with as many kernels as there are groups."""
    A = make_check_graph(N).A
    A_T = select_rows(attention.transpose_with_positions(A), torch.arange(5, N - 3))
    T_QKF, G_QNF = torch.randn(
        2, HEADS, N, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    d_QN, s_QK = T_QKF.sum(2), G_QNF.sum(2)
    here = engine.select_device(Engine.NCCL, 0)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "GROUPED_ON_GPU", heads * A.nnz)
        for device in (torch.device("cpu"), here):
            at, at_T = to_device(A, device), to_device(A_T, device)
            d, s, T, G = (x.to(device) for x in (d_QN, s_QK, T_QKF, G_QNF))
            with torch.profiler.profile() as profiler:
                a, Z = attention.attend(at, d, s, T)
                dl, dd = attention.attend_rows_backward(at, d, s, T, a, G)
                dT, ds = attention.attend_columns_backward(at_T, a, dl, G)
            found.append([x.cpu() for x in (a, Z, dl, dd, dT, ds)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-12, atol=1e-12)
    calls = {each.key: each.count for each in profiler.key_averages()}
    assert calls["aten::sparse_sampled_addmm"] == -(-HEADS // heads)


@pytest.mark.parametrize("heads", [1, 2, HEADS])
def test_heads_of_attention_are_computed_in_groups(on_gpus: Callable[..., list[Any]], heads: int) -> None:
    on_gpus(1, attends_alike, heads)
