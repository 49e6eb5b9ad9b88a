"""The seconds of replayed events on a machine, cached, and a lower bound on an epoch that is still being replayed."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.ledger import MOVING, NO_INDEX, AxisName, Op
from harness.ledger.tape import Event
from harness.prediction.pricing import (
    MICRO,
    AxisPlacement,
    CallBytes,
    Seconds,
    TimePart,
    place_axis,
    price_call,
    price_copies,
    price_kernels,
)
from harness.spec.machine_card import MachineCard

LATENCIES = np.isin(list(TimePart), (TimePart.INTRA_LATENCY, TimePart.LATENCY))
MAX_PRICES = 1 << 16
"""The number of cached prices after which the cache is emptied."""
SHORTEST_STEP = 0.5
"""A later step of an epoch is assumed to take at least this fraction of the first step."""


class CallCost(NamedTuple):
    """The seconds of one call on a machine."""

    links: Seconds
    wakeup: Seconds
    """The time that the cores take to wake each other."""
    handling: Seconds
    """The work of the cores while the bytes are in flight."""


class EventPrices:
    """The prices of events on one machine. Equal events are priced once; callers must not change the arrays."""

    def __init__(self, card: MachineCard) -> None:
        self.card = card
        self._work: dict[Hashable, tuple[Seconds, float]] = {}
        self._calls: dict[Hashable, CallCost] = {}

    def price_work(self, event: Event) -> tuple[Seconds, float]:
        """Return the seconds of an event's kernels and copies: of each part, and their sum."""
        amounts = event.kernels, event.streamed, event.drawn, event.copies, event.copied
        key = event.does_something, *amounts, *event.products
        found = self._work.get(key)
        if found is None:
            assert self.card.rates and self.card.links
            seconds = price_kernels(event, self.card.rates) + price_copies(event, self.card.links)
            if len(self._work) == MAX_PRICES:
                self._work.clear()
            found = self._work[key] = seconds, float(seconds.sum())
        return found

    def price_issue(self, event: Event, calls: int) -> float:
        """Return the seconds in which the host issues an event's kernels and calls."""
        assert self.card.rates
        issue = self.card.rates.issue_us
        return (event.launches + calls) * MICRO * issue.value if issue else 0.0

    def price_call(self, size: CallBytes, placement: AxisPlacement) -> CallCost:
        """Return the cost of a call of these bytes on an axis."""
        key = size, placement
        cost = self._calls.get(key)
        if cost is None:
            on_cores, on_links = price_call(size, placement, self.card)
            wakeup = np.where(LATENCIES, on_cores, 0.0)
            if len(self._calls) == MAX_PRICES:
                self._calls.clear()
            cost = self._calls[key] = CallCost(on_links, wakeup, on_cores - wakeup)
        return cost


def count_bytes(event: Event) -> CallBytes:
    """Return the bytes of a call, in the data type that is sent."""
    amounts = event.amounts
    width = amounts.bytes / amounts.elements_payload if amounts.elements_payload else 0.0
    return CallBytes(event.key.op, amounts.bytes, width * amounts.elements_received, event.partners)


class LimitExceededError(Exception):
    """The epoch that is being replayed takes longer than its limit."""


class EpochLimit:
    """Ends the replay of a rank as soon as its epoch must take longer than a limit.

    The rank computes and waits for its synchronous collectives one after the other, so their seconds add up to a lower
    bound. Messages between two ranks, asynchronous calls and background work are not included.
    """

    def __init__(self, grid: Mapping[AxisName, int], steps: int, prices: EventPrices, limit: float) -> None:
        self._grid, self._prices = grid, prices
        self._limit = limit * (1 + 1e-9)  # sums in another order must not exceed an equal limit
        self._seconds, self._counted = 0.0, 0
        self._scale = 1 + SHORTEST_STEP * (steps - 1)
        """How much longer the epoch must be than the part of the first step that was replayed; then 1."""
        self._placements: dict[str, AxisPlacement] = {}

    def check(self, events: Sequence[Event]) -> None:
        """Add the events that are new, all of which are complete. Raises LimitExceededError."""
        for number in range(self._counted, len(events)):
            self._seconds += self._price(events[number])
        self._counted = len(events)
        if self._seconds * self._scale > self._limit:
            raise LimitExceededError

    def end_step(self, events: Sequence[Event]) -> None:
        """Check the limit at the end of a step."""
        self.check(events)
        self._scale = 1.0

    def _price(self, event: Event) -> float:
        card, key, amounts = self._prices.card, event.key, event.amounts
        assert card.rates and card.links
        if event.prefetched_after != NO_INDEX and card.rates.cores_per_node is None:
            return 0.0
        seconds = self._prices.price_work(event)[1]
        waits = not event.leaves and event.waits_for == NO_INDEX and event.travels_with == NO_INDEX
        if waits and amounts.calls and key.op in MOVING and key.op not in (Op.SEND, Op.RECV):
            label = str(key.axis)
            if label not in self._placements:
                self._placements[label] = place_axis(self._grid, label, card.links)
            cost = self._prices.price_call(count_bytes(event), self._placements[label])
            seconds += float(cost.links.sum())
        return seconds
