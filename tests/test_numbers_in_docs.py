"""Every measured number on a page is in a record that a command wrote."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.claims import read_claims

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        path
        for folder in ("concepts", "evidence", "how-to", "start", "strategies")
        for path in sorted((ROOT / "docs" / folder).rglob("*.md"))
    ),
]
NUMBER = re.compile(r"(?<![\w.@/=,-])\d[\d,]*(?:\.\d+)?(?!\w|\.\d)")
CLAIMS = re.compile(r"\b((?:CAG|G3|MBS|PLX|SGN)-)(\d+)((?:, \d{3}\b)*)(?: to (?:CAG|G3|MBS|PLX|SGN)-(\d+))?")
NOT_PROSE = re.compile(
    r"```.*?```"  # what commands print is tested by tests/journeys/test_pages.py
    r"|^    [^\n]*$|`[^`\n]*`|\]\([^)]*\)"  # commands, code and links
    r"|\b(?:19|20)\d\d\b(?!,\d)|arXiv:[\d.]+|\b(?:pull request|issue) \d+"
    r"|\b(?:Python|Slurm|torch|such as|with|versions?) [\d., andor]+",
    flags=re.DOTALL | re.MULTILINE,
)
"""What is no measured number: code, and years, papers and versions."""
SCALES = (1, 1e3, 1e6, 1e9, 1e-3, 1e-6, 100, 0.01)
"""The units of a page over those of a record: thousands, millions, percent, ..."""
OF_THREE_DIGITS = 3
"""Shorter numbers would be found in most records by chance."""


def count_digits(number: str) -> int:
    digits = number.replace(",", "").replace(".", "").lstrip("0")
    return len(digits if "." in number else digits.rstrip("0"))


def find_numbers(text: str) -> list[str]:
    prose = NOT_PROSE.sub(" ", CLAIMS.sub(" ", text))
    found = (match.group().rstrip(",") for match in NUMBER.finditer(prose))
    return [number for number in found if count_digits(number) >= OF_THREE_DIGITS and not is_size(number)]


def is_size(number: str) -> bool:
    """Whether a number is a power of two, which is a width or a number of ranks that someone chose."""
    return "." not in number and int(number.replace(",", "")).bit_count() == 1


@cache
def read_numbers(path: Path) -> tuple[float, ...]:
    """Read all numbers of a record but those of the line that describes the machine and the versions."""
    text = re.sub(r"^.* Commit .*$", "", path.read_text(), flags=re.MULTILINE)
    return tuple(parse_numbers(text.replace(",", " ") if path.suffix == ".csv" else text))


def parse_numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", text)]


@cache
def read_printed() -> dict[str, list[str]]:
    """The text of each claim: what the paper prints, our notes on it, and our recorded value."""
    claims = {each.id: [each.value, each.note] for some in read_claims(ROOT).values() for each in some}
    for line in (ROOT / "benchmarks" / "results" / "claims.md").read_text().splitlines():
        if line.split(" ", 1)[0] in claims:
            claims[line.split(" ", 1)[0]].append(line)
    return claims


def name_claims(text: str) -> Iterator[str]:
    """Yield the ids of the claims that a text names, also in the forms PLX-128, 129 and PLX-087 to PLX-089."""
    for paper, first, more, last in CLAIMS.findall(text):
        yield paper + first
        yield from (paper + number for number in re.findall(r"\d+", more))
        yield from (f"{paper}{number:03d}" for number in range(int(first), int(last or first) + 1))


def list_records(page: Path, section: str) -> list[float]:
    """Return the numbers of the records that a section or else its page links, and of the claims that it names."""

    def linked(text: str) -> set[Path]:
        paths = re.findall(
            r"\]\(([^)#]*(?:benchmarks|config|datasets|workflows)/[^)#]*\.(?:md|csv|yaml))", text
        )
        return {(page.parent / path).resolve() for path in paths}

    numbers = [each for path in linked(section) or linked(page.read_text()) for each in read_numbers(path)]
    for name in name_claims(section):
        numbers += parse_numbers(" ".join(read_printed().get(name, ())))
    return sorted(numbers)


def is_recorded(number: str, records: list[float]) -> bool:
    """Whether a record has the number to the digits that are written, in any unit."""
    value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
    half = 0.5 * 10**-digits
    for scale in SCALES:
        at = bisect_left(records, (value - half) * scale * (1 - 1e-9))
        if at < len(records) and records[at] <= (value + half) * scale * (1 + 1e-9):
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_number_of_a_page_is_in_a_record(page: Path) -> None:
    for section in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE):
        records = list_records(page, section)
        missing = [number for number in find_numbers(section) if not is_recorded(number, records)]
        assert not missing, section.splitlines()[0]


def test_a_wrong_number_is_not_recorded() -> None:
    records = sorted([0.815, 12_345_678.0, 95.2])
    assert is_recorded("0.82", records)
    assert is_recorded("12.35", records)
    assert is_recorded("12,345,678", records)
    assert is_recorded("0.952", records)
    assert not is_recorded("0.816", records)
    assert not is_recorded("12.34", records)
    assert not is_recorded("95.3", records)
