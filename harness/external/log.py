"""What a log of BNS-GCN or PipeGCN says, in its own words. Both programs print the same lines, all processes into one
log, at times two on one line. Whatever stands before them on a line (ranks by `srun -l`, times) is passed over.
"""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

NUMBER = r"(-?\d+\.\d{4}|-?inf|nan)"
EPOCH = re.compile(
    rf"Process (\d+) \| Epoch (\d+) \| Time\(s\) {NUMBER} "
    rf"\| Comm\(s\) {NUMBER} \| Reduce\(s\) {NUMBER} \| Loss {NUMBER}"
)
VALID = re.compile(r"Epoch (\d+) \| (?:Validation )?Accuracy ([\d.]+)%(?: \| Test Accuracy ([\d.]+)%)?")
TEST = re.compile(r"Test Result \| Accuracy ([\d.]+)%")
MEMORY = re.compile(r"\(rank (\d+)\) memory stats: current [\d.]+MB, peak ([\d.]+)MB")
SETTINGS = re.compile(r"\bNamespace\((?=\w+=)(.*)$", re.MULTILINE)
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
NAMED = re.compile(r"\s*[A-Za-z_]\w*=")
TOKEN = re.compile(rf"(?<=[=(\[{{, ])(?:{QUOTED})|.")
"""A text in quotes where a value can begin, or one character."""
OPENING, CLOSING = "([{<", ")]}>"


class Line(NamedTuple):
    """A process after some epoch: means over all epochs up to then but the first five, and its own loss."""

    rank: int
    epoch: int
    seconds: float
    communicating: float
    reducing: float
    loss: float


class Accuracy(NamedTuple):
    """Of one split, after an epoch."""

    epoch: int
    split: str
    share: float


class Log:
    """A log, read. `where` names it to people; `exit_code` is that of its program, if that was run now."""

    def __init__(self, text: str, where: str, exit_code: int | None = None) -> None:
        self.text, self.where, self.exit_code = text, where, exit_code

    @cached_property
    def lines(self) -> list[Line]:
        """Every process after every epoch that it speaks of."""
        found = (match.groups() for match in EPOCH.finditer(self.text))
        return sorted(Line(int(rank), int(epoch), *map(float, numbers)) for rank, epoch, *numbers in found)

    @cached_property
    def last(self) -> dict[int, Line]:
        """By process, the last of these."""
        return {line.rank: line for line in self.lines}

    @property
    def accuracies(self) -> list[Accuracy]:
        """As they were found while it trained."""
        found = []
        for epoch, valid, test in VALID.findall(self.text):
            found.append(Accuracy(int(epoch), "valid", float(valid) / 100))
            found += [Accuracy(int(epoch), "test", float(test) / 100)] if test else []
        return found

    @property
    def result(self) -> float | None:
        """The accuracy on test vertices, in the end, of the model that was best on validation vertices."""
        said = TEST.search(self.text)
        return float(said[1]) / 100 if said else None

    @property
    def device_peaks(self) -> dict[int, int]:
        """Bytes that a process had allocated on its GPU, at most."""
        return {int(rank): int(float(peak) * 2**20) for rank, peak in MEMORY.findall(self.text)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options of the program, which it prints when it starts; nothing if they are not in the log.

        A run over several nodes has them once from each.
        """
        return max(self.each_settings, key=len, default={})

    @cached_property
    def each_settings(self) -> list[dict[str, Any]]:
        """Every print of options in the log."""
        return [dict(_options(said.rstrip())) for said in SETTINGS.findall(self.text)]

    def ending(self, lines: int = 8) -> str:
        """Its last lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-lines:])


def _options(said: str) -> Iterator[tuple[str, Any]]:
    """Names and values of what stands after `Namespace(`; an option that is cut off with its line is left out."""
    depth, pieces = 0, [""]
    for token in TOKEN.findall(said):
        if token == ")" and depth == 0:
            break
        depth = max(depth + (token in OPENING) - (token in CLOSING), 0)
        if token == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += token
    else:
        pieces.pop()
    options: list[str] = []
    for piece in pieces:
        if NAMED.match(piece):
            options.append(piece)
        elif options:  # a comma within a value that has no quotes
            options[-1] += f",{piece}"
    for option in options:
        name, _, text = option.strip().partition("=")
        yield name, _value(text)


def _value(text: str) -> Any:
    """A literal of Python, a number that is none (inf, nan), or the text as it stands: a path, a word."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        try:
            return float(text)
        except ValueError:
            return text
    return value if _plain(value) else text


def _plain(value: Any) -> bool:
    """Whether it can stand in a record as it is."""
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(inner) for key, inner in value.items())
    return value is None or isinstance(value, str | bool | int | float)
