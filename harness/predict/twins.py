"""Sizes of a graph that is not built, from three smaller twins of it.

What a strategy sends and multiplies may depend on where the edges lie: on the boundary of a part, on the neighbours
that a sample meets, on the rows that a cache has. A card does not tell that. So the strategy is replayed on twins of
the graph (`harness.store.catalog`), in the same order of vertices and on the same grid. A rank issues the same kernels
and calls on every twin. Each of their sizes x grows from twin to twin as a power of the number of vertices n:

    dx / x = b(n) dn / n        b = 0 for weights and mini-batches, 1 for the rows of a rank

and b falls as a power of n, where a larger graph no longer adds neighbours to a mini-batch. The three twins tell b and
its fall. No size shrinks, and b neither exceeds 1 nor rises.

How far b falls beyond the largest twin is the uncertain part. The epoch is predicted with the b of the two largest
twins, too, as if it fell no further; the factor between both predictions joins the interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, expm1, log

from harness.errors import UserError
from harness.ledger.tape import Event, ProductShape
from harness.predict.prediction import (
    STEPS,
    Prediction,
    RankEpoch,
    SecondsBetween,
    check_card,
    extremes,
    priced,
    replayed_ranks,
)
from harness.spec.machine_card import MachineCard
from harness.strategy import Ready, Strategy

TWINS = 3

Law = Callable[[Sequence[float]], float]
"""A size of the graph, by the same size of three twins."""


def predict_from_twins(
    strategy: Strategy, card: MachineCard, twins: Sequence[Ready], ranks: Sequence[int] | None = None
) -> Prediction:
    """Predicts an epoch on a graph by the same strategy on three twins, the smallest first."""
    check_card(card)
    assert len(twins) == TWINS
    _check_sizes(strategy, twins)
    ranks = ranks or extremes(twins[-1])
    counted = [replayed_ranks(each, ranks) for each in twins]
    sizes = [each.strategy.facts.vertices for each in (*twins, Ready(strategy))]
    bent, straight = (
        priced(
            [_grown(strategy, each, growth(sizes, bends=bends)) for each in zip(*counted, strict=True)],
            card,
        )
        for bends in (True, False)
    )
    return replace(bent, seconds=_wider(bent.seconds, straight.seconds.value / bent.seconds.value))


def growth(vertices: Sequence[int], *, bends: bool) -> Law:
    """The law of a graph of so many vertices, the last, by three twins."""
    x = [log(n) for n in vertices]
    steps = [x[1] - x[0], x[2] - x[1]]
    middle = (x[2] - x[0]) / 2  # between the middles of both steps

    def law(sizes: Sequence[float]) -> float:
        if min(sizes) <= 0 or sizes[2] <= sizes[1]:
            return sizes[2]
        before, b = (
            min(max(log(large / small) / step, 0.0), 1.0)
            for small, large, step in zip(sizes, sizes[1:], steps, strict=False)
        )
        fall = max(log(before / b), 0.0) / middle if bends and before > 0 else 0.0
        at_end = b * exp(-fall * steps[1] / 2)
        distance = -expm1(-fall * (x[3] - x[2])) / fall if fall else x[3] - x[2]
        return sizes[2] * exp(at_end * distance)

    return law


def _wider(seconds: SecondsBetween, off: float) -> SecondsBetween:
    """The interval with a further, independent factor."""
    spread = exp((log(seconds.high / seconds.value) ** 2 + log(off) ** 2) ** 0.5)
    return SecondsBetween(seconds.value, seconds.value / spread, seconds.value * spread)


def _check_sizes(strategy: Strategy, twins: Sequence[Ready]) -> None:
    """Refuses twins whose features have another width, or whose epochs have too few steps to show the usual one."""
    spec, facts = strategy.spec, strategy.facts
    if len({twin.strategy.facts.vertices for twin in twins}) < TWINS:
        raise UserError(f"two twins of {spec.dataset.name} have equally many vertices: take others.")
    for twin in twins:
        name = twin.strategy.spec.dataset.name
        if (twin.strategy.facts.features, twin.strategy.facts.classes) != (facts.features, facts.classes):
            raise UserError(f"{name} has other widths than {spec.dataset.name}, so its sizes tell nothing.")
        if min(twin.strategy.steps, STEPS + 1) != min(strategy.steps, STEPS + 1):
            raise UserError(
                f"{name} is too small for mini-batches of {spec.training.batch} on {spec.ranks} ranks: take larger "
                "twins, or a smaller training.batch."
            )


def _grown(strategy: Strategy, twins: Sequence[RankEpoch], law: Law) -> RankEpoch:
    """A rank of the graph, by the same rank of its twins."""
    replays, last = [each.replayed for each in twins], twins[-1]
    issued = [[_issued(event) for event in each.events] for each in replays]
    if issued.count(issued[-1]) < len(issued):
        raise UserError(
            "A rank issues other kernels or calls on a larger twin, so its sizes cannot be extrapolated. Where a "
            "parameter counts vertices, as those of a bin, make it larger than a rank's part of the graph."
        )
    events = [_grown_event(each, law) for each in zip(*(each.events for each in replays), strict=True)]
    peak = round(law([each.peak_bytes for each in replays]))
    grown = replace(last.replayed, events=events, peak_bytes=peak)
    return RankEpoch(strategy, grown, last.played, strategy.steps - len(grown.first_of_step))


def _issued(event: Event) -> tuple[object, ...]:
    """Everything of an event but its sizes."""
    return (
        event.key,
        len(event.products),
        event.leaves,
        event.waits_for,
        event.travels_with,
        event.prefetched_after,
    )


def _grown_event(twins: Sequence[Event], law: Law) -> Event:
    def size(of: Callable[[Event], float]) -> float:
        return law([of(each) for each in twins])

    last = twins[-1]
    amounts = replace(
        last.amounts,
        words_payload=size(lambda each: each.amounts.words_payload),
        words_received=size(lambda each: each.amounts.words_received),
        bytes=round(size(lambda each: each.amounts.bytes)),
        flops=round(size(lambda each: each.amounts.flops)),
        bytes_touched=round(size(lambda each: each.amounts.bytes_touched)),
    )
    products = [_grown_product(each, law) for each in zip(*(each.products for each in twins), strict=True)]
    streamed = round(size(lambda each: each.streamed))
    drawn, copied = round(size(lambda each: each.drawn)), round(size(lambda each: each.copied))
    return replace(last, amounts=amounts, products=products, streamed=streamed, drawn=drawn, copied=copied)


def _grown_product(twins: Sequence[ProductShape], law: Law) -> ProductShape:
    rows, inner, columns, nonzeros = (round(law(sizes)) for sizes in list(zip(*twins, strict=True))[:4])
    return twins[-1]._replace(rows=rows, inner=inner, columns=columns, nonzeros=nonzeros)
