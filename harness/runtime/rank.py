"""One rank of a run, from the spec to the record: `python -m harness.runtime.rank`, under any launcher.

The launcher sets RANK, WORLD_SIZE and the rendezvous. Rank 0 writes the record. A rank that fails writes the reason to
the scratch folder.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from harness.base.errors import UserError
from harness.base.locks import TurnLock, find_lockable_path
from harness.comm import engine, interfaces, launchers
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.kernels.jit import report_compilations
from harness.ledger import Ledger, clock_for
from harness.ledger.tape import Event, Tape, take_median_times
from harness.registry import hash_strategy_code
from harness.runtime.checksums import (
    bit_checksums,
    check_replicas,
    find_divergence,
    gather_checksums,
    gradient_checksums,
)
from harness.runtime.fault import dump_stacks_on_signal, is_consequence, read_fault, write_fault
from harness.runtime.load import Reading, make_utilisation_reader, read_in_background
from harness.runtime.ogb_judge import OgbJudge, open_judge
from harness.runtime.open_run import Stages, open_run, take_longest_stages, warm_up
from harness.runtime.provenance import collect_provenance, current_affinity
from harness.runtime.rank_tables import Journal, RankTables, gather_tables
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Strategy

PROGRESS_SECONDS = 2.0
CONSEQUENCE_DELAY = 2.0
"""The seconds that a rank waits before it exits after losing another rank: schedulers blame the first rank to exit."""
WARM_BEFORE_TAPE = 3
"""The epochs before a tape that is recorded outside of a run."""
TAPED_EPOCHS = 3
"""The number of epochs whose median a tape records."""


def main() -> int:
    """Run a rank and return its exit code."""
    parser = argparse.ArgumentParser(prog="harness.runtime.rank")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument(
        "--meeting", type=Path, help="a file by which ranks find each other without a rendezvous"
    )
    parser.add_argument("--stacks", action="store_true", help="write the stacks into a file at every SIGUSR1")
    interfaces.add_interface_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    at = launchers.read_place(os.environ)
    if options.stacks:
        dump_stacks_on_signal(options.scratch, at.rank)

    def prepare() -> None:
        interfaces.choose_interface(options, at)

    if at.rank == 0:
        numbers = count(1)
        report_compilations(
            lambda name: _write_progress(
                options.scratch, f"compiling {name}, once for this machine (kernel {next(numbers)})"
            )
        )

    code = run_and_report_faults(at, find_root(), options.scratch, options.runs, options.meeting, prepare)
    fault = read_fault(options.scratch, at.rank)
    if fault and is_consequence(fault) and not options.stacks:
        time.sleep(CONSEQUENCE_DELAY)
    return code


def run_and_report_faults(
    at: launchers.RankPlace,
    root: Path,
    scratch: Path,
    runs: Path,
    meet: Any = None,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Run the spec in the scratch folder as this rank, and write a fault to that folder if it fails.

    `meet` is the file in which the ranks meet, or a store that they already share.
    """
    stages = Stages()
    try:
        prepare()
        spec = Spec.model_validate(json.loads((scratch / "spec.json").read_text(encoding="utf-8")))
        run(spec, at, root, scratch, runs, meet, stages)
    except BaseException as error:
        write_fault(scratch, at.rank, error)
        return 1
    return 0


def run(
    spec: Spec, at: launchers.RankPlace, root: Path, scratch: Path, runs: Path, meet: Any, stages: Stages
) -> None:
    """Open the graph, join the other ranks, train, gather the tables on rank 0, leave the process group, and record.

    The graph is opened before the rendezvous, so that an unsuitable graph is reported without one. Ranks leave the
    process group before the record is written, so that no rank waits for a disk.
    """
    if at.world != spec.ranks:
        raise UserError(f"The launcher started {at.world} ranks, and the spec is for {spec.ranks}.")
    strategy, blocks = open_run(root, spec, in_rank=True)
    stages.end("open")
    device = engine.join_world(Engine(spec.machine.engine), at, rendezvous=meet)
    stages.end("meet")
    turn = open_turn(scratch) if spec.measure.tape else None
    try:
        clock = clock_for(device)
        ledger = Tape(clock, timed=True, turn=turn) if turn else Ledger(clock)
        grid = Grid.build(strategy.grid, ledger, device, spec.machine.composed_from, strategy.wire)
        stages.end("grid")
        if isinstance(ledger, Tape):
            ledger.is_taping = False
        warm_up(strategy, grid, blocks)
        trainer = Trainer(strategy, grid, blocks)
        judge = open_judge(root, spec.dataset.name, trainer.operators, grid.world)
        tables = RankTables(at.rank, affinity=current_affinity(), stages=stages.seconds)
        tables.accuracy_by = f"ogb {judge.metric}" if judge else ""
        first_epoch = stages.end("ready")
        read_percent = make_utilisation_reader(device) if spec.measure.utilisation_ms else None
        with read_in_background(read_percent) as readings:
            train(strategy, trainer, scratch, tables, readings, judge)
        if isinstance(ledger, Tape) and not tables.fault:
            tables.add_tape(record_tape(trainer, ledger))
        ranks = gather_tables(grid.world, tables)
        grid.drain()
        network = engine.read_network()
    finally:
        engine.leave_world()
        if turn:
            turn.close()
    if at.rank == 0:
        (scratch / "recording").touch()
        from harness.runtime.recording import record_run

        origin = {
            **collect_provenance(root, scratch, [rank.affinity for rank in ranks if rank.affinity]),
            "engine": spec.machine.engine if at.world > 1 else "single",
            "network": network,
            "start": take_longest_stages(rank.stages for rank in ranks),
            "store_manifest": blocks.manifest_hash,
            "graph_hash": blocks.graph_hash,
            "strategy_code": hash_strategy_code(spec.strategy.name),
            "started": stages.begun,
            "first_epoch": first_epoch,
            "finished": stages.now(),
        }
        record_run(runs, strategy, ranks, origin)
        (scratch / "done").touch()


def open_turn(scratch: Path) -> TurnLock:
    """Return the lock with which the ranks of a run on this machine take turns."""
    return TurnLock(find_lockable_path(scratch / f"turn-{platform.node()}"))


def record_tape(trainer: Trainer, tape: Tape) -> list[Event]:
    """Record `TAPED_EPOCHS` more epochs, in which the ranks of a machine compute in turns; return the median events."""
    tape.recording = tape.is_taping = True
    epochs = []
    for _ in range(TAPED_EPOCHS):
        trainer.epoch()
        epochs.append(tape.events)
    tape.recording = tape.is_taping = False
    return take_median_times(epochs)


def record_turns(strategy: Strategy, blocks: Blocks, lock: Path) -> list[Event]:
    """Train for a few epochs, then record more on a tape, as `record_tape`; ranks take turns with the file `lock`."""
    turn = TurnLock(lock)
    tape = Tape(timed=True, turn=turn)
    tape.recording = tape.is_taping = False
    grid = Grid.build(strategy.grid, tape, None, strategy.spec.machine.composed_from, strategy.wire)
    trainer = Trainer(strategy, grid, blocks)
    for _ in range(WARM_BEFORE_TAPE):
        trainer.epoch()
    events = record_tape(trainer, tape)
    grid.drain()
    turn.close()
    return events


def train(
    strategy: Strategy,
    trainer: Trainer,
    scratch: Path,
    tables: RankTables,
    readings: Sequence[Reading],
    judge: OgbJudge | None = None,
) -> None:
    """Train for all epochs of the spec and fill the tables of this rank.

    Training stops at a loss that is not finite. `judge` computes the accuracies of evaluations.
    """
    ctx, journal = trainer.ctx, Journal(scratch, tables)
    training, sums = ctx.spec.training, []
    reported = time.monotonic()
    for number in range(-training.warmup, training.epochs):
        if number == 0:
            ctx.measured.remote.reset()
        before = [weight.detach().clone() for weight in trainer.weights]
        is_evaluated = _is_followed_by_evaluation(training.evaluate_every, number, training.epochs)
        epoch = trainer.epoch(drain=is_evaluated)
        tables.add_epoch(number, epoch, readings)
        journal.write()
        sums.append(torch.cat([bit_checksums(trainer.parameters), gradient_checksums(trainer)]))
        if not isfinite(tables.epochs[-1]["loss"]):
            break
        if is_evaluated:
            hits, seconds = trainer.evaluate(judge)
            tables.add_accuracy(number, hits, seconds, trainer.scores)
            journal.write()
            test = trainer.scores["test"] if trainer.scores else hits["test"].ratio
            if training.target and test >= training.target:
                break
        if tables.rank == 0 and time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            _report_progress(scratch, tables, training.warmup + training.epochs)
    ctx.ledger.recording = False
    tables.add_memory(ctx)
    tables.chosen, tables.remote = ctx.measured.chosen, ctx.measured.remote
    busiest = training.warmup + tables.epoch_with_most_words()
    tables.elements_payload_formula = sum(
        strategy.words_of_epoch(ctx.at, ctx.blocks.counts, busiest).values()
    )
    tables.least_words = strategy.words_lower_bound(ctx.at, ctx.blocks.counts)
    checksums = gather_checksums(ctx.grid, sums)
    check_replicas(strategy, checksums)
    numbers = [row["epoch"] for row in tables.epochs]
    tables.fault = find_divergence(trainer, numbers, epoch, before, checksums)


def _is_followed_by_evaluation(every: int, number: int, epochs: int) -> bool:
    """Return True for the last epoch, and for every `every`-th timed epoch."""
    return number + 1 == epochs or (every > 0 and number >= 0 and (number + 1) % every == 0)


def _report_progress(scratch: Path, tables: RankTables, epochs: int) -> None:
    """Write a line for the launcher with the progress of training and the remaining time.

    The first epoch of a run may compile kernels, so its time is only an upper bound of the others'.
    """
    done, last = len(tables.epochs), tables.epochs[-1]
    left = f"{(epochs - done) * last['seconds']:.0f} s left"
    left = f"at most {left}" if done == 1 else left
    _write_progress(
        scratch, f"epoch {done} of {epochs}, {last['seconds']:.3g} s, loss {last['loss']:.4g}, {left}"
    )


def _write_progress(scratch: Path, text: str) -> None:
    """Write the line that the launcher shows."""
    partial = scratch / "progress.part"
    partial.write_text(text, encoding="utf-8")
    partial.replace(scratch / "progress")


if __name__ == "__main__":
    sys.exit(main())
