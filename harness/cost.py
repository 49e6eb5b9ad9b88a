"""Predicts the time of an epoch on a machine from its card, before anything runs on that machine."""

from collections.abc import Mapping
from math import isfinite, prod
from typing import TYPE_CHECKING, NamedTuple

from harness.comm import traffic
from harness.comm.axis import ROUNDED
from harness.errors import UserError
from harness.ledger import AxisName, Op
from harness.spec.machine_card import Links, MachineCard, SpmmModel
from harness.spec.spec import grid_text
from harness.strategy import WORD, Counts, Strategy, Words

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# Seconds of collectives on the links of a machine: ring algorithms, bandwidth alone (Plexus, section 4.2).
#
# A ring moves the words that a member receives (`harness.comm.traffic`) at the effective bandwidth of its
# axis. The model has no latency, no calls that overlap, and no links that other jobs use.

GB = 1 << 30
"""The GB of the model's authors: 2^30 bytes."""


def bandwidth(links: Links, before: int, size: int) -> float:
    """The bandwidth in GB/s of an axis of this size whose neighbours are `before` ranks apart (equation 4.6).

    A measured bandwidth is taken first. An axis inside a node has the bandwidth of the node. On other axes, the
    `before` ranks that an axis passes over share the link of their node.
    """
    measured = [row.gbs for row in links.measured if row.before <= before and row.size <= size]
    if measured:
        return measured[-1]
    if before * size <= links.devices_per_node:
        return links.intra_gbs
    return links.node_gbs / min(links.devices_per_node, before)


def communication(
    words: Words,
    grid: Mapping[AxisName, int],
    links: Links,
    precision: str,
    wire: "torch.dtype | None" = None,
) -> float:
    """The seconds in which the words of an epoch travel, call after call. `grid` has its fastest axis last."""
    return sum(
        (wire.itemsize if wire and key.tensor in ROUNDED else WORD[precision])
        * _received(key.op, count, size)
        / (bandwidth(links, before, size) * GB)
        for key, count in words.items()
        for before, size in [_stride_and_size(grid, key.axis)]
    )


def _stride_and_size(grid: Mapping[AxisName, int], label: str) -> tuple[int, int]:
    """The distance in ranks between neighbours on an axis, or on several axes as one, and the number of its members."""
    names, order = label.split("+"), list(grid)
    last = max(order.index(AxisName(name)) for name in names)
    return prod(grid[axis] for axis in order[last + 1 :]), prod(grid[AxisName(name)] for name in names)


def _received(op: Op, words: float, size: int) -> float:
    """The words that a rank receives in a ring of equal shares."""
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


# Seconds of the products with A by the model in a machine's card (Plexus, section 4.1), and the fit of that model.


def products(terms: tuple[float, float, float], fitted: SpmmModel) -> float:
    """The seconds of an epoch; the model is linear in its terms, and its coefficients are in milliseconds."""
    flops, forward, backward = terms
    weighed = fitted.flops * flops + fitted.forward * forward + fitted.backward * backward
    return (fitted.intercept + weighed) / 1000


def fitted(terms: "Floats", milliseconds: "Floats", *, intercept: bool = False) -> SpmmModel:
    """The model with the least squared error whose coefficients are not negative, as a card demands.

    `terms` has one row for each measurement. An ordinary regression gives a term within the noise either sign, and a
    negative coefficient predicts negative times wherever its term is large.
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
    """The seconds of rank 0, which has the largest blocks; None without a model."""

    products: float | None
    communication: float | None


def predict(strategy: Strategy, card: MachineCard, counts: Counts) -> Prediction:
    """Predicts the products with A by the card's model, and the strategy's words by the card's links."""
    terms, multiplying, moving = strategy.product_terms(), None, None
    if terms and card.spmm:
        multiplying = _checked("products", products(terms, card.spmm), strategy, card)
    if card.links:
        words = strategy.words(strategy.coordinates(0), counts)
        seconds = communication(words, strategy.grid, card.links, strategy.spec.precision, strategy.wire)
        moving = _checked("communication", seconds, strategy, card)
    return Prediction(multiplying, moving)


def _checked(what: str, seconds: float, strategy: Strategy, card: MachineCard) -> float:
    """Returns the seconds, or refuses a card that predicts an impossible time."""
    if not (isfinite(seconds) and seconds >= 0):
        grid = grid_text(dict(strategy.grid))
        raise UserError(
            f"config/machines/{card.name}.yaml predicts {seconds:g} s of {what} for {strategy.name} on {grid}; a "
            "prediction is a finite number of seconds, 0 or more. Correct the constants of the card under links and "
            "spmm, or the terms that the strategy gives."
        )
    return seconds
