"""Messages between ranks: rows of bins in the forward pass, their gradients in the backward pass.

After each bin, a layer sends the rows that other ranks need, and it receives the rows that it needs. All variants move
the same words:

- `EagerMessages` posts every receive before anything is computed, and sends each message separately.
- `LockstepMessages` is for NCCL, which has no tags, so that two ranks must issue their messages in the same order.
  After a rank's first bin, all messages of the first round are one exchange, and so on. A rank with fewer bins takes
  part in the remaining rounds at the end. All ranks know the round of each message before training.
- `DeferredMessages` holds back the messages of another variant until the layer is finished.
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
    """Transfers from this rank, which are waited for at the end of the pass."""

    def exchange(self, sends: Mapping[int, Tensor], rows: Mapping[int, int], number: int) -> Transfer:
        """Start at most one message to and from each peer. `number` identifies the bin or the round."""
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
        """Send the rows that leave after the bin of this turn. Turns are consecutive and start at 0."""

    @abstractmethod
    def finish(self) -> None:
        """End the layer, after the last turn."""

    @abstractmethod
    def receive(self, address: Address) -> Tensor:
        """Wait for the rows of one message."""


class EagerMessages(Messages):
    """One message for each bin and peer."""

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
        """Do nothing: every message has been sent."""

    def receive(self, address: Address) -> Tensor:
        return self.posted.pop(address).wait()[address[0]]


class LockstepMessages(Messages):
    """One exchange for each turn, in the same order on every rank."""

    def __init__(self, channel: Channel, incoming: Mapping[Address, Incoming]) -> None:
        super().__init__(channel, incoming)
        self.rounds: dict[int, list[Address]] = defaultdict(list)
        for address in sorted(incoming):
            self.rounds[incoming[address].turn].append(address)
        self.next_turn = 0
        self.in_flight: dict[Address, tuple[Transfer, slice]] = {}

    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        """Send the messages of one turn. Messages to the same peer are concatenated by bin."""
        assert turn == self.next_turn, (turn, self.next_turn)
        self.next_turn += 1
        grouped = _group_by_peer(rows)
        sends = {peer: torch.cat([rows[each] for each in addresses]) for peer, addresses in grouped.items()}
        slices: dict[Address, slice] = {}
        for addresses in _group_by_peer(self.rounds[turn]).values():
            start = 0
            for address in addresses:
                slices[address] = slice(start, start := start + self.incoming[address].rows)
        rows_by_peer = {peer: each.stop for (peer, _), each in slices.items()}
        exchange = self.channel.exchange(sends, rows_by_peer, turn)
        self.channel.sends.append(exchange)
        self.in_flight |= {address: (exchange, each) for address, each in slices.items()}

    def finish(self) -> None:
        for turn in range(self.next_turn, self.channel.most_bins):
            self.send(turn, {})

    def receive(self, address: Address) -> Tensor:
        exchange, rows = self.in_flight.pop(address)
        return exchange.wait()[address[0]][rows]


class DeferredMessages(Messages):
    """The messages of another variant, held back and sent after the last bin."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages.channel, messages.incoming)
        self.messages = messages
        self.deferred: list[tuple[int, Mapping[Address, Tensor]]] = []

    def send(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        self.deferred.append((turn, rows))

    def finish(self) -> None:
        for turn, rows in self.deferred:
            self.messages.send(turn, rows)
        self.deferred.clear()
        self.messages.finish()

    def receive(self, address: Address) -> Tensor:
        return self.messages.receive(address)


class Channels:
    """All channels of one rank. Messages leave immediately or after the layer, eagerly or in lock step."""

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
        """Create the channels. `widths` has the width of each layer's input, then that of the output."""
        self.over, self.plan, self.widths, self.dtype = over, plan, widths, dtype
        self.most_bins, self.at_once, self.lockstep = most_bins, at_once, lockstep
        self.sends: list[Transfer] = []

    def open(self, direction: Direction, layer: int) -> Messages:
        """Open the messages of one layer in one direction."""
        width, incoming = self.widths[layer], self.plan.incoming(direction, layer)
        channel = Channel(self.over, direction, layer, width, self.dtype, self.most_bins, self.sends)
        messages = (LockstepMessages if self.lockstep else EagerMessages)(channel, incoming)
        return messages if self.at_once else DeferredMessages(messages)

    def open_pass(self, direction: Direction) -> dict[int, Messages]:
        """Open the messages of every layer but the first, whose input has been fetched."""
        return {layer: self.open(direction, layer) for layer in range(1, len(self.widths) - 1)}

    def wait_for_sends(self) -> None:
        """Wait until every message has left this rank."""
        for pending in self.sends:
            pending.wait()
        self.sends.clear()


def _group_by_peer(addresses: Iterable[Address]) -> dict[int, list[Address]]:
    """Return each peer's addresses, in the order of the bins."""
    return {peer: list(each) for peer, each in groupby(sorted(addresses), itemgetter(0))}
