"""What the page shows of one run when a reader asks for it: timelines of its ranks, words, memory, where it comes from.

All runs together are one JSON document in the page, which its script draws from. Texts that many runs share stand in it
once. The time of an epoch has no order in a ledger: its rows are laid out by their place in the algorithm.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.figures.breakdown import group_of
from harness.figures.costs import held_bytes
from harness.figures.kind import Tables
from harness.figures.palette import GROUPS
from harness.ledger import Direction, Op, Phase
from harness.progress import OnStep, ignore_step, report_steps
from harness.results.collect import describe_cause
from harness.results.epoch_parts import TimedEpoch, find_middle_epochs, take_columns
from harness.results.schema import MISSING, OK
from harness.spec.spec import canonical_json

RANKS = 8
"""Ranks of a timeline; of more, the slowest and others at even distances are shown."""
LEAST = 0.004
"""The share of an epoch below which a part joins the part before it."""
MEMORY = 6
"""Tensors of a run, the largest first."""
ORDER = [Op.BROADCAST, Op.ALL_GATHER, Op.ALL_TO_ALL, Op.RECV, Op.COPY, Op.SPMM, Op.GEMM, Op.ELEMENTWISE]
"""The order of operations within a phase: what brings operands first; all others come last."""
PHASES = list(Phase)


class Shared:
    """Texts by number; a text that was seen before has its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


class EpochPart(NamedTuple):
    """A part of a rank's epoch: the group, the name, and the seconds."""

    group: int
    name: str
    seconds: float


def document(runs: pd.DataFrame, tables: Tables, on_step: OnStep = ignore_step) -> str:
    """The JSON of all runs, safe within a script element of HTML."""
    texts = Shared()
    rows = report_steps([run for _, run in runs.iterrows()], lambda run: f"the panel of {run.label}", on_step)
    entries = [_entry(number, run, tables, texts) for number, run in enumerate(rows, start=1)]
    whole = {
        "groups": list(GROUPS),
        "runs": dict(zip(runs.run_id, entries, strict=True)),
        "texts": list(texts.numbers),
    }
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _entry(number: int, run: "pd.Series[Any]", tables: Tables, texts: Shared) -> dict[str, Any]:
    """One run; keys without a value are left out."""
    entry = {
        "n": number,
        "name": texts.number(_name(run)),
        "launch": _launch(run),
        "status": str(run.status),
        "cause": describe_cause(run) if run.status != OK else "",
        "facts": [[texts.number(key), value] for key, value in facts(run)],
        "from": [[texts.number(key), texts.number(value)] for key, value in origin(run)],
        "command": texts.number(str(run["provenance.command"])) if run["provenance.command"] else None,
        "spec": _shared_spec(str(run.spec), texts),
        "memory": [
            [texts.number(name), size]
            for name, size in largest(tables.memory.get(run.run_id, pd.DataFrame()))
        ],
        "ranks": _timelines(run, tables, texts),
    }
    return {key: value for key, value in entry.items() if value not in ("", None, [])}


def _shared_spec(spec: str, texts: Shared) -> list[int] | str:
    """The spec as the numbers of its parts, a key with its value each, which many runs share.

    The parts joined by commas within braces are the spec. A spec that is spelled otherwise is kept as it is.
    """
    try:
        parts = [canonical_json({key: value})[1:-1] for key, value in json.loads(spec).items()]
    except (ValueError, RecursionError, AttributeError):
        return spec
    return list(map(texts.number, parts)) if f"{{{','.join(parts)}}}" == spec else spec


def _name(run: "pd.Series[Any]") -> str:
    ranks = f"{run.ranks} rank" if run.ranks == 1 else f"{run.ranks} ranks"
    source = "" if run.source in ("measured", "") else f", {run.source}"
    return f"{run['strategy.name']} on {run['dataset.name']}, {ranks} ({run.grid}){source}"


def _launch(run: "pd.Series[Any]") -> str:
    """The number of the launch and when it began, which tell launches apart."""
    begun = run["provenance.started"]
    when = "" if pd.isna(begun) else f", {datetime.fromtimestamp(begun, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"launch {run.launch}{when}" if run.status != MISSING else f"launch {run.launch}, never recorded"


def facts(run: "pd.Series[Any]") -> list[tuple[str, str]]:
    """Numbers of the run: time, words beside their formula, messages, loss, accuracy."""
    payload, formula = run.words_payload, run.words_formula
    values = {
        "epoch, median": _seconds(run.epoch_seconds_median),
        "epoch, paper’s mean": _seconds(run.epoch_seconds_paper),
        "setup": _seconds(run.setup_seconds),
        "words sent by the rank that sends most": _number(payload),
        "words by the strategy’s formula": _number(formula)
        or ("" if pd.isna(payload) else "not asked for (harness words)"),
        "measured over formula": "" if pd.isna(formula) or not formula else f"{payload / formula:.6g}",
        "words received": _number(run.words_received),
        "messages": _number(run.messages),
        "final loss": "" if pd.isna(run.final_loss) else f"{run.final_loss:.6g}",
        "accuracy on test vertices": "" if pd.isna(run.accuracy_test) else f"{100 * run.accuracy_test:.2f} %",
        "choices made": _flat(str(run.chosen or "")),
    }
    return [(key, value) for key, value in values.items() if value]


def origin(run: "pd.Series[Any]") -> list[tuple[str, str]]:
    """Where the run comes from."""
    changed = " with uncommitted changes" if run["provenance.dirty"] is True else ""
    values = {
        "host": run["provenance.host"],
        "processor": run["provenance.cpu"],
        "cores, threads a rank": _pair(run["provenance.cores"], run["provenance.threads"]),
        "accelerator": run["provenance.gpu"],
        "engine": run["provenance.engine"],
        "commit": f"{run['provenance.commit']}{changed}" if run["provenance.commit"] else "",
        "stored graph": run["provenance.store_manifest"],
        "versions": _flat(run["provenance.versions"]),
        "environment": _flat(run["provenance.env"]),
        "modules": run["provenance.modules"],
    }
    return [(key, str(value)) for key, value in values.items() if value]


def _pair(one: Any, other: Any) -> str:
    return "" if pd.isna(one) or pd.isna(other) else f"{one}, {other}"


def _flat(text: str) -> str:
    """An object of JSON as `key value, key value`."""
    return ", ".join(f"{key} {value}" for key, value in json.loads(text or "{}").items())


def _number(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:,.0f}"


def _seconds(value: Any) -> str:
    if pd.isna(value):
        return ""
    return f"{value:.4g} s" if value >= 1 else f"{1e3 * value:.4g} ms"


MEMORY_COLUMNS = ("tensor", "host_peak_bytes", "device_peak_bytes", "persistent_bytes")


def largest(memory: pd.DataFrame) -> list[tuple[str, int]]:
    """The peak of a process, then the largest tensors: name and bytes of the rank that has most."""
    if memory.empty:
        return []
    host = device = 0
    held: dict[str, int] = {}
    for values in zip(*(memory[name].tolist() for name in MEMORY_COLUMNS), strict=True):
        tensor, host_peak, device_peak, size = values
        if tensor:
            held[tensor] = max(held.get(tensor, 0), size)
        else:
            host, device = max(host, host_peak), max(device, device_peak)
    tensors = sorted(sorted(held), key=held.__getitem__, reverse=True)[:MEMORY]
    rows = [
        ("peak of a process", host),
        ("peak on the device", device),
        *((f"tensor {name}", held[name]) for name in tensors),
    ]
    return [(name, size) for name, size in rows if size]


# Timelines.


def _timelines(run: "pd.Series[Any]", tables: Tables, texts: Shared) -> list[list[Any]]:
    """For some ranks, the number of the rank, and the group, name and microseconds of each part of the median epoch."""
    epochs, ledger = tables.epochs.get(run.run_id), tables.ledgers.get(run.run_id)
    if run.status != OK or epochs is None or ledger is None:
        return []
    middle = find_middle_epochs(epochs)
    if not middle:
        return []
    epoch = middle[0].epoch
    lengths = {
        rank: seconds
        for number, rank, seconds in zip(*(epochs[name].tolist() for name in TimedEpoch._fields), strict=True)
        if number == epoch
    }
    chosen = np.flatnonzero(ledger.epoch.to_numpy() == epoch)
    keyed: dict[int, list[dict[str, Any]]] = {}
    for values in zip(*take_columns(ledger, ("rank", *PLACED), chosen), strict=True):
        keyed.setdefault(values[0], []).append(dict(zip(PLACED, values[1:], strict=True)))
    return [
        [
            rank,
            *(
                [part.group, texts.number(part.name), round(1e6 * part.seconds)]
                for part in parts
                if part.seconds > 0
            ),
        ]
        for rank in _chosen(lengths)
        if (parts := timeline(keyed.get(rank, []), lengths[rank]))
    ]


def _chosen(lengths: Mapping[int, float]) -> list[int]:
    """All ranks, or the slowest and others at even distances."""
    ranks = sorted(lengths)
    if len(ranks) <= RANKS:
        return ranks
    spread = {ranks[number * (len(ranks) - 1) // (RANKS - 2)] for number in range(RANKS - 1)}
    return sorted(spread | {max(lengths, key=lengths.__getitem__)})


PLACED = ("layer", "direction", "phase", "op", "axis", "tensor", "seconds")
"""The columns of the ledger that a timeline needs."""


def timeline(rows: Iterable[Mapping[str, Any]], seconds: float) -> list[EpochPart]:
    """The parts of one rank's epoch, laid out by their place in the algorithm; they add up to the epoch."""
    names = list(GROUPS)
    parts: list[EpochPart] = []
    for row in sorted(rows, key=_place):
        group = names.index(group_of(Phase(row["phase"]), Op(row["op"]), row["tensor"]))
        part = EpochPart(group, _part_name(row), float(row["seconds"]))
        small = part.seconds < LEAST * seconds
        if parts and (small or (parts[-1].group == group and parts[-1].name == part.name)):
            parts[-1] = parts[-1]._replace(seconds=parts[-1].seconds + part.seconds)
        else:
            parts.append(part)
    rest = seconds - math.fsum(part.seconds for part in parts)
    if rest > LEAST * seconds:
        parts.append(EpochPart(names.index("glue, other"), "between rows of the ledger", rest))
    return parts


def _place(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Sampling and fetching, the layers forward, the loss, the layers backward, the optimizer, the rest."""
    phase, backward = Phase(row["phase"]), row["direction"] == Direction.BACKWARD
    op = ORDER.index(Op(row["op"])) if row["op"] in ORDER else len(ORDER)
    if phase in (Phase.LOAD, Phase.DISTRIBUTE, Phase.SAMPLE, Phase.EXTRACT, Phase.FETCH):
        return 0, PHASES.index(phase), 0, op
    if phase in (Phase.LABELS, Phase.LOSS) and not backward:
        return 2, PHASES.index(phase), 0, op
    if phase in (Phase.OPTIMIZE, Phase.OTHER, Phase.EVALUATE):
        return 4, PHASES.index(phase), 0, op
    layer = int(row["layer"])
    return (3, -layer if layer >= 0 else -1000, 0, op) if backward else (1, layer, 0, op)


def _part_name(row: Mapping[str, Any]) -> str:
    layer = f"layer {row['layer']}, " if row["layer"] >= 0 else ""
    what = " ".join(part for part in (row["op"].replace("_", "-"), row["tensor"]) if part)
    over = f" over {row['axis']}" if row["axis"] else ""
    return f"{layer}{row['direction']}, {row['phase']}: {what}{over}"


def held(memory: Iterable[tuple[str, pd.DataFrame]]) -> dict[str, float]:
    """The persistent bytes of the rank that has most, by run."""
    return {run: held_bytes(rows) for run, rows in memory}
