"""harness run, external and emulate: trains, records runs of other programs, and re-times runs on other networks."""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.options import (
    Verbs,
    add_set_option,
    add_verb,
    parse_settings,
    print_answer,
    print_message,
)
from harness.cli.predicting import EpochPrediction, collect_predictions
from harness.errors import UserError
from harness.external.programs import PROGRAMS
from harness.files import read_head
from harness.results.record import read_record
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_results_folder, find_root
from harness.untrusted import escape_line


def add_verbs(verbs: Verbs) -> None:
    _add_external(verbs)
    _add_emulate(verbs)


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


def _indent_message(message: str) -> str:
    """Indent the lines of a message, so that they differ from other lines of the page."""
    return "\n    ".join(message.splitlines())


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
