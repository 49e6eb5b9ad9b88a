"""Predicts an epoch on a machine that need not be at hand: replayed ranks, priced by a card, played against each other.

Every constant of a card has an interval. The parts of the time are scaled by the interval of each constant in turn.
These deviations, and that of the model itself, are added as independent ones are: by their squares, in the logarithm of
the time.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log, sqrt
from typing import NamedTuple

import numpy as np

from harness.comm.layout import coordinates, rank_at
from harness.errors import UserError
from harness.graph.blocks import Blocks
from harness.graph.shared_blocks import share_blocks
from harness.ledger import MOVING, NO_INDEX, AxisName, Key, Op
from harness.ledger.tape import Event
from harness.predict.pricing import (
    AxisPlace,
    CallBytes,
    Seconds,
    TimePart,
    between,
    call_seconds,
    constants,
    copy_seconds,
    kernel_seconds,
    placed,
)
from harness.predict.timeline import Item, Message, Played, play
from harness.replay import Replayed, replay
from harness.spec.machine_card import MACHINES, Links, Machine, MachineCard
from harness.spec.spec import Spec
from harness.strategy import BlockCounts, Ready, ShapeBlocks, Strategy

LATENCIES = np.isin(list(TimePart), (TimePart.INTRA_LATENCY, TimePart.LATENCY))
STEPS = 3
"""The steps that are replayed: all later steps are as the last of these."""
ALL_RANKS = 16
"""The largest world of a graph at hand of which all ranks are replayed."""
RESIDUAL = 1.25
"""What the model leaves out: four of five epochs on links, measured here, are within this factor of their predictions
(benchmarks/results/prediction.md)."""


@dataclass(frozen=True)
class SecondsBetween:
    """Predicted seconds, and the interval by the constants' intervals and by what the model leaves out."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """The epoch of the rank that ends last."""

    rank: int
    seconds: SecondsBetween
    entries: Mapping[Key, float]
    """The seconds under each key; they add up to the epoch."""
    waiting: float
    """The seconds among these in which the rank waits for messages, or for its background thread."""
    words_received: float
    """The words that the rank receives in an epoch."""
    peak_bytes: int
    """The most bytes that a replayed rank holds at any time, with all mini-batches that it draws at once."""
    shares: Mapping[str, float]
    """By constant of the card: the share of the epoch that is proportional to the constant."""

    @property
    def parts(self) -> dict[str, float]:
        """The share of each phase and op of at least a percent, the largest first; and of all others together."""
        seconds = defaultdict[str, float](float)
        for key, each in self.entries.items():
            seconds[f"{key.phase} {key.op}"] += each / self.seconds.value
        large = {name: share for name, share in seconds.items() if share >= 0.01}
        return dict(sorted(large.items(), key=lambda item: -item[1])) | {"others": 1 - sum(large.values())}

    @property
    def limited_by(self) -> str:
        """The constant that most of the epoch is proportional to."""
        return max(self.shares, key=lambda name: self.shares[name])


def check_card(card: MachineCard) -> None:
    """Refuses a card that lacks what a prediction needs."""
    if missing := [name for name in ("rates", "links") if getattr(card, name) is None]:
        raise UserError(
            f"{MACHINES}/{card.name}.yaml has no {' and no '.join(missing)}, so nothing can be predicted for it. Add "
            "them as in config/machines/perlmutter.yaml, or measure them with harness doctor --calibrate."
        )


def predict(
    ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None, *, evaluation: bool = False
) -> Prediction:
    """Predicts an epoch, or one evaluation of the whole graph, by some ranks alone if asked.

    Sizes are exact if the blocks of the graph are at hand; else they are expected from its facts.
    """
    check_card(card)
    return priced(replayed_ranks(ready, ranks or extremes(ready), evaluation=evaluation), card)


class MachineByMachine:
    """A predictor of one run after the other: runs that differ in the name of their machine alone share replays.

    Replays are kept of the last run only, so such runs have to follow each other (`alike_together`).
    """

    def __init__(self) -> None:
        self._asked: tuple[Spec, Sequence[int] | None] | None = None
        self._epochs: list[RankEpoch] = []

    def __call__(self, ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
        check_card(card)
        asked = (_but_for_machine(ready.strategy.spec), ranks)
        if asked != self._asked:
            self._epochs, self._asked = replayed_ranks(ready, ranks or extremes(ready)), asked
        return priced(self._epochs, card)


def alike_together(specs: Iterable[Spec]) -> list[Spec]:
    """The specs in their order, but each right behind those from which the name of its machine alone tells it."""
    groups: dict[str, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(_but_for_machine(spec).run_id, []).append(spec)
    return [spec for group in groups.values() for spec in group]


def _but_for_machine(spec: Spec) -> Spec:
    """The spec with no more of its machine than its strategy can see: the device and the engine of the calls."""
    seen = Machine(name="", device=spec.machine.device, engine=spec.machine.engine)
    return spec.model_copy(update={"machine": seen})


def replayed_ranks(
    ready: Ready, ranks: Sequence[int], steps: int = STEPS, *, evaluation: bool = False
) -> "list[RankEpoch]":
    """Ranks that are played against each other, in some steps of an epoch, or in one evaluation."""
    strategy, blocks = ready
    blocks = blocks and share_blocks(blocks)
    replays = [
        replay(strategy, rank, blocks, steps=steps, evaluation=evaluation, opened=True) for rank in ranks
    ]
    every = 1 if evaluation else strategy.steps
    return [RankEpoch(strategy, each, frozenset(ranks), every - len(each.first_of_step)) for each in replays]


def extremes(ready: Ready) -> list[int]:
    """All ranks of a small world whose graph is at hand; else the corners of the grid and the rank with most nonzeros.

    Where nonzeros lie evenly, the corners have the largest and the smallest blocks, and all kinds of neighbours. The
    first and the last rank alone would not do: messages between two ranks take the links of both, and the peak of
    memory may be that of another corner.
    """
    strategy, blocks = ready
    grid, world = strategy.grid, strategy.spec.ranks
    if blocks and world <= ALL_RANKS:
        return list(range(world))
    corners = product(*(sorted({0, size - 1}) for size in grid.values()))
    ranks = {rank_at(grid, dict(zip(grid, corner, strict=True))) for corner in corners}
    return sorted(ranks | _heaviest(strategy, blocks))


def _heaviest(strategy: Strategy, blocks: Blocks | None) -> set[int]:
    """The rank of the part with most nonzeros, where each rank has a part."""
    axis, everyone = strategy.partitioned_over, range(strategy.facts.vertices)
    if not (blocks and axis and strategy.facts.bounds) or strategy.grid[axis] != strategy.spec.ranks:
        return set()
    nonzeros = [blocks.adjacency(rows, everyone).nnz for rows in strategy.facts.blocks(strategy.spec.ranks)]
    return {nonzeros.index(max(nonzeros))}


def priced(epochs: "Sequence[RankEpoch]", card: MachineCard, cores: float | None = None) -> Prediction:
    """The prediction for some ranks of a world, which share `cores`; by default their part of those of the card."""
    on_card = [OnCard(epoch, card) for epoch in epochs]
    played = play([each.items for each in on_card], _cores_of(epochs, card) if cores is None else cores)
    last, line = max(zip(on_card, played, strict=True), key=lambda pair: pair[0].seconds(pair[1]))
    seconds, parts = last.seconds(line), np.zeros(len(TimePart))
    entries, waiting = defaultdict[Key, float](float), 0.0
    for each in line.slices:
        lasts = each.seconds * last.repeated(each.item)
        entries[last.epoch.replayed.events[each.item].key] += lasts
        waiting += lasts * each.waits
        parts += lasts * last.shares(each.item, waits=each.waits)
    shares, deviation = {}, log(RESIDUAL) ** 2
    for name, (within, scaled) in constants(card).items():
        shares[name] = float(parts[list(scaled)].sum()) / seconds
        deviation += log(1 + shares[name] * (within - 1)) ** 2
    spread = exp(sqrt(deviation))
    return Prediction(
        last.epoch.replayed.rank,
        SecondsBetween(seconds, seconds / spread, seconds * spread),
        dict(entries),
        waiting,
        last.epoch.words_received,
        peak_bytes(epochs),
        shares,
    )


def _cores_of(epochs: "Sequence[RankEpoch]", card: MachineCard) -> float | None:
    """The cores that the ranks which are played have among the cores of their nodes; None for a core or GPU each.

    All ranks of a node share its cores. The ranks that are played have their part of the cores: if 2 of 8 ranks are
    played, a quarter.
    """
    assert card.rates and card.links
    if card.rates.cores_per_node is None or epochs[0].measured:
        return None
    world = epochs[0].strategy.spec.ranks
    nodes = ceil(world / card.links.devices_per_node)
    return card.rates.cores_per_node * nodes * len(epochs) / world


def peak_bytes(epochs: "Sequence[RankEpoch]") -> int:
    """The most bytes that one of some ranks holds at any time, with all mini-batches that it draws at once."""
    strategy = epochs[0].strategy
    drawn = 0 if epochs[0].measured else strategy.sample_bytes(BlockCounts(ShapeBlocks(strategy.facts)))
    return max(epoch.replayed.peak_bytes for epoch in epochs) + drawn


class IssuedCall(NamedTuple):
    """A collective, or one message of an exchange."""

    name: Message
    key: Key
    moved: CallBytes
    peer: int | None
    """The other rank of a message."""
    posted: bool
    """Whether this rank contributes to the message, or only waits for it."""


class RankEpoch:
    """The steps of one rank and their calls."""

    def __init__(
        self,
        strategy: Strategy,
        replayed: Replayed,
        played: frozenset[int],
        repetitions: int = 0,
        *,
        measured: bool = False,
    ) -> None:
        """`played` are the ranks whose items are played against these."""
        self.strategy, self.replayed, self.played = strategy, replayed, played
        self.grid, self.at = strategy.grid, strategy.coordinates(replayed.rank)
        self.repetitions = repetitions
        """The steps of an epoch beyond those that were replayed."""
        self.measured = measured
        """Whether the events have the seconds of the processor on which they ran, instead of shapes."""
        self.calls = self._calls()

    @property
    def words_received(self) -> float:
        """The words of the whole epoch."""
        words = [event.amounts.words_received for event in self.replayed.events]
        return sum(words) + self.repetitions * sum(words[self.replayed.first_of_step[-1] :])

    def names(self, number: int) -> list[Message]:
        """The messages of the event of this number."""
        return [call.name for call in self.calls.get(number, ())]

    def placed(self, call: IssuedCall, links: Links) -> AxisPlace:
        """The axis of a call on the nodes of a machine."""
        assert call.key.axis
        if call.peer is None:
            return placed(self.grid, call.key.axis, links)
        return between(self.replayed.rank, call.peer, self.strategy.spec.ranks, links)

    def _calls(self) -> "dict[int, list[IssuedCall]]":
        """The calls of the rank, by the event that issues them; an exchange has several messages."""
        calls: dict[int, list[IssuedCall]] = {}
        issued: Counter[Message] = Counter()
        for number, event in enumerate(self.replayed.events):
            if event.key.op not in MOVING or (not event.amounts.calls and event.travels_with == NO_INDEX):
                continue
            leader = number if event.travels_with == NO_INDEX else event.travels_with
            moved = _moved(event)
            if event.key.op in (Op.SEND, Op.RECV):
                call = self._message(event.key, moved)
            elif leader != number:  # words of another layer, in the same call
                first = calls[leader][0]
                calls[leader][0] = first._replace(moved=_together(first.moved, moved))
                continue
            else:
                others = tuple(sorted(item for item in self.at.items() if item[0] not in _axes(event.key)))
                call = IssuedCall((event.key.axis, others), event.key, moved, None, posted=True)
            issued[call.name] += 1
            named = call._replace(name=(call.name, issued[call.name]))
            calls.setdefault(leader, []).append(named)
        return calls

    def _message(self, key: Key, moved: CallBytes) -> "IssuedCall":
        """A message between two ranks. Its sender posts it; the receiver does where the sender is not played."""
        here = self.replayed.rank
        there = rank_at(self.grid, {**self.at, **_place(self.grid, _axes(key), key.peer)})
        ends = (here, there) if key.op is Op.SEND else (there, here)
        posted = here == ends[0] or ends[0] not in self.played
        name = (*ends, key.direction, key.layer, key.tensor)
        return IssuedCall(name, key, moved, there, posted=posted)


class CallOnCard(NamedTuple):
    """The seconds of one call on a machine."""

    links: Seconds
    woken: Seconds
    """The time in which cores wake each other."""
    handled: Seconds
    """The work of the cores while the bytes travel."""


class OnCard:
    """The steps of one rank with their seconds on a machine."""

    def __init__(self, epoch: RankEpoch, card: MachineCard) -> None:
        assert card.rates and card.links
        self.epoch, self.items = epoch, list[Item]()
        self._work: list[Seconds] = []
        self._links: dict[int, Seconds] = {}
        self._of_kernels: dict[Hashable, Seconds] = {}
        self._of_calls: dict[Hashable, CallOnCard] = {}
        for number, event in enumerate(epoch.replayed.events):
            work, posts = self._kernels(event, card), []
            handling = np.zeros(len(TimePart))
            if epoch.measured:  # what the processor did in a call, it did while the bytes travelled
                (handling if event.key.op in MOVING else work)[TimePart.MEASURED] = event.cpu_seconds
            for call in epoch.calls.get(number, ()):
                on_links, woken, handled = self._call(call, card)
                if epoch.measured:  # an empty message costs its rank next to nothing but time
                    on_links = on_links + woken
                else:
                    work += woken
                handling += handled
                self._links[number] = self._links.get(number, 0.0) + on_links
                if call.posted:
                    posts.append((call.name, float(on_links.sum())))
            # Of the cores' time for the bytes, the rank's own thread had a part.
            handling[TimePart.CPU] = max(0.0, handling[TimePart.CPU] - handling[TimePart.MEASURED])
            waits_for = event.waits_for if event.waits_for != NO_INDEX else number
            needs = () if event.leaves else epoch.names(waits_for)
            self.items.append(Item(float(work.sum()), posts, needs, handling=float(handling.sum())))
            self._work.append(work + handling)
            if event.prefetched_after != NO_INDEX and card.rates.cores_per_node is None:
                self._move_aside(number, event.prefetched_after + 1)

    def _kernels(self, event: Event, card: MachineCard) -> Seconds:
        """The seconds of an event's kernels and copies, for the caller to change. Many events are alike."""
        assert card.rates and card.links
        alike = event.kernels, event.streamed, event.drawn, event.copies, event.copied, *event.products
        if alike not in self._of_kernels:
            self._of_kernels[alike] = kernel_seconds(event, card.rates) + copy_seconds(event, card.links)
        return self._of_kernels[alike].copy()

    def _call(self, call: IssuedCall, card: MachineCard) -> "CallOnCard":
        """The seconds of a call. Many calls are alike."""
        assert card.links
        alike = call.key.axis, call.peer, call.moved
        if alike not in self._of_calls:
            on_cores, on_links = call_seconds(call.moved, self.epoch.placed(call, card.links), card)
            woken = np.where(LATENCIES, on_cores, 0.0)
            self._of_calls[alike] = CallOnCard(on_links, woken, on_cores - woken)
        return self._of_calls[alike]

    def _move_aside(self, number: int, first: int) -> None:
        """Leaves the work of an event to the background thread, from the item `first` on; the event waits for it."""
        item, begun = self.items[number], ("background", self.epoch.replayed.rank, number)
        self._links[number] = self._links.get(number, 0.0) + self._work[number]
        self.items[number] = item._replace(work=0.0, needs=(*item.needs, begun))
        earlier = self.items[first]
        self.items[first] = earlier._replace(begins=(*earlier.begins, (begun, item.work)))

    def seconds(self, line: Played) -> float:
        """The seconds of the whole epoch: steps beyond those that were replayed are as the last of these."""
        first = self.epoch.replayed.first_of_step[-1]
        return line.ends[-1] + self.epoch.repetitions * (
            line.ends[-1] - (line.ends[first - 1] if first else 0.0)
        )

    def repeated(self, item: int) -> int:
        """The number of times that an item stands for in the whole epoch."""
        return 1 + self.epoch.repetitions * (item >= self.epoch.replayed.first_of_step[-1])

    def shares(self, item: int, *, waits: bool) -> Seconds:
        """The share of each part in the work of an item, or in the messages that the item waits for."""
        event = self.epoch.replayed.events[item]
        number = event.waits_for if event.waits_for != NO_INDEX else item
        seconds = self._links.get(number) if waits else self._work[item]
        total = 0.0 if seconds is None else float(seconds.sum())
        return seconds / total if seconds is not None and total else np.zeros(len(TimePart))


def _axes(key: Key) -> list[AxisName]:
    return [AxisName(name) for name in (key.axis or "").split("+")]


def _moved(event: Event) -> CallBytes:
    """The bytes of a call, in the type that travels."""
    amounts = event.amounts
    width = amounts.bytes / amounts.words_payload if amounts.words_payload else 0.0
    return CallBytes(event.key.op, amounts.bytes, width * amounts.words_received)


def _together(one: CallBytes, other: CallBytes) -> CallBytes:
    return CallBytes(one.op, one.whole + other.whole, one.received + other.received)


def _place(grid: Mapping[AxisName, int], axes: Sequence[AxisName], index: int) -> dict[AxisName, int]:
    """The coordinates of a member of an axis, or of several axes as one."""
    return coordinates({axis: grid[axis] for axis in axes}, index)
