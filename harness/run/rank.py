"""One rank of a run, from the spec to the record: `python -m harness.run.rank`, under any launcher.

The launcher sets RANK, WORLD_SIZE and the rendezvous; nothing here asks who it was. Rank 0 writes the record. A
rank that cannot go on leaves its reason in the scratch folder.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.errors import UserError
from harness.ledger import Ledger, clock_for
from harness.registry import load_strategy
from harness.results.record import write_record
from harness.run.fault import write_fault
from harness.run.gather import gather
from harness.run.provenance import provenance
from harness.run.replicas import checksum, compare
from harness.run.summary import summarise
from harness.run.tables import RankTables, data_frames
from harness.run.trainer import Trainer
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.build import open_dataset
from harness.strategy import Context, Strategy, admit, facts_of

PROGRESS_SECONDS = 2.0


def main() -> int:
    """The whole life of a rank; returns its exit code."""
    parser = argparse.ArgumentParser(prog="harness.run.rank")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    options = parser.parse_args()
    at = engine.place(os.environ)
    try:
        spec = Spec.model_validate(json.loads((options.scratch / "spec.json").read_text()))
        run(spec, at, options.scratch, options.runs)
    except BaseException as error:
        write_fault(options.scratch, at.rank, error)
        return 1
    return 0


def run(spec: Spec, at: engine.Place, scratch: Path, runs: Path) -> None:
    """Load, set up, warm up, train, evaluate, record."""
    if at.world != spec.ranks:
        raise UserError(f"The launcher started {at.world} ranks, and the spec is for {spec.ranks}.")
    started = time.time()
    root, choice = project_root(), spec.dataset
    blocks = open_dataset(root, choice.name, choice.permutation, choice.seed)
    strategy = admit(load_strategy(spec.strategy.name), spec, facts_of(blocks))
    device = engine.start(Engine(spec.machine.engine), at)
    try:
        ledger = Ledger(clock_for(device))
        ctx = Context(spec, Grid.build(strategy.grid, ledger, device), ledger, blocks, device)
        ranks = gather(ctx.grid.world, train(strategy, ctx, scratch))
    finally:
        engine.stop()
    if at.rank == 0:
        tables = data_frames(ranks)
        told = {**provenance(root), "engine": spec.machine.engine, "store_manifest": blocks.manifest_hash}
        times = {"started": started, "finished": time.time()}
        formula = max(sum(strategy.words(strategy.coordinates(rank)).values()) for rank in range(spec.ranks))
        record = _record(spec, summarise(tables, formula), {**told, **times})
        write_record(runs, spec.model_dump(mode="json"), record, tables)
        (scratch / "done").touch()


def train(strategy: Strategy, ctx: Context, scratch: Path) -> RankTables:
    """Every epoch of the spec on this rank."""
    trainer, tables = Trainer(strategy, ctx), RankTables(ctx.grid.rank)
    training, sums = ctx.spec.training, []
    said = time.monotonic()
    for number in range(-training.warmup, training.epochs):
        tables.add_epoch(number, trainer.epoch())
        sums.append(checksum(trainer.weights))
        if _evaluates(training.evaluate_every, number, training.epochs):
            tables.add_accuracy(number, *trainer.evaluate())
        if tables.rank == 0 and time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            _say(scratch, tables, training.warmup + training.epochs)
    ctx.ledger.recording = False
    compare(ctx.grid, strategy, sums)
    tables.add_memory(ctx)
    return tables


def _evaluates(every: int, number: int, epochs: int) -> bool:
    """After the last epoch, and after each so many timed ones."""
    return number + 1 == epochs or (every > 0 and number >= 0 and (number + 1) % every == 0)


def _say(scratch: Path, tables: RankTables, epochs: int) -> None:
    """Tells the launcher how far training is and how long the rest will take."""
    done, last = len(tables.epochs), tables.epochs[-1]
    left = (epochs - done) * last["seconds"]
    text = (
        f"epoch {done} of {epochs}, {last['seconds']:.3g} s each, loss {last['loss']:.4g}, {left:.0f} s left"
    )
    partial = scratch / "progress.part"
    partial.write_text(text)
    partial.replace(scratch / "progress")


def _record(spec: Spec, summary: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": spec.run_id,
        "label": spec.label,
        "status": "ok",
        "source": "measured",
        "summary": summary,
        "provenance": told,
        "error": None,
    }


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.exit(main())
