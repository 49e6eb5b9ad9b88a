"""`compose` compared with every other strategy on full graphs: by predictions, and by the clock."""

import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.fairness import Comparison, Competitor, count_received, find_best
from benchmarks.launches import EPOCHS, RATIO_LAUNCHES, format_ratios, measure_launches
from benchmarks.measuring import card_of_hosts, named, spec_of
from benchmarks.registry import Hosts, Results, Table, benchmark
from harness.graph.store.building import build_store
from harness.prediction.advice import Option
from harness.registry import load_strategy
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid

OURS = "compose"
MILLION = 1e6
FOUND = Path(__file__).parent / "results" / "compose.csv"
"""What the search found: the best choice of every strategy, by regime."""
KEY = ["dataset", "ranks", "layers", "hidden", "rate"]
OVERLAP: tuple[dict[str, Any], ...] = ({}, {"overlap": True})


def add_overlap(*settings: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the settings without and with overlap."""
    return tuple({**setting, **more} for setting in settings for more in OVERLAP)


STAGES: tuple[dict[str, Any], ...] = tuple(
    {**moves, **gradient}
    for moves in ({"moves": "all_gather"}, {"overlap": True})
    for gradient in ({}, {"weight_gradient": "T"})
)
"""Blocks of H arrive all together, or each while another one is multiplied."""
EXACT = (
    *(Competitor(name, STAGES) for name in ("cagnet-1d", "cagnet-2d", "cagnet-3d")),
    *(
        Competitor(name, add_overlap({}, {"weight_gradient": "T"}))
        for name in ("cagnet-1.5d", "cagnet-sa-1d", "cagnet-sa-1.5d")
    ),
    Competitor("plexus", ({}, {"aggregation": "overlapped"})),
    Competitor("rdm"),
    Competitor("bns-gcn", add_overlap({}, {"precompute": False})),
    Competitor("neutronstar", add_overlap(*({"flops_per_word": each} for each in (100.0, 1000.0, 3000.0)))),
    Competitor("g3"),
    Competitor(OURS, add_overlap({}, {"replicas": True})),
)
"""Every exact strategy on full graphs, with the parameters that may make its epochs faster."""
INEXACT = (
    Competitor(OURS, OVERLAP),
    Competitor("bns-gcn", OVERLAP),
    Competitor("bns-gcn", ({"p": 0.1}, {"p": 0.1, "overlap": True})),
    Competitor("pipegcn"),
    *(Competitor("adaqp", ({"bits": bits},)) for bits in (8, 4, 2)),
    Competitor("sancus", OVERLAP),
    Competitor("distgnn"),
    Competitor("distgnn", ({"delay": 5},)),
    Competitor("distgnn", ({"aggregates": "none"},)),
)
"""Strategies that send rounded, stale or no rows, after `compose` and the exact strategy that some of them alter."""


def make_comparison(competitors: Sequence[Competitor], layers: int, hidden: int) -> Comparison:
    """Return the comparison of competitors; set-up has columns of its own."""
    return Comparison(
        "seconds of an epoch; what ranks receive before training is in a column of its own",
        tuple(competitors),
        {"layers": layers, "hidden": hidden},
        unequal=(
            "the best settings are those with the shortest predicted epoch, not the shortest measured one",
        ),
    )


@benchmark
def search(
    dataset: str = "amazon-shape",
    ranks: tuple[int, ...] = (4, 8),
    rate: int = 200,
    layers: int = 2,
    hidden: int = 128,
    only: tuple[str, ...] = (),
) -> Results:
    """Predict an epoch of every exact strategy with each of its settings, and show the best of each.

    Settings are parameters, blocks or a partition, and grids. Predictions are those of `harness predict` by
    config/machines/ethernet.yaml, with links of RATE Mbit/s and all ranks on the cores of this machine, as on the
    testbed. The best settings are kept in benchmarks/results/compose.csv, for compose.pairs.

    Args:
        ranks: numbers of ranks
        rate: of the links, in Mbit/s
    """
    competitors = [each for each in EXACT if not only or each.strategy in (*only, OURS)]
    comparison = make_comparison(competitors, layers, hidden)
    yield comparison.describe()
    for world in ranks:
        found = find_best(comparison, dataset, world, card_of_hosts(rate))
        options = sorted(found.options, key=lambda option: option.cost)
        ours = next(option for option in options if option.strategy.name == OURS)
        yield Table(
            *("strategy", "settings", "grid", "M elements an epoch:.3f", "before training:.3f", "MB:.0f"),
            *("predicted s:.3f", "over compose:.2f"),
            title=describe_setting(dataset, world, layers, hidden, rate),
        )
        for option in options:
            spec, prediction = option.strategy.spec, option.prediction
            seconds, elements = prediction.seconds.value, prediction.elements_received / MILLION
            over = seconds / ours.prediction.seconds.value
            amounts = elements, count_received(option.ready).setup / MILLION, prediction.peak_bytes / MILLION
            yield spec.strategy.name, describe_choices(spec), option.grid, *amounts, seconds, over
        yield from found.describe()
        keep_choices(options, (dataset, world, layers, hidden, rate))


@benchmark
def pairs(
    hosts: int = 4,
    rate: str = "200mbit",
    dataset: str = "amazon-shape",
    layers: int = 2,
    hidden: int = 128,
    others: int = 4,
    launches: int = RATIO_LAUNCHES,
    epochs: int = EPOCHS,
) -> Results:
    """Train `compose` and the strategies that compose.search put first on slow links. Needs root.

    Every launch trains all of them, one after the other. Its ratio is the median epoch of the strategy over that of
    `compose`. The table has the median over launches and its interval, corrected for the number of strategies.

    Args:
        hosts: emulated hosts
        rate: of each link, as 200mbit
        others: strategies that are timed in addition to `compose`
    """
    cluster = Hosts(hosts, rate)
    chosen = read_choices(dataset, hosts, layers, hidden, round(cluster.mbits), others)
    yield make_comparison(EXACT, layers, hidden).describe()
    where = describe_setting(dataset, hosts, layers, hidden, round(cluster.mbits))
    yield from time_launches(chosen, cluster, where, launches, epochs)


@benchmark
def inexact(
    hosts: int = 4,
    rate: str = "200mbit",
    dataset: str = "amazon-shape",
    layers: int = 2,
    hidden: int = 128,
    launches: int = RATIO_LAUNCHES,
    epochs: int = EPOCHS,
) -> Results:
    """Train `compose` and the strategies that send rounded, stale or no rows on slow links. Needs root.

    Among them are the exact strategies that they alter. Settings, ratios and intervals are as in compose.pairs.

    Args:
        hosts: emulated hosts
        rate: of each link, as 200mbit
    """
    comparison, cluster = make_comparison(INEXACT, layers, hidden), Hosts(hosts, rate)
    yield comparison.describe()
    found = find_best(comparison, dataset, hosts, card_of_hosts(cluster.mbits))
    yield from found.describe()
    chosen = [Choice(option.strategy.spec, option.prediction.seconds.value) for option in found.options]
    where = describe_setting(dataset, hosts, layers, hidden, round(cluster.mbits))
    yield from time_launches(chosen, cluster, where, launches, epochs)


def describe_choices(spec: Spec) -> str:
    """Return the choices of a strategy that differ from its defaults: parameters and partition."""
    usual = load_strategy(spec.strategy.name).Params().model_dump(mode="json")
    params = {key: value for key, value in spec.strategy.params.items() if usual.get(key) != value}
    parts = [spec.dataset.partition] if spec.dataset.partitioned else []
    return " ".join([named("", params).strip(), *parts]).strip()


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


def describe_setting(dataset: str, ranks: int, layers: int, hidden: int, rate: int) -> str:
    """Return a title."""
    return f"{dataset}, {ranks} ranks on links of {rate} Mbit/s, {layers} layers of hidden {hidden}"


class Choice(NamedTuple):
    """A spec that is timed, and the seconds of an epoch that were predicted for it."""

    spec: Spec
    predicted: float = nan


def read_choices(dataset: str, ranks: int, layers: int, hidden: int, rate: int, others: int) -> list[Choice]:
    """Return the best choices of `compose` and of the strategies that the search put first."""
    rows, here = pd.read_csv(FOUND), (dataset, ranks, layers, hidden, rate)
    rows = rows[(rows[KEY] == pd.Series(here, index=KEY)).all(axis=1)]
    every = [
        Choice(spec_of(json.loads(str(row["request"]))), float(row["predicted"]))
        for row in rows.to_dict("records")
    ]
    if not every:
        raise SystemExit(
            f"{FOUND} has no choices for {describe_setting(dataset, ranks, layers, hidden, rate)}: search first."
        )
    return sorted(every, key=lambda choice: choice.spec.strategy.name != OURS)[: 1 + others]


def time_launches(choices: Sequence[Choice], hosts: Hosts, where: str, launches: int, epochs: int) -> Results:
    """Time choices on emulated hosts; all are compared with the first."""
    for spec, _ in choices:
        build_store(find_root(), spec.dataset)
    rows = measure_launches([spec for spec, _ in choices], hosts, launches, epochs)
    ours = choices[0].spec.strategy.name
    yield Table(
        *("strategy", "settings", "grid", "predicted s:.3f", "epoch s:.3f", "M elements received:.3f"),
        *("s before training:.3f", "M elements:.3f", f"over {ours}:.2f", "interval"),
        title=f"{where}: {launches} launches of {epochs} epochs",
    )
    for number, (spec, predicted) in enumerate(choices):
        own = rows[rows.spec == number]
        medians = own.drop(columns=["launch", "spec"]).median()
        yield (
            *(spec.strategy.name, describe_choices(spec), format_grid(spec.grid), predicted, medians.seconds),
            *(medians.received / MILLION, medians.setup_seconds, medians.setup_received / MILLION),
            *(
                medians.over_first,
                format_ratios(own.over_first, launches, len(choices) - 1) if number else None,
            ),
        )
