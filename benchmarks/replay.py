"""How long it takes to replay one rank of a large world: a graph of the size of ogbn-products.

python benchmarks/replay.py
"""

import time
from statistics import median

from harness.registry import load_strategy
from harness.replay import replay
from harness.spec.spec import Spec
from harness.strategy import Facts

PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)
ROUNDS = 5


def main() -> None:
    for ranks in (1, 64, 512, 2048, 4096):
        given = {"strategy": "cagnet-1d", "dataset": "products", "ranks": ranks, "grid": {"p": ranks}}
        more = {"model": {"hidden": 128, "layers": 3}, "machine": {"name": "any"}}
        strategy = load_strategy("cagnet-1d")(Spec.model_validate({**given, **more}), PRODUCTS)
        seconds, events = [], 0
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            events = len(replay(strategy).events)
            seconds.append(time.perf_counter() - begun)
        print(
            f"cagnet-1d, {ranks} ranks: {median(seconds[1:]):.3f} s (best {min(seconds):.3f}), {events:,} events"
        )


if __name__ == "__main__":
    main()
