"""The terms of sparse products in the cards of GPUs, compared with published times and with the fit to them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.prediction import A100_LAUNCH, fit_a100, read_products
from harness.prediction.pricing import MICRO, SPMM_TERMS, price_spmm
from harness.spec.machine_card import Rates, SpmmTerms, load_machine_card

ROOT = Path(__file__).parents[2]
BY_MEMORY = {"row_column", "missed_column", "missed_entry"}
"""The terms of reads and writes of memory."""
BY_PROCESSORS = {"entry_column", "entry", "row"}


def load_rates(name: str) -> Rates:
    rates = load_machine_card(ROOT, name).rates
    assert rates
    return rates


@cache
def fit_terms_of_a100() -> SpmmTerms:
    return SpmmTerms(**fit_a100(), source="fitted")


@pytest.mark.parametrize("name", ["perlmutter", "perlmutter-measured"])
def test_card_of_an_a100_has_the_terms_of_the_fit(name: str) -> None:
    rates = load_rates(name)
    assert rates.spmm == fit_terms_of_a100().model_copy(update={"source": rates.spmm.source})
    assert rates.launch_us.value * MICRO == pytest.approx(A100_LAUNCH)
    assert "prediction.products" in rates.spmm.source


@pytest.mark.parametrize(
    ("name", "peak_of_processors", "cache_mb"),
    [
        ("perlmutter-80gb", 19.5, 20),
        ("summit", 15.7, 6),
        ("summit-one", 15.7, 6),
        ("g3-cluster", 35.6 / 2, 6),  # its processors do twice as many operations, but read as often
    ],
)
def test_card_of_another_gpu_scales_the_terms_of_an_a100(
    name: str, peak_of_processors: float, cache_mb: float
) -> None:
    """Terms of memory follow its bandwidth, terms of processors their number and clock."""
    known, a100, rates = fit_terms_of_a100(), load_rates("perlmutter"), load_rates(name)
    memory = a100.memory_gbs.value / rates.memory_gbs.value
    processors = a100.tflops.value / peak_of_processors
    for term in SPMM_TERMS:
        factor = memory if term in BY_MEMORY else processors if term in BY_PROCESSORS else 1
        assert getattr(rates.spmm, term) == pytest.approx(factor * getattr(known, term), rel=1e-3), term
    assert (rates.spmm.cache_mb, rates.spmm.pass_columns) == (cache_mb, known.pass_columns)
    widest = max(memory, 1 / memory, processors)
    assert rates.spmm.within == pytest.approx(known.within * widest, rel=0.02), (
        "as wide as the terms were scaled"
    )
    assert rates.spmm.source.startswith("assumed")


def test_cards_of_amd_gpus_scale_all_terms_but_the_call() -> None:
    known, frontier, tuolumne = fit_terms_of_a100(), load_rates("frontier"), load_rates("tuolumne")
    memory = frontier.memory_gbs.value / tuolumne.memory_gbs.value
    for term in set(SPMM_TERMS) - {"call"}:
        assert getattr(frontier.spmm, term) == pytest.approx(10 * getattr(known, term), rel=1e-3), term
        assert getattr(tuolumne.spmm, term) == pytest.approx(10 * memory * getattr(known, term), rel=1e-3)
    assert frontier.spmm.call == tuolumne.spmm.call == known.call
    assert known.within < frontier.spmm.within < tuolumne.spmm.within


def test_published_products_are_priced_within_15_percent_at_the_median_and_35_at_nine_of_ten() -> None:
    """By the numbers of the card. `within` is stricter, because no product is predicted by a fit that saw its size."""
    rates = load_rates("perlmutter")
    several = [each for each in read_products() if each.product.columns > 1]
    assert len(several) == 1109
    ratios = np.array(
        [
            (price_spmm(each.product, rates.spmm) + rates.launch_us.value * MICRO) / each.seconds
            for each in several
        ]
    )
    off = np.maximum(ratios, 1 / ratios)
    assert np.median(off) < 1.15 and np.quantile(off, 0.9) < min(1.35, rates.spmm.within) and off.max() < 1.5
    hypersparse = np.array([each.product.rows > each.product.nonzeros for each in several])
    assert hypersparse.sum() > 250 and np.quantile(off[hypersparse], 0.9) < 1.35
