"""Numbers for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.formatting import choose_time_unit, format_interval, format_seconds, format_three_digits
from harness.report.figures.axis_scales import Scale


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (0.01234, "0.0123"),
        (9.999, "10.0"),
        (99.96, "100"),
        (0.09996, "0.100"),
        (float("nan"), "–"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert format_three_digits(value) == text


@given(st.floats(1e-6, 1e6))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert float(format_three_digits(value).replace(",", "")) == pytest.approx(value, rel=0.00501)


@pytest.mark.parametrize(
    ("seconds", "name"), [(90, "s"), (1, "s"), (0.5, "ms"), (0.0009, "µs"), (1e-9, "µs")]
)
def test_the_unit_suits_the_time(seconds: float, name: str) -> None:
    assert choose_time_unit(seconds).name == name


@pytest.mark.parametrize("seconds", [2e-6, 5e-3, 3.0])
def test_terminal_tables_and_axes_spell_units_of_time_alike(seconds: float) -> None:
    unit = choose_time_unit(seconds).name
    assert format_seconds(seconds).endswith(f" {unit}")
    assert Scale("t", "time", "s").formatter(seconds).endswith(f" {unit}")
    assert format_interval(seconds, 2 * seconds).endswith(f" {unit}")
