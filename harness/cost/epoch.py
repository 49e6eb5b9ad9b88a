"""What an epoch of a strategy should take on a machine, as far as its card says."""

from math import isfinite
from typing import NamedTuple

from harness.cost.links import communication
from harness.cost.products import products
from harness.errors import UserError
from harness.spec.machine import MachineCard
from harness.spec.spec import grid_text
from harness.strategy import Counts, Strategy


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
            f"machines/{card.name}.yaml predicts {seconds:g} s of {what} for {strategy.name} on {grid}; a prediction "
            "is a finite number of seconds, 0 or more. Correct the constants of the card under links and spmm, or the "
            "terms that the strategy gives."
        )
    return seconds
