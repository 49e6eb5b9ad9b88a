"""Numbers for people: their units, digits and plurals."""

import math

import pytest

from harness.formatting import format_bytes, format_count, format_three_digits


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
