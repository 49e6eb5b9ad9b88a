"""harness run, external and emulate: trains, records runs of other programs, and re-times runs on other networks."""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.options import (
    Verbs,
    add_request_options,
    add_set_option,
    add_verb,
    format_columns,
    make_requested_spec,
    parse_settings,
    print_answer,
    print_message,
    print_progress,
)
from harness.cli.predicting import EpochPrediction, collect_predictions
from harness.documents import read_json
from harness.errors import UserError
from harness.external.programs import PROGRAMS
from harness.files import read_head
from harness.results.record import read_record
from harness.slurm.jobs import read_predicted_limit
from harness.spec.machine_card import list_machines, load_machine, load_machine_card
from harness.spec.root import find_results_folder, find_root
from harness.spec.spec import Spec
from harness.untrusted import escape_line
from harness.validation import validate


def add_verbs(verbs: Verbs) -> None:
    _add_run(verbs)
    _add_external(verbs)
    _add_emulate(verbs)


def _add_run(verbs: Verbs) -> None:
    run = add_verb(
        verbs,
        "run",
        _run_or_follow,
        "Train with one strategy and record everything about the run.",
        "Prints the status, the epoch time, the accuracy and the run folder. A run that has a result is not repeated.",
    )
    run.add_argument(
        "--spec",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of complete specs, run one after the other; the exit code is 0 if every run has a record",
    )
    run.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the file of the workflow's job that contains these specs, for the predicted time of each run",
    )
    _add_out_option(run)
    add_request_options(run)
    run.add_argument("--in-process", action="store_true", help="run one rank in this process, for a debugger")
    run.add_argument("--fresh", action="store_true", help="run again even if a record of this spec exists")
    run.add_argument(
        "--trace",
        action="store_true",
        help="record a tape (measure.tape), write trace.json for ui.perfetto.dev to the run folder, and print a "
        "summary: all ranks on one timeline, with measured kernels, and calls priced by the machine's card",
    )


def _add_external(verbs: Verbs) -> None:
    about = "Record a run of another program: run it here, or read its log."
    external = verbs.add_parser("external", help=about, description=about)
    actions = external.add_subparsers(dest="action", metavar="ACTION", required=True)
    command = add_verb(actions, "run", _run_external_program, "Run a command, and record what it prints.")
    logs = add_verb(actions, "read", _read_external_logs, "Record the run that a log shows.")
    for parser in (command, logs):
        parser.add_argument(
            "--format", required=True, choices=PROGRAMS, help="the program that writes the log"
        )
        parser.add_argument(
            "--dataset", metavar="NAME", help="the name of the graph here, if the program uses another name"
        )
        add_set_option(parser)
        _add_out_option(parser)
    command.add_argument(
        "--cwd", type=Path, default=Path(), metavar="DIR", help="the checkout in which the command runs"
    )
    command.add_argument(
        "command",
        nargs="+",
        metavar="COMMAND",
        help="after --: the command as you would type it in its checkout",
    )
    logs.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="the logs of all nodes of one run")


def _add_emulate(verbs: Verbs) -> None:
    emulate = add_verb(
        verbs,
        "emulate",
        _emulate_runs,
        "Re-time an epoch of a recorded run on the network of another machine.",
        "Uses the measured times of kernels, and prices calls by the links of the machine's card. The run needs a "
        "tape: harness run ... --set measure.tape=true.",
    )
    emulate.add_argument("run", nargs="?", metavar="RUN", help="the folder of a run, or the start of its id")
    emulate.add_argument("--plan", type=Path, metavar="FILE", help="emulate every successful run of a plan")
    emulate.add_argument(
        "--machine", metavar="NAME", help="the machine card with the links (default: the card of the run)"
    )
    emulate.add_argument(
        "--strategy",
        default="",
        metavar="FILE:CLASS",
        help="the strategy of the run, if it is in a file: the file that a record names is never executed",
    )
    emulate.add_argument(
        "--out", type=Path, metavar="DIR", help="write each emulation as the record of a run under DIR"
    )
    emulate.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace with all ranks on one timeline, for ui.perfetto.dev",
    )


def _add_out_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for run folders (default: results/runs)"
    )


def _run_or_follow(options: argparse.Namespace) -> int:
    """Run as the only process, or as a rank of a world that another launcher started. Rank 0 leads the others."""
    from harness.launch.joined_world import find_joined_world

    world = find_joined_world()
    if world is None:
        return _run_request(options)
    if world.at.rank:
        root = find_root(options.root)
        world.follow_runs(root, _get_runs_folder(root, options))
        return 0
    try:
        return _run_request(options)
    finally:
        world.dismiss_followers()


def _get_runs_folder(root: Path, options: argparse.Namespace) -> Path:
    folder: Path = options.out or find_results_folder(root) / "runs"
    return folder


def _run_request(options: argparse.Namespace) -> int:
    root = find_root(options.root)
    runs = _get_runs_folder(root, options)
    if options.trace:
        if options.spec:
            raise UserError(
                "--trace is not accepted with --spec, because a tape is part of the spec: set tape to true under "
                "measure in the file, or request the run by --strategy NAME --dataset NAME."
            )
        options.set = [*options.set, "measure.tape=true"]
    if options.spec:
        return _run_spec_files(root, runs, options)
    from harness.launch.fork_server import ForkServer
    from harness.launch.joined_world import find_joined_world
    from harness.launch.launch import ensure_result, launch, launch_in_process, prepare_fork_server

    with ForkServer() as server:
        machine = parse_settings(options.set).get("machine", "local")
        if not (options.in_process or find_joined_world()) and machine in list_machines(root):
            prepare_fork_server(server, load_machine(root, machine), root)
        spec = _make_spec(root, options)
        folder = runs / spec.run_id
        start = (
            partial(launch_in_process, spec, root, runs)
            if options.in_process
            else partial(launch, spec, root, runs, print_progress, fork_server=server)
        )
        with ensure_result(spec, runs, print_progress, start, fresh=options.fresh) as cached:
            record = _read_document(folder, cached=cached)
    text = _format_record(record)
    if options.trace and record["status"] != "ok":
        text += "\n  no trace: a run that did not succeed has no tape"
    elif options.trace:
        record["trace"] = _write_trace(root, folder, options.strategy)
        text = f"{text}\n\n{_format_trace(record['trace'])}"
    print_answer(options, record, text)
    return 0 if record["status"] == "ok" else 1


def _run_spec_files(root: Path, runs: Path, options: argparse.Namespace) -> int:
    """Run the specs of several files, and print the result of each run when it ends.

    An invalid spec, or a run without a readable record, does not stop the others. If there is only one file, an invalid
    spec raises UserError.
    """
    from harness.launch.series import describe_failure, launch_series

    records, missing = [], 0

    def report_missing(name: str, reason: str) -> None:
        nonlocal missing
        missing += 1
        print_message(escape_line(f"{name}: no record: {reason}"))

    specs = []
    for path in options.spec:
        try:
            specs.append(_read_spec(path))
        except Exception as error:
            if len(options.spec) == 1:
                raise
            report_missing(str(path), describe_failure(error))
    job = read_json(options.job, f"The job {options.job}") if options.job else {}
    predicted = {run_id: read_predicted_limit(run) for run_id, run in job.items()}
    for outcome in launch_series(specs, root, runs, print_progress, fresh=options.fresh, predicted=predicted):
        try:
            if outcome.folder is None:
                report_missing(outcome.spec.label, outcome.why)
                continue
            records.append(_read_document(outcome.folder, cached=outcome.cached))
            if not options.json:
                print_answer(options, {}, _format_record(records[-1]))
        except Exception as error:
            report_missing(outcome.spec.label, describe_failure(error))
    if options.json:
        print_answer(options, records[0] if len(records) == len(options.spec) == 1 else records, "")
    return 1 if missing else 0


def _read_document(folder: Path, *, cached: bool) -> dict[str, Any]:
    """Return the record of a run as JSON data, with its folder and the number of epochs in its spec."""
    record = read_record(folder)
    epochs = record.parse_spec().training.epochs
    return {"folder": str(folder), "cached": cached, "epochs_asked": epochs, **record.record}


def _read_spec(path: Path) -> Spec:
    return validate(Spec, read_json(path, f"The spec {path}"), str(path))


def _make_spec(root: Path, options: argparse.Namespace) -> Spec:
    from harness.run.open_run import open_run

    spec = make_requested_spec(root, options)
    open_run(root, spec)  # raises UserError before any rank is started
    if options.trace:
        from harness.predict.emulation import check_traceable

        check_traceable(spec, load_machine_card(root, spec.machine.name))
    return spec


def _write_trace(root: Path, folder: Path, strategy: str) -> dict[str, Any]:
    """Write the trace of a run to its folder, and return a summary of it."""
    from harness.predict.emulation import simulate_run, summarize_trace, write_trace

    card = read_record(folder).parse_spec().machine.name
    played = simulate_run(folder, load_machine_card(root, card), strategy)
    path = folder / "trace.json"
    write_trace(path, played)
    return {"file": str(path), "card": card, **summarize_trace(played)}


TOP = 6
"""The number of kernels and calls in a summary."""


def _format_trace(summary: dict[str, Any]) -> str:
    """Return the text of the summary of a trace."""
    epoch, shares = summary["epoch_seconds"], summary["shares"]
    lines = [
        f"{summary['file']} (open it at ui.perfetto.dev)",
        f"  the tape, replayed on the links of {summary['card']}: {1e3 * epoch:.4g} ms an epoch",
        "  time of all ranks: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in shares.items()),
        f"  imbalance: {summary['imbalance']:.2f} (maximum over mean of the computing time); rank {summary['longest']} "
        "computes longest",
    ]
    for title, key in (("top kernels", "kernels"), ("exposed communication (waiting)", "exposed")):
        rows = [
            (f"    {name}", f"{1e3 * seconds:.4g} ms", f"{100 * seconds / epoch:.1f} %")
            for name, seconds in list(summary[key].items())[:TOP]
        ]
        lines += [
            f"  {title}, mean of the ranks{'' if rows else ': none'}",
            *([format_columns(rows)] if rows else []),
        ]
    return "\n".join(lines)


def _format_record(record: dict[str, Any]) -> str:
    label, status = escape_line(record["label"]), record["status"]
    lines = [f"{label}: {status}{' (recorded earlier; --fresh runs it again)' if record['cached'] else ''}"]
    if summary := record["summary"]:
        lines += _format_summary(summary, record["epochs_asked"])
    if error := record["error"]:
        rank = f"rank {error['rank']}: " if error["rank"] >= 0 else ""
        lines.append(f"  {rank}{error['type']}: {_indent_message(error['message'])}")
    return "\n".join([*lines, f"  {record['folder']}"])


def _indent_message(message: str) -> str:
    """Indent the lines of a message, so that they differ from other lines of the page."""
    return "\n    ".join(message.splitlines())


def _format_summary(summary: dict[str, Any], epochs: int) -> list[str]:
    """Return lines with the times, the loss and the accuracies of a run. Any number may be missing."""
    lines, done = [], summary.get("epochs", 0)
    if (seconds := summary.get("epoch_seconds_median")) is not None:
        loss, words = summary.get("final_loss"), summary.get("words_received")
        lines.append(
            f"  epoch {seconds * 1e3:.3g} ms (median of {done}), "
            f"loss {'not finite' if loss is None else f'{loss:.4g}'}"
            + (f", {words:,.0f} words received an epoch" if words is not None else "")
        )
    if summary.get("seconds_to_target") is not None and done < epochs:
        lines.append(f"  reached its target accuracy after {done} of {epochs} epochs, and stopped")
    if (seconds := summary.get("setup_seconds")) is not None:
        lines.append(f"  setup {seconds:.3g} s before the first epoch, excluded from all other times")
    accuracy = {split: summary.get(f"accuracy_{split}") for split in ("train", "valid", "test")}
    measured = [f"{split} {value:.3f}" for split, value in accuracy.items() if value is not None]
    if measured:
        lines.append(f"  accuracy {', '.join(measured)}")
    elif lines:
        lines.append("  no accuracy: no labelled vertices, or no evaluation")
    return lines


def _run_external_program(options: argparse.Namespace) -> int:
    from harness.children import exit_on_sigterm
    from harness.external.log_record import run_command

    folder = find_results_folder(find_root(options.root)) / "external"
    log = folder / f"{options.format}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log"
    with exit_on_sigterm():
        exit_code, provenance = run_command(options.command, options.cwd, log)
        try:
            return _record_logs(options, [log], provenance, exit_code)
        except (KeyboardInterrupt, SystemExit):
            print_message(
                "harness: stopped while the record was written. The log of the program is kept. Record it with: "
                f"harness external read {log} --format {options.format}"
            )
            raise


def _read_external_logs(options: argparse.Namespace) -> int:
    return _record_logs(options, options.logs, {}, None)


def _record_logs(
    options: argparse.Namespace, logs: list[Path], provenance: dict[str, Any], exit_code: int | None
) -> int:
    from harness.external.log_record import record_log
    from harness.external.programs import ProgramLog

    root = find_root(options.root)
    named = {"dataset.name": options.dataset} if options.dataset else {}
    folder = record_log(
        root,
        options.out or find_results_folder(root) / "runs",
        PROGRAMS[options.format],
        ProgramLog("\n".join(map(_read_log, logs)), ", ".join(map(str, logs)), exit_code),
        {**parse_settings(options.set), **named},
        provenance,
    )
    record = {"folder": str(folder), **json.loads((folder / "record.json").read_text(encoding="utf-8"))}
    print_answer(options, record, _format_external_record(record))
    return 0 if record["status"] == "ok" else 1


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


def _format_external_record(record: dict[str, Any]) -> str:
    lines, external = [escape_line(f"{record['label']}: {record['status']}")], record["external"]
    if record["error"]:
        lines.append(f"  {_indent_message(record['error']['message'])}")
    elif seconds := record["summary"]["epoch_seconds_median"]:
        lines.append(f"  epoch {seconds * 1e3:.3g} ms, as {external['program']} measures it")
    if external["unknown"]:
        lines.append(f"  unknown, because the log does not show it: {', '.join(external['unknown'])}")
    lines += [
        escape_line(f"  beyond any spec: {words} ({option})") for option, words in external["beyond"].items()
    ]
    return "\n".join([*lines, f"  {record['folder']}"])


def _emulate_runs(options: argparse.Namespace) -> int:
    from harness.predict.emulation import emulate, simulate_run, write_trace
    from harness.results.record import find_run
    from harness.spec.plan import read_plan

    if (options.run is None) == (options.plan is None) or (options.plan and options.trace):
        raise UserError("emulate takes either RUN, with --trace if wanted, or --plan FILE.")
    root = find_root(options.root)
    runs = find_results_folder(root) / "runs"
    folders = (
        [runs / run for run in read_plan(options.plan).runs_by_id]
        if options.plan
        else [find_run(runs, options.run)]
    )

    def emulate_run(folder: Path) -> EpochPrediction:
        card = load_machine_card(root, options.machine or read_record(folder).parse_spec().machine.name)
        spec, facts, predicted = emulate(folder, card, options.strategy)
        if options.trace:
            write_trace(options.trace, simulate_run(folder, card, options.strategy))
        return EpochPrediction(spec, facts, card, predicted, emulates=folder.name)

    tasks = {folder.name: partial(emulate_run, folder) for folder in folders}
    table = collect_predictions(root, options.out, tasks, "emulating")
    if options.run and table.refused:
        raise UserError(*table.refused.values())
    title = "Measured kernels on the links of machine cards\n\n" if table.documents else ""
    document = {"emulated": table.documents, "refused": table.refused} if options.plan else table.documents[0]
    print_answer(options, document, f"{title}{table.format_page('No emulation')}")
    return 0
