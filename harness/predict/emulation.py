"""Emulates the epoch of a run on other links: kernels as they were measured, calls by the links of a machine's card.

A run with `measure.tape` keeps, rank by rank, the order of its kernels and calls, and the seconds that the processor
spent on each: medians over some epochs in which the ranks of a machine compute in turns. These seconds do not grow
where many ranks share few cores, so the emulation shows how the run scales where every rank has a core of its own.
Imbalance, sizes that depend on the data, and overlap are those of the run.
"""

from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.predict.prediction import Prediction, RankEpoch, check_card, priced
from harness.registry import load_strategy
from harness.replay import Replayed
from harness.results.record import Record, read_record
from harness.run.rank_tables import event_of
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec
from harness.strategy import Facts


class Emulated(NamedTuple):
    """The epoch of a run on other links."""

    spec: Spec
    facts: Facts
    prediction: Prediction


def emulate(folder: Path, card: MachineCard) -> Emulated:
    """Plays the tape of a run on the links of a card."""
    check_card(card)
    record = read_record(folder)
    spec = Spec.model_validate(record.spec)
    facts = _facts(record)
    epochs = tape_epochs(record, spec, facts)
    spec = spec.model_copy(update={"machine": spec.machine.model_copy(update={"name": card.name})})
    return Emulated(spec, facts, priced(epochs, card, None))


def tape_epochs(record: Record, spec: Spec, facts: Facts) -> list[RankEpoch]:
    """The ranks of a run, each with its events and their measured seconds."""
    tape, memory = record.table("tape"), record.table("memory")
    if tape.empty:
        raise UserError(
            f"{record.folder} has no tape. Run it again with --set measure.tape=true, which records another epoch "
            "event by event."
        )
    strategy = load_strategy(spec.strategy.name)(spec, facts)
    ranks, epochs = sorted(set(tape["rank"])), []
    for rank in ranks:
        events = [event_of(row) for row in tape[tape["rank"] == rank].sort_values("event").to_dict("records")]
        peaks = memory[memory["rank"] == rank][["host_peak_bytes", "device_peak_bytes"]].max()
        peak = int(peaks.device_peak_bytes or peaks.host_peak_bytes)
        replayed = Replayed(rank, events, [0], {}, {}, peak)
        epochs.append(RankEpoch(strategy, replayed, frozenset(ranks), measured=True))
    return epochs


def _facts(record: Record) -> Facts:
    """The sizes that the record of a run has."""
    graph = record.record["summary"].get("graph")
    if not graph:
        raise UserError(f"{record.folder} is no run that succeeded, so there is nothing to emulate.")
    return Facts(
        graph["vertices"],
        graph["nonzeros"],
        graph["features"],
        graph["classes"],
        directed=False,
        labelled=graph["trained"],
        training=graph["trained"],
    )
