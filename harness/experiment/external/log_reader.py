"""Reads the log of a program by its card."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.errors import UserError
from harness.base.validation import clip_line
from harness.experiment.external.line_form import Field, is_option, name_option
from harness.experiment.external.log_options import parse_command, parse_namespaces
from harness.experiment.external.program import Options, Program, list_programs, load_program
from harness.ledger import Amounts, Direction, Key

LINE = re.compile(r"[^\r\n]+")


class ProgramLog(NamedTuple):
    """The text of a log. `where` names it in errors."""

    text: str
    where: str
    exit_code: int | None = None
    """The exit code of the program, if the harness ran it."""
    command: str = ""
    """The command, if the harness ran it."""

    def format_last_lines(self, count: int = 8) -> str:
        """Return the last `count` lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-count:])


class EpochReport(NamedTuple):
    """The report of a process after an epoch. A time that the program did not print is NaN."""

    rank: int
    epoch: int
    seconds: float
    loss: float
    parts: Mapping[Key, Amounts] = {}
    """Parts of the seconds by their place in the ledger. The remaining seconds are other work."""


class Accuracy(NamedTuple):
    """The accuracy on a split after an epoch, as a fraction."""

    epoch: int
    split: str
    share: float


class LoggedRun(NamedTuple):
    """Everything that a log shows about a run."""

    options: Options
    """The options of the program, from what it prints and from its command. Empty if neither shows any."""
    reports: Sequence[EpochReport] = ()
    """The reports, sorted by process and epoch."""
    accuracies: Sequence[Accuracy] = ()
    final_test_accuracy: float | None = None
    """The test accuracy of the weights that were best on the validation vertices."""
    device_peaks: Mapping[int, int] = {}
    """The peak GPU memory of each process in bytes, by its rank."""
    printed: Mapping[str, Sequence[Any]] = {}
    """All values of each option that the program prints."""
    mismatch: str = ""
    """The reason why this log was written by another program; empty if it was not."""
    has_begun: bool = False
    """Whether the log shows that the program began to train, even without a report."""
    has_ended: bool = False
    """Whether the log has the line that the program prints at the end."""

    @property
    def last_reports(self) -> dict[int, EpochReport]:
        """The last report of each process, by its rank."""
        return {report.rank: report for report in self.reports}


Place = tuple[int, int]
"""A process and an epoch."""
TOTAL: Place = (-1, -1)
"""The place of sums over all epochs."""
OF_A_RUN = ("final_test", "device_peak")
"""The quantities that do not belong to an epoch."""


class _LineReader:
    """Collects what lines show, in their order."""

    def __init__(self, program: Program, where: str) -> None:
        self.losses: list[tuple[Place, float]] = []
        self.seconds = defaultdict[Place, float](float)
        self.parts = defaultdict[Place, dict[Key, Amounts]](dict)
        self.accuracies: list[Accuracy] = []
        self.final_tests: list[float] = []
        self.device_peaks: dict[int, int] = {}
        self.options = defaultdict[tuple[str, str], list[Any]](list)
        """The values of each option, by its name and its unit."""
        self.matched = set[int]()
        """The numbers of the forms that matched."""
        self._program, self._where = program, where
        self._rank, self._epoch = 0, -1
        self._direction = Direction.FORWARD

    def read(self, line: str) -> None:
        """Read the matches of all forms. If two overlap, the first in the line, then the first in the card, counts."""
        found = sorted(
            (match.start(), number, match)
            for number, form in enumerate(self._program.forms)
            if form.word in line
            for match in form.pattern.finditer(line)
        )
        end = 0
        for start, number, match in found:
            if start >= end:
                end = match.end()
                self._read_match(number, match)

    def _read_match(self, number: int, match: "re.Match[str]") -> None:
        line, fields = self._program.lines[number], self._program.forms[number].fields
        texts = zip(fields, match.groups(), strict=True)
        values = [(field, self._parse(field, text, match.string)) for field, text in texts]
        named = {field.name: value for field, value in values}
        self.matched.add(number)
        self._direction = line.direction or self._direction
        if "epoch" in named:  # a line with an epoch and no rank is the first process's
            self._rank, self._epoch = 0, int(named["epoch"]) - self._program.first_epoch
        self._rank = int(named.get("rank", self._rank))
        place = TOTAL if line.total else (self._rank, self._epoch)
        for field, value in values:
            if is_option(field.name):
                self.options[name_option(field.name), field.unit].append(value)
            elif field.name in OF_A_RUN or line.total or self._epoch >= 0:  # the log may lack its beginning
                self._add_value(place, field.name, value)

    def _parse(self, field: Field, text: str, line: str) -> Any:
        try:
            if field.name == "epoch" and float(text) < self._program.first_epoch:
                raise ValueError(text)
            return field.parse(text)
        except ValueError:
            value = f"{field.name} = {clip_line(text, 40)}"
            raise UserError(
                f"{self._where}: {value} is not accepted: {field.quantity.expected}. It is in this line of "
                f"{self._program.title}: {clip_line(line, 120)}"
            ) from None

    def _add_value(self, place: Place, name: str, value: Any) -> None:
        match name:
            case "loss":
                self.losses.append((place, value))
            case "seconds":
                self.seconds[place] += value
            case "train" | "valid" | "test":
                self.accuracies.append(Accuracy(place[1], name, value))
            case "final_test":
                self.final_tests.append(value)
            case "device_peak":
                self.device_peaks[self._rank] = int(value)
            case _ if part := self._program.parts.get(name):
                amounts = self.parts[place].setdefault(part.find_key(self._direction), Amounts())
                amounts.add({"in_flight_seconds" if part.in_flight else "seconds": value})

    def make_reports(self, epochs: int) -> list[EpochReport]:
        """Return a report for each loss. The last has the means of the sums over all epochs."""
        reports = [
            EpochReport(*place, self.seconds.get(place, nan), loss, self.parts.get(place, {}))
            for place, loss in self.losses
        ]
        reports.sort(key=lambda report: report[:2])
        if reports and epochs and TOTAL in self.seconds:
            means = {
                key: Amounts(
                    seconds=total.seconds / epochs, in_flight_seconds=total.in_flight_seconds / epochs
                )
                for key, total in self.parts[TOTAL].items()
            }
            reports[-1] = reports[-1]._replace(seconds=self.seconds[TOTAL] / epochs, parts=means)
        return reports

    def list_options(self, unit: str) -> dict[str, list[Any]]:
        """Return all values of the options with a unit, by name."""
        return {name: values for (name, its_unit), values in self.options.items() if its_unit == unit}


def read_log(log: ProgramLog, program: Program) -> LoggedRun:
    """Return what a log shows. Raise UserError for a line of the program with a number that cannot be read."""
    lines = _LineReader(program, log.where)
    for line in LINE.finditer(log.text):
        lines.read(line[0])
    namespaces = parse_namespaces(log.text) if program.namespace else []
    namespace, printed = max(namespaces, key=len, default={}), lines.list_options("")
    for other in namespaces:
        for name, value in other.items() if program.namespace in other else ():
            printed.setdefault(name, []).append(value)
    matched = [program.lines[number] for number in sorted(lines.matched)]
    command = f"{log.command}\n{log.text}"
    options = {
        **(parse_command(command, program.script, program.defaults) if program.script else {}),
        **{name: value for line in matched for name, value in line.shows.items()},
        **{name: values[0] for name, values in printed.items()},
        **namespace,
    }
    counts = printed.get(program.options_by_key.get("training.epochs", ""), ())
    epochs = next((count for count in counts if isinstance(count, int) and count > 0), 0)
    if epochs:
        options |= {
            name: len(set(map(str, values))) for name, values in lines.list_options("distinct").items()
        }
        options |= {
            name: epochs * len(values) - sum(map(int, values))
            for name, values in lines.list_options("shortfall").items()
        }
    return LoggedRun(
        options,
        lines.make_reports(epochs),
        lines.accuracies,
        lines.final_tests[0] if lines.final_tests else None,
        lines.device_peaks,
        printed,
        f"its options lack {program.namespace}" if namespace and program.namespace not in namespace else "",
        has_begun=bool(namespace or printed) or any(line.marks == "begin" for line in matched),
        has_ended=any(line.marks == "end" for line in matched),
    )


class LogSettings(NamedTuple):
    """The settings of a logged run."""

    keys: dict[str, Any]
    """The values of the known keys of its spec, by dotted key."""
    beyond: dict[str, str]
    """Descriptions of the properties that a spec cannot express, by name."""
    lost: dict[str, str]
    """The keys that have no value because of these properties, each with the name of the property."""


HARNESS_KEYS: Options = {"training.warmup": 0, "training.target": 0.0, "measure": {}, "launch": 0}
"""The keys of what only the harness does, unless a card gives them."""


def read_settings(log: ProgramLog, run: LoggedRun, program: Program) -> LogSettings:
    """Return the settings of a logged run. Raise UserError for a value that a spec cannot hold."""
    keys, beyond, lost = dict(HARNESS_KEYS), dict[str, str](), dict[str, str]()
    for case in program.all_cases:
        if case.applies(run.options):
            values = {key: _fill(value, run.options) for key, value in case.keys.items()}
            keys |= {key: value for key, value in values.items() if value is not None}
            beyond |= case.describe_differences(run.options)
            lost |= {key: name for key in case.unknown for name in case.differences}
    for key, value in keys.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(
                f"{log.where}: the run had {key} = {value}, which a spec cannot hold: it must be a finite number."
            )
    differing = {name for name in program.may_differ if len(set(map(repr, run.printed.get(name, ())))) > 1}
    unknown = lost.keys() | {key for key, name in program.options_by_key.items() if name in differing}
    return LogSettings({key: value for key, value in keys.items() if key not in unknown}, beyond, lost)


def _fill(value: Any, options: Options) -> Any:
    """Return the value of a key; None if it is an option that is unknown, or a mapping with one."""
    if is_option(value):
        return options.get(name_option(value))
    if isinstance(value, Mapping):
        filled = {name: _fill(inner, options) for name, inner in value.items()}
        return None if None in filled.values() else filled
    return value


def suggest_format(root: Path, log: ProgramLog, program: Program) -> str:
    """Return the advice to read a log as that of another program; empty if no program wrote it."""
    for name in list_programs(root):
        with suppress(
            UserError
        ):  # another card has a mistake, or a number in the log is not one of its program
            run = read_log(log, load_program(root, name))
            if name != program.name and not run.mismatch and (run.reports or run.printed):
                return f" Read it by --format {name}."
    return ""
