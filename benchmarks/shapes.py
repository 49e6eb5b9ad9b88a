"""Shapes of the papers' results on emulated hosts, which depend on no constant of a predictor. Needs root.

`data/shapes.yaml` registers each shape with its effects and the rule for them, committed before any was measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import mul
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import yaml
from pydantic import Field

from benchmarks.fairness import CORES, open_graphs
from benchmarks.launches import LAUNCHES, format_interval, measure_launch
from benchmarks.measuring import card_of_hosts, spec_of
from benchmarks.registry import Hosts, Results, Table, benchmark
from harness.base.formatting import GB
from harness.base.validation import Frozen
from harness.experiment.defaults import read_choice
from harness.experiment.requests import admit_on_all_grids
from harness.graph.store.datasets import open_dataset
from harness.ledger.tape import ProductShape
from harness.prediction.epoch import price_epochs, replay_ranks
from harness.prediction.pricing import price_spmm
from harness.results.launch_intervals import compute_median_interval, judge_ratio
from harness.runtime.open_run import open_run
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.strategy import Ready, facts_of

REGISTERED = Path(__file__).parent / "data" / "shapes.yaml"
CARRIED = 1600
"""Mbit/s that two cores carry on all links together (benchmarks/results/collectives.md)."""
GRIDS = 2
"""The grids of a run that are measured: those with the shortest predictions."""
EPOCHS = 3
Quantity = Literal["seconds", "sampling", "fullest"]


class Place(Frozen):
    """Where runs are measured."""

    ranks: int
    rate: str | None = None
    """Of the links; by default in proportion to the card."""


class Effect(Frozen):
    """A ratio of runs at places, each named as `RUN at PLACE`."""

    name: str
    times: tuple[str, ...]
    over: tuple[str, ...]
    of: Quantity = "seconds"
    paper: Literal["above", "below"]
    expected: str = Field(alias="we expect")


class Shape(Frozen):
    """One shape."""

    number: int
    paper: str
    says: str
    card: str
    dataset: Any
    model: dict[str, Any]
    training: dict[str, Any] = {}
    places: dict[str, Place]
    runs: dict[str, list[dict[str, Any]]]
    effects: list[Effect]

    def list_requests(self, run: str, place: str) -> list[dict[str, Any]]:
        """Return the requests of a run at a place."""
        common = {"dataset": self.dataset, "model": self.model, "training": self.training}
        ranks = self.places[place].ranks
        return [
            {**common, **request, "ranks": ranks, "machine": "ethernet"}
            for request in ({**each} for each in self.runs[run])
            if request.pop("at", ranks) == ranks
        ]


def read_shapes() -> list[Shape]:
    """Return the registered shapes."""
    return [
        Shape.model_validate({**each, "places": {str(name): place for name, place in each["places"].items()}})
        for each in yaml.safe_load(REGISTERED.read_text())["shapes"]
    ]


@benchmark
def shapes(numbers: tuple[int, ...] = (), launches: int = LAUNCHES) -> Results:
    """Measure registered shapes of the papers' results. Needs root.

    A launch trains all runs at a place, one after the other; values are medians over launches of the slowest rank's
    median epoch. `computing` is the share of an epoch outside calls.

    Args:
        numbers: numbers of shapes (default: all)
    """
    for shape in read_shapes():
        if not numbers or shape.number in numbers:
            yield from measure_shape(shape, launches)


def measure_shape(shape: Shape, launches: int) -> Results:
    """Yield the links, the epochs and the effects of a shape."""
    yield f"## {shape.number}. {shape.paper}: {shape.says}"
    places = {name: find_link(shape, place) for name, place in shape.places.items()}
    yield Table(
        "place", "ranks", "Mbit/s of a link:.0f", "as on the card:.0f", title=f"Links, as on {shape.card}"
    )
    for name, link in places.items():
        yield name, link.hosts.count, link.hosts.mbits, link.scaled
    options = [option for name, link in places.items() for option in list_options(shape, name, link.hosts)]
    frames = []
    for name, link in places.items():
        here = [number for number, option in enumerate(options) if option.place == name]
        frames.append(measure_place(options, here, link.hosts, launches))
    measured = pd.concat(frames, ignore_index=True)
    yield Table(
        "place", "run", "grid", "epoch ms:.0f", "computing:.0%", "sampling ms:.0f", "fullest block:,.0f"
    )
    for number, option in enumerate(options):
        median = measured[measured.option == number].median(numeric_only=True)
        yield (
            *(option.place, option.run, format_grid(option.spec.grid), 1e3 * median.seconds),
            *(median.computing / median.seconds, 1e3 * median.sampling, median.fullest),
        )
    yield Table("effect", "the paper says", "ratio:.3f", "interval", "verdict", "we expected")
    for effect in shape.effects:
        yield (
            effect.name,
            f"{effect.paper} 1",
            *judge(effect, find_ratios(effect, options, measured)),
            effect.expected,
        )


# Links and grids.


class Link(NamedTuple):
    """The hosts of a place, and the rate in Mbit/s of links in proportion to the card."""

    hosts: Hosts
    scaled: float


def find_link(shape: Shape, place: Place) -> Link:
    """Return the hosts of a place.

    A link has the rate of the card's links per device, divided by how much longer a sparse product takes here, on a
    rank's share of the cores. The product multiplies the graph by as many columns as the hidden layers have, in
    float32.
    """
    card, here = (load_machine_card(find_root(), name) for name in (shape.card, "ethernet"))
    assert card.links and card.rates and here.rates and card.rates.spmm and here.rates.spmm
    facts = facts_of(
        open_dataset(find_root(), spec_of({"strategy": "serial", "dataset": shape.dataset}).dataset)
    )
    n, columns = facts.vertices, shape.model["hidden"]
    product = ProductShape(n, n, columns, facts.nonzeros, "float32", "int32")
    slower = price_spmm(product, here.rates.spmm) / price_spmm(product, card.rates.spmm)
    slower *= max(1.0, place.ranks / CORES)
    scaled = 8e-6 * GB * card.links.node_gbs.value / card.links.devices_per_node / slower
    rate = place.rate or f"{round(min(scaled, CARRIED / place.ranks))}mbit"
    return Link(Hosts(place.ranks, rate), scaled)


class Option(NamedTuple):
    """A run at a place, on one grid."""

    run: str
    place: str
    spec: Spec
    predicted: float
    """Seconds of an epoch."""
    fullest: int
    """The most nonzeros of A that a rank multiplies by at once."""


def list_options(shape: Shape, place: str, hosts: Hosts) -> Iterator[Option]:
    """Yield the grids of each run that are measured at a place."""
    card = card_of_hosts(hosts.mbits)
    for run in shape.runs:
        options = []
        for request in shape.list_requests(run, place):
            for ready in list_ready(request):
                replays = replay_ranks(ready, range(hosts.count))
                fullest = max(
                    product.nonzeros
                    for each in replays
                    for event in each.replayed.events
                    for product in event.products
                )
                seconds = price_epochs(replays, card, CORES).seconds.value
                options.append(Option(run, place, ready.strategy.spec, seconds, fullest))
        yield from sorted(options, key=lambda option: option.predicted)[:GRIDS]


def list_ready(request: Mapping[str, Any]) -> Sequence[Ready]:
    """Return a request on its grid, or on all grids."""
    if "grid" in request:
        return [Ready(*open_run(find_root(), spec_of(dict(request))))]
    choice = read_choice(request, "strategy", "shapes")
    name = choice["name"]
    return admit_on_all_grids(find_root(), name, {**request, "strategy": choice}, open_graphs(), name).ready


# Launches and effects.


def measure_place(
    options: Sequence[Option], here: Sequence[int], hosts: Hosts, launches: int
) -> pd.DataFrame:
    """Return a row for each launch and option of a place, whose indices are `here`."""
    specs = [options[number].spec for number in here]
    frames = [measure_launch(specs, hosts, launch, EPOCHS) for launch in range(launches)]
    rows = pd.concat(frames, ignore_index=True)
    rows["option"] = [here[number] for number in rows.spec]
    return rows.assign(fullest=[options[number].fullest for number in rows.option])


def find_ratios(effect: Effect, options: Sequence[Option], measured: pd.DataFrame) -> "pd.Series[float]":
    """Return the ratio of an effect in each launch. Of the grids of a run, the one with the shortest median counts."""

    def values(term: str) -> "pd.Series[float]":
        run, place = term.rsplit(" at ", 1)
        numbers = [
            number for number, option in enumerate(options) if (option.run, option.place) == (run, place)
        ]
        medians = measured[measured.option.isin(numbers)].groupby("option").seconds.median()
        return measured[measured.option == medians.idxmin()].set_index("launch")[effect.of].astype(float)

    above, below = (reduce(mul, map(values, terms)) for terms in (effect.times, effect.over))
    return above / below


def judge(effect: Effect, ratios: "pd.Series[float]") -> tuple[float, str, str]:
    """Return the median ratio, its interval over launches, and the verdict by the rule."""
    side = {"slower": "above", "faster": "below"}.get(judge_ratio(compute_median_interval(ratios)))
    verdict = "undecided" if side is None else "reproduced" if side == effect.paper else "reversed"
    return float(ratios.median()), format_interval(ratios), verdict
