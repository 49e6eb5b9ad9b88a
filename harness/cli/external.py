"""harness external: programs of others, run here or read from their logs, as records of our tables."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from harness.cli.request import Verbs, add_settings, add_verb, settings, show
from harness.errors import UserError
from harness.external.programs import PROGRAMS
from harness.spec.root import project_root, results_folder


def add_verbs(verbs: Verbs) -> None:
    about = "Run a program of others, or read its log: a record of source `external` beside our own."
    actions = verbs.add_parser("external", help=about, description=about)
    some = actions.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = add_verb(some, "run", _run, "Run a command, and record what it prints.")
    read = add_verb(some, "read", _read, "Record what a log says.")
    for parser in (run, read):
        parser.add_argument("--format", required=True, choices=PROGRAMS, help="whose log it is")
        parser.add_argument("--dataset", metavar="NAME", help="what its graph is called here, if otherwise")
        add_settings(parser)
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="where run folders go (default: results/runs)"
        )
    run.add_argument("--cwd", type=Path, default=Path(), metavar="DIR", help="the checkout it runs in")
    run.add_argument("command", nargs="+", metavar="COMMAND", help="after --, as you would type it there")
    read.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="of every node of one run")


def _run(options: argparse.Namespace) -> int:
    from harness.external.running import run

    place = results_folder(project_root(options.root)) / "external"
    log = place / f"{options.format}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.log"
    done = run(options.command, options.cwd, log)
    return _record(options, [log], done.provenance, done.exit_code)


def _read(options: argparse.Namespace) -> int:
    return _record(options, options.logs, {}, None)


def _record(
    options: argparse.Namespace, logs: list[Path], provenance: dict[str, Any], exit_code: int | None
) -> int:
    from harness.external.programs import Log
    from harness.external.record import record_log

    root = project_root(options.root)
    named = {"dataset.name": options.dataset} if options.dataset else {}
    log = Log("\n".join(map(_text_of, logs)), ", ".join(map(str, logs)), exit_code)
    folder = record_log(
        root,
        options.out or results_folder(root) / "runs",
        PROGRAMS[options.format],
        log,
        {**settings(options.set), **named},
        provenance,
    )
    told = {"folder": str(folder), **json.loads((folder / "record.json").read_text())}
    show(options, told, _page(told))
    return 0 if told["status"] == "ok" else 1


def _text_of(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"The log {log} cannot be read: {error.strerror}.") from None


def _page(told: dict[str, Any]) -> str:
    lines = [f"{told['label']}: {told['status']}"]
    if told["error"]:
        lines.append(f"  {told['error']['message']}")
    elif seconds := told["summary"]["epoch_seconds_median"]:
        lines.append(f"  epoch {seconds * 1e3:.3g} ms, as {told['external']['program']} measures it")
    external = told["external"]
    if external["unknown"]:
        lines.append(f"  unknown, as the log does not say it: {', '.join(external['unknown'])}")
    lines += [f"  no spec says: {words} ({option})" for option, words in external["beyond"].items()]
    return "\n".join([*lines, f"  {told['folder']}"])
