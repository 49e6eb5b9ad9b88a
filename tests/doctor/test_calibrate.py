"""The calibration: constants of the machine at hand, without negative terms, written beside what people wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from harness.doctor import calibrate
from harness.doctor.links import Measured
from harness.spec.machine_card import MeasuredLink, load_machine_card

CARD = """# What a person wrote.
description: mine
device: cpu
rates:       # old
  tflops: 3

  memory_gbs: 4
threads_per_rank: 1    # kept
links: {}
"""


def test_it_writes_what_it_measured_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config" / "machines"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# What a person wrote.\ndevice: cpu\n")
    monkeypatch.setattr(calibrate, "SCALES", (6, 8))
    monkeypatch.setattr(calibrate, "WIDTHS", (1, 8))
    monkeypatch.setattr(calibrate, "BATCH", 32)
    monkeypatch.setattr(calibrate, "LAYERS", ((64, 8, 8), (256, 16, 16)))
    monkeypatch.setattr(calibrate, "STREAMED", (1 << 10, 1 << 12))
    links = Measured([MeasuredLink(before=1, size=2, gbs=1.5)], 200.0)
    monkeypatch.setattr(calibrate, "measure", lambda *_: links)
    sections = calibrate.calibrated(tmp_path, "mine", 2, lambda _: None)
    (folder / "mine.yaml").write_text(CARD)
    calibrate.write_sections(tmp_path, "mine", sections)
    text, card = (folder / "mine.yaml").read_text(), load_machine_card(tmp_path, "mine")
    assert text.startswith(
        "# What a person wrote.\ndescription: mine\ndevice: cpu\nthreads_per_rank: 1    # kept\n"
    )
    assert card.rates and card.links and card.links.cpu_gbs
    assert card.links.latency_us.value == 100
    assert card.links.cpu_gbs.value == 1.5
    assert card.rates.launch_us.value < 1e5
    assert card.rates.tflops.source.startswith("measured by harness doctor")


@given(seed=st.integers(0, 10_000), scales=st.lists(st.floats(-6, 9), min_size=3, max_size=3))
def test_a_fit_is_the_best_without_negative_coefficients(seed: int, scales: list[float]) -> None:
    """Judge: scipy's bounded least squares of the relative errors."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** np.array(scales)
    terms = rng.random((30, 3)) * scale
    seconds = rng.random(30) + np.abs(terms @ (rng.normal(size=3) / scale)) + 0.1
    found = calibrate.fit_terms(terms, seconds)
    relative: NDArray[Any] = terms / scale / seconds[:, None]
    best = lsq_linear(relative, np.ones(30), bounds=(0, np.inf), tol=1e-12)
    residual = terms @ found / seconds - 1
    assert (found >= 0).all()
    assert residual @ residual / 2 == pytest.approx(best.cost, rel=1e-6, abs=1e-12)
