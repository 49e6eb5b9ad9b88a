"""Emulates the epoch of a run on other links: kernels as they were measured, calls by the links of a machine's card.

A run with `measure.tape` keeps, rank by rank, the order of its kernels and calls, and the seconds that the processor
spent on each: medians over some epochs in which the ranks of a machine compute in turns. These seconds do not grow
where many ranks share few cores, so the emulation shows how the run scales where every rank has a core of its own.
Imbalance, sizes that depend on the data, and overlap are those of the run.

The same play gives a trace: all ranks on one timeline, in the Trace Event Format of Chrome, which Perfetto reads too. A
tape has no times of the clock, because its ranks compute in turns.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import RunError, UserError
from harness.files import write_text
from harness.ledger import COMPUTING, MOVING, NO_INDEX
from harness.ledger.tape import Event
from harness.predict.prediction import OnCard, Prediction, RankEpoch, check_card, priced
from harness.predict.timeline import Played, Slice, play
from harness.registry import load_installed_strategy, load_strategy
from harness.replay import Replayed
from harness.results.record import WAY_OUT, Record, read_record
from harness.run.ledger_rows import key_row
from harness.run.rank_tables import COUNTED, event_from_row
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec
from harness.strategy import Facts, Strategy
from harness.validation import clip_line, format_value

MOST = 1e18
"""Far above the seconds, words and bytes of any event."""


class Emulated(NamedTuple):
    """The epoch of a run on other links."""

    spec: Spec
    facts: Facts
    prediction: Prediction


def emulate(folder: Path, card: MachineCard, strategy: str = "") -> Emulated:
    """Plays the tape of a run on the links of a card. The file of a strategy is run only if `strategy` names it too."""
    check_card(card)
    record = read_record(folder)
    spec, facts = record.parsed_spec(), _facts(record)
    with _refusing_misfits(record):
        prediction = priced(tape_epochs(record, spec, facts, strategy), card)
    spec = spec.model_copy(update={"machine": spec.machine.model_copy(update={"name": card.name})})
    return Emulated(spec, facts, prediction)


@contextmanager
def _refusing_misfits(record: Record) -> Iterator[None]:
    """Refuses a tape that does not fit its spec, in whatever way: the record may be damaged or come from others."""
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        reason = clip_line(f"{type(error).__name__}: {error}", 200)
        raise UserError(
            f"{record.folder} holds no whole record: its tape does not fit its spec ({reason}). "
            f"{WAY_OUT.format(folder=record.folder)}"
        ) from error


def tape_epochs(record: Record, spec: Spec, facts: Facts, strategy: str = "") -> list[RankEpoch]:
    """The ranks of a run, each with its events and their measured seconds."""
    tape, memory = record.table("tape"), record.table("memory")
    if tape.empty:
        raise UserError(
            f"{record.folder} has no tape. Run it again with --set measure.tape=true, which records another epoch "
            "event by event."
        )
    for name in ("cpu_seconds", *COUNTED):
        if wrong := [value for value in tape[name] if not 0 <= value <= MOST]:
            raise ValueError(f"{name} = {wrong[0]} of an event")
    of_run = _strategy_of(record, spec, strategy)(spec, facts)
    ranks, epochs = sorted(set(tape["rank"])), []
    for rank in ranks:
        events = [
            event_from_row(row) for row in tape[tape["rank"] == rank].sort_values("event").to_dict("records")
        ]
        peaks = memory[memory["rank"] == rank][["host_peak_bytes", "device_peak_bytes"]].max()
        peak = int(peaks.device_peak_bytes or peaks.host_peak_bytes)
        replayed = Replayed(rank, events, [0], {}, {}, peak)
        epochs.append(RankEpoch(of_run, replayed, frozenset(ranks), measured=True))
    return epochs


def _strategy_of(record: Record, spec: Spec, asked: str) -> type[Strategy]:
    """The class of a run's strategy. A record may come from others, so it cannot have a file run that nobody named."""
    name = spec.strategy.name
    if ".py:" in name and name != asked:
        raise UserError(
            f"{record.folder} was made with a strategy that is a file, and reading a record runs no file. If "
            f"{format_value(name)} is yours, say so: --strategy with exactly these words."
        )
    return load_strategy(name) if name == asked else load_installed_strategy(name)


def _facts(record: Record) -> Facts:
    """The sizes that the record of a run has."""
    graph = record.record["summary"].get("graph")
    if not graph:
        raise UserError(f"{record.folder} is no run that succeeded, so there is nothing to emulate.")
    with _refusing_misfits(record):
        vertices, nonzeros, features, classes, trained = (
            int(graph[name]) for name in ("vertices", "nonzeros", "features", "classes", "trained")
        )
    return Facts(vertices, nonzeros, features, classes, directed=False, labelled=trained, training=trained)


# Traces.

LAYOUT = (
    "The tape of the run was played: the seconds of each kernel are the processor's, measured while the ranks computed "
    "in turns, and calls take what the links of the machine's card give. The times are not those of a clock."
)


class PlayedRun(NamedTuple):
    """The tape of a run as it plays on the links of a card: each rank with its events and its time."""

    record: Record
    card: str
    ranks: list[tuple[RankEpoch, Played]]

    @property
    def seconds(self) -> float:
        """The epoch, which ends with its last rank."""
        return max(line.ends[-1] for _, line in self.ranks)


def check_traced(spec: Spec, card: MachineCard) -> None:
    """Refuses a run of which no trace can be made."""
    check_card(card)
    if spec.machine.device != "cpu":
        raise UserError(
            f"machine.device = {spec.machine.device}: a trace is made of the processor's seconds, and the kernels of a "
            "GPU take none. Run on a machine card of the device cpu, or leave out --trace."
        )


def play_run(folder: Path, card: MachineCard, strategy: str = "") -> PlayedRun:
    """Plays the tape of a run on the links of a card, each rank on a core of its own."""
    record = read_record(folder)
    spec, facts = record.parsed_spec(), _facts(record)
    check_traced(spec, card)
    with _refusing_misfits(record):
        epochs = tape_epochs(record, spec, facts, strategy)
        lines = play([OnCard(epoch, card).items for epoch in epochs])
    return PlayedRun(record, card.name, list(zip(epochs, lines, strict=True)))


def trace(run: PlayedRun) -> dict[str, Any]:
    """The trace: a process for each rank, with a slice for each event, and another for the wait that follows it.

    Amounts stand on the first slice of an event, so that sums over slices are those of the tape. Calls that are waited
    for later are asynchronous slices from their leaving to the end of the wait.
    """
    events: list[dict[str, Any]] = []
    for epoch, line in run.ranks:
        rank = epoch.replayed.rank
        place = " ".join(f"{axis}{index}" for axis, index in epoch.at.items())
        events += [
            {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "tid": 0,
                "args": {"name": f"rank {rank} ({place})"},
            },
            {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "epoch"}},
            *_slices(epoch, line),
            *_flights(epoch, line),
        ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": run.record.record["run_id"],
            "label": run.record.record["label"],
            "card": run.card,
            "layout": LAYOUT,
            "epoch_seconds": run.seconds,
        },
        "traceEvents": events,
    }


def write_trace(path: Path, run: PlayedRun) -> None:
    """Writes the trace of a run as a file, whole or not at all."""
    write_text(path, json.dumps(trace(run), separators=(",", ":"), allow_nan=False))


def _stretches(epoch: RankEpoch, line: Played) -> Iterator[tuple[int, Event, list[Slice]]]:
    """Every event of a rank with the stretches of its time: work, a wait, or both; neither if it took no time."""
    of_item = defaultdict[int, list[Slice]](list)
    for each in line.slices:
        of_item[each.item].append(each)
    for number, event in enumerate(epoch.replayed.events):
        yield number, event, of_item[number]


def _slices(epoch: RankEpoch, line: Played) -> Iterator[dict[str, Any]]:
    """The slices of a rank in order. The next one begins where one ends, to the nanosecond."""
    seconds, rank = 0.0, epoch.replayed.rank
    for number, event, stretches in _stretches(epoch, line):
        place = {name: value for name, value in key_row(event.key).items() if value not in ("", NO_INDEX)}
        amounts: dict[str, Any] = {name: getattr(event.amounts, name) for name in COUNTED}
        for each in stretches or [Slice(number, 0.0, waits=False)]:
            begin, seconds = _microseconds(seconds), seconds + each.seconds
            yield {
                "ph": "X",
                "name": f"wait for {named(event)}" if each.waits else named(event),
                "cat": _kind(event, each),
                "pid": rank,
                "tid": 0,
                "ts": begin,
                "dur": round(_microseconds(seconds) - begin, 3),
                "args": {"event": number, **place, **amounts},
            }
            amounts = {}


def _flights(epoch: RankEpoch, line: Played) -> Iterator[dict[str, Any]]:
    """The calls of a rank whose results are waited for later; a call without a wait lasts until the rank ends."""
    events, rank = epoch.replayed.events, epoch.replayed.rank
    waits = {event.waits_for: number for number, event in enumerate(events) if event.waits_for != NO_INDEX}
    for number, event in enumerate(events):
        if event.leaves:
            ends = line.ends[waits.get(number, -1)]
            same = {"name": named(event), "cat": "left", "id": f"{rank}.{number}", "pid": rank, "tid": 0}
            yield {"ph": "b", **same, "ts": _microseconds(line.ends[number])}
            yield {"ph": "e", **same, "ts": _microseconds(ends)}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def named(event: Event) -> str:
    """An event for people: its phase, op, tensor and axis."""
    key = event.key
    over = f" over {key.axis}" if key.axis else ""
    return f"{key.phase}: {key.op}{f' {key.tensor}' if key.tensor else ''}{over}"


KINDS = ("computing", "messages", "glue", "waiting")


def _kind(event: Event, stretch: Slice) -> str:
    if stretch.waits:
        return "waiting"
    op = event.key.op
    return "computing" if op in COMPUTING else "messages" if op in MOVING else "glue"


def trace_summary(run: PlayedRun) -> dict[str, Any]:
    """What a trace shows, in numbers: where the time of the ranks goes, for what they wait, how even their work is."""
    totals: dict[int, dict[str, float]] = {}
    by_name: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in KINDS}
    for epoch, line in run.ranks:
        mine = totals[epoch.replayed.rank] = dict.fromkeys(KINDS, 0.0)
        for _, event, stretches in _stretches(epoch, line):
            for each in stretches:
                kind = _kind(event, each)
                mine[kind] += each.seconds
                by_name[kind][named(event)] += each.seconds
    count, whole = len(totals), run.seconds * len(totals)
    shares = {kind: sum(mine[kind] for mine in totals.values()) / whole for kind in KINDS}
    computing = {rank: mine["computing"] for rank, mine in totals.items()}
    mean = sum(computing.values()) / count
    return {
        "epoch_seconds": run.seconds,
        "ranks": count,
        "shares": {**shares, "ended earlier": max(0.0, 1 - sum(shares.values()))},
        "imbalance": max(computing.values()) / mean if mean else 1.0,
        "longest": max(computing, key=lambda rank: computing[rank]),
        **{
            title: {
                name: seconds / count
                for name, seconds in sorted(by_name[kind].items(), key=lambda item: -item[1])
            }
            for title, kind in (("kernels", "computing"), ("exposed", "waiting"))
        },
    }
