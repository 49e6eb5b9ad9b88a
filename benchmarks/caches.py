"""Hit rates of feature caches: how often a cache has the remote row that a mini-batch needs.

    python benchmarks/caches.py

Ranks train on METIS's parts of a graph, each on its own training vertices, two layers of so many neighbours. Caches
have as many rows for every policy, a share of n / P: those that most vertices listen to (Quiver's), the likeliest to be
needed (SALIENT++'s), and those at the boundary that were needed lately (MassiveGNN's, by degree at first). Nothing is
trained or sent: hits are counted over all ranks, in the second epoch of such a run.
"""

import torch
from measuring import Table, argument_parser

from harness.graph.partition import compute_parts, order_by_part
from harness.kernels.parts import extract_block
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine_card import Machine
from harness.spec.root import find_data_folder, find_root
from harness.spec.spec import Spec
from harness.store.catalog import load_card
from harness.store.contents import load_graph
from harness.store.memory_store import MemoryStore
from harness.strategies.sampling.composition import SampledStrategy
from harness.strategies.sampling.features import PartitionedFeatures, PeerCaches
from harness.strategy import BlockCounts, admit, facts_of

GRAPHS = ("sbm-4096", "rmat-17")
POLICIES = ("quiver", "salient", "massivegnn")
SHARES = (0.05, 0.1, 0.2)
EVERY = 8
"""Mini-batches between evictions."""


def caching(
    store: MemoryStore, name: str, ranks: int, fanout: int, batch: int, share: float
) -> SampledStrategy:
    """A strategy that keeps so many rows; MassiveGNN's share is of the boundary."""
    more = {"every": EVERY} if name == "massivegnn" else {}

    def keeping(part: float) -> SampledStrategy:
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
        return keeping(share)
    whole, counts = keeping(1.0), BlockCounts(store)
    boundary = sum(
        whole.composed.features.held_sizes(whole.layout, {AxisName.P: rank}, counts).rows
        for rank in range(ranks)
    )
    return keeping(min(share * store.n / boundary, 1.0))


def hit_rate(strategy: SampledStrategy, store: MemoryStore) -> float:
    """The hit rate over all ranks, in the second epoch."""
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


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--batch", type=int, default=512)
    options = parser.parse_args()
    root = find_root()
    table = Table("graph", "rows kept", *POLICIES)
    for name in options.graphs:
        graph = load_graph(load_card(root, name), find_data_folder(root))
        parts = compute_parts(graph.A, "metis", options.ranks, 0)
        store = MemoryStore(graph, partition=order_by_part(parts, options.ranks))
        for share in SHARES:
            sizes = options.ranks, options.fanout, options.batch, share
            rates = (hit_rate(caching(store, policy, *sizes), store) for policy in POLICIES)
            table.row(name, f"{share:g} n/P", *(f"{rate:.0%}" for rate in rates))


if __name__ == "__main__":
    main()
