"""What an epoch of a strategy should take on a machine, as far as its card says."""

from typing import NamedTuple

from harness.cost.links import communication
from harness.cost.products import products
from harness.spec.machine import MachineCard
from harness.strategy import Counts, Strategy


class Prediction(NamedTuple):
    """Seconds of rank 0, which has the largest blocks; None where nothing predicts them."""

    products: float | None
    communication: float | None


def predict(strategy: Strategy, card: MachineCard, counts: Counts) -> Prediction:
    """The products with A by the card's model, the words of the strategy by its links."""
    terms, multiplying, moving = strategy.product_terms(), None, None
    if terms and card.spmm:
        multiplying = products(terms, card.spmm)
    if card.links:
        words = strategy.words(strategy.coordinates(0), counts)
        moving = communication(words, strategy.grid, card.links, strategy.spec.precision)
    return Prediction(multiplying, moving)
