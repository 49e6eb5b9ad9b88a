"""Seconds of the products with A by the model that a machine's card has (Plexus, section 4.1), and its fit."""

from typing import TYPE_CHECKING

from harness.spec.machine import SpmmModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


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
