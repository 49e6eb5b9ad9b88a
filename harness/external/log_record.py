"""The record of a log, with source `external`: a spec with what the log and the options show, and tables.

The program can be run first by the user's command. Keys that neither the log nor the options show are null in the
spec; the harness's defaults are not used.
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
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from harness.children import die_with_parent, kill_group_on_exit
from harness.errors import RunError, UserError
from harness.experiment.requests import make_spec, nest_settings
from harness.external.programs import KEYS, EpochReport, Log, LogSettings, Program, read_settings
from harness.ledger import NO_INDEX, Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.results.record import write_record
from harness.run.fault import status_of_error
from harness.run.provenance import collect_provenance
from harness.run.rank_tables import ledger_to_row
from harness.spec.spec import Spec, digest, format_grid
from harness.store.catalog import load_card
from harness.untrusted import redact_command

LEAVING = 10.0
"""Seconds from SIGTERM to SIGKILL."""


def run_command(command: Sequence[str], folder: Path, log: Path) -> tuple[int, dict[str, Any]]:
    """Run a command in a folder, show its output and write it to `log`. Return the exit code and the provenance.

    SIGTERM ends the command, and the run is recorded up to that point. When this process ends for any reason, the
    command and its processes end too.
    """
    started, begun = time.time(), time.monotonic()
    with (
        _StopForwarder() as stop,
        _start_command(command, folder) as program,
        kill_group_on_exit(program.pid),
    ):
        stop.pass_on_to(program.pid)
        _copy_output(program, log)
    unknown = {"versions": None, "threads": None, "scheduling": None, "allocator": None}
    times = {"started": started, "finished": started + time.monotonic() - begun}
    exit_code = -signal.SIGTERM if stop.came else program.returncode
    return exit_code, {**collect_provenance(folder), **unknown, "command": redact_command(command), **times}


def _start_command(command: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Start a command with unbuffered output, so that processes that share a log do not split lines."""
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509  this process has no threads of its own
        )
    except OSError as error:
        raise UserError(
            f"{redact_command(command)} cannot be started in {folder}: {error.strerror}. --cwd names the checkout."
        ) from None


class _StopForwarder:
    """Forwards SIGTERM from this process to a process group, and sends it SIGKILL after LEAVING seconds."""

    def __init__(self) -> None:
        self.came = False
        self._group = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_StopForwarder":
        if threading.current_thread() is threading.main_thread():
            self._before = {
                each: signal.signal(each, self._handle) for each in (signal.SIGTERM, signal.SIGALRM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def pass_on_to(self, group: int) -> None:
        self._group = group
        if self.came:
            self._send(signal.SIGTERM)

    def _handle(self, number: int, _: object) -> None:
        self.came = True
        if number == signal.SIGTERM:
            signal.setitimer(signal.ITIMER_REAL, LEAVING)
        self._send(signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL)

    def _send(self, what: signal.Signals) -> None:
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


# The tables of a log. Where a run of ours has epochs, a log has means over all epochs until then.

EXCHANGE = Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.ALL_TO_ALL, AxisName.P, tensor=TensorName.H)
REDUCTION = Key(Phase.SYNC, NO_INDEX, Direction.BACKWARD, Op.ALL_REDUCE, AxisName.P, tensor=TensorName.DW)
REST = Key(Phase.OTHER, NO_INDEX, Direction.FORWARD)


def make_tables(log: Log) -> dict[str, pd.DataFrame]:
    """Return the tables, with everything in the log that has a column."""
    rows = {
        "epochs": [
            {"epoch": report.epoch, "rank": report.rank, "seconds": report.seconds, "loss": report.loss}
            for report in log.reports
        ],
        "ledger": [row for report in log.reports if isfinite(report.seconds) for row in _make_ledger(report)],
        "accuracy": [
            {
                "epoch": epoch,
                "train_seconds": _sum_training_seconds(log, epoch),
                "eval_seconds": None,
                "split": split,
                "accuracy": share,
            }
            for epoch, split, share in log.accuracies
        ],
        "memory": [
            {
                "rank": rank,
                "host_peak_bytes": 0,
                "device_peak_bytes": peak,
                "persistent_bytes": 0,
                "tensor": "",
            }
            for rank, peak in log.device_peaks.items()
        ],
    }
    return {name: pd.DataFrame(each) for name, each in rows.items()}


def make_summary(log: Log, vertices: int | None) -> dict[str, Any]:
    """The summary of a log: its epoch time is the last mean of the slowest process."""
    seconds = max(report.seconds for report in log.last.values())
    known = isfinite(seconds)
    accuracy = {f"accuracy_{split}": share for _, split, share in log.accuracies}
    accuracy |= {"accuracy_test": log.result} if log.result is not None else {}
    return {
        "epochs": max(report.epoch for report in log.last.values()) + 1,
        "epoch_seconds_median": seconds if known else None,
        "vertices_per_second": vertices / seconds if known and vertices else None,
        **accuracy,
    }


def _make_ledger(report: EpochReport) -> list[dict[str, Any]]:
    """Return the ledger of an epoch: the exchange of rows, the reduction of gradients, and the remaining time."""
    parts = {EXCHANGE: report.communicating, REDUCTION: report.reducing}
    parts[REST] = report.seconds - sum(parts.values())
    at = {"epoch": report.epoch, "rank": report.rank}
    return [{**at, **ledger_to_row(key, Amounts(seconds=seconds))} for key, seconds in parts.items()]


def _sum_training_seconds(log: Log, epoch: int) -> float | None:
    """Return the seconds of training up to an evaluation, by the mean of the slowest process."""
    means = [report.seconds for report in log.reports if report.epoch == epoch and isfinite(report.seconds)]
    return (epoch + 1) * max(means) if means else None


# The checks that a log is one whole run, and the signs that the run broke off.


def check_has_reports(log: Log, program: Program) -> None:
    """Refuse a log without epochs, unless it is of a run here that printed its options or was stopped."""
    ran = log.exit_code is not None
    if log.reports or (ran and log.settings) or log.exit_code == -signal.SIGTERM:
        return
    ended = f" (exit code {log.exit_code})" if ran else ""
    raise (RunError if ran else UserError)(
        f"{log.where}{ended} has no line of an epoch as {program.title} writes them (Process 000 | Epoch 00009 | "
        "Time(s) ... | Comm(s) ... | Reduce(s) ... | Loss ...). Was it stopped before its first report (--log-every), "
        f"or is it another program's? It ends:\n{log.ending()}"
    )


def check_processes(log: Log, world: int) -> None:
    """Refuses a log that lacks processes, or that has two reports of a process after one epoch."""
    present, several_nodes = set(log.last), log.settings.get("parts_per_node", world) < world
    if present - set(range(world)) or (several_nodes and len(present) < world):
        raise UserError(
            f"{log.where} has lines of the processes {sorted(present)}, and the run had {world}. A run over several "
            "nodes leaves a log on each: give all of them."
        )
    reports = Counter((report.rank, report.epoch) for report in log.reports)
    if twice := [report for report, times in reports.items() if times > 1]:
        rank, epoch = min(twice)
        raise UserError(
            f"{log.where} has epoch {epoch} of process {rank} more than once, so it holds several runs. Give the log "
            "of one."
        )


def check_is_one_run(log: Log, program: Program) -> None:
    """Refuses a log whose prints of options differ in more than the options that each node has for itself."""
    for other in log.each_settings:
        ours = {key: value for key, value in log.settings.items() if key in KEYS and key != "seed"}
        differing = [key for key, value in ours.items() if other.get(key, value) != value]
        if program.mark in other and differing:
            raise UserError(
                f"{log.where} has options of several runs, which differ in {', '.join(differing)}. Give the log of one."
            )


def find_divergence(log: Log) -> str | None:
    """Names the process whose loss was first no number: such a loss never recovers."""
    lost = min(
        ((report.epoch, report.rank, report.loss) for report in log.reports if not isfinite(report.loss)),
        default=None,
    )
    return None if lost is None else f"In epoch {lost[0]} the loss of process {lost[1]} was {lost[2]}"


def find_failure(log: Log, world: int, epochs: int | None) -> str | None:
    """The sign that training broke off, or None. The programs end with exit code 0 even if a process of theirs fails.

    All processes report after the same epochs, at a fixed interval. `epochs`, the wanted number, is None for a log
    without options.
    """
    if log.exit_code == -signal.SIGTERM:
        return "It was stopped by a SIGTERM"
    if log.exit_code:
        return f"It ended with exit code {log.exit_code}"
    if silent := sorted(set(range(world)) - set(log.last)):
        return f"Of its {world} processes {', '.join(map(str, silent))} reported no epoch"
    ends, every = {report.epoch for report in log.last.values()}, log.reports[0].epoch + 1
    if len(ends) > 1 or (epochs is not None and max(ends) + 1 + every <= epochs):
        total = "" if epochs is None else f" of {epochs}"
        return f"Its processes came to epoch {' and '.join(map(str, sorted(ends)))}{total}"
    return None


NEEDED = {
    "dataset.name": "which graph it trains on: name it by --dataset.",
    "ranks": "how many processes it had: say it by --set ranks=N.",
    "strategy.name": "whether its pipeline was on (--enable-pipeline): say by --set strategy.name=pipegcn that it was, "
    "or by --set strategy.name=bns-gcn that it waited for the whole boundary.",
}
"""The keys that every record needs, with the error for a log that lacks them."""
PARAMS = "strategy.params."
CHOSEN = {"launch"}
"""Keys of the harness alone, which no log shows."""


def record_log(
    root: Path,
    runs: Path,
    program: Program,
    log: Log,
    asked: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Writes the run folder of a log. `asked` holds further keys of its spec, dotted."""
    check_has_reports(log, program)
    settings = read_settings(log, program)
    spec, known = _make_spec(root, log, settings, dict(_flatten(asked)))
    check_processes(log, spec.ranks)
    check_is_one_run(log, program)
    vertices = load_card(root, spec.dataset.name).expected.n
    epochs = spec.training.epochs if "training.epochs" in known else None
    status, failure = _find_end(log, spec.ranks, epochs)
    text = hashlib.sha256(log.text.encode()).hexdigest()
    known_spec, unknown = _select_known(spec.model_dump(mode="json"), known)
    run_id = digest({"spec": known_spec, "log_sha256": text})
    seed = f"-s{spec.seed}" if "seed" in known else ""
    name = f"{spec.dataset.name}-{spec.strategy.name}-{format_grid(spec.grid, '')}{seed}"
    record = {
        "run_id": run_id,
        "label": f"{name}-external-{run_id[:6]}",
        "status": status,
        "source": "external",
        "summary": {} if failure else make_summary(log, None if "inductive" in settings.beyond else vertices),
        "provenance": {"engine": log.settings.get("backend", ""), **provenance},
        "error": _make_error(log, failure) if failure else None,
        "external": {
            "program": program.title,
            "log_sha256": text,
            "options": _format_value(log.settings),
            "unknown": unknown,
            "beyond": settings.beyond,
        },
    }
    return write_record(runs, known_spec, record, make_tables(log))


def _make_spec(
    root: Path, log: Log, settings: LogSettings, asked: Mapping[str, Any]
) -> tuple[Spec, set[str]]:
    """The spec of the log's keys and the asked ones, and the set of all these keys.

    A key that both have must agree, except the name of the dataset, which may differ here.
    """
    for key in sorted(settings.keys.keys() & asked.keys() - {"dataset.name"} - CHOSEN):
        if settings.keys[key] != asked[key]:
            raise UserError(
                f"{log.where}: the run had {key} = {settings.keys[key]!r}, and the options say {asked[key]!r}. Leave "
                "out the keys that the log shows."
            )
    keys = {**({"ranks": len(log.last)} if log.reports else {}), **settings.keys, **asked}
    for key, way_out in NEEDED.items():
        if key not in keys:
            raise UserError(f"{log.where} does not say {way_out}")
    spec = make_spec(
        root, nest_settings({key: value for key, value in keys.items() if value != {}}), log.where
    )
    known = {*keys, "grid", "strategy.name"}
    if "dataset.partition" in known:
        known.add("dataset.parts")
    if spec.model.kind != "gat" and "model.kind" in known:
        known.add("model.heads")
    return spec, known


def _flatten(asked: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """The single keys, dotted; a value that is a mapping, as strategy.params={p: 0.5}, gives several."""
    for key, value in asked.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _select_known(data: Mapping[str, Any], known: Set[str], at: str = "") -> tuple[dict[str, Any], list[str]]:
    """The data with null for every unknown key; and the unknown keys, one for a part that is unknown as a whole.

    A parameter of a strategy is `unknown` instead of null, because null may be its value.
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


def _find_end(log: Log, world: int, epochs: int | None) -> tuple[str, str | None]:
    """The status of a run, and the reason if it is not ok."""
    failure = find_failure(log, world, epochs)
    status = status_of_error(RunError(log.ending(200))) if failure else "ok"
    if status != "oom" and (lost := find_divergence(log)):
        return "diverged", lost
    return status, failure


def _format_value(value: Any) -> Any:
    """Options in a form that JSON can hold: inf becomes a word, because null would mean no value."""
    if isinstance(value, Mapping):
        return {key: _format_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_format_value(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _make_error(log: Log, failure: str) -> dict[str, Any]:
    message = f"{failure}. Its last words: {log.ending(3)}"
    return {"rank": -1, "type": "ExternalError", "message": message, "trace": log.ending(40)}
