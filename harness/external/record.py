"""From a log to a record of source `external`: its own spec, as far as log and options tell it, and its tables.

What neither tells is null in that spec, and never a default of ours.
"""

import hashlib
from collections.abc import Iterator, Mapping, Set
from math import isfinite
from pathlib import Path
from typing import Any

from harness.errors import RunError, UserError
from harness.experiment.request import make_spec, nested
from harness.external.judging import (
    check_processes,
    check_that_it_is_one_run,
    check_that_it_reports,
    divergence_of,
    failure_of,
)
from harness.external.log import Log
from harness.external.programs import Program, Told, told_by
from harness.external.tables import summary, tables
from harness.results.record import write_record
from harness.run.fault import status_of
from harness.spec.spec import Spec, digest, grid_text
from harness.store.catalog import load_card

NEEDED = {
    "dataset.name": "which graph it trains on: name it by --dataset.",
    "ranks": "how many processes it had: say it by --set ranks=N.",
    "strategy.name": "whether its pipeline was on (--enable-pipeline): say by --set strategy.name=pipegcn that it was, "
    "or by --set strategy.name=bns-gcn that it waited for the whole boundary.",
}
"""What no record can lack."""
PARAMS = "strategy.params."
CHOSEN = {"launch"}
"""Keys that are ours, and nothing that a log tells."""


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
    told = told_by(program, log)
    spec, known = _spec(root, log, told, dict(_leaves(asked)))
    check_processes(log, spec.ranks)
    check_that_it_is_one_run(log, program)
    vertices = load_card(root, spec.dataset.name).expected.n
    epochs = spec.training.epochs if "training.epochs" in known else None
    status, failure = _end(log, spec.ranks, epochs)
    text = hashlib.sha256(log.text.encode()).hexdigest()
    told_spec, unknown = _known_part(spec.model_dump(mode="json"), known)
    run_id = digest({"spec": told_spec, "log_sha256": text})
    seed = f"-s{spec.seed}" if "seed" in known else ""
    name = f"{spec.dataset.name}-{spec.strategy.name}-{grid_text(spec.grid, '')}{seed}"
    record = {
        "run_id": run_id,
        "label": f"{name}-external-{run_id[:6]}",
        "status": status,
        "source": "external",
        "summary": {} if failure else summary(log, None if "inductive" in told.beyond else vertices),
        "provenance": {"engine": log.settings.get("backend", ""), **provenance},
        "error": _error(log, failure) if failure else None,
        "external": {
            "program": program.title,
            "log_sha256": text,
            "options": _written(log.settings),
            "unknown": unknown,
            "beyond": told.beyond,
        },
    }
    return write_record(runs, told_spec, record, tables(log))


def _spec(root: Path, log: Log, told: Told, asked: Mapping[str, Any]) -> tuple[Spec, set[str]]:
    """A spec of what the log tells and what is asked, and the keys that these are.

    They must agree, but a dataset may be called otherwise here.
    """
    for key in sorted(told.keys.keys() & asked.keys() - {"dataset.name"} - CHOSEN):
        if told.keys[key] != asked[key]:
            raise UserError(
                f"{log.where}: it was run with {key} = {told.keys[key]!r}, and the options say {asked[key]!r}. Leave "
                "out what the log tells itself."
            )
    keys = {**({"ranks": len(log.last)} if log.lines else {}), **told.keys, **asked}
    for key, way_out in NEEDED.items():
        if key not in keys:
            raise UserError(f"{log.where} does not say {way_out}")
    spec = make_spec(root, nested({key: value for key, value in keys.items() if value != {}}), log.where)
    known = {*keys, "grid", "strategy.name"}
    if "dataset.partition" in known:
        known.add("dataset.parts")
    if spec.model.kind != "gat" and "model.kind" in known:
        known.add("model.heads")
    return spec, known


def _leaves(asked: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Single keys, also of what was asked for together, as strategy.params={p: 0.5}."""
    for key, value in asked.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _known_part(data: Mapping[str, Any], known: Set[str], at: str = "") -> tuple[dict[str, Any], list[str]]:
    """The same with null for every key that is not known; and which keys these are, together where a whole part is.

    A parameter of a strategy is `unknown` instead.
    """
    part: dict[str, Any] = {}
    unknown = []
    for key, value in data.items():
        name = f"{at}{key}"
        if name in known:
            part[key] = value
        elif isinstance(value, Mapping) and value:
            part[key], more = _known_part(value, known, f"{name}.")
            unknown += [name] if len(more) == len(value) else more
        else:
            part[key] = "unknown" if at == PARAMS else None  # null may be a value of a parameter
            unknown.append(name)
    return part, unknown


def _end(log: Log, world: int, epochs: int | None) -> tuple[str, str | None]:
    """The status of a run, and why it is not ok."""
    failure = failure_of(log, world, epochs)
    status = status_of(RunError(log.ending(200))) if failure else "ok"
    if status != "oom" and (lost := divergence_of(log)):
        return "diverged", lost
    return status, failure


def _written(value: Any) -> Any:
    """Options as JSON can hold them: inf stays a word, since null would say that there is no value."""
    if isinstance(value, Mapping):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_written(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _error(log: Log, failure: str) -> dict[str, Any]:
    message = f"{failure}. Its last words: {log.ending(3)}"
    return {"rank": -1, "type": "ExternalError", "message": message, "trace": log.ending(40)}
