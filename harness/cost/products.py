"""Seconds of the products with A by the model that a machine's card has (Plexus, section 4.1)."""

from harness.spec.machine import SpmmModel


def products(terms: tuple[float, float, float], fitted: SpmmModel) -> float:
    """Of an epoch; the model is linear in its terms, and in milliseconds."""
    flops, forward, backward = terms
    weighed = fitted.flops * flops + fitted.forward * forward + fitted.backward * backward
    return (fitted.intercept + weighed) / 1000
