"""Compares epochs of strategies with the programs of their authors, which are not part of the harness.

AUTHORS_PIPEGCN, AUTHORS_BNS_GCN, AUTHORS_SANCUS and AUTHORS_PLEXUS name the commands that start copies prepared for
CPUs and gloo; a program without a command is skipped. In a command, {folder}, {ranks}, {epochs}, {x}, {y} and {z} are
replaced. The folder has `run.npz`: the normalised matrix (rowptr, col, val), X, y, the vertices in the loss (counted),
the number of classes, the bounds of the parts, and the weights as neighbours0, root0, ... The copy must train on these
and print what `harness external` reads, with more digits of the losses if these are to be compared.
"""

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.launches import LAUNCHES
from benchmarks.measuring import spec_of
from benchmarks.registry import Results, Table, benchmark
from benchmarks.reporting import REPORT
from benchmarks.watching import EVERY, Amounts, WatchedProgram, can_isolate
from harness.base.errors import UserError
from harness.experiment.external.log_reader import LoggedRun, ProgramLog, read_log, read_settings
from harness.experiment.external.program import Program, flatten_keys, load_program
from harness.kernels import cast
from harness.results.launch_intervals import compute_median_interval
from harness.runtime.open_run import open_run
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy.models.weights import Part, Weight, init_weight

SAGE = {"kind": "sage", "layers": 3, "hidden": 64}
RUNS: Mapping[str, dict[str, Any]] = {
    "pipegcn": {"strategy": "pipegcn", "model": SAGE},
    "bns-gcn": {"strategy": "bns-gcn", "model": SAGE},
    "sancus": {
        "strategy": {"name": "sancus", "params": {"stale": 0}},
        "model": {"kind": "gcn", "layers": 2, "hidden": 16, "order": "aggregate_first"},
    },
    "plexus": {
        "strategy": "plexus",
        "model": {"kind": "gcn", "layers": 3, "hidden": 128, "order": "aggregate_first"},
        "training": {"features": True},
        "protocol": "faithful",
    },
}
"""What each program is compared with; its copy has to run these settings."""
PARTITIONED = ("pipegcn", "bns-gcn")
PLEXUS_GRIDS = {2: "2x1x1", 4: "2x2x1"}
EQUAL_KEYS = (
    *("strategy.name", "strategy.params.stale", "strategy.params.p", "ranks", "grid"),
    *("model.kind", "model.layers", "model.hidden", "model.dropout", "training.lr", "training.epochs"),
)
"""Keys of a spec that a log may show, and that must be equal."""
SPARE = 4
"""Tens of epochs before the first turn, and after the last one."""
SPEC = "spec.json"
Losses = tuple[float, float, float]
NAMES = {Part.CONVOLUTION: "neighbours", Part.ROOT: "root"}


@benchmark
def authors(
    launches: int = LAUNCHES,
    turns: int = 7,
    only: tuple[str, ...] = tuple(RUNS),
    graphs: tuple[str, ...] = ("cora",),
    ranks: tuple[int, ...] = (2, 4),
) -> Results:
    """Compare epochs with the programs of the authors, from the same weights, on the same parts.

    In each launch both programs start once, with one thread a rank, and then take turns of ten epochs; each is stopped
    while the other one runs. Bytes are those on the loopback, with headers. Ratios are ours over theirs: below 1, ours
    takes less. They are medians over launches, with intervals over launches, of the ratios of the medians over turns.
    The first loss that both print is ours; its difference from theirs, and the largest difference up to the last turn,
    show whether both train the same model.

    Args:
        launches: launches of both programs
        only: programs (default: all)
        ranks: numbers of ranks
    """
    commands = {name: os.environ.get(variable_of(name), "") for name in only}
    for name, command in commands.items():
        if not command:
            yield f"{name} is not compared: {variable_of(name)} names no command that starts a copy prepared for CPUs."
    if not any(commands.values()):
        return
    yield Table(
        *("program", "graph", "ranks", "first loss:.4f", "difference:.1e", "largest:.1e"),
        *("our kB:,.0f", "its kB:,.0f", "our ms:.1f", "its ms:.1f", "our CPU ms:.1f", "its CPU ms:.1f"),
        *("time ratio:.2f", "interval", "CPU ratio:.2f", "interval of CPU ratio"),
    )
    for name, command in commands.items():
        for graph, count in product(graphs, ranks):
            if command:
                spec = make_run_spec(name, graph, count, turns)
                yield name, graph, show_ranks(spec), *compare(name, command, spec, turns, launches)


def variable_of(name: str) -> str:
    """Return the environment variable that names the command of a program."""
    return f"AUTHORS_{name.upper().replace('-', '_')}"


def make_run_spec(name: str, graph: str, ranks: int, turns: int) -> Spec:
    """Return the spec of our run."""
    run = RUNS[name]
    dataset: dict[str, Any] = {"name": graph}
    if name in PARTITIONED:
        dataset |= {"partition": "metis", "parts": ranks}
    grid = {"grid": PLEXUS_GRIDS[ranks]} if name == "plexus" else {}
    epochs = EVERY * (2 * turns + SPARE)
    training = {"epochs": epochs, "lr": 0.01, **run.get("training", {})}
    return spec_of({**run, "dataset": dataset, "ranks": ranks, "training": training, **grid})


def show_ranks(spec: Spec) -> str:
    """Return the grid of a spec, as in 2x2x1."""
    return "x".join(map(str, spec.grid.values()))


def compare(name: str, command: str, spec: Spec, turns: int, launches: int) -> Iterator[object]:
    """Yield the cells of a program in the table of `authors`, without its name and settings."""
    losses, taken = zip(*(launch(name, command, spec, turns) for _ in range(launches)), strict=True)
    yield from losses[0]
    yield from show_amounts(*([take_medians(each) for each in side] for side in zip(*taken, strict=True)))


def take_medians(amounts: Sequence[Amounts]) -> Amounts:
    """Return the medians over the turns of a launch."""
    return Amounts(*map(median, zip(*amounts, strict=True)))


def launch(
    name: str, command: str, spec: Spec, turns: int
) -> tuple[Losses, tuple[list[Amounts], list[Amounts]]]:
    """Run both programs once; return what their losses show, and the amounts of their turns."""
    program, private = load_program(find_root(), name), can_isolate()
    with TemporaryDirectory() as kept, ExitStack() as stack:
        folder = Path(kept)
        write_inputs(folder, spec)
        words = split_command(command, spec, kept)
        theirs = stack.enter_context(
            WatchedProgram(words, folder, partial(find_epoch, program), private=private)
        )
        ours = stack.enter_context(
            WatchedProgram(
                [sys.executable, "-m", "benchmarks.reporting", str(folder / SPEC)],
                find_root(),
                find_our_epoch,
                private=private,
            )
        )
        taken = take_turns(ours, theirs, turns)
        log = ProgramLog(theirs.text, name, command=shlex.join(words))
        run = read_log(log, program)
        check_settings(log, run, program, spec)
        theirs_by_epoch = collect_losses(run, program, count_targets(folder))
        return compare_losses(read_our_losses(ours.text), theirs_by_epoch), taken


def take_turns(
    ours: WatchedProgram, theirs: WatchedProgram, turns: int
) -> tuple[list[Amounts], list[Amounts]]:
    """Return the amounts of an epoch of both programs, which take turns, in the reverse order every other time."""
    taken: tuple[list[Amounts], list[Amounts]] = [], []
    pairs = list(zip(taken, (ours, theirs), strict=True))
    for turn in range(turns):
        for amounts, program in pairs[:: -1 if turn % 2 else 1]:
            amounts.append(program.take_turn())
    return taken


def compare_losses(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Losses:
    """Return our first loss of the epochs that both report, its difference from theirs, and the largest one."""
    common = sorted(ours.keys() & theirs.keys())
    differences = [abs(ours[epoch] - theirs[epoch]) for epoch in common]
    return ours[common[0]], differences[0], max(differences)


def show_amounts(ours: Sequence[Amounts], theirs: Sequence[Amounts]) -> Iterator[object]:
    """Yield kilobytes, milliseconds and CPU milliseconds of both, and the ratios of the pairs with their intervals.

    The arguments are the amounts of each launch.
    """
    mine, its = pd.DataFrame(ours), pd.DataFrame(theirs)
    for column in ("sent", "wall", "cpu"):
        for each in (mine, its):
            middle = float(each[column].median())
            yield middle / 1e3 if column == "sent" else 1e3 * middle
    for column in ("wall", "cpu"):
        ratios = mine[column] / its[column]
        ends = compute_median_interval(ratios)
        yield float(ratios.median())
        yield f"{ends.low:.2f} to {ends.high:.2f}" if ends else ""


# Inputs.


def write_inputs(folder: Path, spec: Spec) -> None:
    """Write the graph in the order of the parts, and the weights of a run, to `run.npz`, and our spec."""
    arrays = {name: each.numpy() for name, each in make_inputs(spec).items()}
    np.savez(folder / "run.npz", allow_pickle=False, **arrays)
    (folder / SPEC).write_text(spec.model_dump_json())


def make_inputs(spec: Spec) -> dict[str, Tensor]:
    """Return the arrays that a program needs to train as `spec` says."""
    strategy, blocks = open_run(find_root(), spec)
    everyone = range(blocks.n)
    A = cast(blocks.adjacency(everyone, everyone), torch.float32)
    split = blocks.split(everyone)
    weights = {
        f"{NAMES[weight.part]}{weight.layer}": make_weight(spec, number, weight)
        for number, weight in enumerate(strategy.weights)
    }
    arrays = {
        "rowptr": A.rowptr,
        "col": A.col,
        "val": A.val,
        "X": blocks.feature_block(everyone, range(blocks.features)),
        "y": blocks.labels(everyone),
        "counted": torch.ones_like(split) if spec.protocol == "faithful" else split == 1,
        "classes": torch.tensor(blocks.classes),
        "bounds": torch.tensor(blocks.bounds or (0, blocks.n)),
    }
    return arrays | weights


def make_weight(spec: Spec, number: int, weight: Weight) -> Tensor:
    """Return the whole initial value of the weight with this number."""
    return init_weight(spec.seed, number, weight, *map(range, weight.shape)).float()


# Commands and logs.


def split_command(command: str, spec: Spec, folder: str) -> list[str]:
    """Return the words of a command, with the settings of a run in place of their names."""
    grid = {str(axis): size for axis, size in spec.grid.items()}
    given = {"x": 1, "y": 1, "z": 1, **grid, "ranks": spec.ranks, "epochs": spec.training.epochs}
    return [word.format(folder=folder, **given) for word in shlex.split(command)]


def find_epoch(program: Program, line: str) -> int | None:
    """Return the epoch that the first process reports on a line."""
    return next(
        (each.epoch for each in read_log(ProgramLog(line, ""), program).reports if each.rank == 0), None
    )


def find_our_epoch(line: str) -> int | None:
    """Return the epoch that a line of ours reports."""
    return int(found[1]) if (found := REPORT.search(line)) else None


def read_our_losses(text: str) -> dict[int, float]:
    """Return our losses by epoch."""
    return {int(epoch): float(loss) for epoch, loss in REPORT.findall(text)}


def check_settings(log: ProgramLog, run: LoggedRun, program: Program, spec: Spec) -> None:
    """Raise UserError if a log shows other settings than ours."""
    shown, ours = read_settings(log, run, program).keys, flatten_keys(spec.model_dump(mode="json"))
    for key in EQUAL_KEYS:
        if key in shown and key in ours and shown[key] != ours[key]:
            raise UserError(f"{program.title} ran with {key} = {shown[key]!r}, and ours with {ours[key]!r}.")


def count_targets(folder: Path) -> list[int]:
    """Return the number of vertices in the loss of each part."""
    with np.load(folder / "run.npz") as arrays:
        bounds, counted = arrays["bounds"], arrays["counted"].astype(int)
    return [int(counted[begin:end].sum()) for begin, end in pairwise(bounds)]


def collect_losses(run: LoggedRun, program: Program, targets: Sequence[int]) -> dict[int, float]:
    """Return the losses by epoch. If each process reports the loss of its part, they are averaged over all targets."""
    if not program.all_report:
        return {report.epoch: report.loss for report in run.reports}
    sums: dict[int, float] = defaultdict(float)
    for report in run.reports:
        sums[report.epoch] += report.loss * targets[report.rank]
    return {epoch: total / sum(targets) for epoch, total in sums.items()}
