"""harness external: records a run of another program, which it runs here, or from its log."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.files import read_head
from harness.base.formatting import format_seconds
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, FactList, Headline, View
from harness.cli.commands.request import CONFIG, DatasetName, Folder, OptionStyle, Request, Settings
from harness.cli.commands.run_facts import (
    BEYOND_TITLE,
    describe_error,
    describe_run,
    name_epoch_time,
)
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.experiment.external.program import Program
    from harness.results.record import Record


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class ExternalRequest(Request):
    """What the log of another program does not show."""

    format: Annotated[str, OptionStyle(metavar="NAME", completes="programs")]
    """The program that writes the log: a name in config/programs (adaqp, bns-gcn, pipegcn, plexus, sancus), or the path
    of a card of your own."""
    dataset: DatasetName | None = None
    """The name of the graph here, if the program uses another name."""
    settings: Settings = Field(default_factory=dict)
    """A key of `harness list settings`, for example training.epochs=5; may be repeated."""
    out: Folder = None
    """The folder for run folders (default: results/runs)."""


@dataclass(frozen=True, config=CONFIG)
class ExternalRunRequest(ExternalRequest):
    """The command to run."""

    command: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        OptionStyle(metavar="COMMAND", takes="several", is_positional=True),
    ]
    """After --: the command as you would type it in its checkout."""
    _: KW_ONLY
    cwd: Folder = None
    """The checkout in which the command runs (default: this folder)."""


@dataclass(frozen=True, config=CONFIG)
class ExternalReadRequest(ExternalRequest):
    """The logs to read."""

    logs: Annotated[
        tuple[Path, ...], Field(min_length=1), OptionStyle(metavar="LOG", takes="several", is_positional=True)
    ]
    """The logs of all nodes of one run."""


@plain_dataclass(frozen=True)
class ExternalAnswer(Answer):
    """The record of a run of another program."""

    record: "Record"

    @property
    def exit_code(self) -> int:
        return 0 if self.record.record["status"] == "ok" else 1

    def to_document(self) -> Any:
        record = self.record.record
        return {
            "folder": str(self.record.folder),
            **record,
            "summary": record["summary"],
        }

    def lay_out(self, view: View) -> Iterator[Block]:
        record, external = self.record.record, self.record.record["external"]
        seconds = self.record.epoch_seconds
        result = (
            f"{format_seconds(seconds)} an epoch ({name_epoch_time(self.record)} by {external['program']})"
            if seconds
            else "ok"
        )
        yield Headline(
            f"{describe_run(self.record)}: {result if record['status'] == 'ok' else record['status']}"
        )
        if error := describe_error(self.record):
            yield error
        facts = [("Run", record["label"]), ("Folder", str(self.record.folder))]
        if external["unknown"]:
            facts.append(("Not in the log", ", ".join(external["unknown"])))
        yield FactList(facts)
        if beyond := external["beyond"]:
            yield FactList(list(beyond.items()), BEYOND_TITLE)


@verb(ExternalRunRequest)
def run_program(request: ExternalRunRequest, reporter: Reporter) -> ExternalAnswer:
    """Run a command, and record what it prints.

    The output is shown, and kept in results/external. Ctrl-C and SIGTERM end the command.
    """
    from harness.base.children import exit_on_signals
    from harness.experiment.external.log_record import run_command
    from harness.experiment.external.program import load_program

    program = load_program(request.home, request.format)
    folder = request.results / "external"
    log = folder / f"{program.name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log"
    with exit_on_signals():
        exit_code, provenance = run_command(request.command, request.cwd or Path(), log)
        try:
            return _record_logs(request, program, [log], provenance, exit_code)
        except (KeyboardInterrupt, SystemExit):
            reporter.warn(
                "harness: stopped while the record was written. The log of the program is kept. Record it with: "
                f"harness external read {log} --format {request.format}"
            )
            raise


@verb(ExternalReadRequest)
def read_logs(request: ExternalReadRequest, _: Reporter) -> ExternalAnswer:
    """Record the run that a log shows."""
    from harness.experiment.external.program import load_program

    return _record_logs(request, load_program(request.home, request.format), request.logs)


NOTHING: Mapping[str, Any] = {}


def _record_logs(
    request: ExternalRequest,
    program: "Program",
    logs: Sequence[Path],
    provenance: Mapping[str, Any] = NOTHING,
    exit_code: int | None = None,
) -> ExternalAnswer:
    from harness.experiment.external.log_reader import ProgramLog
    from harness.experiment.external.log_record import record_log
    from harness.results.record import read_record

    named = {"dataset.name": request.dataset} if request.dataset else {}
    folder = record_log(
        request.home,
        request.out or request.default_runs,
        program,
        ProgramLog(
            "\n".join(map(_read_log, logs)),
            ", ".join(map(str, logs)),
            exit_code,
            provenance.get("command", ""),
        ),
        {**request.settings, **named},
        dict(provenance),
    )
    return ExternalAnswer(read_record(folder))


MAX_LOG_BYTES = 1 << 28


def _read_log(log: Path) -> str:
    try:
        text = read_head(log, MAX_LOG_BYTES + 1)
    except OSError as error:
        raise UserError(f"The log {log} cannot be read: {error.strerror}.") from None
    if len(text) > MAX_LOG_BYTES:
        raise UserError(
            f"The log {log} has more than {MAX_LOG_BYTES:,} bytes. Give one with only the lines of options and epochs."
        )
    return text
