"""Predicts an epoch on a graph that is not built, by extrapolation from three smaller twins of it.

What a strategy sends and multiplies may depend on where the edges lie: on the boundaries of parts, on the neighbours
that a sample reaches, on the rows in a cache. The card of a graph does not contain that. The strategy is therefore
replayed on twins of the graph (`harness.graph.cards.catalog`), with the same order of vertices and on the same grid. A
rank issues the same kernels and calls on every twin. Each of their sizes x grows as a power of the number of vertices
n:

    dx / x = b(n) dn / n        b = 0 for weights and mini-batches, 1 for the rows of a rank

The exponent b decreases as a power of n where a larger graph no longer adds neighbours to a mini-batch. Three twins
determine b and its decrease. Sizes never shrink, and b neither exceeds 1 nor increases.

The decrease of b beyond the largest twin is uncertain. The epoch is therefore also predicted with the constant b of the
two largest twins, and the ratio of the two predictions widens the interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, expm1, log

from harness.base.errors import UserError
from harness.ledger.tape import Event, ProductShape
from harness.prediction.epoch import (
    REPLAYED_STEPS,
    PredictedSeconds,
    Prediction,
    RankEpoch,
    check_card,
    price_epochs,
    replay_ranks,
    representative_ranks,
)
from harness.spec.machine_card import MachineCard
from harness.strategy import Ready, Strategy

TWINS = 3

SizeLaw = Callable[[Sequence[float]], float]
"""Extrapolates a size of the graph from the same size of three twins."""


def predict_from_twins(
    strategy: Strategy, card: MachineCard, twins: Sequence[Ready], ranks: Sequence[int] | None = None
) -> Prediction:
    """Predict an epoch on a graph from the same strategy on three twins, the smallest first."""
    check_card(card)
    assert len(twins) == TWINS
    _check_sizes(strategy, twins)
    ranks = ranks or representative_ranks(twins[-1])
    replays = [replay_ranks(each, ranks) for each in twins]
    sizes = [each.strategy.facts.vertices for each in (*twins, Ready(strategy))]
    laws = (fit_growth(sizes, is_slowing=is_slowing) for is_slowing in (True, False))
    slowing, constant = (
        price_epochs([_extrapolate_rank(strategy, each, law) for each in zip(*replays, strict=True)], card)
        for law in laws
    )
    ratio = constant.seconds.value / slowing.seconds.value
    return replace(slowing, seconds=_widen_interval(slowing.seconds, ratio))


def fit_growth(vertices: Sequence[int], *, is_slowing: bool) -> SizeLaw:
    """Return the law that extrapolates sizes to a graph.

    Args:
        vertices: The numbers of vertices of the three twins, and of the graph.
        is_slowing: Whether the exponent b decreases beyond the largest twin.
    """
    x = [log(n) for n in vertices]
    steps = [x[1] - x[0], x[2] - x[1]]
    middle = (x[2] - x[0]) / 2  # distance between the midpoints of both steps

    def law(sizes: Sequence[float]) -> float:
        if min(sizes) <= 0 or sizes[2] <= sizes[1]:
            return sizes[2]
        before, b = (
            min(max(log(large / small) / step, 0.0), 1.0)
            for small, large, step in zip(sizes, sizes[1:], steps, strict=False)
        )
        decay = max(log(before / b), 0.0) / middle if is_slowing and before > 0 else 0.0
        b_at_largest = b * exp(-decay * steps[1] / 2)
        distance = -expm1(-decay * (x[3] - x[2])) / decay if decay else x[3] - x[2]
        return sizes[2] * exp(b_at_largest * distance)

    return law


def _widen_interval(seconds: PredictedSeconds, factor: float) -> PredictedSeconds:
    """Widen an interval by a further, independent factor."""
    spread = exp((log(seconds.high / seconds.value) ** 2 + log(factor) ** 2) ** 0.5)
    return PredictedSeconds(seconds.value, seconds.value / spread, seconds.value * spread)


def _check_sizes(strategy: Strategy, twins: Sequence[Ready]) -> None:
    """Raise UserError for twins with other widths than the graph, or with too few steps an epoch."""
    spec, facts = strategy.spec, strategy.facts
    if len({twin.strategy.facts.vertices for twin in twins}) < TWINS:
        raise UserError(f"Two twins of {spec.dataset.name} have equally many vertices. Choose other twins.")
    for twin in twins:
        name = twin.strategy.spec.dataset.name
        if (twin.strategy.facts.features, twin.strategy.facts.classes) != (facts.features, facts.classes):
            raise UserError(
                f"{name} has other widths of features or classes than {spec.dataset.name}, so its sizes cannot be "
                "extrapolated."
            )
        if min(twin.strategy.steps, REPLAYED_STEPS + 1) != min(strategy.steps, REPLAYED_STEPS + 1):
            raise UserError(
                f"{name} is too small for mini-batches of {spec.training.batch} on {spec.ranks} ranks. Choose larger "
                "twins, or a smaller training.batch."
            )


def _extrapolate_rank(strategy: Strategy, twins: Sequence[RankEpoch], law: SizeLaw) -> RankEpoch:
    """Extrapolate a rank of the graph from the same rank of its twins."""
    replays, last = [each.replayed for each in twins], twins[-1]
    structures = [[_event_structure(event) for event in each.events] for each in replays]
    if structures.count(structures[-1]) < len(structures):
        raise UserError(
            "A rank issues other kernels or calls on a larger twin, so its sizes cannot be extrapolated. If a "
            "parameter counts vertices, such as the size of a bin, make it larger than a rank's part of the graph."
        )
    events = [_extrapolate_event(each, law) for each in zip(*(each.events for each in replays), strict=True)]
    peak = round(law([each.peak_bytes for each in replays]))
    grown = replace(last.replayed, events=events, peak_bytes=peak)
    return RankEpoch(strategy, grown, last.simulated, strategy.steps - len(grown.first_of_step))


def _event_structure(event: Event) -> tuple[object, ...]:
    """Return everything about an event except its sizes."""
    return (
        event.key,
        len(event.products),
        event.leaves,
        event.waits_for,
        event.travels_with,
        event.prefetched_after,
    )


def _extrapolate_event(twins: Sequence[Event], law: SizeLaw) -> Event:
    def size(get_size: Callable[[Event], float]) -> float:
        return law([get_size(each) for each in twins])

    last = twins[-1]
    amounts = replace(
        last.amounts,
        elements_payload=size(lambda each: each.amounts.elements_payload),
        elements_received=size(lambda each: each.amounts.elements_received),
        bytes=round(size(lambda each: each.amounts.bytes)),
        flops=round(size(lambda each: each.amounts.flops)),
        bytes_touched=round(size(lambda each: each.amounts.bytes_touched)),
    )
    products = [
        _extrapolate_product(each, law) for each in zip(*(each.products for each in twins), strict=True)
    ]
    streamed = round(size(lambda each: each.streamed))
    drawn, copied = round(size(lambda each: each.drawn)), round(size(lambda each: each.copied))
    return replace(last, amounts=amounts, products=products, streamed=streamed, drawn=drawn, copied=copied)


def _extrapolate_product(twins: Sequence[ProductShape], law: SizeLaw) -> ProductShape:
    rows, inner, columns, nonzeros = (round(law(sizes)) for sizes in list(zip(*twins, strict=True))[:4])
    return twins[-1]._replace(rows=rows, inner=inner, columns=columns, nonzeros=nonzeros)
