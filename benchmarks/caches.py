"""What caches of features save: how often they have the row of another rank that a mini-batch needs.

    python benchmarks/caches.py

Ranks train on METIS's parts of a graph, each on its own training vertices, two layers of so many neighbours. Caches
have as many rows for every policy, a share of n / P: those that most vertices listen to (Quiver's), the likeliest to be
needed (SALIENT++'s), those at the boundary that were needed of late (MassiveGNN's, from their degrees on). Nothing is
trained or sent: hits are counted over all ranks, in the second epoch of the run that this would be.
"""

import argparse

from harness.graph.partition import in_order, parts_of
from harness.kernels import block
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine import Machine
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.compose import compose
from harness.store.memory import MemoryStore
from harness.strategy import BlockCounts, admit, facts_of
from strategies.sampling.features import FromOwners, Peers
from strategies.sampling.trainer import Sampled

GRAPHS = ("sbm-4096", "rmat-17")
POLICIES = ("quiver", "salient", "massivegnn")
SHARES = (0.05, 0.1, 0.2)
EVERY = 8
"""Mini-batches between evictions."""


def ready(store: MemoryStore, name: str, ranks: int, fanout: int, batch: int, share: float) -> Sampled:
    """A strategy that keeps so many rows; MassiveGNN's share is one of the boundary."""
    more = {"every": EVERY} if name == "massivegnn" else {}

    def keeping(part: float) -> Sampled:
        spec = {
            "strategy": {"name": name, "params": {"fanouts": [fanout], "share": part, **more}},
            "dataset": "any",
            "ranks": ranks,
            "grid": {AxisName.P: ranks},
            "model": {"kind": "sage", "layers": 2},
            "training": {"batch": batch},
            "machine": Machine(name="none"),
        }
        strategy = admit(load_strategy(name), Spec.model_validate(spec), facts_of(store))
        assert isinstance(strategy, Sampled)
        return strategy

    if name != "massivegnn":
        return keeping(share)
    whole, counts = keeping(1.0), BlockCounts(store)
    boundary = sum(
        whole.part.features.held(whole.layout, {AxisName.P: rank}, counts).rows for rank in range(ranks)
    )
    return keeping(min(share * store.n / boundary, 1.0))


def hit_rate(strategy: Sampled, store: MemoryStore) -> float:
    """Of all ranks, in the second epoch."""
    features, seen = strategy.part.features, strategy.foreseen(BlockCounts(store))
    assert isinstance(features, FromOwners)
    A, layout = seen.graph.A, strategy.layout
    peers = Peers(
        features.policy, layout, {AxisName.P: 0}, seen, lambda rows: block(A, rows, layout.vertices)
    )
    needed = found = 0
    for step in range(2 * strategy.steps):
        for rank, (cache, own) in enumerate(zip(peers.caches, layout.blocks, strict=True)):
            K = seen.batch(step, rank).vertices[0]
            hits = len(cache.look(K).found)
            if step >= strategy.steps:
                needed += int(((own.start > K) | (own.stop <= K)).sum())
                found += hits
    return found / max(needed, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--batch", type=int, default=512)
    options = parser.parse_args()
    root = project_root()
    print(f"| graph | rows kept | {' | '.join(POLICIES)} |")
    print(f"|{' --- |' * (2 + len(POLICIES))}")
    for name in options.graphs:
        graph = compose(load_card(root, name), data_folder(root))
        parts = parts_of(graph.A, "metis", options.ranks, 0)
        store = MemoryStore(graph, partition=in_order(parts, options.ranks))
        for share in SHARES:
            rates = [
                hit_rate(ready(store, policy, options.ranks, options.fanout, options.batch, share), store)
                for policy in POLICIES
            ]
            told = " | ".join(f"{rate:.0%}" for rate in rates)
            print(f"| {name} | {share:g} n/P | {told} |", flush=True)


if __name__ == "__main__":
    main()
