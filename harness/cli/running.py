"""harness run, emulate and external: runs of ours, on other links too, and runs of other programs, as whole records."""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.options import (
    Verbs,
    add_request,
    add_settings,
    add_verb,
    columns,
    requested,
    say,
    settings,
    show,
    tell,
)
from harness.cli.predicting import PricedEpoch, priced_epochs
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
    run = add_verb(
        verbs,
        "run",
        _run,
        "Train with one strategy and record everything about the run.",
        "Prints the status, the epoch time, the accuracy and the run folder. A run that has a result is not repeated.",
    )
    run.add_argument(
        "--spec",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of whole specs, run one after the other; the exit code is 0 once every run has a record",
    )
    run.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the file of a workflow's job that has these specs, for the time that each run is predicted to take",
    )
    _add_out(run)
    add_request(run)
    run.add_argument("--in-process", action="store_true", help="run one rank in this process, for a debugger")
    run.add_argument("--fresh", action="store_true", help="run again even if a record of this spec exists")
    run.add_argument(
        "--trace",
        action="store_true",
        help="record a tape (measure.tape), write trace.json for ui.perfetto.dev into the run folder, and print what "
        "it shows: the ranks on one timeline, kernels as measured, calls by the links of the machine's card",
    )

    about = "Record a run of another program beside ours: run it here, or read its log."
    external = verbs.add_parser("external", help=about, description=about)
    actions = external.add_subparsers(dest="action", metavar="ACTION", required=True)
    command = add_verb(actions, "run", _external_run, "Run a command, and record what it prints.")
    logs = add_verb(actions, "read", _external_read, "Record the run that a log shows.")
    for parser in (command, logs):
        parser.add_argument(
            "--format", required=True, choices=PROGRAMS, help="the program that writes the log"
        )
        parser.add_argument(
            "--dataset", metavar="NAME", help="the name of the graph here, if the program has another"
        )
        add_settings(parser)
        _add_out(parser)
    command.add_argument(
        "--cwd", type=Path, default=Path(), metavar="DIR", help="the checkout in which the command runs"
    )
    command.add_argument(
        "command",
        nargs="+",
        metavar="COMMAND",
        help="after --, as you would type the command in its checkout",
    )
    logs.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="the logs of all nodes of one run")

    emulate = add_verb(
        verbs,
        "emulate",
        _emulate,
        "Show how long an epoch of a run would take on the links of another machine.",
        "Takes the kernels as they were measured and the calls by the machine's card. The run needs a tape: "
        "harness run ... --set measure.tape=true.",
    )
    emulate.add_argument(
        "run", nargs="?", metavar="RUN", help="the folder of a run, or the beginning of its id"
    )
    emulate.add_argument(
        "--plan", type=Path, metavar="FILE", help="emulate every run of a plan that succeeded"
    )
    emulate.add_argument(
        "--machine", metavar="NAME", help="the machine card with the links (default: the run's own)"
    )
    emulate.add_argument(
        "--strategy",
        default="",
        metavar="FILE:CLASS",
        help="the strategy of the run, if it is a file: no file is run because a record names it",
    )
    emulate.add_argument(
        "--out", type=Path, metavar="DIR", help="write each emulation as the record of a run under DIR"
    )
    emulate.add_argument(
        "--trace", type=Path, metavar="FILE", help="write all ranks on one timeline, for ui.perfetto.dev"
    )


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for run folders (default: results/runs)"
    )


def _run(options: argparse.Namespace) -> int:
    """Runs as the only process of this command, or as a rank of a world that another launcher started."""
    from harness.launch.joined_world import find_joined_world

    world = find_joined_world()
    if world is None:
        return _run_alone(options)
    if world.at.rank:
        root = find_root(options.root)
        world.follow_runs(root, _runs_folder(root, options))
        return 0
    try:
        return _run_alone(options)
    finally:
        world.dismiss_followers()


def _runs_folder(root: Path, options: argparse.Namespace) -> Path:
    folder: Path = options.out or find_results_folder(root) / "runs"
    return folder


def _run_alone(options: argparse.Namespace) -> int:
    root = find_root(options.root)
    runs = _runs_folder(root, options)
    if options.trace:
        if options.spec:
            raise UserError(
                "--trace is not accepted with --spec, because a tape is part of the spec: set tape to true under "
                "measure in the file, or ask for the run by --strategy NAME --dataset NAME."
            )
        options.set = [*options.set, "measure.tape=true"]
    if options.spec:
        return _run_all(root, runs, options)
    from harness.launch.fork_server import ForkServer
    from harness.launch.joined_world import find_joined_world
    from harness.launch.launch import ensure_result, launch, launch_in_process, prepare_fork_server

    with ForkServer() as server:
        machine = settings(options.set).get("machine", "local")
        if not (options.in_process or find_joined_world()) and machine in list_machines(root):
            prepare_fork_server(server, load_machine(root, machine), root)
        spec = _spec_of_options(root, options)
        folder = runs / spec.run_id
        start = (
            partial(launch_in_process, spec, root, runs)
            if options.in_process
            else partial(launch, spec, root, runs, say, fork_server=server)
        )
        with ensure_result(spec, runs, say, start, fresh=options.fresh) as cached:
            record = _record(folder, cached=cached)
    text = _text(record)
    if options.trace and record["status"] != "ok":
        text += "\n  no trace: a run that did not succeed has no tape"
    elif options.trace:
        record["trace"] = _write_trace(root, folder, options.strategy)
        text = f"{text}\n\n{_trace_text(record['trace'])}"
    show(options, record, text)
    return 0 if record["status"] == "ok" else 1


def _run_all(root: Path, runs: Path, options: argparse.Namespace) -> int:
    """Prints the outcome of each run as soon as the run has ended.

    A file without a spec, a run without a record and a record that cannot be read keep no other run from its turn.
    A single file is refused as any other input is.
    """
    from harness.launch.series import describe_failure, launch_series

    records, lacking = [], 0

    def lack(name: str, why: str) -> None:
        nonlocal lacking
        lacking += 1
        tell(escape_line(f"{name}: no record: {why}"))

    specs = []
    for path in options.spec:
        try:
            specs.append(_spec_of_file(path))
        except Exception as error:
            if len(options.spec) == 1:
                raise
            lack(str(path), describe_failure(error))
    job = read_json(options.job, f"The job {options.job}") if options.job else {}
    foreseen = {run_id: read_predicted_limit(run) for run_id, run in job.items()}
    for outcome in launch_series(specs, root, runs, say, fresh=options.fresh, predicted=foreseen):
        try:
            if outcome.folder is None:
                lack(outcome.spec.label, outcome.why)
                continue
            records.append(_record(outcome.folder, cached=outcome.cached))
            if not options.json:
                show(options, {}, _text(records[-1]))
        except Exception as error:
            lack(outcome.spec.label, describe_failure(error))
    if options.json:
        show(options, records[0] if len(records) == len(options.spec) == 1 else records, "")
    return 1 if lacking else 0


def _record(folder: Path, *, cached: bool) -> dict[str, Any]:
    """The record of a run, with its folder and the number of epochs that its spec asks for."""
    whole = read_record(folder)
    asked = whole.parse_spec().training.epochs
    return {"folder": str(folder), "cached": cached, "epochs_asked": asked, **whole.record}


def _spec_of_file(path: Path) -> Spec:
    return validate(Spec, read_json(path, f"The spec {path}"), str(path))


def _spec_of_options(root: Path, options: argparse.Namespace) -> Spec:
    from harness.run.open_run import open_run

    spec = requested(root, options)
    open_run(root, spec)  # a spec that is refused is refused before any rank is started
    if options.trace:
        from harness.predict.emulation import check_traceable

        check_traceable(spec, load_machine_card(root, spec.machine.name))
    return spec


def _write_trace(root: Path, folder: Path, strategy: str) -> dict[str, Any]:
    """Writes the trace of a run into its folder; returns what the trace shows."""
    from harness.predict.emulation import simulate_run, summarize_trace, write_trace

    card = read_record(folder).parse_spec().machine.name
    played = simulate_run(folder, load_machine_card(root, card), strategy)
    path = folder / "trace.json"
    write_trace(path, played)
    return {"file": str(path), "card": card, **summarize_trace(played)}


TOP = 6
"""Kernels and calls of a summary, the longest first."""


def _trace_text(summary: dict[str, Any]) -> str:
    """The page about a trace."""
    epoch, shares = summary["epoch_seconds"], summary["shares"]
    lines = [
        f"{summary['file']} (open it at ui.perfetto.dev)",
        f"  the tape, played on the links of {summary['card']}: {1e3 * epoch:.4g} ms an epoch",
        "  time of all ranks: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in shares.items()),
        f"  imbalance: {summary['imbalance']:.2f} is the most computing over the mean; rank {summary['longest']} "
        "computes longest",
    ]
    for title, key in (("top kernels", "kernels"), ("exposed communication (waiting)", "exposed")):
        rows = [
            (f"    {name}", f"{1e3 * seconds:.4g} ms", f"{100 * seconds / epoch:.1f} %")
            for name, seconds in list(summary[key].items())[:TOP]
        ]
        lines += [
            f"  {title}, mean of the ranks{'' if rows else ': none'}",
            *([columns(rows)] if rows else []),
        ]
    return "\n".join(lines)


def _text(record: dict[str, Any]) -> str:
    label, status = escape_line(record["label"]), record["status"]
    lines = [f"{label}: {status}{' (recorded earlier; --fresh runs it again)' if record['cached'] else ''}"]
    if summary := record["summary"]:
        lines += _summary(summary, record["epochs_asked"])
    if error := record["error"]:
        rank = f"rank {error['rank']}: " if error["rank"] >= 0 else ""
        lines.append(f"  {rank}{error['type']}: {_indented(error['message'])}")
    return "\n".join([*lines, f"  {record['folder']}"])


def _indented(message: str) -> str:
    """A message of several lines, which cannot be taken for others of the page."""
    return "\n    ".join(message.splitlines())


def _summary(summary: dict[str, Any], asked: int) -> list[str]:
    """The times, the loss and the accuracies of a run. Any number may be null."""
    lines, done = [], summary.get("epochs", 0)
    if (seconds := summary.get("epoch_seconds_median")) is not None:
        loss, words = summary.get("final_loss"), summary.get("words_received")
        lines.append(
            f"  epoch {seconds * 1e3:.3g} ms (median of {done}), "
            f"loss {'not finite' if loss is None else f'{loss:.4g}'}"
            + (f", {words:,.0f} words received an epoch" if words is not None else "")
        )
    if summary.get("seconds_to_target") is not None and done < asked:
        lines.append(f"  reached its target accuracy after {done} of {asked} epochs, and stopped")
    if (seconds := summary.get("setup_seconds")) is not None:
        lines.append(f"  setup {seconds:.3g} s before the first epoch, excluded from all other times")
    accuracy = {split: summary.get(f"accuracy_{split}") for split in ("train", "valid", "test")}
    measured = [f"{split} {value:.3f}" for split, value in accuracy.items() if value is not None]
    if measured:
        lines.append(f"  accuracy {', '.join(measured)}")
    elif lines:
        lines.append("  no accuracy: no labelled vertices, or no evaluation")
    return lines


def _external_run(options: argparse.Namespace) -> int:
    from harness.children import exit_on_sigterm
    from harness.external.log_record import run_command

    folder = find_results_folder(find_root(options.root)) / "external"
    log = folder / f"{options.format}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log"
    with exit_on_sigterm():
        exit_code, provenance = run_command(options.command, options.cwd, log)
        try:
            return _record_logs(options, [log], provenance, exit_code)
        except (KeyboardInterrupt, SystemExit):
            tell(
                "harness: stopped while the record was written. What the program printed is kept, and can be recorded: "
                f"harness external read {log} --format {options.format}"
            )
            raise


def _external_read(options: argparse.Namespace) -> int:
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
        ProgramLog("\n".join(map(_text_of, logs)), ", ".join(map(str, logs)), exit_code),
        {**settings(options.set), **named},
        provenance,
    )
    record = {"folder": str(folder), **json.loads((folder / "record.json").read_text(encoding="utf-8"))}
    show(options, record, _external_text(record))
    return 0 if record["status"] == "ok" else 1


LONGEST_LOG = 1 << 28


def _text_of(log: Path) -> str:
    try:
        text = read_head(log, LONGEST_LOG + 1)
    except OSError as error:
        raise UserError(f"The log {log} cannot be read: {error.strerror}.") from None
    if len(text) > LONGEST_LOG:
        raise UserError(
            f"The log {log} has more than {LONGEST_LOG:,} bytes. Give one with the lines of options and epochs alone."
        )
    return text


def _external_text(record: dict[str, Any]) -> str:
    lines, external = [escape_line(f"{record['label']}: {record['status']}")], record["external"]
    if record["error"]:
        lines.append(f"  {_indented(record['error']['message'])}")
    elif seconds := record["summary"]["epoch_seconds_median"]:
        lines.append(f"  epoch {seconds * 1e3:.3g} ms, as {external['program']} measures it")
    if external["unknown"]:
        lines.append(f"  unknown, because the log does not show it: {', '.join(external['unknown'])}")
    lines += [
        escape_line(f"  beyond any spec: {words} ({option})") for option, words in external["beyond"].items()
    ]
    return "\n".join([*lines, f"  {record['folder']}"])


def _emulate(options: argparse.Namespace) -> int:
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

    def emulated(folder: Path) -> PricedEpoch:
        card = load_machine_card(root, options.machine or read_record(folder).parse_spec().machine.name)
        spec, facts, predicted = emulate(folder, card, options.strategy)
        if options.trace:
            write_trace(options.trace, simulate_run(folder, card, options.strategy))
        return PricedEpoch(spec, facts, card, predicted, emulates=folder.name)

    asked = {folder.name: partial(emulated, folder) for folder in folders}
    table = priced_epochs(root, options.out, asked, "emulating")
    if options.run and table.refused:
        raise UserError(*table.refused.values())
    title = "Measured kernels on the links of machine cards\n\n" if table.answers else ""
    document = {"emulated": table.answers, "refused": table.refused} if options.plan else table.answers[0]
    show(options, document, f"{title}{table.page('No emulation')}")
    return 0
