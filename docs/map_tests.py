"""Write the table of the tests into docs/develop/maintainers.md: tests, seconds and a description for each folder.

make test test-long test-map
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from harness.base.files import write_text

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "develop" / "maintainers.md"
BEGIN, END = "<!-- tests: made by docs/map_tests.py -->\n", "<!-- end of tests -->"


class Timed(NamedTuple):
    """A test, by the folder or the single file of `tests/` that it is in."""

    place: str
    seconds: float


def main() -> None:
    tests: list[Timed] = []
    for report in map(Path, sys.argv[1:]):
        cases = read(report)
        if not cases:
            sys.exit(
                f"{report} holds no test, so the table stays as it is. `make test test-long` writes it anew."
            )
        tests += cases
    write_text(PAGE, with_table(PAGE.read_text(), tests))


def read(report: Path) -> list[Timed]:
    """Return the cases of a JUnit report, or an empty list if there is no report."""
    if not report.is_file():
        return []
    return [timed(case) for case in ElementTree.parse(report).getroot().iter("testcase")]


def with_table(page: str, tests: list[Timed]) -> str:
    """Return the page with its table replaced by a table of these tests."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table(tests)}\n{END}{rest.partition(END)[2]}"


def timed(case: ElementTree.Element) -> Timed:
    """Return a case of a JUnit report, in which a module is a dotted name: tests.cli.test_data.

    A skipped module is a separate case, without a class.
    """
    _, place, *_ = (case.attrib["classname"] or case.attrib["name"]).split(".")
    return Timed(place, float(case.attrib["time"]))


def table(tests: list[Timed]) -> str:
    """Return a table with a row for each folder, the slowest first."""
    by_place: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        by_place[test.place].append(test.seconds)
    rows = ["| in `tests/` | tests | seconds | first sentence |", "| --- | ---: | ---: | --- |"]
    for place, seconds in sorted(by_place.items(), key=lambda row: -sum(row[1])):
        name = f"{place}/" if (ROOT / "tests" / place).is_dir() else f"{place}.py"
        rows.append(f"| `{name}` | {len(seconds)} | {sum(seconds):.0f} | {first_law(place)} |")
    total = sum(test.seconds for test in tests)
    return "\n".join([*rows, f"| all | {len(tests)} | {total:.0f} | |"])


def first_law(place: str) -> str:
    """Return the first line of the first docstring in a folder or file of tests."""
    folder = ROOT / "tests" / place
    files = sorted(folder.glob("test_*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    lines = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in files]
    return next((line.splitlines()[0] for line in lines if line), "").replace("|", "\\|")


if __name__ == "__main__":
    main()
