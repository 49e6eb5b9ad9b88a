"""Rows of bins, and their gradients, on their way from one rank to another: in two ways, with the same words.

A layer says after each bin what leaves, and takes what it needs; `Held` keeps the former until the layer is over.

`Free` has every receive posted before anything is computed, and every message leaves by itself: nobody waits for
anybody to send. `Rounds` is for NCCL, which has no tags and starts what two ranks say to each other in the order in
which it was asked: after a rank's first bin all of the first round comes and goes as one exchange, and so on; whoever
has fewer bins takes part in the other rounds at the end. Before training all ranks know what is due in which round.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.ledger import Direction, Phase, TensorName
from strategies.g3.crossing import Address

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}

Coming = Pending[dict[int, Tensor]]


class Due(NamedTuple):
    """A message that is to come."""

    rows: int
    turn: int
    """So many of the sender's bins are before the one after which it leaves."""


class Flow(ABC):
    """The messages of one rank, of one layer in one direction."""

    def __init__(self, way: "Way", due: Mapping[Address, Due]) -> None:
        self.way, self.due = way, due

    @abstractmethod
    def leave(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        """What leaves after the bin of this turn. Turns come one after the other, the first is 0."""

    @abstractmethod
    def end(self) -> None:
        """The last turn is over."""

    @abstractmethod
    def take(self, address: Address) -> Tensor:
        """The rows of a message, when they are there."""


class Way(NamedTuple):
    """Of all messages of a layer in one direction."""

    over: Axis
    direction: Direction
    layer: int
    width: int
    dtype: torch.dtype
    most_bins: int
    """No rank has more."""
    leaving: list[Coming]
    """What must be waited for in the end."""

    def exchange(self, sends: Mapping[int, Tensor], rows: Mapping[int, int], number: int) -> Coming:
        """Messages to and from others, at most one for each; `number` is the bin's, or that of a round."""
        with self.over.ledger.phase(Phase.CONVOLVE, self.layer):
            return self.over.exchange.later(
                sends,
                {peer: (height, self.width) for peer, height in rows.items()},
                dtype=self.dtype,
                tensor=NAMES[self.direction],
                tag=(2 * self.layer + (self.direction is BACKWARD)) * (self.most_bins + 1) + number + 1,
            )


class Free(Flow):
    """A message for every bin and peer."""

    def __init__(self, way: Way, due: Mapping[Address, Due]) -> None:
        super().__init__(way, due)
        self.coming = {
            (peer, number): way.exchange({}, {peer: each.rows}, number)
            for (peer, number), each in due.items()
        }

    def leave(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        for (peer, number), leaving in rows.items():
            self.way.leaving.append(self.way.exchange({peer: leaving}, {}, number))

    def end(self) -> None:
        """Whatever left has left."""

    def take(self, address: Address) -> Tensor:
        return self.coming.pop(address).wait()[address[0]]


class Rounds(Flow):
    """An exchange for every turn, in the same order everywhere."""

    def __init__(self, way: Way, due: Mapping[Address, Due]) -> None:
        super().__init__(way, due)
        self.rounds: dict[int, list[Address]] = defaultdict(list)
        for address in sorted(due):
            self.rounds[due[address].turn].append(address)
        self.begun = 0
        self.coming: dict[Address, tuple[Coming, slice]] = {}

    def leave(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        """Messages of a turn to one peer travel as one, bin by bin."""
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
                places[address] = slice(start, start := start + self.due[address].rows)
        exchange = self.way.exchange(sends, {peer: place.stop for (peer, _), place in places.items()}, turn)
        self.way.leaving.append(exchange)
        self.coming |= {address: (exchange, place) for address, place in places.items()}

    def end(self) -> None:
        for turn in range(self.begun, self.way.most_bins):
            self.leave(turn, {})

    def take(self, address: Address) -> Tensor:
        exchange, place = self.coming.pop(address)
        return exchange.wait()[address[0]][place]


class Held(Flow):
    """What leaves after a bin leaves after the last one."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow.way, flow.due)
        self.flow, self.held = flow, list[tuple[int, Mapping[Address, Tensor]]]()

    def leave(self, turn: int, rows: Mapping[Address, Tensor]) -> None:
        self.held.append((turn, rows))

    def end(self) -> None:
        for turn, rows in self.held:
            self.flow.leave(turn, rows)
        self.held.clear()
        self.flow.end()

    def take(self, address: Address) -> Tensor:
        return self.flow.take(address)


def _by_peer(addresses: Iterable[Address]) -> dict[int, list[Address]]:
    """Each peer's in the order of the bins."""
    return {peer: list(each) for peer, each in groupby(sorted(addresses), itemgetter(0))}
