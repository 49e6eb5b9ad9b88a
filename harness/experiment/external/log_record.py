"""Writes the record of another program's run, with source `external`, from its log.

`run_command` can run the program first. The spec of the record contains the keys that the log or the user's options
show. All other keys are null: the defaults of the harness do not apply to another program.
"""

import codecs
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import closing, suppress
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from harness.base.children import SessionGuard
from harness.base.errors import RunError, UserError
from harness.base.untrusted import redact_command
from harness.experiment.external.log_reader import (
    EpochReport,
    LoggedRun,
    LogSettings,
    ProgramLog,
    read_log,
    read_settings,
    suggest_format,
)
from harness.experiment.external.program import PARAMS, VERTEX_RATE, Program, flatten_keys
from harness.experiment.requests import make_spec, nest_settings
from harness.graph.cards.catalog import load_card
from harness.ledger import NO_INDEX, Amounts, Direction, Key, Phase
from harness.results.record import write_record
from harness.runtime.fault import status_of_error
from harness.runtime.provenance import collect_provenance
from harness.runtime.rank_tables import entry_to_row
from harness.spec.dataset import FILE
from harness.spec.spec import Spec, digest, label_grid

GRACE_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL."""


def run_command(command: Sequence[str], folder: Path, log: Path) -> tuple[int, dict[str, Any]]:
    """Run a command in a folder, show its output and write it to `log`. Return the exit code and the provenance.

    SIGTERM ends the command but not this process, so that the run so far can be recorded. When this process ends for
    any reason, the command and its processes end, too.
    """
    started, clock_start = time.time(), time.monotonic()
    with (
        _StopForwarder() as stop,
        SessionGuard() as guard,
        _start_command(command, folder, guard) as program,
        closing(guard),  # before the program is waited for
    ):
        stop.forward_to(program.pid)
        _copy_output(program, log)
    unknown = {"versions": None, "threads": None, "scheduling": None, "allocator": None}
    times = {"started": started, "finished": started + time.monotonic() - clock_start}
    exit_code = -signal.SIGTERM if stop.was_stopped else program.returncode
    return exit_code, {**collect_provenance(folder), **unknown, "command": redact_command(command), **times}


def _start_command(command: Sequence[str], folder: Path, guard: SessionGuard) -> "subprocess.Popen[bytes]":
    """Start a command with unbuffered output, so that processes that share a log do not split lines."""
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=guard.make_preexec(),  # noqa: PLW1509  this process has no threads of its own
        )
    except OSError as error:
        raise UserError(
            f"{redact_command(command)} cannot be started in {folder}: {error.strerror}. Name its checkout by --cwd."
        ) from None


class _StopForwarder:
    """Forwards SIGTERM from this process to a process group, and sends SIGKILL after GRACE_SECONDS."""

    def __init__(self) -> None:
        self.was_stopped = False
        self._group = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_StopForwarder":
        if threading.current_thread() is threading.main_thread():
            self._before = {
                each: signal.signal(each, self._handle_signal) for each in (signal.SIGTERM, signal.SIGALRM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def forward_to(self, group: int) -> None:
        self._group = group
        if self.was_stopped:
            self._send_signal(signal.SIGTERM)

    def _handle_signal(self, number: int, _: object) -> None:
        self.was_stopped = True
        if number == signal.SIGTERM:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        self._send_signal(signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL)

    def _send_signal(self, what: signal.Signals) -> None:
        if self._group:
            with suppress(ProcessLookupError):
                os.killpg(self._group, what)


def _copy_output(program: "subprocess.Popen[bytes]", log: Path) -> None:
    """Copy the output to the log and to stderr until the last process closes it."""
    assert program.stdout is not None
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb", buffering=0) as file:
        while some := os.read(program.stdout.fileno(), 1 << 16):  # not line by line: a line may never end
            file.write(some)
            sys.stderr.write(decode(some))
            sys.stderr.flush()
    program.wait()


# The tables of a log.

REST = Key(Phase.OTHER, NO_INDEX, Direction.FORWARD)
"""The place in the ledger of the seconds that are in no part of an epoch."""


def make_tables(run: LoggedRun, program: Program) -> dict[str, pd.DataFrame]:
    """Return the tables of a record, filled with everything in the log that has a column."""
    rows = {
        "epochs": [
            {"epoch": report.epoch, "rank_id": report.rank, "seconds": report.seconds, "loss": report.loss}
            for report in run.reports
        ],
        "ledger": [row for report in run.reports if isfinite(report.seconds) for row in _make_ledger(report)],
        "accuracy": [
            {
                "epoch": epoch,
                "train_seconds": _sum_training_seconds(run, epoch) if program.times == "mean" else None,
                "eval_seconds": None,
                "split": split,
                "accuracy": share,
            }
            for epoch, split, share in run.accuracies
        ],
        "memory": [
            {
                "rank_id": rank,
                "host_peak_bytes": 0,
                "device_peak_bytes": peak,
                "persistent_bytes": 0,
                "tensor": "",
            }
            for rank, peak in run.device_peaks.items()
        ],
    }
    return {name: pd.DataFrame(each) for name, each in rows.items()}


def make_summary(run: LoggedRun, program: Program, vertices: int | None) -> dict[str, Any]:
    """Return the summary of a log."""
    seconds = _find_epoch_seconds(run, program)
    accuracy = {f"accuracy_{split}": share for _, split, share in run.accuracies}
    accuracy |= {"accuracy_test": run.final_test_accuracy} if run.final_test_accuracy is not None else {}
    return {
        "epochs": max(report.epoch for report in run.reports) + 1,
        "epoch_seconds_median": seconds,
        "vertices_per_second": vertices / seconds if seconds and vertices else None,
        **({"final_loss": run.reports[-1].loss} if program.final_loss else {}),
        **accuracy,
    }


def _find_epoch_seconds(run: LoggedRun, program: Program) -> float | None:
    """Return the last mean of the slowest process, or the median of the printed epochs; None without times."""
    if program.times == "mean":
        seconds = max(report.seconds for report in run.last_reports.values())
        return seconds if isfinite(seconds) else None
    printed = [report.seconds for report in run.reports if isfinite(report.seconds)]
    return median(printed) if printed else None


def _make_ledger(report: EpochReport) -> list[dict[str, Any]]:
    """Return the ledger rows of a report: its parts, and the remaining time."""
    rest = report.seconds - sum(amounts.seconds for amounts in report.parts.values())
    parts = {**report.parts, REST: Amounts(seconds=max(rest, 0.0))}
    at = {"epoch": report.epoch, "rank_id": report.rank}
    return [{**at, **entry_to_row(key, amounts)} for key, amounts in parts.items()]


def _sum_training_seconds(run: LoggedRun, epoch: int) -> float | None:
    """Return the seconds of training before an evaluation, computed from the mean of the slowest process."""
    means = [report.seconds for report in run.reports if report.epoch == epoch and isfinite(report.seconds)]
    return (epoch + 1) * max(means) if means else None


# Checks that a log contains one whole run, and signs that the run did not finish.


def check_has_reports(root: Path, log: ProgramLog, run: LoggedRun, program: Program) -> None:
    """Raise an error for a log without reports, unless we ran the program and it began to train or was stopped."""
    if run.mismatch:
        raise UserError(
            f"{log.where} is not a log of {program.title}: {run.mismatch}.{suggest_format(root, log, program)}"
        )
    ran = log.exit_code is not None
    if run.reports or (ran and run.has_begun) or log.exit_code == -signal.SIGTERM:
        return
    ended = f" (exit code {log.exit_code})" if ran else ""
    other = suggest_format(root, log, program) or (
        " Was the program stopped before its first report, or is this the log of another program?"
    )
    raise (RunError if ran else UserError)(
        f"{log.where}{ended} has no report of an epoch in the format of {program.title} ({program.report}).{other} "
        f"It ends:\n{log.format_last_lines()}"
    )


def check_processes(log: ProgramLog, run: LoggedRun, program: Program, world: int) -> None:
    """Raise UserError if the log lacks processes, or has two reports of a process for the same epoch."""
    present, per_log = set(run.last_reports), run.options.get(program.ranks_per_log)
    has_several_logs = isinstance(per_log, int) and per_log < world
    if present - set(range(world)) or (has_several_logs and len(present) < world):
        raise UserError(
            f"{log.where} has reports of the processes {sorted(present)}, but the run had {world}. A run on several "
            "nodes writes a log on each: give all of them."
        )
    reports = Counter((report.rank, report.epoch) for report in run.reports)
    if twice := [report for report, times in reports.items() if times > 1]:
        rank, epoch = min(twice)
        raise UserError(
            f"{log.where} has epoch {epoch} of process {rank} more than once: it contains several runs. {ONE_RUN}"
        )


ONE_RUN = "Give the output of one run; some programs append that of each run to a file."


def check_is_one_run(log: ProgramLog, run: LoggedRun, program: Program) -> None:
    """Raise UserError if the log contains options of different runs. Some may differ from node to node."""
    compared = set(program.options_by_key.values()).difference(program.may_differ)
    differing = [
        name
        for name, values in run.printed.items()
        if name in compared and any(value != values[0] for value in values)
    ]
    if differing:
        raise UserError(
            f"{log.where} has the options of several runs, which differ in {', '.join(differing)}. {ONE_RUN}"
        )


def find_divergence(run: LoggedRun) -> str | None:
    """Return a message about the first loss that was not finite, which never recovers; None if all are finite."""
    lost = min(
        ((report.epoch, report.rank, report.loss) for report in run.reports if not isfinite(report.loss)),
        default=None,
    )
    return None if lost is None else f"In epoch {lost[0]} the loss of process {lost[1]} was {lost[2]}"


def find_failure(
    log: ProgramLog, run: LoggedRun, program: Program, world: int, epochs: int | None
) -> str | None:
    """Return the reason why the run did not finish; None if it did.

    The exit code is not enough: some of these programs exit with 0 even if one of their processes fails. Processes
    report at a fixed interval. `epochs` is the requested number, None if it is not known.
    """
    if log.exit_code == -signal.SIGTERM:
        return "It was stopped by a SIGTERM"
    if log.exit_code:
        return f"It ended with exit code {log.exit_code}"
    reporting = range(world if program.all_report else 1)
    if silent := sorted(set(reporting) - set(run.last_reports)):
        return f"Of its {world} processes {', '.join(map(str, silent))} reported no epoch"
    ends, every = {report.epoch for report in run.last_reports.values()}, run.reports[0].epoch + 1
    if len(ends) > 1 or (epochs is not None and max(ends) + 1 + every <= epochs):
        total = "" if epochs is None else f" of {epochs}"
        return f"Its processes came to epoch {' and '.join(map(str, sorted(ends)))}{total}"
    if program.last_line and not run.has_ended and epochs is None:
        end = f"{program.last_line!r}, which ends a log of {program.title}"
        return f"It came to epoch {max(ends)} and did not print {end}"
    return None


NEVER_LOGGED = {"launch"}
"""Keys that exist only in the harness, so that the options may set them to any value."""
NEEDED = {
    "dataset.name": "which graph it trains on: give it by --dataset.",
    "strategy.name": "which strategy it has: give it by --set strategy.name=NAME.",
    "ranks": "how many processes it had: give it by --set ranks=N.",
}
"""How the user gives a key that a record needs and that a log may lack."""


def record_log(
    root: Path,
    runs: Path,
    program: Program,
    log: ProgramLog,
    asked: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the run folder of a log and return its path. `asked` holds the keys of its spec that the user gives."""
    run = read_log(log, program)
    check_has_reports(root, log, run, program)
    settings = read_settings(log, run, program)
    check_is_one_run(log, run, program)
    spec, known = _make_spec(root, log, run, program, settings, flatten_keys(asked))
    check_processes(log, run, program, spec.ranks)
    vertices = load_card(root, spec.dataset.name).expected.n
    epochs = spec.training.epochs if "training.epochs" in known else None
    status, failure = _find_end(log, run, program, spec.ranks, epochs)
    text = hashlib.sha256(log.text.encode()).hexdigest()
    known_spec, unknown = _select_known(spec.model_dump(mode="json"), known)
    run_id = digest({"spec": known_spec, "log_sha256": text})
    seed = f"-s{spec.seed}" if "seed" in known else ""
    name = f"{spec.dataset.name}-{spec.strategy.name}-{label_grid(spec.grid)}{seed}"
    trained = None if VERTEX_RATE in settings.lost else vertices
    record = {
        "run_id": run_id,
        "label": f"{name}-external-{run_id[:6]}",
        "status": status,
        "source": "external",
        "summary": {} if failure else make_summary(run, program, trained),
        "provenance": {"engine": run.options.get(program.engine, ""), **provenance},
        "error": _make_error(log, failure) if failure else None,
        "external": {
            "program": program.title,
            "log_sha256": text,
            "times": program.times,
            "options": _format_value(run.options),
            "unknown": unknown,
            "beyond": settings.beyond,
        },
    }
    return write_record(runs, known_spec, record, make_tables(run, program))


def _make_spec(
    root: Path,
    log: ProgramLog,
    run: LoggedRun,
    program: Program,
    settings: LogSettings,
    asked: Mapping[str, Any],
) -> tuple[Spec, set[str]]:
    """Return the spec from the keys of the log and of the user, and the set of known keys.

    Both must give the same value for a key, except for the name of the dataset.
    """
    for key in sorted(settings.keys.keys() & asked.keys() - {"dataset.name"} - NEVER_LOGGED):
        if settings.keys[key] != asked[key]:
            raise UserError(
                f"{log.where}: the run had {key} = {settings.keys[key]!r}, but the options say {asked[key]!r}. Leave "
                "out the keys that the log shows."
            )
    for key in sorted(settings.lost.keys() & asked.keys()):
        if not str(asked[key]).startswith(FILE):
            name = settings.lost[key]
            raise UserError(
                f"{log.where}: {key} has no value for this run ({name}: {settings.beyond[name]}). Leave it out."
            )
    counted = {"ranks": len(run.last_reports)} if program.all_report and run.reports else {}
    keys = {**counted, **settings.keys, **asked}
    for key, way_out in {**program.needed, **NEEDED, **program.needed}.items():  # those of the card first
        if key not in keys and not (key == "ranks" and "grid" in keys):
            raise UserError(f"{log.where} does not say {way_out}")
    spec = make_spec(
        root, nest_settings({key: value for key, value in keys.items() if value != {}}), log.where
    )
    known = {*keys, "ranks", "grid", "strategy.name"}
    if "dataset.partition" in known:
        known.add("dataset.parts")
    if spec.model.kind != "gat" and "model.kind" in known:
        known.add("model.heads")
    return spec, known


def _select_known(data: Mapping[str, Any], known: Set[str], at: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return the data with null for unknown keys, and the list of unknown keys.

    If all keys of a section are unknown, the list has the section. An unknown parameter of a strategy has the value
    `unknown`, because null may be a valid value.
    """
    part: dict[str, Any] = {}
    unknown = []
    for key, value in data.items():
        name = f"{at}{key}"
        if name in known:
            part[key] = value
        elif isinstance(value, Mapping) and value:
            part[key], more = _select_known(value, known, f"{name}.")
            unknown += [name] if len(more) == len(value) else more
        else:
            part[key] = "unknown" if at == PARAMS else None
            unknown.append(name)
    return part, unknown


def _find_end(
    log: ProgramLog, run: LoggedRun, program: Program, world: int, epochs: int | None
) -> tuple[str, str | None]:
    """Return the status of a run, and the reason if it is not ok."""
    failure = find_failure(log, run, program, world, epochs)
    status = status_of_error(RunError(log.format_last_lines(200))) if failure else "ok"
    if status != "oom" and (lost := find_divergence(run)):
        return "diverged", lost
    return status, failure


def _format_value(value: Any) -> Any:
    """Return options as JSON data. inf and nan become text, because null would mean no value."""
    if isinstance(value, Mapping):
        return {key: _format_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_format_value(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _make_error(log: ProgramLog, failure: str) -> dict[str, Any]:
    message = f"{failure}. Its last words: {log.format_last_lines(3)}"
    return {"rank": -1, "type": "ExternalError", "message": message, "trace": log.format_last_lines(40)}
