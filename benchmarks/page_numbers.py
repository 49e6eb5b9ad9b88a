"""The numbers of README.md and of docs: which cell of a record each is, and which are no results.

docs/results has a file for each page. `python docs/write_results.py` writes the numbers of the cells into the page.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import floor, log10
from pathlib import Path
from typing import Any

import yaml

from benchmarks.recorded_tables import (
    ROOT,
    card,
    claim,
    claim_text,
    compile_template,
    constant,
    count_claims,
    paper,
    parse_numbers,
    said,
    table,
)

Span = tuple[int, int]
NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORDS = {name: number for number, name in enumerate(NAMES, start=1)}
PLACEHOLDER = re.compile(rf"-?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:{'|'.join(NAMES)})\b")
IN_PROSE = re.compile(
    r"(?<![\w.@/=])(?<!\d,)(?<![\w)]-)-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|\.\d|,\d{3})"
)

N = r"\d+(?:,\d{3})*(?:\.\d+)?"
SOME = rf"{N}(?:(?:, | and | or | to |, and ){N})*"
PROGRAMS = "python slurm torch pyg dgl cuda debian release versions? podman-hpc torch-sparse"
REFERENCES = (
    "sections? tables? figures? fig equations? findings? algorithm stages? layer dimension step rank part batch epoch "
    "vertex issue request code code\\sis"
)
CHOSEN = (
    "ranks? hosts? GPUs? devices? nodes? cores? parts? layers? hops? launches rounds seeds heads? columns? classes "
    "[MG]bit/s bits? hidden"
)
SIZED = "hidden widths? width\\sof batch batch\\sof batches\\sof bins\\sof fan-outs? fan-out\\sof"
SYMBOL = r"(?:(?![sMGkB]\b)[A-Za-z](?:_\(?[\w-]+\)?)?|nnz)"


def either(words: str) -> str:
    return f"(?i:{'|'.join(words.split())})"


LAYOUT = {
    "code": r"```.*?```|^    [^\n]*$|`[^`\n]*`|<!--.*?-->",
    "link": r"\]\([^)]*\)|https?://\S+",
    "heading": r"^#+ [^\n]*$|^ *\d+\. |^\|[^\n]*\|\n(?=\| ?:?---)",
}
"""Parts of a page without prose. To the rules below, each of their characters is a NUL."""
RULES = {
    "claim": r"\b(?:CAG|G3|MBS|PLX|SGN)-\d+(?:, \d{3}\b)*(?: to (?:CAG|G3|MBS|PLX|SGN)-\d+)?",
    "year": r"\b(?:19|20)\d\d\b(?!,\d)|arXiv:\S+|PVLDB \d+\(\d+\)",
    "version": rf"\b{either(PROGRAMS)} \d+(?:\.\d+)*(?:(?:, | and |(?<=\d\.\d) to )\d+(?:\.\d+)+)*",
    "reference": rf"\b{either(REFERENCES)} {SOME}",
    "setting": rf"\b{SOME}(?: or more| emulated| other)? {either(CHOSEN)}\b|\b{either(SIZED)} {SOME}",
    "grid": r"\b(?:\d+|[A-Z])(?: ?x ?(?:\d+|[A-Z]))+\b",
    "default": rf"\x00 \({N}(?=[);])",
    "tolerance": r"\b1e-\d+",
    "formula": rf"(?:[=^*<>] ?|[A-Za-z\x00]\)? [-+/] ){N}|{N} ?[-+*/^] ?[A-Za-z(\d\x00]|{N} \x00+ [-+]"
    rf"|{N} {SYMBOL}(?=[\s)/,.;:|])|\d+ \([A-Z]",
}
"""Numbers that are no results, by where they stand. A rule does not see what an earlier one has taken."""
RULES = {name: rule.replace(" ?", r"\s*").replace(" ", r"\s+") for name, rule in RULES.items()}
SMALLEST_SIZE = 16
"""From here on, a power of two is a width or a number of ranks that someone chose."""


def is_size(number: str, after: str) -> bool:
    """Whether a number is a power of two, and no result by the words after it."""
    is_power = number.isdecimal() and int(number) >= SMALLEST_SIZE and int(number).bit_count() == 1
    return is_power and not re.match(r"\s*(?:%|times\b|of \d|m?s\b|[MG]i?B\b)", after)


@dataclass
class Page:
    """A page, and the entries of its file in docs/results."""

    text: str
    entries: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    """What is wrong with the entries; a message for each."""
    edits: dict[Span, str] = field(default_factory=dict)
    """The text that belongs in each place that is tied to a cell."""
    chosen: list[Span] = field(default_factory=list)
    """The cells of the columns of settings."""

    def __post_init__(self) -> None:
        for template, values in self.entries.get("results", {}).items():
            self._tie_text(template, values)
        for entry in self.entries.get("tables", ()):
            self._tie_table(entry)
        for fragment, condition in self.entries.get("holds", {}).items():
            if self._find(fragment) and self.evaluate(condition) is False:
                self._report(f"{fragment!r} is no longer true: {condition}")
        for fragment in (*self.entries.get("settings", ()), *self.entries.get("unrecorded", ())):
            self._find(fragment, once=False)

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Read a page and its entries."""
        file = find_entries(path)
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        return cls(path.read_text(encoding="utf-8"), entries)

    @cached_property
    def names(self) -> dict[str, Any]:
        """What an expression can use: the functions of `recorded_tables`, and the page's own names."""
        names: dict[str, Any] = {
            **{
                each.__name__: each
                for each in (
                    table,
                    claim,
                    claim_text,
                    count_claims,
                    paper,
                    said,
                    card,
                    constant,
                    three_digits,
                )
            },
            "numbers": parse_numbers,
        }
        for name, expression in self.entries.get("names", {}).items():
            try:
                names[name] = eval(f"({expression})", names)
            except Exception as error:
                self._report(f"{name}: {type(error).__name__}: {error}")
        return names

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def evaluate(self, expression: Any, **more: Any) -> Any:
        """Return the value of an expression, or None and a problem."""
        if isinstance(expression, dict):
            self._report(f"quote the expression, which YAML reads as a mapping: {expression}")
            return None
        if not isinstance(expression, str):
            return expression
        try:
            return eval(f"({expression})", {**self.names, **more})
        except Exception as error:
            is_reported = isinstance(error, NameError) and error.name in self.entries.get("names", {})
            if not is_reported:
                self._report(f"{expression}: {type(error).__name__}: {error}")
            return None

    def _find(self, template: str, *, once: bool = True) -> list[re.Match[str]]:
        found = list(compile_template(template, PLACEHOLDER).finditer(self.text))
        if not found or (once and len(found) > 1):
            self._report(f"the page has {template!r} {len(found)} times")
            return []
        return found

    def _tie_text(self, template: str, expressions: Any) -> None:
        for match in self._find(template):
            kinds = re.findall(r"\{:?([^}]*)\}", template)
            if isinstance(expressions, list):
                values = [self.evaluate(each) for each in expressions]
            else:
                value = self.evaluate(expressions)
                if value is None:
                    continue
                values = list(value) if isinstance(value, list | tuple) else [value]
            if len(kinds) != len(values):
                self._report(f"{template!r} has {len(kinds)} numbers, and {len(values)} values")
                continue
            for index, (kind, value) in enumerate(zip(kinds, values, strict=True), start=1):
                self._tie(match.span(index), value, kind, template)

    def _tie(self, span: Span, value: float | None, kind: str, where: str) -> None:
        written = self.text[slice(*span)]
        if value is None:
            return
        if kind in {"<", ">"}:
            number = WORDS.get(written) or parse_numbers(written)[0]
            if value > number * (1 + 1e-9) if kind == "<" else value < number * (1 - 1e-9):
                self._report(f"{where!r}: {written} is not a bound of {value:.6g}: change the sentence")
        else:
            written = write_number(value, written, int(kind or 0))
        if self.edits.setdefault(span, written) != written:
            self._report(f"{where!r}: another entry gives {self.edits[span]}, and not {written}")

    def _tie_table(self, entry: dict[str, Any]) -> None:
        below = entry.get("below", "")
        tables = [
            match
            for match in re.finditer(r"^\|[^\n]*\n\|[ :|-]+\n(?:\|[^\n]*\n?)*", self.text, re.MULTILINE)
            if is_header(read_header(match.group()), entry["header"])
            and below in self.text[: match.start()].rpartition("\n|")[2]
        ]
        if len(tables) != 1:
            self._report(f"the page has {len(tables)} tables {entry['header']!r}")
            return
        head = read_header(tables[0].group()).split(" | ")
        lines = tables[0].group().splitlines(keepends=True)
        at = tables[0].start() + len(lines[0]) + len(lines[1])
        if "copy" in entry:
            if copied := self.evaluate(entry["copy"]):
                rule = split_row(lines[1], 0)
                rules = (
                    [text for text, _ in rule]
                    if len(rule) == len(copied.header)
                    else ["---"] * len(copied.header)
                )
                rows = [copied.header, rules, *copied.cells]
                self.edits[tables[0].span()] = "".join(f"| {' | '.join(row)} |\n" for row in rows)
            return
        if "body" in entry:
            if rows := self.evaluate(entry["body"]):
                self.edits[at, tables[0].end()] = "".join(f"| {' | '.join(row)} |\n" for row in rows)
            return
        for line in lines[2:]:
            self._tie_row(entry, head, split_row(line, at))
            at += len(line)

    def _tie_row(self, entry: dict[str, Any], head: list[str], cells: list[tuple[str, Span]]) -> None:
        if len(cells) != len(head):
            self._report(f"a row of {entry['header']!r} has {len(cells)} cells, and not {len(head)}: {cells}")
            return
        row = {name: re.sub(r"[`*]", "", text) for name, (text, _) in zip(head, cells, strict=True)}
        spans = {name: span for name, (_, span) in zip(head, cells, strict=True)}
        self.chosen += [spans[name] for name in entry.get("settings", ())]
        for column, expression in entry["columns"].items():
            places = [match.span() for match in IN_PROSE.finditer(self.text, *spans[column])]
            value = self.evaluate(expression, row=row, name=row[head[0]], column=column)
            if isinstance(value, str):
                self.edits[spans[column]] = value
            elif value is not None:
                values = value if isinstance(value, list | tuple) else [value]
                if len(values) != len(places):
                    where = self.text[slice(*spans[column])]
                    self._report(f"{row[head[0]]}, {column}: {where!r} has not {len(values)} numbers")
                    continue
                for place, each in zip(places, values, strict=True):
                    self._tie(place, each, "", f"{row[head[0]]}, {column}")

    def write(self) -> str:
        """Return the page with the numbers of the records."""
        text = self.text
        for (start, end), new in sorted(self.edits.items(), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def classify(self) -> Iterator[tuple[re.Match[str], str]]:
        """Yield each number of the page with `tied`, `settings`, `unrecorded`, the rule that exempts it, or nothing."""
        kinds = [""] * len(self.text)

        def mark(spans: Iterator[Span], kind: str) -> None:
            for start, end in spans:
                kinds[start:end] = [each or kind for each in kinds[start:end]]

        mark(iter(self.edits), "tied")
        mark(iter(self.chosen), "settings")
        for kind in ("settings", "unrecorded"):
            for fragment in self.entries.get(kind, ()):
                found = compile_template(fragment, PLACEHOLDER).finditer(self.text)
                mark((match.span() for match in found), kind)
        for part, pattern in LAYOUT.items():
            mark((match.span() for match in re.finditer(pattern, self.text, re.M | re.S)), part)
        prose = "".join(
            "\x00" if kind in LAYOUT else char for kind, char in zip(kinds, self.text, strict=True)
        )
        for rule, pattern in RULES.items():
            mark((match.span() for match in re.finditer(pattern, prose)), rule)
        for match in IN_PROSE.finditer(self.text):
            yield (
                match,
                kinds[match.start()]
                or ("size" if is_size(match.group(), self.text[match.end() : match.end() + 9]) else ""),
            )


def read_header(table_text: str) -> str:
    return " | ".join(text for text, _ in split_row(table_text.partition("\n")[0], 0))


def is_header(header: str, wanted: str) -> bool:
    """Whether a header is the wanted one, whose end may be `...` for any other columns."""
    start = wanted.removesuffix(" | ...")
    return header == start or (start != wanted and header.startswith(f"{start} | "))


def split_row(line: str, at: int) -> list[tuple[str, Span]]:
    """Return the cells of a line of a table, with their places in the page."""
    inner = re.finditer(r"(?<=\|)[^|\n]*(?=\|)", line)
    cells = [(match.group(), at + match.start()) for match in inner]
    return [
        (
            text.strip(),
            (start + len(text) - len(text.lstrip()), start + len(text.rstrip()))
            if text.strip()
            else (start, start),
        )
        for text, start in cells
    ]


def write_number(value: float, written: str, digits: int = 0) -> str:
    """Return a value with the digits of the number that is written, which stays if it is the value rounded.

    A number of `digits` significant digits may end with zeros that stand for others.
    """
    if written in WORDS:
        words = {number: word for word, number in WORDS.items()}
        return words.get(round(value), f"{value:,.0f}")
    number = parse_numbers(written)[0]
    mantissa, _, exponent = written.partition("e")
    significant = digits or max(1, len(re.sub(r"\D", "", mantissa).lstrip("0")))
    half = 0.5 * 10 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    is_rounded = (
        number == float(f"{value:.{digits - 1}e}") if digits else abs(value - number) <= half * (1 + 1e-9)
    )
    if is_rounded:
        return written
    if exponent:
        return f"{value:.{significant - 1}e}"
    decimals = significant - 1 - floor(log10(abs(value))) if value else 0
    decimals = decimals if digits else max(0, decimals)
    separator = "" if "," not in written and abs(number) >= 1000 else ","
    return f"{round(value, decimals):{separator}.{max(0, decimals)}f}"


def three_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def find_entries(page: Path) -> Path:
    """Return the file of a page's entries."""
    inside = page.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else page.relative_to(ROOT)
    return ROOT / "docs" / "results" / inside.with_suffix(".yaml")


def list_pages() -> list[Path]:
    """Return README.md and the pages of docs whose numbers are tested."""
    folders = ("concepts", "evidence", "how-to", "start", "strategies", "tutorials")
    return [
        ROOT / "README.md",
        *(path for each in folders for path in sorted((ROOT / "docs" / each).rglob("*.md"))),
    ]
