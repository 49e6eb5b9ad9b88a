"""The time of replaying one rank of a large world, on a graph of the size of ogbn-products.

python benchmarks/replay.py
"""

from functools import partial
from statistics import median

from measuring import alternate

from harness.registry import load_strategy
from harness.replay import replay
from harness.spec.spec import Spec
from harness.strategy import Facts

PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)
ROUNDS = 4


def main() -> None:
    for ranks in (1, 64, 512, 2048, 4096):
        asked = {
            "strategy": "cagnet-1d",
            "dataset": "products",
            "ranks": ranks,
            "grid": {"p": ranks},
            "model": {"hidden": 128, "layers": 3},
            "machine": {"name": "any"},
        }
        strategy = load_strategy("cagnet-1d")(Spec.model_validate(asked), PRODUCTS)
        events = len(replay(strategy).events)
        seconds = alternate({"replay": partial(replay, strategy)}, ROUNDS, warm=0)["replay"]
        times = f"{median(seconds):.3f} s (best {min(seconds):.3f})"
        print(f"cagnet-1d, {ranks} ranks: {times}, {events:,} events")


if __name__ == "__main__":
    main()
