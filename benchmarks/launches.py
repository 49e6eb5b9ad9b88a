"""Training on emulated hosts in several launches, for comparisons of strategies.

A launch is a new process for each rank: it differs from others by more than one epoch differs from the next, so
intervals are those of launches. Every launch has its own seed.
"""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from benchmarks.measuring import Turns, gather, set_up_trainer, train_in_turns
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from benchmarks.runner import measure_on_hosts
from harness.commands.comparing import format_ratio_interval
from harness.results.launch_intervals import compute_median_interval, correct_level
from harness.spec.spec import Spec

LAUNCHES = 6
"""The fewest launches whose median has an interval."""
RATIO_LAUNCHES = 10
"""The launches of a table of ratios: their medians have intervals for up to 25 ratios."""
EPOCHS = 6
"""The timed epochs of a launch."""
LONG_EPOCH = 5.0
"""Seconds. A longer epoch is timed once in a launch: its steps warm up by themselves."""
AMOUNTS = ("calls", "received", "bytes")


@benchmark
def on_hosts(specs: Path, hosts: Hosts = FOUR_HOSTS, epochs: int = EPOCHS, in_turns: bool = False) -> Results:
    """Train the specs of a file on emulated hosts, once: seconds and elements before training and of an epoch.

    Seconds are those of the slowest rank, the median of epochs. Amounts are those of the rank that has most. `held` are
    the bytes that a rank keeps between steps. Each trainer is made twice, and the second time counts, because the first
    compiles kernels. After a warm-up, `epochs` are timed; without turns, a warm-up that takes longer than LONG_EPOCH is
    the timed epoch.

    Args:
        specs: a JSON file with a list of specs
        in_turns: train one epoch of each spec in turn, instead of all epochs of one after the other
    """
    yield Table(
        *("spec", "setup_seconds", "setup_received", "held", "seconds", "computing", *AMOUNTS, "over_first"),
        title=f"links of {hosts.rate}",
    )
    documents = [Spec.model_validate(document) for document in json.loads(specs.read_text())]
    first = 0
    for group in [documents] if in_turns else [[document] for document in documents]:
        for number, row in enumerate(train_group(group, epochs), first):
            yield number, *row
        first += len(group)


def train_group(specs: Sequence[Spec], epochs: int) -> list[tuple[float, ...]]:
    """Train specs in turns; return the row of each on rank 0, and nothing on others. Their memory is freed."""
    trainers, setups = zip(*map(set_up_trainer, specs), strict=True)
    held = [sum(trainer.ctx.memory.persistent_bytes().values()) for trainer in trainers]
    before = gather(trainers[0].ctx.grid.world, list(zip(setups, held, strict=True)))
    rows, timed = [], train_in_turns(trainers, epochs, LONG_EPOCH if len(specs) == 1 else inf)
    for number, turns in enumerate(timed):
        of_ranks = [(*setup, size) for setup, size in (rank[number] for rank in before)]
        most = [max(values) for values in zip(*of_ranks, strict=True)]
        rows.append((*most, *summarize_turns(turns), timed[0].ratio(turns)))
    for trainer in trainers:
        trainer.ctx.grid.drain()
    return rows


def summarize_turns(turns: Turns) -> tuple[float, ...]:
    """Return the seconds of an epoch and of its computation, and the amounts of the rank that has most."""
    return turns.median(), turns.median("computing"), *(turns.most(amount) for amount in AMOUNTS)


def measure_launches(
    specs: Sequence[Spec],
    hosts: Hosts,
    launches: int = LAUNCHES,
    epochs: int = EPOCHS,
    *,
    in_turns: bool = False,
) -> pd.DataFrame:
    """Return a row for each launch and spec, given by its index in `specs`. Needs root."""
    frames = [measure_launch(specs, hosts, launch, epochs, in_turns=in_turns) for launch in range(launches)]
    return pd.concat(frames, ignore_index=True)


def measure_launch(
    specs: Sequence[Spec], hosts: Hosts, launch: int, epochs: int = EPOCHS, *, in_turns: bool = False
) -> pd.DataFrame:
    """Return a row for each spec, given by its index in `specs`, of one launch. Needs root.

    Every launch begins with another spec, so that none is always the first.
    """
    order = [(number + launch) % len(specs) for number in range(len(specs))]
    if in_turns:  # the first spec is the one that others are compared with
        order = list(range(len(specs)))
    seeded = [seed_launch(specs[number], launch) for number in order]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "specs.json"
        path.write_text(json.dumps([spec.model_dump(mode="json") for spec in seeded]))
        options = ["--epochs", epochs, *(["--in-turns"] if in_turns else [])]
        rows = measure_on_hosts("launches.on-hosts", hosts, path, *options)
    return rows.assign(launch=launch, spec=[order[int(number)] for number in rows.spec])


def seed_launch(spec: Spec, launch: int) -> Spec:
    """Return the spec of a launch, which has its own seed."""
    return spec.model_copy(update={"seed": launch, "launch": launch})


def format_interval(values: "pd.Series[float]", comparisons: int = 1) -> str:
    """Return the interval of the median over launches, corrected for the comparisons of a table: 1.05 - 1.21.

    Empty for too few launches: one comparison needs six, and 25 need ten.
    """
    return format_ratio_interval(compute_median_interval(values, correct_level(comparisons)))
