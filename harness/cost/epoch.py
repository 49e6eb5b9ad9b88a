"""What an epoch of a strategy should take on a machine, as far as its card says."""

from collections.abc import Mapping
from math import isfinite, prod
from typing import TYPE_CHECKING, NamedTuple

from harness.comm import traffic
from harness.errors import UserError
from harness.ledger import AxisName, Op
from harness.spec.machine_card import Links, MachineCard, SpmmModel
from harness.spec.spec import grid_text
from harness.strategy import WORD, Counts, Strategy, Words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# Seconds of collectives on the links of a machine: ring algorithms, bandwidth alone (Plexus, section 4.2).
#
# A ring of p members moves what `harness.comm.traffic` says a member receives, at the effective bandwidth
# of its axis. It knows nothing of latency, of calls that overlap, or of links that other jobs use.

GB = 1 << 30
"""As the authors of the model count."""


def bandwidth(links: Links, before: int, size: int) -> float:
    """GB a second of an axis of this size whose neighbours are `before` ranks apart (equation 4.6).

    Inside a node it is the node's own; else ranks of a node share what leaves it, as many of them as the axis passes
    over. Where it was measured, that is taken.
    """
    measured = [row.gbs for row in links.measured if row.before <= before and row.size <= size]
    if measured:
        return measured[-1]
    if before * size <= links.devices_per_node:
        return links.intra_gbs
    return links.node_gbs / min(links.devices_per_node, before)


def communication(words: Words, grid: Mapping[AxisName, int], links: Links, precision: str) -> float:
    """Seconds in which the words of an epoch travel, one call after the other. `grid` has its fastest axis last."""
    return sum(
        WORD[precision] * _received(key.op, count, size) / (bandwidth(links, before, size) * GB)
        for key, count in words.items()
        for before, size in [_place(grid, key.axis)]
    )


def _place(grid: Mapping[AxisName, int], label: str) -> tuple[int, int]:
    """How far apart the neighbours of an axis are, and how many members it has; of several taken as one."""
    names, order = label.split("+"), list(grid)
    last = max(order.index(AxisName(name)) for name in names)
    return prod(grid[axis] for axis in order[last + 1 :]), prod(grid[AxisName(name)] for name in names)


def _received(op: Op, words: float, size: int) -> float:
    """What a ring brings to a rank whose share is as large as the others'."""
    count, own = round(words), round(words / size)
    by_op = {
        Op.ALL_REDUCE: traffic.all_reduce(count, size),
        Op.ALL_GATHER: traffic.all_gather(count, own),
        Op.REDUCE_SCATTER: traffic.reduce_scatter(count, size),
        Op.BROADCAST: traffic.broadcast(count, root=False),
        Op.ALL_TO_ALL: traffic.all_to_all(count, 0),
        Op.SEND: traffic.send(count),
        Op.RECV: traffic.recv(count),
    }
    return by_op[op].received


# Seconds of the products with A by the model that a machine's card has (Plexus, section 4.1), and its fit.


def products(terms: tuple[float, float, float], fitted: SpmmModel) -> float:
    """Of an epoch; the model is linear in its terms, and in milliseconds."""
    flops, forward, backward = terms
    weighed = fitted.flops * flops + fitted.forward * forward + fitted.backward * backward
    return (fitted.intercept + weighed) / 1000


def fitted(terms: "Floats", milliseconds: "Floats", *, intercept: bool = False) -> SpmmModel:
    """The model with the least squared error among those a card accepts: no coefficient is negative.

    `terms` has a row a measurement. An ordinary regression gives a term within the noise either sign, and a negative
    one predicts negative times wherever that term is large.
    """
    import numpy as np
    from scipy.optimize import nnls

    columns = np.column_stack([terms, np.full(len(terms), float(intercept))])
    largest = np.abs(columns).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)  # the terms are many orders of magnitude apart
    coefficients, _ = nnls(columns / scale, milliseconds)
    flops, forward, backward, offset = (coefficients / scale).tolist()
    return SpmmModel(flops=flops, forward=forward, backward=backward, intercept=offset)


class Prediction(NamedTuple):
    """Seconds of rank 0, which has the largest blocks; None where nothing predicts them."""

    products: float | None
    communication: float | None


def predict(strategy: Strategy, card: MachineCard, counts: Counts) -> Prediction:
    """The products with A by the card's model, the words of the strategy by its links."""
    terms, multiplying, moving = strategy.product_terms(), None, None
    if terms and card.spmm:
        multiplying = _checked("products", products(terms, card.spmm), strategy, card)
    if card.links:
        words = strategy.words(strategy.coordinates(0), counts)
        seconds = communication(words, strategy.grid, card.links, strategy.spec.precision)
        moving = _checked("communication", seconds, strategy, card)
    return Prediction(multiplying, moving)


def _checked(what: str, seconds: float, strategy: Strategy, card: MachineCard) -> float:
    """The same seconds, unless no epoch can take them."""
    if not (isfinite(seconds) and seconds >= 0):
        grid = grid_text(dict(strategy.grid))
        raise UserError(
            f"config/machines/{card.name}.yaml predicts {seconds:g} s of {what} for {strategy.name} on {grid}; a "
            "prediction is a finite number of seconds, 0 or more. Correct the constants of the card under links and "
            "spmm, or the terms that the strategy gives."
        )
    return seconds
