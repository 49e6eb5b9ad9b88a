"""harness doctor: surveys this machine, or measures its links and its kernels for predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import GB, format_bytes, format_count, format_seconds, format_three_digits
from harness.base.validation import unknown_name_error
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, MachineName, OptionStyle, Ranks, Request
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.cli.doctor.survey import SurveyItem
    from harness.prediction.calibration.links import LinkMeasurement


@dataclass(frozen=True, config=CONFIG)
class DoctorRequest(Request):
    """What to survey or to measure."""

    _: KW_ONLY
    calibrate: bool = False
    """Measure kernels and links, and write them to the machine card. This takes about a minute on an idle machine."""
    links: bool = False
    """Measure all-reduces between ranks, on this machine or in this Slurm job. This takes about 40 seconds."""
    ranks: Ranks | None = None
    """With --links or --calibrate: the number of ranks (default: 2, or 1 to calibrate a machine with a single GPU)."""
    machine: MachineName | None = None
    """With --links or --calibrate: the machine card (default: the card named in config/site.yaml, or local)."""
    write: Annotated[str | None, OptionStyle(metavar="NAME")] = None
    """With --links or --calibrate: write a new card with the measured values, config/machines/NAME.yaml."""

    def choose_machine(self) -> str:
        """Return the name of the machine card. Raises UserError if a new card cannot be written."""
        from harness.runtime.slurm.resources import load_site

        if self.write is not None:
            from harness.prediction.calibration.links import make_card_path

            make_card_path(self.home, self.write)
        return self.machine or load_site(self.home).machine or "local"


# The survey.


@plain_dataclass(frozen=True)
class SurveyAnswer(Answer):
    """What this machine has, and what is missing."""

    items: Sequence["SurveyItem"]

    @property
    def missing(self) -> list["SurveyItem"]:
        """The items that the harness needs and cannot use."""
        return [item for item in self.items if item.state == "MISSING"]

    @property
    def exit_code(self) -> int:
        return 1 if self.missing else 0

    def to_document(self) -> Any:
        return [asdict(item) for item in self.items]

    def lay_out(self, view: View) -> Iterator[Block]:
        from harness.cli.doctor.survey import State

        yield Headline(self._format_verdict())
        order = get_args(State)
        rows = sorted(map(asdict, self.items), key=lambda row: order.index(row["state"]))
        columns = (
            TableColumn("state", "state"),
            TableColumn("what", "what"),
            TableColumn("advice", "what to do", may_wrap=True),
        )
        yield Table(columns, rows)

    def _format_verdict(self) -> str:
        doubtful = [item.what for item in self.items if item.state == "CHECK"]
        check = f"; check {', '.join(doubtful)}" if doubtful else ""
        if not self.missing:
            return f"This machine has everything that runs need{check}"
        names = ", ".join(dict.fromkeys(item.what for item in self.missing))
        return f"This machine lacks {format_count(len(self.missing), 'item')}: {names}{check}"


# Links.


@plain_dataclass(frozen=True)
class LinksAnswer(Answer):
    """The bandwidth between ranks on each axis that they can form, and the latency."""

    machine: str
    ranks: int
    measured: "LinkMeasurement"
    card: Path | None
    """The new machine card, if one was written."""

    def to_document(self) -> Any:
        return self.measured._asdict() | {"rows": [row.model_dump() for row in self.measured.rows]}

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame([row.model_dump() for row in self.measured.rows])

    def lay_out(self, view: View) -> Iterator[Block]:
        widest = max(self.measured.rows, key=lambda row: row.before * row.size)
        latency = format_seconds(self.measured.latency_us / 1e6)
        yield Headline(
            f"{format_count(self.ranks, 'rank')} on {self.machine}: each receives {_format_rate(widest.gbs)} in an "
            f"all-reduce of {format_count(widest.size, 'rank')}, latency {latency}"
        )
        columns = [
            TableColumn("size", "ranks in a group", "whole"),
            TableColumn("before", "distance", "whole"),
            TableColumn("gbs", "received by each", "number", format=_format_rate),
        ]
        yield Table(columns, [row.model_dump() for row in self.measured.rows])
        facts = {"network": self.measured.network, "card": self.card and str(self.card)}
        if shown := [(name, value) for name, value in facts.items() if value]:
            yield FactList(shown)


def _format_rate(gbs: float) -> str:
    """Format a bandwidth of a machine card, in 2^30 bytes a second, in units of powers of ten."""
    return f"{format_bytes(gbs * GB)}/s"


# Calibration.


@plain_dataclass(frozen=True)
class CalibrationAnswer(Answer):
    """The constants that were measured, and the machine card that has them."""

    machine: str
    sections: Mapping[str, Any]
    notes: Sequence[str]
    """What was skipped and why, and facts that have no place in a section of the card."""
    card: Path
    times: Path
    """The file with all measured times."""

    def to_document(self) -> Any:
        return {**self.sections, "notes": list(self.notes)}

    def lay_out(self, view: View) -> Iterator[Block]:
        measured = {name: section for name, section in self.sections.items() if name != "measured_on"}
        rows = list(list_constants(measured))
        yield Headline(f"{self.machine} is calibrated: {format_count(len(rows), 'constant')} measured")
        yield Table(CONSTANT_COLUMNS, rows)
        yield from (f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in self.notes)
        yield FactList([("card", str(self.card)), ("all times", str(self.times))])


UNITS = {
    "tflops": "TFLOP/s",
    "gbs": "GB/s",
    "us": "µs",
    "ns": "ns",
    "gb": "GB",
    "share": "",
    "gnnz": "Gnnz/s",
}
"""The units of constants, by the last part of their names in a machine card."""
CONSTANT_COLUMNS = (
    TableColumn("constant", "constant"),
    TableColumn("value", "value", "number"),
    TableColumn("unit", "unit"),
    TableColumn("within", "within a factor of", "number", format=format_three_digits),
    TableColumn("source", "source", may_wrap=True, may_drop=True),
)


def list_constants(section: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each constant in sections of a machine card."""
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "value" in value:
            unit = UNITS.get(key.rpartition("_")[2])
            yield {**value, "constant": name, "value": _format_constant(value["value"]), "unit": unit or None}
        elif isinstance(value, Mapping):
            yield from list_constants(value, f"{name}.")
        elif not isinstance(value, list):
            unit = UNITS.get(key.rpartition("_")[2])
            yield {"constant": name, "value": _format_constant(value), "unit": unit or None}


def _format_constant(value: Any) -> str:
    return format_three_digits(value) if isinstance(value, float) else str(value)


@verb(DoctorRequest)
def doctor(request: DoctorRequest, reporter: Reporter) -> SurveyAnswer | LinksAnswer | CalibrationAnswer:
    """Check this machine: what it can run, and what is missing.

    Prints what to do, missing items first; the exit code is 1 if an item is missing. With --links, measures the
    bandwidth and the latency between ranks instead. With --calibrate, measures links and kernels and writes them to
    the machine card for predictions. For GPUs, name a card whose device is a GPU, such as --machine local-gpu.
    """
    if request.calibrate:
        return _calibrate_card(request, reporter)
    if request.links:
        return _measure_links(request, reporter)
    if request.write is not None or request.machine is not None:
        raise UserError("doctor takes --machine and --write together with --links or --calibrate.")
    from harness.cli.doctor.survey import survey_machine

    root = None if request.root is None else str(request.root)
    return SurveyAnswer(list(survey_machine(root, reporter.log)))


def _measure_links(request: DoctorRequest, reporter: Reporter) -> LinksAnswer:
    from harness.prediction.calibration.links import measure_links, write_card

    root, name, ranks = request.home, request.choose_machine(), request.ranks or 2
    measured = measure_links(root, name, ranks, reporter.log)
    card = None if request.write is None else write_card(root, name, request.write, measured)
    return LinksAnswer(name, ranks, measured, card)


def _calibrate_card(request: DoctorRequest, reporter: Reporter) -> CalibrationAnswer:
    from harness.base.files import write_text
    from harness.prediction.calibration.calibrate import (
        calibrate_in_new_process,
        default_rank_count,
        write_new_card,
        write_sections,
    )
    from harness.spec.machine_card import list_machines

    root, name = request.home, request.choose_machine()
    if name not in list_machines(root):
        new = (
            f"To make a new card of that name: harness doctor --calibrate --machine local-gpu --write {name}"
        )
        raise unknown_name_error("machine", name, list_machines(root), new)
    ranks = request.ranks or default_rank_count(root, name)
    done = calibrate_in_new_process(root, name, ranks, reporter.log, reporter.step)
    times = request.results / "calibrations" / f"{request.write or name}.csv"
    times.parent.mkdir(parents=True, exist_ok=True)
    write_text(times, done.table)
    if request.write is None:
        card = write_sections(root, name, done.sections)
    else:
        card = write_new_card(root, name, request.write, done)
    return CalibrationAnswer(request.write or name, done.sections, done.notes, card, times)
