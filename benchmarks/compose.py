"""`compose` compared with every other strategy on full graphs: by predictions, and by the clock."""

import json
import os
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.measuring import card_of_hosts, named, spec_of, train_in_turns, trainer_of
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from harness.experiment.known_graph import KnownGraph, look_up_graph
from harness.experiment.requests import admit_on_all_grids
from harness.prediction.advice import Option, advise
from harness.prediction.epoch import Prediction, price_epochs, replay_ranks, representative_ranks
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.store.datasets import build_store
from harness.strategy import Candidate, Ready

OURS = "compose"
WHERE = "benchmarks compose.search"
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


@benchmark
def search(
    dataset: str = "amazon-shape",
    ranks: tuple[int, ...] = (4, 8),
    rate: int = 200,
    layers: int = 2,
    hidden: int = 128,
    only: tuple[str, ...] = (),
) -> Results:
    """Predict an epoch of every exact strategy with each of its options, and show the best choice of each.

    Choices are options, both orders of products, blocks or a partition, and every grid. Predictions are those of
    `harness predict` by config/machines/ethernet.yaml, with links of RATE Mbit/s and all ranks on the cores of this
    machine, as on the testbed. The choices are kept in benchmarks/results/compose.csv, for compose.pairs.

    Args:
        ranks: numbers of ranks
        rate: of the links, in Mbit/s
    """
    model = {"layers": layers, "hidden": hidden}
    for world in ranks:
        names = [*only, OURS] if only else list(OPTIONS)
        options = find_best(dataset, world, model, rate, names)
        ours = next(option for option in options if option.strategy.name == OURS)
        yield Table(
            *("strategy", "choices", "grid", "M words an epoch:.3f", "MB:.0f", "predicted s:.3f"),
            "over compose:.2f",
            title=describe_setting(dataset, world, model, rate),
        )
        for option in options:
            spec, prediction = option.strategy.spec, option.prediction
            seconds, words = prediction.seconds.value, prediction.elements_received / MILLION
            over = seconds / ours.prediction.seconds.value
            choices = spec.strategy.name, describe_choices(spec), option.grid
            yield *choices, words, prediction.peak_bytes / MILLION, seconds, over
        keep_choices(options, (dataset, world, layers, hidden, rate))


@benchmark
def pairs(
    hosts: Hosts = FOUR_HOSTS,
    dataset: str = "amazon-shape",
    layers: int = 2,
    hidden: int = 128,
    rivals: int = 4,
    rounds: int = 5,
) -> Results:
    """Train `compose` and the strategies that compose.search put first on slow links, in turns.

    Every round has one epoch of each. The ratio is the median over rounds of an epoch of the strategy over the epoch of
    `compose` in the same round.

    Args:
        rivals: strategies that are timed
    """
    model, rate = {"layers": layers, "hidden": hidden}, round(hosts.mbits)
    chosen = read_choices(dataset, hosts.count, model, rate, rivals)
    yield from time_in_turns(chosen, rounds, describe_setting(dataset, hosts.count, model, rate))


@benchmark
def inexact(
    hosts: Hosts = FOUR_HOSTS,
    dataset: str = "amazon-shape",
    layers: int = 2,
    hidden: int = 128,
    rounds: int = 5,
) -> Results:
    """Train `compose` and the strategies that send rounded, stale or no rows on slow links, in turns.

    Among them are the exact strategies that they alter. Ratios are as in compose.pairs.
    """
    model, rate = {"layers": layers, "hidden": hidden}, round(hosts.mbits)
    rivals = [
        Rival(
            spec_of(
                {
                    "strategy": {"name": name, "params": params},
                    "dataset": {"name": dataset, "partition": partition},
                    "ranks": hosts.count,
                    "model": {**model, "order": "aggregate_first"},
                    "machine": "ethernet",
                }
            )
        )
        for name, params, partition in INEXACT
    ]
    yield from time_in_turns(rivals, rounds, describe_setting(dataset, hosts.count, model, rate))


def make_requests(name: str, dataset: str, ranks: int, model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a strategy with each of its options, in both orders, with blocks and with a partition."""
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


def open_built(choice: DatasetChoice, known: dict[str, KnownGraph]) -> KnownGraph:
    """Build a graph in an order and open it, once."""
    key = choice.model_dump_json()
    if key not in known:
        build_store(find_root(), choice)
        known[key] = look_up_graph(find_root(), choice)
    return known[key]


def predict_on_these_cores(ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
    """Predict an epoch of ranks that share the cores of this machine."""
    return price_epochs(replay_ranks(ready, ranks or representative_ranks(ready)), card, CORES)


def find_best(
    dataset: str, ranks: int, model: dict[str, Any], rate: int, names: Sequence[str]
) -> list[Option]:
    """Return the best choice of each strategy, the fastest first."""
    root, known = find_root(), dict[str, KnownGraph]()
    card = card_of_hosts(rate)
    best = []
    for name in names:
        found: list[Candidate] = [
            admit_on_all_grids(root, name, asked, lambda choice: open_built(choice, known), WHERE)
            for asked in make_requests(name, dataset, ranks, model)
        ]
        options = advise(found, card, predict_on_these_cores).full_graph
        if options:
            best.append(options[0])
    return sorted(best, key=lambda option: option.cost)


def describe_choices(spec: Spec) -> str:
    """Return the choices of a strategy that differ from its defaults: parameters, order and partition."""
    from harness.registry import load_strategy

    usual = load_strategy(spec.strategy.name).Params().model_dump(mode="json")
    params = {key: value for key, value in spec.strategy.params.items() if usual.get(key) != value}
    order = ["combine first"] if spec.model.order == "combine_first" else []
    parts = [spec.dataset.partition] if spec.dataset.partitioned else []
    return " ".join([named("", params).strip(), *order, *parts]).strip()


def keep_choices(options: Sequence[Option], setting: tuple[object, ...]) -> None:
    """Write the choices of one setting, in the place of its earlier ones."""
    rows = []
    for option in options:
        spec = option.strategy.spec
        asked = {"strategy": spec.strategy, "dataset": spec.dataset, "model": spec.model}
        request = {
            **{key: part.model_dump(mode="json") for key, part in asked.items()},
            "ranks": spec.ranks,
            "grid": spec.grid,
            "machine": "ethernet",
        }
        key = dict(zip(KEY, setting, strict=True))
        rows.append({**key, "predicted": option.prediction.seconds.value, "request": json.dumps(request)})
    fresh = pd.DataFrame(rows)
    known = pd.read_csv(FOUND) if FOUND.is_file() else fresh[:0]
    others = known.merge(fresh[KEY].drop_duplicates(), on=KEY, how="left", indicator=True)
    kept = known[(others["_merge"] == "left_only").to_numpy()]
    pd.concat([kept, fresh]).to_csv(FOUND, index=False)


def describe_setting(dataset: str, ranks: int, model: dict[str, Any], rate: int) -> str:
    """Return a title."""
    where = f"{dataset}, {ranks} ranks on links of {rate} Mbit/s"
    return f"{where}, {model['layers']} layers of hidden {model['hidden']}"


class Rival(NamedTuple):
    """A choice that is timed, and the seconds of an epoch that the search predicted for it."""

    spec: Spec
    predicted: float = nan


def read_choices(dataset: str, ranks: int, model: dict[str, Any], rate: int, rivals: int) -> list[Rival]:
    """Return the best choice of `compose`, and those of the rivals that the search put first."""
    rows, here = pd.read_csv(FOUND), (dataset, ranks, model["layers"], model["hidden"], rate)
    rows = rows[(rows[KEY] == pd.Series(here, index=KEY)).all(axis=1)]
    every = [
        Rival(spec_of(json.loads(str(row["request"]))), float(row["predicted"]))
        for row in rows.to_dict("records")
    ]
    if not every:
        raise SystemExit(
            f"{FOUND} has no choices for {describe_setting(dataset, ranks, model, rate)}: search first."
        )
    return sorted(every, key=lambda rival: rival.spec.strategy.name != OURS)[: 1 + rivals]


def time_in_turns(rivals: Sequence[Rival], rounds: int, where: str) -> Results:
    """Time rivals on emulated hosts; all are compared with the first."""
    for spec, _ in rivals:
        build_store(find_root(), spec.dataset)
    timed = train_in_turns([trainer_of(rival.spec) for rival in rivals], rounds)
    ours = rivals[0].spec.strategy.name
    yield Table(
        *("strategy", "choices", "grid", "predicted s:.3f", "epoch s:.3f", "M words received:.3f"),
        f"over {ours}:.2f",
        title=f"{where}: {rounds} rounds",
    )
    for (spec, predicted), turns in zip(rivals, timed, strict=bool(timed)):
        choices = spec.strategy.name, describe_choices(spec), format_grid(spec.grid)
        yield *choices, predicted, turns.median(), turns.most("received") / MILLION, timed[0].ratio(turns)
