"""Fits of measured times, and their errors at sizes that the fit has not seen.

Times are sums of terms with coefficients that are not negative. The error of a fit is stated from held-out sizes: each
time is predicted by the fit to those times that share neither its size nor its width.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError

INSIDE = 0.9
"""The share of the held-out times that lie inside an interval."""
Numbers = NDArray[np.float64]


def fit_terms(terms: Numbers, seconds: Numbers, known: float = 0.0) -> Numbers:
    """The coefficients of terms, none negative, with the least squares of relative errors.

    `known` seconds are part of every time, and need no term.
    """
    from scipy.optimize import nnls

    relative = terms / seconds[:, None]
    largest = relative.max(axis=0)
    largest[largest == 0] = 1.0  # a term that no time has
    coefficients, _ = nnls(relative / largest, 1 - known / seconds)
    return np.asarray(coefficients / largest)


def compute_held_out_ratios(
    terms: Numbers, seconds: Numbers, labels: Sequence[Sequence[Any]], known: float = 0.0
) -> Numbers:
    """Predicted over measured seconds, each time predicted by the fit to all times that share none of its labels.

    `labels` has a sequence for each property, such as the sizes and the widths, with a label for each time. A time
    that shares a label with every other one has the ratio NaN.
    """
    columns = [np.unique(np.asarray(each), return_inverse=True)[1] for each in labels]
    ratios = np.full(len(seconds), np.nan)
    for place in set(zip(*(column.tolist() for column in columns), strict=True)):
        alike = np.array([column == label for column, label in zip(columns, place, strict=True)])
        held, fitted = alike.all(axis=0), ~alike.any(axis=0)
        if fitted.any():
            found = fit_terms(terms[fitted], seconds[fitted], known)
            ratios[held] = (terms[held] @ found + known) / seconds[held]
    return ratios


def compute_factor(ratios: Sequence[float] | Numbers) -> float:
    """The factor that holds most of these ratios on both sides of 1, rounded up; NaN does not count."""
    known = [float(ratio) for ratio in ratios if not np.isnan(ratio)]
    if not known:
        raise RunError("too few sizes were measured to hold any of them out")
    off = [max(ratio, 1 / ratio) if ratio > 0 else np.inf for ratio in known]
    return round(float(np.quantile(off, INSIDE)) + 0.005, 2)


def compute_median_and_factor(values: Sequence[float], alone: float) -> tuple[float, float]:
    """The median, and the factor that holds most of the values against the median of all others.

    `alone` is the factor, assumed, of a single value.
    """
    if not values:
        raise RunError("nothing could be measured")
    if len(values) == 1:
        return values[0], alone
    others = [median([*values[:place], *values[place + 1 :]]) for place in range(len(values))]
    return median(values), compute_factor(
        [value / other for value, other in zip(values, others, strict=True)]
    )
