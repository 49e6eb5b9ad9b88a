"""Fits sums of terms to measured times, and estimates the errors of the fits at held-out sizes.

The coefficients of the terms are not negative. To estimate the error of a fit, each time is predicted by a fit to the
times that share neither its size nor its width.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import RunError

INSIDE = 0.9
"""The fraction of the held-out times that an interval contains."""
Numbers = NDArray[np.float64]


def fit_terms(terms: Numbers, seconds: Numbers, known: float = 0.0) -> Numbers:
    """Return the non-negative coefficients of the terms that minimise the squared relative errors.

    `known` seconds, such as a launch, are part of every time and are not fitted.
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
    """Return the ratios of predicted to measured seconds, each predicted by a fit to the times with other labels.

    `labels` has one sequence per property, such as sizes and widths, with one label per time. A time that shares a
    label with all others has the ratio NaN.
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
    """Return the factor f, rounded up, such that most ratios lie between 1 / f and f. NaN is ignored."""
    known = [float(ratio) for ratio in ratios if not np.isnan(ratio)]
    if not known:
        raise RunError("too few sizes were measured to hold one of them out")
    off = [max(ratio, 1 / ratio) if ratio > 0 else np.inf for ratio in known]
    return round(float(np.quantile(off, INSIDE)) + 0.005, 2)


def compute_median_and_factor(values: Sequence[float], assumed: float) -> tuple[float, float]:
    """Return the median, and the factor of an interval from comparing each value with the median of the others.

    `assumed` is the factor for a single value.
    """
    if not values:
        raise RunError("nothing could be measured")
    if len(values) == 1:
        return values[0], assumed
    others = [median([*values[:place], *values[place + 1 :]]) for place in range(len(values))]
    return median(values), compute_factor(
        [value / other for value, other in zip(values, others, strict=True)]
    )
