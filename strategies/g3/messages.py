"""Messages between ranks: the rows of bins forward, and gradients backward.

A layer hands over the rows that leave after each bin, and receives the rows that it needs. All kinds of messages move
the same words:

- `EagerMessages` posts every receive before anything is computed, and sends every message by itself.
- `LockstepMessages` is for NCCL, which has no tags: two ranks' messages to each other start in the order of the calls.
  After a rank's first bin, all messages of the first round go as one exchange, and so on. A rank with fewer bins takes
  part in the remaining rounds at the end. Before training, all ranks know the round of every message.
- `DeferredMessages` keeps messages of another kind until the layer is over.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.ledger import Direction, Phase, TensorName
from harness.strategies.g3.schedule import Address, Incoming, Schedule

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}

Transfer = Pending[dict[int, Tensor]]


class Channel(NamedTuple):
    """The link between this rank and its peers for one layer in one direction."""

    over: Axis
    direction: Direction
    layer: int
    width: int
    dtype: torch.dtype
    most_bins: int
    """The largest number of bins of any rank."""
    sends: list[Transfer]
    """Transfers that leave this rank, waited for at the end of the pass."""

    def exchange(self, sends: Mapping[int, Tensor], rows: Mapping[int, int], number: int) -> Transfer:
        """Starts at most one message to and from each peer; `number` is that of the bin or of the round."""
        with self.over.ledger.phase(Phase.CONVOLVE, self.layer):
            return self.over.exchange.later(
                sends,
                {peer: (height, self.width) for peer, height in rows.items()},
                dtype=self.dtype,
                tensor=NAMES[self.direction],
                tag=(2 * self.layer + (self.direction is BACKWARD)) * (self.most_bins + 1) + number + 1,
            )


class Messages(ABC):
    """The messages of one rank over one channel."""

    def __init__(self, channel: Channel, incoming: Mapping[Address, Incoming]) -> None:
        self.channel, self.incoming = channel, incoming

    @abstractmethod
    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        """Sends the rows that leave after the bin of this turn. Turns are consecutive and start at 0."""

    @abstractmethod
    def finish(self) -> None:
        """Ends the layer, after the last turn."""

    @abstractmethod
    def receive(self, address: Address) -> Tensor:
        """Waits for the rows of one message."""


class EagerMessages(Messages):
    """One message for every bin and peer."""

    def __init__(self, channel: Channel, incoming: Mapping[Address, Incoming]) -> None:
        super().__init__(channel, incoming)
        self.posted = {
            (peer, number): channel.exchange({}, {peer: each.rows}, number)
            for (peer, number), each in incoming.items()
        }

    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        for (peer, number), leaving in rows.items():
            self.channel.sends.append(self.channel.exchange({peer: leaving}, {}, number))

    def finish(self) -> None:
        """Every message has been sent already."""

    def receive(self, address: Address) -> Tensor:
        return self.posted.pop(address).wait()[address[0]]


class LockstepMessages(Messages):
    """One exchange for every turn, in the same order on every rank."""

    def __init__(self, channel: Channel, incoming: Mapping[Address, Incoming]) -> None:
        super().__init__(channel, incoming)
        self.rounds: dict[int, list[Address]] = defaultdict(list)
        for address in sorted(incoming):
            self.rounds[incoming[address].turn].append(address)
        self.begun = 0
        self.arriving: dict[Address, tuple[Transfer, slice]] = {}

    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        """Messages of one turn to one peer travel as one, bin by bin."""
        assert turn == self.begun, (turn, self.begun)
        self.begun += 1
        sends = {
            peer: torch.cat([rows[address] for address in addresses])
            for peer, addresses in _by_peer(rows).items()
        }
        places: dict[Address, slice] = {}
        for addresses in _by_peer(self.rounds[turn]).values():
            start = 0
            for address in addresses:
                places[address] = slice(start, start := start + self.incoming[address].rows)
        rows_by_peer = {peer: place.stop for (peer, _), place in places.items()}
        exchange = self.channel.exchange(sends, rows_by_peer, turn)
        self.channel.sends.append(exchange)
        self.arriving |= {address: (exchange, place) for address, place in places.items()}

    def finish(self) -> None:
        for turn in range(self.begun, self.channel.most_bins):
            self.send(turn, {})

    def receive(self, address: Address) -> Tensor:
        exchange, place = self.arriving.pop(address)
        return exchange.wait()[address[0]][place]


class DeferredMessages(Messages):
    """Messages of another kind; all leave after the last bin."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages.channel, messages.incoming)
        self.messages, self.kept = messages, list[tuple[int, Mapping[Address, Tensor]]]()

    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        self.kept.append((turn, rows))

    def finish(self) -> None:
        for turn, rows in self.kept:
            self.messages.send(turn, rows)
        self.kept.clear()
        self.messages.finish()

    def receive(self, address: Address) -> Tensor:
        return self.messages.receive(address)


class Channels:
    """All channels of one rank. Messages leave at once or after the layer, by themselves or in lock step."""

    def __init__(
        self,
        over: Axis,
        plan: Schedule,
        widths: Sequence[int],
        dtype: torch.dtype,
        most_bins: int,
        *,
        at_once: bool,
        lockstep: bool,
    ) -> None:
        """`widths` are those of the layers' inputs and of the output."""
        self.over, self.plan, self.widths, self.dtype = over, plan, widths, dtype
        self.most_bins, self.at_once, self.lockstep = most_bins, at_once, lockstep
        self.sends: list[Transfer] = []

    def messages(self, direction: Direction, layer: int) -> Messages:
        """The messages of one layer in one direction."""
        width, incoming = self.widths[layer], self.plan.incoming(direction, layer)
        channel = Channel(self.over, direction, layer, width, self.dtype, self.most_bins, self.sends)
        messages = (LockstepMessages if self.lockstep else EagerMessages)(channel, incoming)
        return messages if self.at_once else DeferredMessages(messages)

    def of_pass(self, direction: Direction) -> dict[int, Messages]:
        """The messages of every layer but the first, whose input has been fetched."""
        return {layer: self.messages(direction, layer) for layer in range(1, len(self.widths) - 1)}

    def wait_for_sends(self) -> None:
        """Waits until every message has left this rank."""
        for pending in self.sends:
            pending.wait()
        self.sends.clear()


def _by_peer(addresses: Iterable[Address]) -> dict[int, list[Address]]:
    """The addresses of each peer, in the order of the bins."""
    return {peer: list(each) for peer, each in groupby(sorted(addresses), itemgetter(0))}
