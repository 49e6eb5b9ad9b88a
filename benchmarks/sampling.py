"""Sampling mini-batches: bulk sampling, on one rank and over links, and caches of features."""

import os
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import alternate, rmat_graph, train_in_turns, trainer_on_hosts
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from harness.graph.cards.catalog import load_card
from harness.graph.partitions.partition import compute_parts, order_by_part
from harness.graph.store.contents import load_graph
from harness.graph.store.memory_store import MemoryStore
from harness.kernels import Csr
from harness.kernels.jit import compiled
from harness.kernels.parts import extract_block
from harness.kernels.random import Purpose
from harness.kernels.shuffle import random_permutation
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine_card import Machine
from harness.spec.root import find_data_folder, find_root
from harness.spec.spec import Spec
from harness.strategies.sampling.bulk import Algorithm1, BulkGraph
from harness.strategies.sampling.composition import SampledStrategy
from harness.strategies.sampling.features import PartitionedFeatures, PeerCaches
from harness.strategies.sampling.matrices import PositionMap
from harness.strategy import BlockCounts, admit, facts_of

# Bulk sampling on one rank.

FANOUTS = (15, 10, 5)


@benchmark
def sampling(
    scale: int = 20,
    degree: int = 16,
    batch: int = 1024,
    bulk: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    turns: int = 7,
) -> Results:
    """Compare bulk sampling with a plain sampler of neighbours: equal fan-outs, results of equal form.

    Both draw from an R-MAT graph without replacement, every set of neighbours as likely, and leave a matrix a layer
    whose columns are places in the list of vertices that the next layer asks for. The plain sampler is one compiled
    loop a batch: Floyd's algorithm and a random number of two multiplications. The two take turns; a cell is the
    median of the turns, and in brackets the least and the most.

    Args:
        scale: the graph has 2^SCALE vertices
        degree: edges drawn for each vertex
        bulk: numbers k of batches that are sampled at once
    """
    A = rmat_graph(scale, degree, directed=True)
    places = range(min(batch * max(bulk), A.rows))
    batches = list(random_permutation(0, Purpose.SAMPLE, A.rows).values_at(places).split(batch))
    yield (
        f"{A.rows:,} vertices, {A.nnz:,} nonzeros, longest row {int(A.rowptr.diff().max()):,}; batches of {batch}, "
        f"fan-outs {'-'.join(map(str, FANOUTS))}; one thread; load {os.getloadavg()[0]:.1f}."
    )
    yield Table("k", "bulk, ms a batch", "plain, ms a batch", "plain / bulk, pair by pair", "entries a batch")
    for k in bulk:
        yield k, *compare_samplers(A, batches[:k], turns)


def compare_samplers(A: Csr, batches: list[Tensor], turns: int) -> list[str]:
    """Time both samplers in turns, each first in every other pair."""
    bulk, whole = Algorithm1(0, "graphsage", FANOUTS), BulkGraph(A)
    plain, places = PlainSampler(A), PositionMap(A.rows)
    competitors: dict[str, Callable[[], list[int]]] = {
        "bulk": lambda: [layer.A.nnz for layer in bulk.draw(whole, places, 0, range(len(batches)), batches)],
        "plain": lambda: [sum(entries) for entries in zip(*map(plain.draw, batches), strict=True)],
    }
    entries = [sum(draw()) for draw in competitors.values()]
    seconds = alternate(competitors, turns, warm=0, swap=True)
    ratios = [b / a for a, b in zip(seconds["bulk"], seconds["plain"], strict=True)]
    cells = [show_spread([1e3 * each / len(batches) for each in some]) for some in seconds.values()]
    return [*cells, show_spread(ratios), " and ".join(f"{count / len(batches):,.0f}" for count in entries)]


def show_spread(values: list[float]) -> str:
    """Return the median, the least and the most."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class PlainSampler:
    """Samples one batch at a time."""

    def __init__(self, A: Csr) -> None:
        self.A = A.rowptr.numpy(), A.col.numpy(), A.val.numpy()
        self.where = np.full(A.rows, -1, dtype=np.int64)
        self.state = np.array([1], dtype=np.uint64)

    def draw(self, batch: Tensor) -> list[int]:
        """Sample a batch; return the entries of every layer."""
        vertices, entries = batch.numpy(), []
        for fanout in FANOUTS:
            *_, vertices, nnz = sample_layer(self.A, vertices, fanout, self.where, self.state)
            entries.append(nnz)
        return entries[::-1]


@compiled(nogil=True)
def sample_layer(A: Any, vertices: Any, fanout: int, where: Any, state: Any) -> Any:
    """Sample a layer: row pointers, columns, values, the vertices of the columns, and the number of entries."""
    rowptr, col, val = A
    out_rowptr = np.zeros(vertices.size + 1, dtype=np.int64)
    out_col = np.empty(vertices.size * fanout, dtype=np.int32)
    out_val = np.empty(vertices.size * fanout, dtype=val.dtype)
    found = np.empty(vertices.size * (fanout + 1), dtype=np.int64)
    chosen = np.empty(fanout, dtype=np.int64)
    for i in range(vertices.size):
        found[i], where[vertices[i]] = vertices[i], i
    known, at = vertices.size, 0
    for i in range(vertices.size):
        start, of = rowptr[vertices[i]], rowptr[vertices[i] + 1] - rowptr[vertices[i]]
        drawn = min(fanout, of)
        for k in range(drawn):
            pick = np.int64(k)
            if drawn < of:
                pick = np.int64(next_random(state) % np.uint64(of - drawn + k + 1))
                for j in range(k):
                    if chosen[j] == pick:
                        pick = of - drawn + k
                        break
            chosen[k] = pick
            vertex = col[start + pick]
            if where[vertex] < 0:
                found[known], where[vertex] = vertex, known
                known += 1
            place, last = where[vertex], at
            while last > out_rowptr[i] and out_col[last - 1] > place:
                out_col[last], out_val[last] = out_col[last - 1], out_val[last - 1]
                last -= 1
            out_col[last], out_val[last] = place, val[start + pick] * (of / drawn)
            at += 1
        out_rowptr[i + 1] = at
    for i in range(known):
        where[found[i]] = -1
    return out_rowptr, out_col[:at], out_val[:at], found[:known], at


@compiled(nogil=True)
def next_random(state: Any) -> Any:
    """Draw a number by Marsaglia's xorshift."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x


# Bulk sampling over links.


@benchmark
def messages(
    hosts: Hosts = FOUR_HOSTS,
    dataset: str = "ogbn-products@1/64w16",
    grids: tuple[str, ...] = ("4x1", "2x2"),
    bulks: tuple[int, ...] = (1, 2, 4, 8, 16, 0),
    fanouts: tuple[int, ...] = (10, 5),
    batch: int = 64,
    hidden: int = 16,
    rounds: int = 5,
) -> Results:
    """Train with bulk sampling of a partitioned graph on slow links: an epoch's messages and time against k.

    k = 1 samples batch by batch, k = `all` samples every batch of the epoch at once. In every round each k trains one
    epoch. A ratio is the median of the rounds' ratios, of epochs side by side. Milliseconds are the slowest rank's,
    the median of epochs: of the epoch, and of the three phases of sampling. Calls and words are from the rank that
    has most.

    Args:
        grids: grids of as many ranks as there are hosts
        bulks: numbers k of batches that are sampled at once; 0 for all
        fanouts: neighbours that are sampled in each layer
    """

    def request(grid: str, bulk: int) -> dict[str, Any]:
        return {
            "strategy": {
                "name": "bulk-sage",
                "params": {"fanouts": fanouts, "bulk": bulk, "graph": "partitioned"},
            },
            "dataset": {"name": dataset, "permutation": "single"},
            "grid": grid,
            "model": {"layers": len(fanouts), "hidden": hidden},
            "training": {"batch": batch},
        }

    yield Table(
        *("grid", "k", "ms:.0f", "sampling, ms:.0f", "times as fast as k = 1:.2f"),
        *("calls:,", "of sampling:,", "words:,.0f"),
    )
    for grid in grids:
        measured = train_in_turns([trainer_on_hosts(hosts, request(grid, bulk)) for bulk in bulks], rounds)
        for bulk, turns in zip(bulks, measured, strict=bool(measured)):
            times = 1e3 * turns.median(), 1e3 * turns.median("sampling"), turns.ratio(measured[0])
            yield grid, bulk or "all", *times, *map(turns.most, ("calls", "sampling_calls", "words"))


# Caches of features.

POLICIES = ("quiver", "salient", "massivegnn")
SHARES = (0.05, 0.1, 0.2)
EVERY = 8
"""Mini-batches between evictions."""


@benchmark
def caches(
    graphs: tuple[str, ...] = ("sbm-4096", "rmat-17"), ranks: int = 4, fanout: int = 10, batch: int = 512
) -> Results:
    """Count how often a feature cache has the remote row that a mini-batch needs.

    Ranks train on METIS's parts of a graph, each on its own training vertices, two layers. Caches have as many rows for
    every policy, a share of n / P: those that most vertices listen to (Quiver's), the likeliest to be needed
    (SALIENT++'s), and those at the boundary that were needed lately (MassiveGNN's, by degree at first). Nothing is
    trained or sent: hits are counted over all ranks, in the second epoch of such a run.

    Args:
        fanout: neighbours that are sampled in each layer
    """
    root = find_root()
    yield Table("graph", "rows kept", *(f"{policy}:.0%" for policy in POLICIES))
    for name in graphs:
        graph = load_graph(load_card(root, name), find_data_folder(root))
        parts = compute_parts(graph.A, "metis", ranks, 0)
        store = MemoryStore(graph, partition=order_by_part(parts, ranks))
        for share in SHARES:
            strategies = (make_strategy(store, policy, ranks, fanout, batch, share) for policy in POLICIES)
            yield name, f"{share:g} n/P", *(measure_hit_rate(strategy, store) for strategy in strategies)


def make_strategy(
    store: MemoryStore, name: str, ranks: int, fanout: int, batch: int, share: float
) -> SampledStrategy:
    """Return a strategy whose cache has a share of n / P rows; MassiveGNN's own share is of the boundary."""
    more = {"every": EVERY} if name == "massivegnn" else {}

    def with_share(part: float) -> SampledStrategy:
        asked = {
            "strategy": {"name": name, "params": {"fanouts": [fanout], "share": part, **more}},
            "dataset": "any",
            "ranks": ranks,
            "grid": {AxisName.P: ranks},
            "model": {"kind": "sage", "layers": 2},
            "training": {"batch": batch},
            "machine": Machine(name="none"),
        }
        strategy = admit(load_strategy(name), Spec.model_validate(asked), facts_of(store))
        assert isinstance(strategy, SampledStrategy)
        return strategy

    if name != "massivegnn":
        return with_share(share)
    whole, counts = with_share(1.0), BlockCounts(store)
    boundary = sum(
        whole.composed.features.held_sizes(whole.layout, {AxisName.P: rank}, counts).rows
        for rank in range(ranks)
    )
    return with_share(min(share * store.n / boundary, 1.0))


def measure_hit_rate(strategy: SampledStrategy, store: MemoryStore) -> float:
    """Return the hit rate over all ranks, in the second epoch."""
    features, seen = strategy.composed.features, strategy.global_replay(BlockCounts(store))
    assert isinstance(features, PartitionedFeatures)
    A, layout = seen.graph.A, strategy.layout
    peers = PeerCaches(
        features.policy, layout, {AxisName.P: 0}, seen, lambda rows: extract_block(A, rows, layout.vertices)
    )
    caches = [peers.new_cache(rank, torch.device("cpu")) for rank in range(len(layout.blocks))]
    needed = hits = 0
    for step in range(2 * strategy.steps):
        for rank, (cache, own) in enumerate(zip(caches, layout.blocks, strict=True)):
            K = seen.batch(step, rank).vertices[0]
            cached = len(cache.look_up(K).hits)
            if step >= strategy.steps:
                needed += int(((own.start > K) | (own.stop <= K)).sum())
                hits += cached
    return hits / max(needed, 1)
