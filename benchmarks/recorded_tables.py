"""The tables of recorded pages, and of the other files that a page of docs can quote."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
GAP = re.compile(r" {2,}")


@dataclass(frozen=True)
class Table:
    """A table of a record, with the command and the lines that precede it."""

    file: str
    above: str
    header: list[str]
    cells: list[list[str]]

    def rows(self, *values: str, **columns: Any) -> list[dict[str, str]]:
        """Return the rows that have each of `values` in some column, and in a named column its value.

        A `_` in the name of a column stands for any character that a Python name cannot have.
        """
        rows = [dict(zip(self.header, cells, strict=True)) for cells in self.cells]
        names = {name: self._find_column(name) for name in columns}
        return [
            row
            for row in rows
            if set(values) <= set(row.values())
            and all(row[names[name]] == str(value) for name, value in columns.items())
        ]

    def _find_column(self, name: str) -> str:
        found = [each for each in self.header if name in {each, re.sub(r"\W", "_", each)}]
        if len(found) != 1:
            raise LookupError(f"{self.file}: {len(found)} columns {name}; the columns are {self.header}")
        return found[0]

    def text(self, column: str, *values: str, **columns: Any) -> str:
        """Return a cell of the one row that matches, see `rows`."""
        found = self.rows(*values, **columns)
        if len(found) != 1:
            raise LookupError(f"{self.file}: {len(found)} rows have {[*values, *columns.items()]}, not one")
        return found[0][self._find_column(column)]

    def numbers(self, column: str, *values: str, **columns: Any) -> list[float]:
        """Return all numbers of a cell."""
        return parse_numbers(self.text(column, *values, **columns))

    def __call__(self, column: str, *values: str, **columns: Any) -> float:
        """Return the first number of a cell."""
        if not (found := self.numbers(column, *values, **columns)):
            raise LookupError(f"{self.file}: {[*values, *columns.items()]} has no number in {column}")
        return found[0]

    def all(self, column: str, *values: str, **columns: Any) -> list[float]:
        """Return the first number of a column in each row that matches and has one."""
        name = self._find_column(column)
        found = [parse_numbers(row[name]) for row in self.rows(*values, **columns)]
        if not any(found):
            raise LookupError(
                f"{self.file}: no row has {[*values, *columns.items()]} and a number in {column}"
            )
        return [numbers[0] for numbers in found if numbers]


def parse_numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in NUMBER.findall(text)]


def table(file: str, *above: str) -> Table:
    """Return the one table of a file that has all texts of `above` in its header or in the lines before it.

    These lines are its command, and those after the previous table. The file is a page of benchmarks/results by its
    name, or a path from the root of the repository.
    """
    found = [
        each
        for each in read_tables(_find_file(file))
        if all(text in f"{each.above}\n{' | '.join(each.header)}" for text in above)
    ]
    if len(found) != 1:
        raise LookupError(f"{file}: {len(found)} tables are below {list(above)}, not one")
    return found[0]


def said(file: str, sentence: str) -> list[float]:
    """Return the numbers of a record's sentence, which has a {} for each."""
    found = list(compile_template(sentence, NUMBER).finditer(_find_file(file).read_text(encoding="utf-8")))
    if len(found) != 1:
        raise LookupError(f"{file} says {sentence!r} {len(found)} times, not once")
    return parse_numbers(" ".join(found[0].groups()))


def compile_template(text: str, number: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern with a group for each {} of a text; lines of the searched text may break at any space."""
    pieces = re.split(r"\{[^}]*\}", text)
    words = [r"\s+(?:> )?".join(map(re.escape, re.split(r"\s+", piece))) for piece in pieces]
    return re.compile(f"({number.pattern})".join(words))


def claim_text(name: str, column: str) -> str:
    """Return the cell of a claim in benchmarks/results/claims.md, in the table of its paper."""
    found = [
        each for each in read_tables(_find_file("claims")) if "of what" in each.header and each.rows(name)
    ]
    if len(found) != 1:
        raise LookupError(f"claims: {len(found)} tables of papers have {name}, not one")
    return found[0].text(column, name)


def claim(name: str) -> float:
    """Return our value of a claim in benchmarks/results/claims.md."""
    if not (found := parse_numbers(claim_text(name, "ours"))):
        raise LookupError(f"claims: our value of {name} has no number")
    return found[0]


def paper(name: str) -> float:
    """Return the number that a paper prints, by the id of the claim."""
    values = {row["id"]: row["value"] for each in _read_claims() for row in each.rows()}
    if not parse_numbers(values.get(name, "")):
        raise LookupError(f"workflows/claims has no number for {name}")
    return parse_numbers(values[name])[0]


def count_claims(**columns: str) -> int:
    """Return how many claims have these values in workflows/claims."""
    return sum(len(each.rows(**columns)) for each in _read_claims())


@cache
def _read_claims() -> list[Table]:
    return [read_tables(path)[0] for path in sorted((ROOT / "workflows" / "claims").glob("*.csv"))]


def card(file: str, *keys: str | int) -> Any:
    """Return a value of a YAML file."""
    value: Any = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    for key in keys:
        value = value[key]
    return value


def constant(name: str) -> Any:
    """Return an attribute of a module of the code, such as `harness.prediction.epoch.RESIDUAL`."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _find_file(name: str) -> Path:
    return ROOT / (name if "/" in name else f"benchmarks/results/{name}.md")


@cache
def read_tables(path: Path) -> list[Table]:
    """Return the tables of a file: Markdown's, those that are aligned by spaces, or the one of a CSV file."""
    name, text = path.name, path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        header, *rows = csv.reader(text.splitlines())
        return [Table(name, "", header, rows)]
    return list(_split_tables(name, text.splitlines()))


def _split_tables(name: str, lines: list[str]) -> Iterator[Table]:
    command, above, at = "", [""], 0
    while at < len(lines):
        if lines[at].startswith("    python "):
            command = lines[at]
            above = []
        end = next((end for end in range(at, len(lines)) if not _continues(lines, at, end)), len(lines))
        if end - at > 1:
            markdown = lines[at].startswith("|")
            header, rows = _parse_markdown(lines[at:end]) if markdown else _parse_aligned(lines[at:end])
            yield Table(name, "\n".join(above), header, rows)
            above, at = [command], end
        else:
            above.append(lines[at])
            at += 1


def _continues(lines: list[str], start: int, at: int) -> bool:
    """Whether a line belongs to the table that begins at `start`."""
    if lines[start].startswith("|"):
        return lines[at].startswith("|")
    return not lines[at].startswith(("    python ", "|", "`")) and len(GAP.split(lines[at].strip())) > 1


def _parse_markdown(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    header, _, *rows = (
        [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        for line in lines
    )
    before = [header[:index].count(name) for index, name in enumerate(header)]
    return [
        f"{name} ({count + 1})" if count else name for name, count in zip(header, before, strict=True)
    ], rows


def _parse_aligned(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """Split lines at two spaces and more; a cell of a row with empty cells belongs to the header above it."""
    spans = [match.span() for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    header = [lines[0][start:end] for start, end in spans]
    rows = []
    unnamed = any(len(GAP.split(line.strip())) == len(header) + 1 for line in lines[1:])
    if unnamed:
        header, spans = ["", *header], [(0, 0), *spans]
    for line in lines[1:]:
        cells = [""] * len(header)
        found = list(re.finditer(r"\S+(?: \S+)*", line))
        for index, match in enumerate(found):
            nearest = min(range(len(spans)), key=lambda each: _measure_distance(spans[each], match.span()))
            cells[index if len(found) == len(header) else nearest] = match.group()
        rows.append(cells)
    return header, rows


def _measure_distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return the number of characters between two spans; negative where they overlap."""
    return max(one[0], other[0]) - min(one[1], other[1])
