"""Numbers for people: their units, digits and plurals."""

import math

import pytest

from harness.base.formatting import (
    format_bytes,
    format_count,
    format_interval,
    format_seconds,
    format_si,
    format_three_digits,
    format_whole,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999.6, "1.00 kB"),
        (1_500, "1.50 kB"),
        (16_777_216, "16.8 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.00 GB"),
        (2.5e12, "2.50 TB"),
        (4.2e15, "4,200 TB"),
    ],
)
def test_bytes_have_three_digits_and_the_unit_that_suits_them(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345, "12,345"), (123.4, "123"), (1.2345, "1.23"), (0.0012345, "0.00123"), (0, "0"), (math.nan, "–")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert format_three_digits(value) == text


def test_nouns_follow_their_number() -> None:
    assert format_count(1, "rank") == "1 rank"
    assert [format_count(number, "rank") for number in (0, 2, 1024)] == ["0 ranks", "2 ranks", "1,024 ranks"]
    assert format_count(2, "strategy", "strategies") == "2 strategies"


def test_counts_in_full_have_no_fraction() -> None:
    assert [format_whole(number) for number in (0, 999, 12_073.0)] == ["0", "999", "12,073"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (13_513, "13.5 k"),
        (22e6, "22.0 M"),
        (999_999, "1.00 M"),
        (2.5, "2.50"),
        (1e12, "1.00 T"),
    ],
)
def test_counts_have_si_prefixes(value: float, text: str) -> None:
    assert format_si(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.5e-5, "35.0 µs"),
        (0.00504, "5.04 ms"),
        (0.9999, "1.00 s"),
        (1.25, "1.25 s"),
        (750.0, "12 min"),
        (0.0, "0 s"),
        (2.93e-8, "29.3 ns"),
    ],
)
def test_times_have_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_intervals_are_in_the_unit_of_their_upper_end() -> None:
    assert format_interval(0.9e-3, 1.2e-3) == "0.900 - 1.20 ms"
