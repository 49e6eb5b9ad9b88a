"""From a log to a record of source `external`: its own spec, as far as log and options tell it, and its tables."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import RunError, UserError
from harness.experiment.request import make_spec, nested
from harness.external.judging import check_processes, check_that_it_reports, failure_of
from harness.external.log import Log
from harness.external.programs import Program, keys_of
from harness.external.tables import summary, tables
from harness.results.record import write_record
from harness.run.fault import status_of
from harness.spec.spec import Spec, digest
from harness.store.catalog import load_card


def record_log(
    root: Path,
    runs: Path,
    program: Program,
    log: Log,
    asked: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Writes the run folder of a log. `asked` are further keys of its spec, dotted."""
    check_that_it_reports(log, program)
    spec = _spec(root, program, log, asked)
    check_processes(log, spec.ranks)
    vertices = load_card(root, spec.dataset.name).expected.n
    failure = failure_of(log, spec.ranks, spec.training.epochs)
    text = hashlib.sha256(log.text.encode()).hexdigest()
    run_id = digest({"spec": spec.model_dump(mode="json"), "log_sha256": text})
    record = {
        "run_id": run_id,
        "label": f"{spec.label.rpartition('-')[0]}-external-{run_id[:6]}",
        "status": status_of(RunError(log.ending(200))) if failure else "ok",
        "source": "external",
        "summary": {} if failure else summary(log, vertices),
        "provenance": {"engine": log.settings.get("backend", ""), **provenance},
        "error": _error(log, failure) if failure else None,
        "external": {"program": program.title, "log_sha256": text, "options": log.settings},
    }
    return write_record(runs, spec.model_dump(mode="json"), record, tables(log))


def _spec(root: Path, program: Program, log: Log, asked: Mapping[str, Any]) -> Spec:
    """What the log tells and what is asked. They must agree, but a dataset may be called otherwise here."""
    told = keys_of(program, log)
    for key in sorted(told.keys() & asked.keys() - {"dataset.name"}):
        if told[key] != asked[key]:
            raise UserError(
                f"{log.where}: it was run with {key} = {told[key]!r}, and the options say {asked[key]!r}. Leave out "
                "what the log tells itself."
            )
    keys = {**_counted(log), **told, **asked}
    if "dataset.name" not in keys:
        raise UserError(f"{log.where} does not say which graph it trains on: name it by --dataset.")
    return make_spec(root, nested(keys), log.where)


def _counted(log: Log) -> dict[str, Any]:
    """What also a log shows that tells no options."""
    if not log.lines:
        return {}
    return {"ranks": len(log.last), "training.epochs": max(line.epoch for line in log.lines) + 1}


def _error(log: Log, failure: str) -> dict[str, Any]:
    message = f"{failure}. Its last words: {log.ending(3)}"
    return {"rank": -1, "type": "ExternalError", "message": message, "trace": log.ending(40)}
