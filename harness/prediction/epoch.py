"""Predicts the time of an epoch on a machine from its card: ranks are replayed, priced and simulated together.

Every constant of a card has an interval. The interval of a prediction combines the deviations that these intervals
cause, the error of the model itself, and a further one on a machine on which nothing was measured. They count as
independent: their squares are added, in the logarithm of the time.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, inf, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.comm.layout import coordinates, rank_at
from harness.graph.blocks import Blocks
from harness.graph.shared_blocks import share_blocks
from harness.ledger import MOVING, NO_INDEX, AxisName, Key, Op
from harness.ledger.tape import Event
from harness.prediction.card_status import find_further_error
from harness.prediction.event_prices import (
    CallCost,
    EpochLimit,
    EventPrices,
    LimitExceededError,
    count_bytes,
)
from harness.prediction.pricing import (
    BETWEEN_NODES,
    AxisPlacement,
    CallBytes,
    Seconds,
    TimePart,
    list_constants,
    place_axis,
    place_pair,
)
from harness.prediction.replay import ReplayedRank, replay
from harness.prediction.timeline import Message, Timeline, WorkItem, simulate_ranks
from harness.spec.machine_card import MACHINES, Links, Machine, MachineCard
from harness.spec.spec import Spec
from harness.strategy import BlockCounts, Ready, ShapeBlocks, Strategy

if TYPE_CHECKING:
    import pandas as pd

REPLAYED_STEPS = 3
"""The number of replayed steps. Later steps are taken to be equal to the last replayed step."""
MAX_REPLAYED_RANKS = 16
"""The largest world whose ranks are all replayed, if the graph is available."""
KEPT_FIRST_RANKS = 4
"""The number of replayed first ranks that a `CachingPredictor` keeps."""
RESIDUAL = 1.25
"""The error of the model: 80 % of the epochs that we measured over a network are within this factor of their
predictions (benchmarks/results/prediction.md)."""


@dataclass(frozen=True)
class PredictedSeconds:
    """Predicted seconds, with an interval for the uncertainty of the constants and of the model."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """The predicted epoch of the rank that ends last."""

    rank: int
    seconds: PredictedSeconds
    entries: Mapping[Key, float]
    """The seconds under each key of the ledger. They add up to the epoch."""
    waiting: float
    """The seconds of the epoch in which the rank waits for messages or for its background thread."""
    elements_received: float
    """The elements that the rank receives in an epoch."""
    peak_bytes: int
    """The peak memory over all replayed ranks, including the mini-batches that are sampled at once."""
    shares: Mapping[str, float]
    """The share of the epoch that is proportional to each constant of the card."""
    noise: float = 0.0
    """The deviation of the logarithm of the epoch by the noise of messages between nodes."""

    @property
    def parts(self) -> dict[str, float]:
        """The share of each phase and op, the largest first. Shares below 1 % are summed under "others"."""
        seconds = defaultdict[str, float](float)
        for key, each in self.entries.items():
            seconds[f"{key.phase} {key.op}"] += each / self.seconds.value
        large = {name: share for name, share in seconds.items() if share >= 0.01}
        return dict(sorted(large.items(), key=lambda item: -item[1])) | {"others": 1 - sum(large.values())}

    @property
    def limited_by(self) -> str:
        """The constant with the largest share of the epoch."""
        return max(self.shares, key=lambda name: self.shares[name])

    def as_row(self) -> dict[str, Any]:
        """Return the prediction as a row of a table, by column."""
        return {
            "epoch_seconds": self.seconds.value,
            "epoch_seconds_low": self.seconds.low,
            "epoch_seconds_high": self.seconds.high,
            "waiting_seconds": self.waiting,
            "elements_received": self.elements_received,
            "peak_bytes": self.peak_bytes,
            "limited_by": self.limited_by,
            "rank_id": self.rank,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the prediction as a data frame with one row."""
        import pandas as pd

        return pd.DataFrame([self.as_row()])


def check_card(card: MachineCard) -> None:
    """Raise UserError if a card lacks the rates or the links, which predictions need."""
    if missing := [name for name in ("rates", "links") if getattr(card, name) is None]:
        raise UserError(
            f"{MACHINES}/{card.name}.yaml has no {' and no '.join(missing)}, so nothing can be predicted for it. Add "
            "them as in config/machines/perlmutter.yaml, or measure them with `harness doctor --calibrate`."
        )


def predict(
    ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None, *, evaluation: bool = False
) -> Prediction:
    """Predict an epoch, or one evaluation of the whole graph, from `ranks` or from representative ranks.

    Sizes are exact if `ready` has the blocks of the graph; otherwise they are expected values from its facts.
    """
    check_card(card)
    return price_epochs(
        replay_ranks(ready, ranks or representative_ranks(ready), evaluation=evaluation), card
    )


class CachingPredictor:
    """Predicts runs, and reuses the replays of the previous run if only the name of the machine differs.

    Sort the runs by `group_machine_variants` to benefit from this.
    """

    def __init__(self) -> None:
        self._cache_key: tuple[Spec, Sequence[int] | None] | None = None
        self._epochs: list[RankEpoch] = []
        self._first_ranks: dict[str, tuple[float, ReplayedRank]] = {}
        """The fastest first ranks of the last strategy, by the id of their run, with their predicted seconds."""
        self._searched: str | None = None
        """The strategy whose first ranks are kept."""
        self._prices: EventPrices | None = None

    def __call__(self, ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
        check_card(card)
        key = (_without_machine_name(ready.strategy.spec), ranks)
        if key != self._cache_key:
            self._epochs, self._cache_key = self._replay(ready, ranks or representative_ranks(ready)), key
        return price_epochs(self._epochs, card, prices=self._get_prices(card))

    def predict_first_rank(self, ready: Ready, card: MachineCard, limit: float) -> Prediction | None:
        """Predict an epoch from its first rank only; None if it takes longer than `limit` seconds.

        The replay ends as soon as the limit is exceeded. Later predictions of the same run reuse it.
        """
        check_card(card)
        strategy, blocks = ready
        if self._searched != strategy.name:
            self._searched, self._first_ranks = strategy.name, {}
        prices = self._get_prices(card)
        try:
            replayed = replay(
                strategy,
                0,
                blocks and share_blocks(blocks),
                steps=REPLAYED_STEPS,
                skip_transient=True,
                limit=EpochLimit(strategy.grid, strategy.steps, prices, limit) if limit < inf else None,
            )
        except LimitExceededError:
            return None
        prediction = price_epochs(make_rank_epochs(strategy, [replayed], strategy.steps), card, prices=prices)
        self._first_ranks[strategy.spec.run_id] = prediction.seconds.value, replayed
        if len(self._first_ranks) > KEPT_FIRST_RANKS:
            del self._first_ranks[max(self._first_ranks, key=lambda run: self._first_ranks[run][0])]
        return prediction

    def _replay(self, ready: Ready, ranks: Sequence[int]) -> "list[RankEpoch]":
        strategy, _ = ready
        _, known = self._first_ranks.get(strategy.spec.run_id, (0.0, None))
        if known is None or 0 not in ranks:
            return replay_ranks(ready, ranks)
        others = [each.replayed for each in replay_ranks(ready, [rank for rank in ranks if rank])]
        return make_rank_epochs(strategy, [known, *others], strategy.steps)

    def _get_prices(self, card: MachineCard) -> EventPrices:
        if self._prices is None or self._prices.card is not card:
            self._prices = EventPrices(card)
        return self._prices


def group_machine_variants(specs: Iterable[Spec]) -> list[Spec]:
    """Return the specs in an order in which specs that differ only in their machine are adjacent."""
    groups: dict[str, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(_without_machine_name(spec).run_id, []).append(spec)
    return [spec for group in groups.values() for spec in group]


def _without_machine_name(spec: Spec) -> Spec:
    """Return the spec without the parts of its machine that strategies do not use."""
    machine = Machine(name="", device=spec.machine.device, engine=spec.machine.engine)
    return spec.model_copy(update={"machine": machine})


def replay_ranks(
    ready: Ready, ranks: Sequence[int], steps: int = REPLAYED_STEPS, *, evaluation: bool = False
) -> "list[RankEpoch]":
    """Replay several ranks that are to be simulated together: `steps` steps of an epoch, or one evaluation."""
    strategy, blocks = ready
    blocks = blocks and share_blocks(blocks)
    replays = [
        replay(strategy, rank, blocks, steps=steps, evaluation=evaluation, skip_transient=True)
        for rank in ranks
    ]
    return make_rank_epochs(strategy, replays, 1 if evaluation else strategy.steps)


def make_rank_epochs(strategy: Strategy, replays: "Sequence[ReplayedRank]", steps: int) -> "list[RankEpoch]":
    """Return the epochs of `steps` steps of replayed ranks that are to be simulated together."""
    ranks = frozenset(each.rank for each in replays)
    return [RankEpoch(strategy, each, ranks, steps - len(each.first_of_step)) for each in replays]


def representative_ranks(ready: Ready) -> list[int]:
    """Return the ranks to replay: all ranks of a small world, otherwise the corners and the rank with most nonzeros.

    With evenly spread nonzeros, the corners of the grid have the largest and the smallest blocks, and all kinds of
    neighbours. The first and the last rank would not be enough: a message takes the links of both its ranks, and
    another corner may have the peak memory.
    """
    strategy, blocks = ready
    grid, world = strategy.grid, strategy.spec.ranks
    if blocks and world <= MAX_REPLAYED_RANKS:
        return list(range(world))
    corners = product(*(sorted({0, size - 1}) for size in grid.values()))
    ranks = {rank_at(grid, dict(zip(grid, corner, strict=True))) for corner in corners}
    return sorted(ranks | _find_heaviest_rank(strategy, blocks))


def _find_heaviest_rank(strategy: Strategy, blocks: Blocks | None) -> set[int]:
    """Return the rank whose part has most nonzeros, if every rank has its own part; otherwise an empty set."""
    axis, all_columns = strategy.partitioned_over, range(strategy.facts.vertices)
    if not (blocks and axis and strategy.facts.bounds) or strategy.grid[axis] != strategy.spec.ranks:
        return set()
    nonzeros = [
        blocks.adjacency(rows, all_columns).nnz for rows in strategy.facts.blocks(strategy.spec.ranks)
    ]
    return {nonzeros.index(max(nonzeros))}


def price_epochs(
    epochs: "Sequence[RankEpoch]",
    card: MachineCard,
    cores: float | None = None,
    prices: EventPrices | None = None,
) -> Prediction:
    """Predict the epoch of ranks on a machine, by simulating them together.

    The ranks share `cores`; by default, their part of the cores of the card. `prices` are prices of the same card that
    are already cached.
    """
    if cores is None:
        cores = _count_cores(epochs, card)
    prices = prices or EventPrices(card)
    priced = [PricedRank(epoch, prices) for epoch in epochs]
    timelines = simulate_ranks([each.items for each in priced], cores)
    last, timeline = max(
        zip(priced, timelines, strict=True), key=lambda pair: pair[0].compute_epoch_seconds(pair[1])
    )
    seconds, parts = last.compute_epoch_seconds(timeline), np.zeros(len(TimePart))
    entries, waiting = defaultdict[Key, float](float), 0.0
    for each in timeline.slices:
        duration = each.seconds * last.count_repetitions(each.item)
        entries[last.epoch.replayed.events[each.item].key] += duration
        waiting += duration * each.is_waiting
        if each.is_issuing:
            parts[TimePart.ISSUE] += duration
        else:
            parts += duration * last.compute_part_shares(each.item, is_waiting=each.is_waiting)
    noise = compute_noise(card, parts / seconds, last.epoch.strategy.spec.ranks)
    shares = {}
    deviation = log(RESIDUAL) ** 2 + log(find_further_error(card)) ** 2 + noise**2
    for name, (within, scaled) in list_constants(card).items():
        shares[name] = float(parts[list(scaled)].sum()) / seconds
        deviation += log(1 + shares[name] * (within - 1)) ** 2
    spread = exp(sqrt(deviation))
    return Prediction(
        last.epoch.replayed.rank,
        PredictedSeconds(seconds, seconds / spread, seconds * spread),
        dict(entries),
        waiting,
        last.epoch.elements_received,
        compute_peak_bytes(epochs),
        shares,
        noise,
    )


def compute_noise(card: MachineCard, shares: Seconds, ranks: int) -> float:
    """Return the deviation of the logarithm of an epoch by the noise of messages between nodes.

    A rank waits for the slowest of all ranks. Of n normal deviates, the largest is about sqrt(2 ln n) deviations above
    the mean. `shares` are the shares of the epoch that each part of the time takes.
    """
    if not (card.links and card.links.noise):
        return 0.0
    slowest = card.links.noise.deviation * sqrt(2 * log(ranks))
    return log(1 + float(shares[list(BETWEEN_NODES)].sum()) * slowest)


def _count_cores(epochs: "Sequence[RankEpoch]", card: MachineCard) -> float | None:
    """Return the cores that the simulated ranks share; None if each rank has its own core or GPU.

    All ranks of a node share its cores. If 2 of 8 ranks are simulated, they have a quarter of the cores.
    """
    assert card.rates and card.links
    if card.rates.cores_per_node is None or epochs[0].is_measured:
        return None
    world = epochs[0].strategy.spec.ranks
    nodes = ceil(world / card.links.devices_per_node)
    return card.rates.cores_per_node * nodes * len(epochs) / world


def compute_peak_bytes(epochs: "Sequence[RankEpoch]") -> int:
    """Return the peak memory over all these ranks, including the mini-batches that are sampled at once."""
    strategy = epochs[0].strategy
    sampled = 0 if epochs[0].is_measured else strategy.sample_bytes(BlockCounts(ShapeBlocks(strategy.facts)))
    return max(epoch.replayed.peak_bytes for epoch in epochs) + sampled


class IssuedCall(NamedTuple):
    """A collective, or one message of an exchange."""

    name: Message
    key: Key
    bytes: CallBytes
    peer: int | None
    """The other rank of a message; None for a collective."""
    is_poster: bool
    """True if this rank contributes to the message, False if it only waits for it."""


class RankEpoch:
    """The replayed or recorded steps of one rank, with their calls."""

    def __init__(
        self,
        strategy: Strategy,
        replayed: ReplayedRank,
        simulated: frozenset[int],
        repetitions: int = 0,
        *,
        is_measured: bool = False,
    ) -> None:
        """`simulated` are all ranks that are simulated together, including this one."""
        self.strategy, self.replayed, self.simulated = strategy, replayed, simulated
        self.grid, self.coordinates = strategy.grid, strategy.coordinates(replayed.rank)
        self.repetitions = repetitions
        """The number of steps of the epoch that were not replayed."""
        self.is_measured = is_measured
        """True if the events have measured processor seconds instead of shapes."""
        self._in_common: dict[str | None, tuple[tuple[AxisName, int], ...]] = {}
        self._peers: dict[tuple[str | None, int], int] = {}
        """The rank of a member of an axis."""
        self.calls = self._collect_calls()

    @property
    def elements_received(self) -> float:
        """The elements that the rank receives in the whole epoch."""
        elements = [event.amounts.elements_received for event in self.replayed.events]
        return sum(elements) + self.repetitions * sum(elements[self.replayed.first_of_step[-1] :])

    def message_names(self, event: int) -> list[Message]:
        """Return the names of the messages of an event, given by its index."""
        return [call.name for call in self.calls.get(event, ())]

    def place_call(self, call: IssuedCall, links: Links) -> AxisPlacement:
        """Return the placement of a call's axis on the nodes of a machine."""
        assert call.key.axis
        if call.peer is None:
            return place_axis(self.grid, call.key.axis, links)
        return place_pair(self.replayed.rank, call.peer, self.strategy.spec.ranks, links)

    def _collect_calls(self) -> "dict[int, list[IssuedCall]]":
        """Return the calls of the rank by the event that issues them. An exchange has several messages."""
        calls: dict[int, list[IssuedCall]] = {}
        issued: Counter[Message] = Counter()
        for number, event in enumerate(self.replayed.events):
            if event.key.op not in MOVING or (not event.amounts.calls and event.travels_with == NO_INDEX):
                continue
            leader = number if event.travels_with == NO_INDEX else event.travels_with
            size, peer, is_poster = count_bytes(event), None, True
            if event.key.op in (Op.SEND, Op.RECV):
                ends = self._find_ends(event.key)
                peer = ends[event.key.op is Op.SEND]
                # The sender posts a message, or the receiver if the sender is not simulated.
                is_poster = ends[0] == self.replayed.rank or ends[0] not in self.simulated
                name: Message = (*ends, event.key.direction, event.key.layer, event.key.tensor)
            elif leader != number:  # elements of another layer in the same call
                first = calls[leader][0]
                calls[leader][0] = first._replace(bytes=_add_bytes(first.bytes, size))
                continue
            else:
                name = event.key.axis, self._other_coordinates(event.key.axis)
            issued[name] += 1
            call = IssuedCall((name, issued[name]), event.key, size, peer, is_poster)
            calls.setdefault(leader, []).append(call)
        return calls

    def _other_coordinates(self, label: str | None) -> tuple[tuple[AxisName, int], ...]:
        """Return the coordinates that the members of an axis, or of several as one, have in common."""
        if label not in self._in_common:
            axes = _split_axes(label)
            others = (item for item in self.coordinates.items() if item[0] not in axes)
            self._in_common[label] = tuple(sorted(others))
        return self._in_common[label]

    def _find_ends(self, key: Key) -> tuple[int, int]:
        """Return the sender and the receiver of a message."""
        rank, place = self.replayed.rank, (key.axis, key.peer)
        if place not in self._peers:
            member = _member_coordinates(self.grid, _split_axes(key.axis), key.peer)
            self._peers[place] = rank_at(self.grid, {**self.coordinates, **member})
        peer = self._peers[place]
        return (rank, peer) if key.op is Op.SEND else (peer, rank)


class _ItemCost(NamedTuple):
    """The cost of an event with its calls."""

    work: float
    handling: float
    posts: Sequence[float]
    """The seconds of each call on the links."""
    on_cores: Seconds
    on_links: Seconds | None
    """None without calls."""
    parts: tuple[object, ...]
    """What was added up."""


class PricedRank:
    """The steps of one rank as work items, with their seconds on a machine."""

    def __init__(self, epoch: RankEpoch, prices: EventPrices) -> None:
        card = prices.card
        assert card.rates and card.links
        self.epoch, self.items = epoch, list[WorkItem]()
        self._prices = prices
        self._work: list[Seconds] = []
        self._links: dict[int, Seconds] = {}
        self._call_cache: dict[Hashable, CallCost] = {}
        self._item_cache: dict[tuple[int, ...], _ItemCost] = {}
        self._share_cache: dict[int, Seconds] = {}
        has_issues = not (epoch.is_measured or epoch.strategy.spec.training.cuda_graph)
        measured = np.zeros(len(TimePart)), 0.0  # the seconds of a tape include all work
        for number, event in enumerate(epoch.replayed.events):
            own_work, seconds = measured if epoch.is_measured else prices.price_work(event)
            issue = prices.price_issue(event, len(epoch.calls.get(number, ()))) if has_issues else 0.0
            if number not in epoch.calls and not epoch.is_measured:
                names = () if event.leaves else epoch.message_names(event.waits_for)
                self.items.append(WorkItem(seconds, (), names, issue=issue))
                self._work.append(own_work)
                self._move_prefetched(number, event)
                continue
            calls = epoch.calls.get(number, ())
            cost = self._price_item(event, own_work, [self._price_call(call, card) for call in calls])
            posts = [
                (call.name, seconds)
                for call, seconds in zip(calls, cost.posts, strict=True)
                if call.is_poster
            ]
            waits_for = event.waits_for if event.waits_for != NO_INDEX else number
            needs = () if event.leaves else epoch.message_names(waits_for)
            self.items.append(WorkItem(cost.work, posts, needs, handling=cost.handling, issue=issue))
            self._work.append(cost.on_cores)
            if cost.on_links is not None:
                self._links[number] = cost.on_links
            self._move_prefetched(number, event)

    def _price_item(self, event: Event, own_work: Seconds, calls: "Sequence[CallCost]") -> "_ItemCost":
        """Return the cost of an event with its calls. In a replay, events with equal parts are added up once."""
        # No other object gets these ids, because the cached cost keeps their objects alive.
        key = id(own_work), *map(id, calls)
        if key in self._item_cache:
            return self._item_cache[key]
        work, handling, on_links, posts = own_work.copy(), np.zeros(len(TimePart)), None, []
        if self.epoch.is_measured:  # the CPU time of a call was spent while its bytes were in flight
            (handling if event.key.op in MOVING else work)[TimePart.MEASURED] = event.cpu_seconds
        for call in calls:
            own_links = call.links
            if self.epoch.is_measured:  # waking takes time, and hardly any work of the rank
                own_links = own_links + call.wakeup
            else:
                work += call.wakeup
            handling += call.handling
            on_links = own_links if on_links is None else on_links + own_links
            posts.append(float(own_links.sum()))
        if self.epoch.is_measured:  # also what the rank's own thread did for its messages and their bytes
            handling[TimePart.MESSAGE] = 0.0
            handling[TimePart.CPU] = max(0.0, handling[TimePart.CPU] - handling[TimePart.MEASURED])
        cost = _ItemCost(
            float(work.sum()), float(handling.sum()), posts, work + handling, on_links, (own_work, *calls)
        )
        if not self.epoch.is_measured:
            self._item_cache[key] = cost
        return cost

    def _price_call(self, call: IssuedCall, card: MachineCard) -> CallCost:
        """Return the cost of a call, cached by axis, peer and size."""
        assert card.links
        key = call.key.axis, call.peer, call.bytes
        if key not in self._call_cache:
            self._call_cache[key] = self._prices.price_call(
                call.bytes, self.epoch.place_call(call, card.links)
            )
        return self._call_cache[key]

    def _move_prefetched(self, number: int, event: Event) -> None:
        """Move the work of a prefetched event to the background thread, if the rank has its own device."""
        rates = self._prices.card.rates
        assert rates
        if event.prefetched_after != NO_INDEX and rates.cores_per_node is None:
            self._move_to_background(number, event.prefetched_after + 1)

    def _move_to_background(self, number: int, first: int) -> None:
        """Move the work of item `number` to the background thread, which may start it at item `first`."""
        item, piece = self.items[number], ("background", self.epoch.replayed.rank, number)
        self._links[number] = self._links.get(number, 0.0) + self._work[number]
        self.items[number] = item._replace(work=0.0, needs=(*item.needs, piece), issue=0.0)
        earlier = self.items[first]
        self.items[first] = earlier._replace(background=(*earlier.background, (piece, item.work)))

    def compute_epoch_seconds(self, timeline: Timeline) -> float:
        """Return the seconds of the whole epoch: the last replayed step is repeated for all later steps."""
        first = self.epoch.replayed.first_of_step[-1]
        last_step = timeline.ends[-1] - (timeline.ends[first - 1] if first else 0.0)
        return timeline.ends[-1] + self.epoch.repetitions * last_step

    def count_repetitions(self, item: int) -> int:
        """Return how often an item occurs in the whole epoch."""
        return 1 + self.epoch.repetitions * (item >= self.epoch.replayed.first_of_step[-1])

    def compute_part_shares(self, item: int, *, is_waiting: bool) -> Seconds:
        """Return the share of each part in the work of an item, or in the messages that it waits for."""
        event = self.epoch.replayed.events[item]
        number = event.waits_for if event.waits_for != NO_INDEX else item
        seconds = self._links.get(number) if is_waiting else self._work[item]
        if seconds is None:
            return np.zeros(len(TimePart))
        shares = self._share_cache.get(id(seconds))
        if shares is None:
            total = float(seconds.sum())
            shares = self._share_cache[id(seconds)] = seconds / total if total else np.zeros(len(TimePart))
        return shares


def _split_axes(label: str | None) -> list[AxisName]:
    return [AxisName(name) for name in (label or "").split("+")]


def _add_bytes(one: CallBytes, other: CallBytes) -> CallBytes:
    return one._replace(buffer=one.buffer + other.buffer, received=one.received + other.received)


def _member_coordinates(
    grid: Mapping[AxisName, int], axes: Sequence[AxisName], index: int
) -> dict[AxisName, int]:
    """Return the coordinates of a member of an axis, or of several axes as one."""
    return coordinates({axis: grid[axis] for axis in axes}, index)
