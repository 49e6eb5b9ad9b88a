"""The data behind the panel of a run on the page: timelines of its ranks, its results, memory, and origin.

Texts that several runs share are stored once. A ledger has no order within an epoch, so timelines lay out its rows by
their place in the algorithm.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from harness.base.formatting import format_bytes
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.ledger import Direction, Op, Phase
from harness.report.embedding import TextTable
from harness.report.figures.kind import Tables
from harness.report.figures.operation_groups import group_of_operation
from harness.report.figures.palette import GROUPS
from harness.report.summary import format_value
from harness.results.epoch_parts import find_middle_epochs
from harness.results.run_row import describe_cause
from harness.results.schema import MISSING, OK, find_quantity
from harness.spec.spec import canonical_json

MAX_RANKS = 8
"""The most ranks with a timeline. Of more ranks, the slowest and evenly spaced others are shown."""
MIN_SHARE = 0.004
"""The share of an epoch below which a part is merged with the part before it."""
MAX_TENSORS = 6
"""The most tensors of a run that are listed, the largest first."""
OP_ORDER = [Op.BROADCAST, Op.ALL_GATHER, Op.ALL_TO_ALL, Op.RECV, Op.COPY, Op.SPMM, Op.GEMM, Op.ELEMENTWISE]
"""The order of operations within a phase: first those that bring operands. Operations that are not listed come last."""
PHASES = list(Phase)


class EpochPart(NamedTuple):
    """A part of the epoch of a rank: its group, its name, and its seconds."""

    group: int
    name: str
    seconds: float


def build_document(
    runs: pd.DataFrame,
    failures: pd.DataFrame,
    tables: Tables,
    texts: TextTable,
    on_step: OnStep = ignore_step,
) -> dict[str, Any]:
    """Return the groups of operations and the data of all runs. Keys without a value are omitted."""
    rows = report_steps([run for _, run in runs.iterrows()], lambda run: f"panel of {run.label}", on_step)
    causes = {failure.run_id: describe_cause(failure.to_dict()) for _, failure in failures.iterrows()}
    epochs, tensors = _collect_median_epochs(tables), collect_tensors(tables.memory.rows)
    entries = []
    for number, run in enumerate(rows, start=1):
        entry = {
            **_describe_run(number, run, causes.get(run.run_id, ""), texts),
            "memory": [
                [texts.intern(name), size] for name, size in list_largest_tensors(tensors.get(run.run_id, []))
            ],
            "ranks": _build_timelines(epochs[run.run_id], texts)
            if run.status == OK and run.run_id in epochs
            else [],
        }
        entries.append({key: value for key, value in entry.items() if value not in ("", None, [])})
    return {"groups": list(GROUPS), "runs": dict(zip(runs.run_id, entries, strict=True))}


def _describe_run(number: int, run: "pd.Series[Any]", cause: str, texts: TextTable) -> dict[str, Any]:
    """Return what the row of a run in the table `runs` says about it."""
    return {
        "n": number,
        "strategy": texts.intern(str(run["strategy.name"])),
        "name": texts.intern(_format_name(run)),
        "launch": _format_launch(run),
        "status": str(run.status),
        "cause": cause,
        "facts": [[texts.intern(key), value] for key, value in list_facts(run)],
        "from": [[texts.intern(key), texts.intern(value)] for key, value in list_origin(run)],
        "command": texts.intern(str(run["provenance.command"])) if run["provenance.command"] else None,
        "spec": _intern_spec(str(run.spec), texts),
    }


def _intern_spec(spec: str, texts: TextTable) -> list[int] | str:
    """Return a spec as the numbers of its parts, each a key with its value, which many runs share.

    Joining the parts by commas within braces gives the spec. A spec that is not canonical JSON is returned unchanged.
    """
    try:
        parts = [canonical_json({key: value})[1:-1] for key, value in json.loads(spec).items()]
    except (ValueError, RecursionError, AttributeError):
        return spec
    return list(map(texts.intern, parts)) if f"{{{','.join(parts)}}}" == spec else spec


def _format_name(run: "pd.Series[Any]") -> str:
    ranks = f"{run.ranks} rank" if run.ranks == 1 else f"{run.ranks} ranks"
    source = "" if run.source in ("measured", "") else f", {run.source}"
    return f"{run['strategy.name']} on {run['dataset.name']}, {ranks} ({run.grid}){source}"


def _format_launch(run: "pd.Series[Any]") -> str:
    """Format the number of the launch and when it began, which distinguish launches of a spec."""
    started = run["provenance.started"]
    when = "" if pd.isna(started) else f", {started:%Y-%m-%d %H:%M:%S} UTC"
    return f"launch {run.launch}{when}" if run.status != MISSING else f"launch {run.launch}, never recorded"


def list_facts(run: "pd.Series[Any]") -> list[tuple[str, str]]:
    """List the results of a run. Elements, bytes and messages are those of an epoch, on the rank with the most."""
    payload, formula = run.elements_payload, run.elements_payload_formula
    by_quantity = {
        "epoch_seconds_median": _format_seconds(run.epoch_seconds_median),
        "epoch_seconds_paper": _format_seconds(run.epoch_seconds_paper),
        "setup_seconds": _format_seconds(run.setup_seconds),
        "elements_received": _format_number(run.elements_received),
        "bytes_received": "" if pd.isna(run.bytes_received) else format_bytes(run.bytes_received),
        "elements_bound": _format_number(run.elements_bound or math.nan),
        "elements_payload": _format_number(payload),
        "elements_payload_formula": _format_number(formula)
        or ("" if pd.isna(payload) else "not computed (see harness words)"),
        "messages": _format_number(run.messages),
        "final_loss": "" if pd.isna(run.final_loss) else f"{run.final_loss:.6g}",
        "accuracy_test": "" if pd.isna(run.accuracy_test) else f"{100 * run.accuracy_test:.2f} %",
    }
    values = {find_quantity(name).title: value for name, value in by_quantity.items()}
    if run.source == "external":
        values["epoch time of the log"] = _name_epoch_time(run)
    values["payload / formula"] = "" if pd.isna(formula) or not formula else f"{payload / formula:.6g}"
    values["choices made"] = format_value(run.chosen)
    return [(key, value) for key, value in values.items() if value]


def _name_epoch_time(run: "pd.Series[Any]") -> str:
    """Return what the epoch time in the log of another program is: a mean or a median."""
    return str(json.loads(run.extra or "{}").get("external.times", "mean"))


def list_origin(run: "pd.Series[Any]") -> list[tuple[str, str]]:
    """List where a run comes from: its machine, its code and its environment."""
    changed = " with uncommitted changes" if run["provenance.dirty"] is True else ""
    values = {
        "machine": run["machine.name"],
        "host": run["provenance.host"],
        "processor": run["provenance.cpu"],
        "cores, threads per rank": _format_pair(run["provenance.cores"], run["provenance.threads"]),
        "accelerator": run["provenance.gpu"],
        "engine": run["provenance.engine"],
        "commit": f"{run['provenance.commit']}{changed}" if run["provenance.commit"] else "",
        "stored graph": run["provenance.store_manifest"],
        "versions": format_value(run["provenance.versions"]),
        "environment": format_value(run["provenance.env"]),
        "modules": run["provenance.modules"],
    }
    return [(key, str(value)) for key, value in values.items() if value]


def _format_pair(one: Any, other: Any) -> str:
    return "" if pd.isna(one) or pd.isna(other) else f"{one}, {other}"


def _format_number(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:,.0f}"


def _format_seconds(value: Any) -> str:
    if pd.isna(value):
        return ""
    return f"{value:.4g} s" if value >= 1 else f"{1e3 * value:.4g} ms"


class TensorBytes(NamedTuple):
    """The bytes of a tensor on the rank that has the most. The tensor without a name is the whole process."""

    tensor: str
    host_peak_bytes: int
    device_peak_bytes: int
    persistent_bytes: int


def collect_tensors(memory: pd.DataFrame) -> dict[str, list[TensorBytes]]:
    """Return the tensors of each run."""
    most = memory.groupby(["run_id", "tensor"])[[*TensorBytes._fields[1:]]].max().reset_index()
    found: dict[str, list[TensorBytes]] = {}
    for run, *values in most.itertuples(index=False):
        found.setdefault(run, []).append(TensorBytes(*values))
    return found


def list_largest_tensors(found: Iterable[TensorBytes]) -> list[tuple[str, int]]:
    """List the peaks of memory, then the largest tensors, with their bytes."""
    held = {each.tensor: each.persistent_bytes for each in found if each.tensor}
    host = max((each.host_peak_bytes for each in found if not each.tensor), default=0)
    device = max((each.device_peak_bytes for each in found if not each.tensor), default=0)
    tensors = sorted(sorted(held), key=held.__getitem__, reverse=True)[:MAX_TENSORS]
    rows = [
        ("peak of the process", host),
        ("peak on the device", device),
        *((f"tensor {name}", held[name]) for name in tensors),
    ]
    return [(name, size) for name, size in rows if size]


# Timelines.


class MedianEpoch(NamedTuple):
    """The median epoch of a run: its seconds and its rows of the ledger by rank."""

    seconds: dict[int, float]
    rows: dict[int, list[dict[str, Any]]]


TIMELINE_COLUMNS = ("layer", "direction", "phase", "op", "axis", "tensor", "seconds")
"""The columns of the ledger that a timeline needs."""


def _collect_median_epochs(tables: Tables) -> dict[str, MedianEpoch]:
    """Return the median epoch of each run that has a ledger. All runs are read at once, which takes less time."""
    middle = find_middle_epochs(tables.epochs.rows).drop_duplicates("run_id")[["run_id", "epoch"]]
    seconds = tables.epochs.rows[["run_id", "epoch", "rank_id", "seconds"]].merge(middle)
    rows = tables.ledgers.rows[["run_id", "epoch", "rank_id", *TIMELINE_COLUMNS]].merge(middle)
    found: dict[str, MedianEpoch] = {}
    for run, _, rank, length in seconds.itertuples(index=False):
        if run in tables.ledgers:
            found.setdefault(run, MedianEpoch({}, {})).seconds[rank] = length
    for run, _, rank, *values in rows.itertuples(index=False):
        row = dict(zip(TIMELINE_COLUMNS, values, strict=True))
        found[run].rows.setdefault(rank, []).append(row)
    return found


def _build_timelines(epoch: MedianEpoch, texts: TextTable) -> list[list[Any]]:
    """Return, for a choice of ranks, the rank and the group, name and microseconds of each part of an epoch."""
    return [
        [
            rank,
            *(
                [part.group, texts.intern(part.name), round(1e6 * part.seconds)]
                for part in parts
                if part.seconds > 0
            ),
        ]
        for rank in _choose_ranks(epoch.seconds)
        if (parts := lay_out_timeline(epoch.rows.get(rank, []), epoch.seconds[rank]))
    ]


def _choose_ranks(lengths: Mapping[int, float]) -> list[int]:
    """Return all ranks if they are few, else the slowest rank and evenly spaced others."""
    ranks = sorted(lengths)
    if len(ranks) <= MAX_RANKS:
        return ranks
    spread = {ranks[number * (len(ranks) - 1) // (MAX_RANKS - 2)] for number in range(MAX_RANKS - 1)}
    return sorted(spread | {max(lengths, key=lengths.__getitem__)})


def lay_out_timeline(rows: Iterable[Mapping[str, Any]], seconds: float) -> list[EpochPart]:
    """Order the parts of a rank's epoch by their place in the algorithm. Their seconds add up to the epoch."""
    names = list(GROUPS)
    parts: list[EpochPart] = []
    for row in sorted(rows, key=_sort_key):
        group = names.index(group_of_operation(Phase(row["phase"]), Op(row["op"]), row["tensor"]))
        part = EpochPart(group, _format_part(row), float(row["seconds"]))
        small = part.seconds < MIN_SHARE * seconds
        if parts and (small or (parts[-1].group == group and parts[-1].name == part.name)):
            parts[-1] = parts[-1]._replace(seconds=parts[-1].seconds + part.seconds)
        else:
            parts.append(part)
    rest = seconds - math.fsum(part.seconds for part in parts)
    if rest > MIN_SHARE * seconds:
        parts.append(EpochPart(names.index("glue, other"), "between rows of the ledger", rest))
    return parts


def _sort_key(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Sort by sampling and fetching, layers forward, loss, layers backward, optimizer and the rest."""
    phase, backward = Phase(row["phase"]), row["direction"] == Direction.BACKWARD
    op = OP_ORDER.index(Op(row["op"])) if row["op"] in OP_ORDER else len(OP_ORDER)
    if phase in (Phase.LOAD, Phase.DISTRIBUTE, Phase.SAMPLE, Phase.EXTRACT, Phase.FETCH):
        return 0, PHASES.index(phase), 0, op
    if phase in (Phase.LABELS, Phase.LOSS) and not backward:
        return 2, PHASES.index(phase), 0, op
    if phase in (Phase.OPTIMIZE, Phase.OTHER, Phase.EVALUATE):
        return 4, PHASES.index(phase), 0, op
    layer = int(row["layer"])
    return (3, -layer if layer >= 0 else -1000, 0, op) if backward else (1, layer, 0, op)


def _format_part(row: Mapping[str, Any]) -> str:
    layer = f"layer {row['layer']}, " if row["layer"] >= 0 else ""
    what = " ".join(part for part in (row["op"].replace("_", "-"), row["tensor"]) if part)
    over = f" over {row['axis']}" if row["axis"] else ""
    return f"{layer}{row['direction']}, {row['phase']}: {what}{over}"
