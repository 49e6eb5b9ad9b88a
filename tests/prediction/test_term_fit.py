"""Fits of measured times: the best without negative coefficients, and intervals from what the fit has not seen."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from harness.base.errors import RunError
from harness.ledger.tape import ProductShape
from harness.prediction.calibration.spmm_rates import ProductTime, SpmmForm, fit_spmm, list_gpu_forms
from harness.prediction.calibration.term_fit import (
    compute_factor,
    compute_held_out_ratios,
    compute_median_and_factor,
    fit_terms,
)
from harness.prediction.pricing import SPMM_TERMS, compute_spmm_factors, price_spmm
from harness.spec.machine_card import SpmmTerms

PLANTED = SpmmTerms(
    entry_column=0.0004,
    entry=0.05,
    row_column=0.003,
    row=0.06,
    call=15_000,
    missed_column=0.001,
    missed_entry=0.04,
    cache_mb=25,
    pass_columns=128,
    within=1,
    source="planted",
)
LAUNCH = 5e-6
SCALES, WIDTHS = (14, 16, 18, 20), (2, 4, 8, 16, 32, 41, 64, 128, 256)


@given(seed=st.integers(0, 10_000), scales=st.lists(st.floats(-6, 9), min_size=3, max_size=3))
def test_a_fit_is_the_best_without_negative_coefficients(seed: int, scales: list[float]) -> None:
    """Judge: scipy's bounded least squares of the relative errors."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** np.array(scales)
    terms = rng.random((30, 3)) * scale
    seconds = rng.random(30) + np.abs(terms @ (rng.normal(size=3) / scale)) + 0.1
    found = fit_terms(terms, seconds)
    relative: NDArray[Any] = terms / scale / seconds[:, None]
    best = lsq_linear(relative, np.ones(30), bounds=(0, np.inf), tol=1e-12)
    residual = terms @ found / seconds - 1
    assert (found >= 0).all()
    assert residual @ residual / 2 == pytest.approx(best.cost, rel=1e-6, abs=1e-12)


def measured(scales: tuple[int, ...], widths: tuple[int, ...], noise: float, seed: int) -> list[ProductTime]:
    """Products whose times are those of the planted terms, times a random factor."""
    rng, times = np.random.default_rng(seed), []
    for scale in scales:
        for degree in (4, 24):
            for width in widths:
                product = ProductShape(1 << scale, 1 << scale, width, degree << scale, "float32", "int32")
                seconds = (LAUNCH + price_spmm(product, PLANTED)) * np.exp(noise * rng.normal())
                times.append(ProductTime(scale, product, float(seconds)))
    return times


def test_planted_terms_and_their_form_are_found_without_noise() -> None:
    """Half of the cache of 50 MB holds rows, and 128 columns are multiplied in one pass."""
    found = fit_spmm(measured(SCALES, WIDTHS, 0.0, 0), list_gpu_forms(50), LAUNCH)
    for name in SPMM_TERMS:
        assert found[name] == pytest.approx(getattr(PLANTED, name), rel=0.01), name
    assert (found["cache_mb"], found["pass_columns"]) == (25, 128)
    assert found["within"] <= 1.01


def test_terms_that_a_form_leaves_out_are_zero() -> None:
    times = measured(SCALES, WIDTHS, 0.0, 0)
    form = SpmmForm(25, 128, tuple(name for name in SPMM_TERMS if name != "missed_entry"))
    assert fit_spmm(times, [form], LAUNCH)["missed_entry"] == 0.0
    without_cache = fit_spmm(times, [SpmmForm()], LAUNCH)
    assert not {"missed_column", "missed_entry", "cache_mb", "pass_columns"} & without_cache.keys()
    assert SpmmTerms(**without_cache, source="fitted").pass_columns is None


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_noisy_products_of_unseen_sizes_and_widths(seed: int) -> None:
    noise = 0.1
    found = fit_spmm(measured(SCALES, WIDTHS, noise, seed), list_gpu_forms(50), LAUNCH)
    terms = SpmmTerms(**found, source="fitted")
    for name in ("entry", "missed_column", "call"):  # those that most of the time consists of
        assert found[name] == pytest.approx(getattr(PLANTED, name), rel=0.2), name
    unseen = measured((15, 17, 19, 21), (3, 12, 48, 100, 200), noise, seed + 100)
    ratios = np.array([(LAUNCH + price_spmm(each.product, terms)) / each.seconds for each in unseen])
    inside = np.mean(np.maximum(ratios, 1 / ratios) <= terms.within)
    assert inside > 0.8
    assert np.exp(noise) < terms.within < np.exp(4 * noise)


def test_five_terms_have_a_wide_interval_where_the_cache_decides() -> None:
    """An error inside the sizes that were fitted would hide that the terms do not hold beyond them."""
    times = measured(SCALES, WIDTHS, 0.0, 0)
    terms = np.array([compute_spmm_factors(each.product) for each in times], dtype=np.float64)
    seconds = np.array([each.seconds for each in times])
    fitted = compute_factor(terms @ fit_terms(terms, seconds, LAUNCH) / (seconds - LAUNCH))
    held_out = fit_spmm(times, [SpmmForm()], LAUNCH)["within"]
    assert held_out > fitted > 1.1


def test_a_held_out_time_is_predicted_by_times_that_share_no_label() -> None:
    """Judge: a fit for each time by itself. Times of its size or its width could be anything."""
    rng = np.random.default_rng(3)
    sizes, widths = np.repeat([0, 1, 2], 4), np.tile([5, 6, 7, 8], 3)
    terms, seconds = rng.random((12, 2)) + 0.1, rng.random(12) + 0.1
    ratios = compute_held_out_ratios(terms, seconds, [sizes.tolist(), widths.tolist()])
    for place in range(12):
        shares = (sizes == sizes[place]) | (widths == widths[place])
        others = np.where(shares, 1e3, seconds)
        alone = fit_terms(terms[~shares], others[~shares])
        assert ratios[place] == pytest.approx(terms[place] @ alone / seconds[place])


def test_a_single_size_has_no_interval() -> None:
    terms, seconds = np.ones((3, 1)), np.ones(3)
    ratios = compute_held_out_ratios(terms, seconds, [[1, 1, 1], [1, 2, 3]])
    assert np.isnan(ratios).all()
    with pytest.raises(RunError, match="too few sizes"):
        compute_factor(ratios)


def test_a_constant_has_the_interval_of_what_others_say_of_it() -> None:
    assert compute_median_and_factor([2.0, 2.0, 2.0], 1.5) == (2.0, 1.0)
    value, factor = compute_median_and_factor([1.0, 1.0, 1.0, 1.0, 3.0], 1.5)
    assert value == 1.0 and 1.5 < factor <= 3.0
    assert compute_median_and_factor([2.0], 1.5) == (2.0, 1.5)
    with pytest.raises(RunError, match="nothing"):
        compute_median_and_factor([], 1.5)
