"""`compose` beside every other exact strategy on full graphs: by words and predictions, and by the clock.

    python benchmarks/compose.py search --dataset amazon-shape --ranks 4 8
    python benchmarks/testbed up --hosts 8 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/compose.py pairs --dataset amazon-shape --rivals 2
    python benchmarks/testbed down

`search` predicts an epoch of every exact strategy with each of its options below, in both orders of products, with
blocks and with a partition, on every grid, and prints the best of each strategy. Predictions are those of
`harness predict` by config/machines/ethernet.yaml, whose links have 200 Mbit/s, with all ranks on the cores of this
machine, as on the testbed.

`pairs` trains `compose` and the strategies that the search puts first, in turns: every round has one epoch of each. The
ratio is the median over rounds of an epoch of the strategy over the epoch of `compose` in the same round.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from measuring import Table, argument_parser, named, on_hosts, train_in_turns, trainer_of

from harness.experiment.defaults import on_all_grids
from harness.experiment.known_graph import KnownGraph, known_graph
from harness.predict.advice import Option, advise
from harness.predict.prediction import Prediction, extremes, priced, replayed_ranks
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.build import build
from harness.strategy import Candidate, Ready

OURS = "compose"
WHERE = "benchmarks/compose.py"
CORES = len(os.sched_getaffinity(0))
MILLION = 1e6
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
    "neutronstar": [{}, {"flops_per_word": 1000.0}, {"flops_per_word": 30.0}],
    "g3": [{}],
    OURS: [{}],
}
"""The options of every exact strategy on full graphs that may move fewer words than its first choice."""
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
        build(project_root(), choice)
        known[key] = known_graph(project_root(), choice)
    return known[key]


def on_these_cores(ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
    """A prediction for ranks that share the cores of this machine."""
    return priced(replayed_ranks(ready, ranks or extremes(ready)), card, CORES)


def searched(dataset: str, ranks: int, model: dict[str, Any]) -> list[Option]:
    """The best choice of every strategy, the fastest first."""
    root, known = project_root(), dict[str, KnownGraph]()
    card = load_machine_card(root, "ethernet")
    best = []
    for name in OPTIONS:
        found: list[Candidate] = [
            on_all_grids(root, name, asked, lambda choice: built(choice, known), WHERE)
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


def search(dataset: str, ranks: int, model: dict[str, Any]) -> None:
    """Prints the best choice of every strategy."""
    print(f"\n{dataset}, {ranks} ranks, {model['layers']} layers of hidden {model['hidden']}\n", flush=True)
    options = searched(dataset, ranks, model)
    ours = next(option for option in options if option.strategy.name == OURS)
    table = Table("strategy", "choices", "grid", "M words an epoch", "predicted s", "over compose")
    for option in options:
        seconds, words = option.prediction.seconds.value, option.prediction.words_received
        ratio = f"{seconds / ours.prediction.seconds.value:.2f}"
        cells = (option.grid, f"{words / MILLION:.3f}", f"{seconds:.3f}", ratio)
        table.row(option.strategy.name, described(option.strategy.spec), *cells)


def pairs(dataset: str, model: dict[str, Any], rivals: int, rounds: int) -> None:
    """The part of one rank, on a host of the testbed."""
    with on_hosts() as place:
        options = searched(dataset, place.world, model)
        ours = next(option for option in options if option.strategy.name == OURS)
        others = [option for option in options if option is not ours][:rivals]
        specs = [option.strategy.spec for option in (ours, *others)]
        timed = train_in_turns([trainer_of(spec) for spec in specs], rounds)
        if place.rank == 0:
            title = f"{dataset}, {place.world} ranks, {model['layers']} layers of hidden {model['hidden']}"
            print(f"\n{title}: {rounds} rounds\n")
        table = Table(
            "strategy", "choices", "grid", "predicted s", "epoch s", "M words received", "over compose",
            shown=place.rank == 0,
        )  # fmt: skip
        for option, turns in zip((ours, *others), timed, strict=False):
            table.row(
                option.strategy.name,
                described(option.strategy.spec),
                option.grid,
                f"{option.prediction.seconds.value:.3f}",
                f"{turns.median():.3f}",
                f"{turns.most('received') / MILLION:.3f}",
                f"{timed[0].ratio(turns):.2f}",
            )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("search", "pairs"))
    parser.add_argument("--dataset", default="amazon-shape")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8], help="for search")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rivals", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = {"layers": options.layers, "hidden": options.hidden}
    if options.what == "pairs":
        pairs(options.dataset, model, options.rivals, options.rounds)
        return
    for ranks in options.ranks:
        search(options.dataset, ranks, model)


if __name__ == "__main__":
    main()
