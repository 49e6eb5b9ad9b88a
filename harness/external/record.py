"""From a log to a record of source `external`: its own spec, as far as log and options tell it, and its tables.

What neither tells is null in that spec, and never a default of ours.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import RunError, UserError
from harness.experiment.request import make_spec, nested
from harness.external.programs import KEYS, Line, Log, Program, Told, told_by
from harness.ledger import NOBODY, Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.results.record import write_record
from harness.run.fault import status_of
from harness.run.tables import entry
from harness.spec.spec import Spec, digest, grid_text
from harness.store.catalog import load_card

# What a log says, as our tables. Where a run of ours has epochs, a log has means over all that went before.

EXCHANGE = Key(Phase.CONVOLVE, NOBODY, Direction.FORWARD, Op.ALL_TO_ALL, AxisName.P, tensor=TensorName.H)
REDUCTION = Key(Phase.SYNC, NOBODY, Direction.BACKWARD, Op.ALL_REDUCE, AxisName.P, tensor=TensorName.DW)
REST = Key(Phase.OTHER, NOBODY, Direction.FORWARD)


def tables(log: Log) -> dict[str, pd.DataFrame]:
    """Everything in it that has a column."""
    rows = {
        "epochs": [
            {"epoch": line.epoch, "rank": line.rank, "seconds": line.seconds, "loss": line.loss}
            for line in log.lines
        ],
        "ledger": [row for line in log.lines if isfinite(line.seconds) for row in _ledger(line)],
        "accuracy": [
            {
                "epoch": epoch,
                "train_seconds": _trained(log, epoch),
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


def summary(log: Log, vertices: int | None) -> dict[str, Any]:
    """Of a whole log: the last mean of its slowest process is its epoch time."""
    seconds = max(line.seconds for line in log.last.values())
    known = isfinite(seconds)
    accuracy = {f"accuracy_{split}": share for _, split, share in log.accuracies}
    accuracy |= {"accuracy_test": log.result} if log.result is not None else {}
    return {
        "epochs": max(line.epoch for line in log.last.values()) + 1,
        "epoch_seconds_median": seconds if known else None,
        "vertices_per_second": vertices / seconds if known and vertices else None,
        **accuracy,
    }


def _ledger(line: Line) -> list[dict[str, Any]]:
    """What it says of an epoch: the exchange of rows, the reduction of gradients, and the rest."""
    parts = {EXCHANGE: line.communicating, REDUCTION: line.reducing}
    parts[REST] = line.seconds - sum(parts.values())
    at = {"epoch": line.epoch, "rank": line.rank}
    return [{**at, **entry(key, Amounts(seconds=seconds))} for key, seconds in parts.items()]


def _trained(log: Log, epoch: int) -> float | None:
    """Seconds of training up to an evaluation, by the mean that the slowest process had then."""
    means = [line.seconds for line in log.lines if line.epoch == epoch and isfinite(line.seconds)]
    return (epoch + 1) * max(means) if means else None


# What a log must hold to be read as one run, and what shows that the run broke off.


def check_that_it_reports(log: Log, program: Program) -> None:
    """A program that was run and failed before its first epoch is a result, if it said what it was to do."""
    ran = log.exit_code is not None
    if log.lines or (ran and log.settings):
        return
    ended = f" (exit code {log.exit_code})" if ran else ""
    raise (RunError if ran else UserError)(
        f"{log.where}{ended} has no line of an epoch as {program.title} writes them (Process 000 | Epoch 00009 | "
        "Time(s) ... | Comm(s) ... | Reduce(s) ... | Loss ...). Was it stopped before its first report (--log-every), "
        f"or is it another program's? It ends:\n{log.ending()}"
    )


def check_processes(log: Log, world: int) -> None:
    """All processes, and one report of each after an epoch."""
    there, nodes = set(log.last), log.settings.get("parts_per_node", world) < world
    if there - set(range(world)) or (nodes and len(there) < world):
        raise UserError(
            f"{log.where} has lines of the processes {sorted(there)}, and the run had {world}. A run over several "
            "nodes leaves a log on each: give all of them."
        )
    reports = Counter((line.rank, line.epoch) for line in log.lines)
    if twice := [report for report, times in reports.items() if times > 1]:
        rank, epoch = min(twice)
        raise UserError(
            f"{log.where} has epoch {epoch} of process {rank} more than once, so it holds several runs. Give the log "
            "of one."
        )


def check_that_it_is_one_run(log: Log, program: Program) -> None:
    """Nodes print the same options, but for what a node has of its own."""
    for other in log.each_settings:
        ours = {key: value for key, value in log.settings.items() if key in KEYS and key != "seed"}
        differing = [key for key, value in ours.items() if other.get(key, value) != value]
        if program.mark in other and differing:
            raise UserError(
                f"{log.where} has options of several runs, which differ in {', '.join(differing)}. Give the log of one."
            )


def divergence_of(log: Log) -> str | None:
    """Which process first had a loss that is no number; it never finds back from there."""
    lost = min(
        ((line.epoch, line.rank, line.loss) for line in log.lines if not isfinite(line.loss)), default=None
    )
    return None if lost is None else f"In epoch {lost[0]} the loss of process {lost[1]} was {lost[2]}"


def failure_of(log: Log, world: int, epochs: int | None) -> str | None:
    """Whether training broke off. These programs end with exit code 0 also when one of their processes fails.

    Each process reports every so many epochs, and all come to the same last one; how many epochs there were to be, a
    log without options does not say.
    """
    if log.exit_code:
        return f"It ended with exit code {log.exit_code}"
    if silent := sorted(set(range(world)) - set(log.last)):
        return f"Of its {world} processes {', '.join(map(str, silent))} reported no epoch"
    ends, every = {line.epoch for line in log.last.values()}, log.lines[0].epoch + 1
    if len(ends) > 1 or (epochs is not None and max(ends) + 1 + every <= epochs):
        of = "" if epochs is None else f" of {epochs}"
        return f"Its processes came to epoch {' and '.join(map(str, sorted(ends)))}{of}"
    return None


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
