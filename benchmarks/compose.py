"""`compose` beside every other strategy on full graphs: by words and predictions, and by the clock.

    python benchmarks/compose.py search --dataset amazon-shape --ranks 4 8
    python benchmarks/testbed up --hosts 8 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/compose.py pairs --dataset amazon-shape
    python benchmarks/testbed run -- python benchmarks/compose.py inexact --dataset amazon-shape
    python benchmarks/testbed down

`search` predicts an epoch of every exact strategy with each of its options below, in both orders of products, with
blocks and with a partition, on every grid, and prints the best of each strategy. Predictions are those of
`harness predict` by config/machines/ethernet.yaml, with links of `--rate` Mbit/s and all ranks on the cores of this
machine, as on the testbed.

The choices are kept in results/compose.csv. `pairs` trains `compose` and the strategies that the search put first, in
turns: every round has one epoch of each. The ratio is the median over rounds of an epoch of the strategy over the epoch
of `compose` in the same round. `inexact` does the same with the strategies that send rounded, stale or no rows, and
with the exact ones that they alter.
"""

import json
import os
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from measuring import (
    Table,
    argument_parser,
    card_of_hosts,
    named,
    on_hosts,
    spec_of,
    train_in_turns,
    trainer_of,
)

from harness.experiment.known_graph import KnownGraph, look_up_graph
from harness.experiment.requests import admit_on_all_grids
from harness.predict.advice import Option, advise
from harness.predict.prediction import Prediction, price_epochs, replay_ranks, representative_ranks
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.store.datasets import build_store
from harness.strategy import Candidate, Ready

OURS = "compose"
WHERE = "benchmarks/compose.py"
CORES = len(os.sched_getaffinity(0))
MILLION = 1e6
FOUND = Path(__file__).parent / "results" / "compose.csv"
"""What the search found: the best choice of every strategy, by regime."""
KEY = ["dataset", "ranks", "layers", "hidden", "rate"]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cagnet-1d": [{"moves": "all_gather"}, {"moves": "all_gather", "weight_gradient": "T"}],
    "cagnet-1.5d": [{}, {"weight_gradient": "T"}],
    "cagnet-2d": [{"moves": "all_gather"}, {"moves": "all_gather", "weight_gradient": "T"}],
    "cagnet-3d": [{"moves": "all_gather"}, {"moves": "all_gather", "weight_gradient": "T"}],
    "cagnet-sa-1d": [{}, {"weight_gradient": "T"}],
    "cagnet-sa-1.5d": [{}, {"weight_gradient": "T"}],
    "plexus": [{}],
    "rdm": [{}],
    "bns-gcn": [{}],
    "neutronstar": [{}, {"flops_per_word": 1000.0}, {"flops_per_word": 3000.0}],
    "g3": [{}],
    OURS: [{}, {"replicas": True}],
}
"""The options of every exact strategy on full graphs that may move fewer words than its first choice."""
INEXACT: list[tuple[str, dict[str, Any], str]] = [
    (OURS, {}, "metis"),
    ("bns-gcn", {}, "metis"),
    ("bns-gcn", {"p": 0.1}, "metis"),
    ("pipegcn", {}, "metis"),
    *(("adaqp", {"bits": bits}, "metis") for bits in (8, 4, 2)),
    ("sancus", {}, "block"),
    ("distgnn", {}, "libra"),
    ("distgnn", {"delay": 5}, "libra"),
    ("distgnn", {"aggregates": "none"}, "libra"),
]
"""Strategies, parameters and partitions."""
PARTITIONED = ("cagnet-sa-1d", "cagnet-sa-1.5d", "bns-gcn", "neutronstar", "g3", OURS)


def requests(name: str, dataset: str, ranks: int, model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A strategy with each of its options, in both orders, with blocks and with a partition."""
    orders = ("aggregate_first",) if name == OURS else ("aggregate_first", "combine_first")
    for params in OPTIONS[name]:
        for order in orders:
            for partition in ("block", "metis") if name in PARTITIONED else ("block",):
                yield {
                    "strategy": {"name": name, "params": params},
                    "dataset": {"name": dataset, "partition": partition},
                    "ranks": ranks,
                    "model": {**model, "order": order},
                    "machine": "ethernet",
                }


def built(choice: DatasetChoice, known: dict[str, KnownGraph]) -> KnownGraph:
    """The graph in an order, which is built first; each graph is opened once."""
    key = choice.model_dump_json()
    if key not in known:
        build_store(find_root(), choice)
        known[key] = look_up_graph(find_root(), choice)
    return known[key]


def on_these_cores(ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
    """A prediction for ranks that share the cores of this machine."""
    return price_epochs(replay_ranks(ready, ranks or representative_ranks(ready)), card, CORES)


def searched(
    dataset: str, ranks: int, model: dict[str, Any], rate: int, names: Sequence[str]
) -> list[Option]:
    """The best choice of each of these strategies, the fastest first."""
    root, known = find_root(), dict[str, KnownGraph]()
    card = card_of_hosts(rate)
    best = []
    for name in names:
        found: list[Candidate] = [
            admit_on_all_grids(root, name, asked, lambda choice: built(choice, known), WHERE)
            for asked in requests(name, dataset, ranks, model)
        ]
        options = advise(found, card, on_these_cores).full_graph
        if options:
            best.append(options[0])
    return sorted(best, key=lambda option: option.cost)


def described(spec: Spec) -> str:
    """The choices of a strategy that differ from its defaults: parameters, order and partition."""
    from harness.registry import load_strategy

    usual = load_strategy(spec.strategy.name).Params().model_dump(mode="json")
    params = {key: value for key, value in spec.strategy.params.items() if usual.get(key) != value}
    order = ["combine first"] if spec.model.order == "combine_first" else []
    parts = [spec.dataset.partition] if spec.dataset.partitioned else []
    return " ".join([named("", params).strip(), *order, *parts]).strip()


def search(dataset: str, ranks: int, model: dict[str, Any], rate: int, names: Sequence[str]) -> None:
    """Prints the best choice of each of these strategies, and keeps them for `pairs`."""
    print(f"\n{title(dataset, ranks, model, rate)}\n", flush=True)
    options, rows = searched(dataset, ranks, model, rate, names), list[dict[str, Any]]()
    ours = next(option for option in options if option.strategy.name == OURS)
    table = Table("strategy", "choices", "grid", "M words an epoch", "MB", "predicted s", "over compose")
    for option in options:
        spec, prediction = option.strategy.spec, option.prediction
        seconds, words = prediction.seconds.value, prediction.words_received
        ratio = f"{seconds / ours.prediction.seconds.value:.2f}"
        cells = (f"{words / MILLION:.3f}", f"{prediction.peak_bytes / MILLION:.0f}", f"{seconds:.3f}", ratio)
        table.row(spec.strategy.name, described(spec), option.grid, *cells)
        asked = {"strategy": spec.strategy, "dataset": spec.dataset, "model": spec.model}
        rows.append(
            {
                **dict(zip(KEY, (dataset, ranks, model["layers"], model["hidden"], rate), strict=True)),
                "predicted": seconds,
                "request": json.dumps(
                    {
                        **{key: part.model_dump(mode="json") for key, part in asked.items()},
                        "ranks": ranks,
                        "grid": spec.grid,
                        "machine": "ethernet",
                    }
                ),
            }
        )
    fresh = pd.DataFrame(rows)
    known = pd.read_csv(FOUND) if FOUND.is_file() else fresh[:0]
    others = known.merge(fresh[KEY].drop_duplicates(), on=KEY, how="left", indicator=True)
    kept = known[(others["_merge"] == "left_only").to_numpy()]
    pd.concat([kept, fresh]).to_csv(FOUND, index=False)


def title(dataset: str, ranks: int, model: dict[str, Any], rate: int) -> str:
    where = f"{dataset}, {ranks} ranks on links of {rate} Mbit/s"
    return f"{where}, {model['layers']} layers of hidden {model['hidden']}"


class Rival(NamedTuple):
    """A choice that is timed, and the seconds of an epoch that the search predicted for it."""

    spec: Spec
    predicted: float = nan


def found(dataset: str, ranks: int, model: dict[str, Any], rate: int, rivals: int) -> list[Rival]:
    """The best choice of `compose`, and those of the rivals that the search put first."""
    rows, here = pd.read_csv(FOUND), (dataset, ranks, model["layers"], model["hidden"], rate)
    rows = rows[(rows[KEY] == pd.Series(here, index=KEY)).all(axis=1)]
    every = [
        Rival(spec_of(json.loads(str(row["request"]))), float(row["predicted"]))
        for row in rows.to_dict("records")
    ]
    if not every:
        raise SystemExit(f"{FOUND} has no choices for {title(dataset, ranks, model, rate)}: search first.")
    return sorted(every, key=lambda rival: rival.spec.strategy.name != OURS)[: 1 + rivals]


def inexact(dataset: str, ranks: int, model: dict[str, Any]) -> list[Rival]:
    return [
        Rival(
            spec_of(
                {
                    "strategy": {"name": name, "params": params},
                    "dataset": {"name": dataset, "partition": partition},
                    "ranks": ranks,
                    "model": model,
                    "machine": "ethernet",
                }
            )
        )
        for name, params, partition in INEXACT
    ]


def time_in_turns(rivals: Sequence[Rival], rounds: int, where: str) -> None:
    """The part of one rank, on a host of the testbed; the first rival is the one that all are compared with."""
    for spec, _ in rivals:
        build_store(find_root(), spec.dataset)
    timed = train_in_turns([trainer_of(rival.spec) for rival in rivals], rounds)
    first = int(os.environ["RANK"]) == 0
    if first:
        print(f"\n{where}: {rounds} rounds\n")
    ours = rivals[0].spec.strategy.name
    titles = ("strategy", "choices", "grid", "predicted s", "epoch s", "M words received", f"over {ours}")
    table = Table(*titles, shown=first)
    for (spec, predicted), turns in zip(rivals, timed, strict=False):
        table.row(
            spec.strategy.name,
            described(spec),
            format_grid(spec.grid),
            "" if isnan(predicted) else f"{predicted:.3f}",
            f"{turns.median():.3f}",
            f"{turns.most('received') / MILLION:.3f}",
            f"{timed[0].ratio(turns):.2f}",
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("search", "pairs", "inexact"))
    parser.add_argument("--dataset", default="amazon-shape")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8], help="for search")
    parser.add_argument("--rate", type=int, default=200, help="of the links, in Mbit/s")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="strategies (default: all)")
    parser.add_argument("--rivals", type=int, default=4, help="that are timed, for pairs")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = {"layers": options.layers, "hidden": options.hidden}
    if options.what == "search":
        for ranks in options.ranks:
            names = [*options.only, OURS] if options.only else list(OPTIONS)
            search(options.dataset, ranks, model, options.rate, names)
        return
    with on_hosts() as place:
        asked = (options.dataset, place.world, model)
        rivals = inexact(*asked) if options.what == "inexact" else found(*asked, options.rate, options.rivals)
        time_in_turns(rivals, options.rounds, title(*asked, options.rate))


if __name__ == "__main__":
    main()
