"""Emulates the epoch of a run on another network: measured kernels, and calls priced by the links of a machine's card.

A run with `measure.tape` records the kernels and calls of every rank in order, with the processor seconds of each:
medians over several epochs in which the ranks of a machine take turns to compute. Sharing cores does not increase these
seconds, so the emulation shows how the run would scale if every rank had its own core. Imbalance, sizes that depend on
the data, and overlap are those of the run.

The simulation also gives a trace: the timelines of all ranks in Chrome's Trace Event Format, which Perfetto reads too.
Ranks take turns while a tape is recorded, so these times are modelled, not measured.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.errors import RunError, UserError
from harness.base.files import check_replaceable, read_head, write_text
from harness.base.validation import clip_line, format_value
from harness.ledger import COMPUTING, MOVING, NO_INDEX
from harness.ledger.tape import Event
from harness.prediction.epoch import Prediction, PricedRank, RankEpoch, check_card, price_epochs
from harness.prediction.event_prices import EventPrices
from harness.prediction.replay import ReplayedRank
from harness.prediction.timeline import Slice, Timeline, simulate_ranks
from harness.registry import load_installed_strategy, load_strategy
from harness.results.parquet import to_pandas
from harness.results.record import WAY_OUT, Record, read_record
from harness.results.schema import RUN_TABLES
from harness.runtime.ledger_rows import key_to_row
from harness.runtime.rank_tables import EVENT_AMOUNTS, event_from_row
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec
from harness.strategy import Facts, Strategy

MAX_AMOUNT = 1e18
"""A sanity limit, far above the seconds, words and bytes of any event."""


class Emulation(NamedTuple):
    """The emulated epoch of a run."""

    spec: Spec
    facts: Facts
    prediction: Prediction


def emulate(folder: Path, card: MachineCard, strategy: str = "") -> Emulation:
    """Emulate the recorded run in `folder` on the links of a card.

    If the strategy of the run is a file, it is only imported if `strategy` names the same file.
    """
    check_card(card)
    record = read_record(folder)
    spec, facts = record.parse_spec(), _read_facts(record)
    with _reject_mismatches(record):
        prediction = price_epochs(load_tape_epochs(record, spec, facts, strategy), card)
    spec = spec.model_copy(update={"machine": spec.machine.model_copy(update={"name": card.name})})
    return Emulation(spec, facts, prediction)


@contextmanager
def _reject_mismatches(record: Record) -> Iterator[None]:
    """Turn any exception about a tape into a UserError: the record may be damaged or come from others."""
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


def load_tape_epochs(record: Record, spec: Spec, facts: Facts, strategy: str = "") -> list[RankEpoch]:
    """Load the ranks of a recorded run, each with its events and their measured seconds."""
    tape, memory = (to_pandas(record.rows(name), RUN_TABLES[name]) for name in ("tape", "memory"))
    if tape.empty:
        raise UserError(
            f"{record.folder} has no tape. Run it again with --set measure.tape=true, which records another epoch "
            "event by event."
        )
    for name in ("cpu_seconds", *EVENT_AMOUNTS):
        if wrong := [value for value in tape[name] if not 0 <= value <= MAX_AMOUNT]:
            raise ValueError(f"an event has {name} = {wrong[0]}")
    loaded = _load_strategy_of_run(record, spec, strategy)(spec, facts)
    ranks, epochs = sorted(set(tape["rank_id"])), []
    for rank in ranks:
        events = [
            event_from_row(row)
            for row in tape[tape["rank_id"] == rank].sort_values("event").to_dict("records")
        ]
        peaks = memory[memory["rank_id"] == rank][["host_peak_bytes", "device_peak_bytes"]].max()
        peak = int(peaks.device_peak_bytes or peaks.host_peak_bytes)
        replayed = ReplayedRank(rank, events, [0], {}, {}, peak)
        epochs.append(RankEpoch(loaded, replayed, frozenset(ranks), is_measured=True))
    return epochs


def _load_strategy_of_run(record: Record, spec: Spec, named: str) -> type[Strategy]:
    """Load the class of a run's strategy. A record may come from others, so a file must also be named by the user."""
    name = spec.strategy.name
    if ".py:" in name and name != named:
        raise UserError(
            f"{record.folder} was made with a strategy from a file, and a record may come from others, so the file is "
            f"not imported. If you trust {format_value(name)}, pass it exactly as written here by --strategy."
        )
    return load_strategy(name) if name == named else load_installed_strategy(name)


def _read_facts(record: Record) -> Facts:
    """Read the sizes of the graph from the record of a run."""
    graph = record.record["summary"].get("graph")
    if not graph:
        raise UserError(f"{record.folder} is not a run that succeeded, so there is nothing to emulate.")
    with _reject_mismatches(record):
        vertices, nonzeros, features, classes, trained = (
            int(graph[name]) for name in ("vertices", "nonzeros", "features", "classes", "trained")
        )
    return Facts(vertices, nonzeros, features, classes, directed=False, labelled=trained, training=trained)


# Traces.

LAYOUT = (
    "The timeline is modelled, not measured: kernels have the processor seconds of the recorded run, whose ranks took "
    "turns to compute, and calls are priced by the links of the machine's card."
)


class SimulatedRun(NamedTuple):
    """A recorded run, simulated on the links of a card: each rank with its events and its timeline."""

    record: Record
    card: str
    ranks: list[tuple[RankEpoch, Timeline]]

    @property
    def seconds(self) -> float:
        """The seconds of the epoch, which ends with its last rank."""
        return max(timeline.ends[-1] for _, timeline in self.ranks)


def check_traceable(spec: Spec, card: MachineCard) -> None:
    """Raise UserError for a run that cannot be traced."""
    check_card(card)
    if spec.machine.device != "cpu":
        raise UserError(
            f"machine.device = {spec.machine.device}: a trace shows processor seconds, and kernels on a GPU take none. "
            "Run on a machine card with device cpu, or leave out --trace."
        )


def simulate_run(folder: Path, card: MachineCard, strategy: str = "") -> SimulatedRun:
    """Simulate a recorded run on the links of a card, each rank on its own core."""
    record = read_record(folder)
    spec, facts = record.parse_spec(), _read_facts(record)
    check_traceable(spec, card)
    with _reject_mismatches(record):
        epochs = load_tape_epochs(record, spec, facts, strategy)
        timelines = simulate_ranks([PricedRank(epoch, EventPrices(card)).items for epoch in epochs])
    return SimulatedRun(record, card.name, list(zip(epochs, timelines, strict=True)))


def build_trace(run: SimulatedRun) -> dict[str, Any]:
    """Return the trace: one process for each rank, with a slice for each event and one for the wait that follows it.

    The first slice of an event has its amounts, so sums over slices equal those of the tape. A call that is waited for
    in a later event is an asynchronous slice, from its start to the end of the wait.
    """
    events: list[dict[str, Any]] = []
    for epoch, timeline in run.ranks:
        rank = epoch.replayed.rank
        place = " ".join(f"{axis}{index}" for axis, index in epoch.coordinates.items())
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
            *_build_slices(epoch, timeline),
            *_build_async_slices(epoch, timeline),
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


def write_trace(path: Path, run: SimulatedRun) -> None:
    """Write the trace of a run to a file, atomically."""
    check_replaceable(path, lambda path: '"otherData":{"run_id":' in read_head(path, 100), "a trace")
    write_text(path, json.dumps(build_trace(run), separators=(",", ":"), allow_nan=False))


def _group_slices(epoch: RankEpoch, timeline: Timeline) -> Iterator[tuple[int, Event, list[Slice]]]:
    """Yield the index of every event of a rank, the event, and its slices: work, a wait, both, or neither."""
    slices = defaultdict[int, list[Slice]](list)
    for each in timeline.slices:
        slices[each.item].append(each)
    for number, event in enumerate(epoch.replayed.events):
        yield number, event, slices[number]


def _build_slices(epoch: RankEpoch, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the slices of a rank in order. Each starts where the previous one ends, to the nanosecond."""
    seconds, rank = 0.0, epoch.replayed.rank
    for number, event, slices in _group_slices(epoch, timeline):
        place = {name: value for name, value in key_to_row(event.key).items() if value not in ("", NO_INDEX)}
        amounts: dict[str, Any] = {
            name.replace("words_", "elements_"): getattr(event.amounts, name) for name in EVENT_AMOUNTS
        }
        for each in slices or [Slice(number, 0.0, is_waiting=False)]:
            begin, seconds = _microseconds(seconds), seconds + each.seconds
            yield {
                "ph": "X",
                "name": f"wait for {describe_event(event)}" if each.is_waiting else describe_event(event),
                "cat": _classify_slice(event, each),
                "pid": rank,
                "tid": 0,
                "ts": begin,
                "dur": round(_microseconds(seconds) - begin, 3),
                "args": {"event": number, **place, **amounts},
            }
            amounts = {}


def _build_async_slices(epoch: RankEpoch, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the asynchronous calls of a rank. A call that is never waited for lasts until the rank ends."""
    events, rank = epoch.replayed.events, epoch.replayed.rank
    waits = {event.waits_for: number for number, event in enumerate(events) if event.waits_for != NO_INDEX}
    for number, event in enumerate(events):
        if event.leaves:
            ends = timeline.ends[waits.get(number, -1)]
            call = {
                "name": describe_event(event),
                "cat": "left",
                "id": f"{rank}.{number}",
                "pid": rank,
                "tid": 0,
            }
            yield {"ph": "b", **call, "ts": _microseconds(timeline.ends[number])}
            yield {"ph": "e", **call, "ts": _microseconds(ends)}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def describe_event(event: Event) -> str:
    """Describe an event by its phase, op, tensor and axis."""
    key = event.key
    over = f" over {key.axis}" if key.axis else ""
    return f"{key.phase}: {key.op}{f' {key.tensor}' if key.tensor else ''}{over}"


KINDS = ("computing", "messages", "glue", "waiting")


def _classify_slice(event: Event, part: Slice) -> str:
    if part.is_waiting:
        return "waiting"
    op = event.key.op
    return "computing" if op in COMPUTING else "messages" if op in MOVING else "glue"


def summarize_trace(run: SimulatedRun) -> dict[str, Any]:
    """Summarize a trace: how the ranks spend their time, what they wait for, and how balanced their work is."""
    totals: dict[int, dict[str, float]] = {}
    by_name: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in KINDS}
    for epoch, timeline in run.ranks:
        mine = totals[epoch.replayed.rank] = dict.fromkeys(KINDS, 0.0)
        for _, event, slices in _group_slices(epoch, timeline):
            for each in slices:
                kind = _classify_slice(event, each)
                mine[kind] += each.seconds
                by_name[kind][describe_event(event)] += each.seconds
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
