"""Training on emulated hosts in several launches, for comparisons of strategies.

A launch is a new process for each rank: it differs from others by more than one epoch differs from the next, so
intervals are those of launches. Every launch has its own seed. It trains all epochs of one strategy after the other:
in turns, messages in flight between two epochs would travel during the epochs of other strategies.
"""

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from benchmarks.measuring import gather, set_up_trainer, train_in_turns
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from benchmarks.runner import measure_on_hosts
from harness.cli.commands.comparing import format_ratio_interval
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
FEW_LAUNCHES, FAR = 4, 5
"""A strategy that takes FAR times as long as the fastest in each of a few launches is not launched again."""
SECONDS = ("seconds", "computing", "sampling")
AMOUNTS = ("calls", "received", "bytes")


@benchmark
def on_hosts(specs: Path, hosts: Hosts = FOUR_HOSTS, epochs: int = EPOCHS) -> Results:
    """Train the specs of a file on emulated hosts, once: seconds and elements before training and of an epoch.

    Seconds are those of the slowest rank, the median of epochs. Amounts are those of the rank that has most. `held` are
    the bytes that a rank keeps between steps. Each trainer is made twice, and the second time counts, because the first
    compiles kernels. After a warm-up, `epochs` are timed; a warm-up that takes longer than LONG_EPOCH is the timed
    epoch.

    Args:
        specs: a JSON file with a list of specs
    """
    yield Table(
        *("spec", "setup_seconds", "setup_received", "held", *SECONDS, *AMOUNTS),
        title=f"links of {hosts.rate}",
    )
    for number, document in enumerate(json.loads(specs.read_text())):
        for row in train_spec(Spec.model_validate(document), epochs):
            yield number, *row


def train_spec(spec: Spec, epochs: int) -> list[tuple[float, ...]]:
    """Train a spec; return its row on rank 0, and nothing on others. Its memory is freed."""
    trainer, setup = set_up_trainer(spec)
    held = sum(trainer.ctx.memory.persistent_bytes().values())
    before = gather(trainer.ctx.grid.world, (*setup, held))
    rows = list[tuple[float, ...]]()
    for turns in train_in_turns([trainer], epochs, LONG_EPOCH):
        most = [max(values) for values in zip(*before, strict=True)]
        amounts = (turns.most(amount) for amount in AMOUNTS)
        rows.append((*most, *map(turns.median, SECONDS), *amounts))
    trainer.ctx.grid.drain()
    return rows


def measure_launches(
    specs: Sequence[Spec], hosts: Hosts, launches: int = LAUNCHES, epochs: int = EPOCHS
) -> pd.DataFrame:
    """Return a row for each launch and spec, given by its index in `specs`. Needs root.

    `over_first` are the seconds of an epoch over those of the first spec in the same launch, which has all launches.
    """
    shortest, frames = dict.fromkeys(range(len(specs)), inf), []
    for launch in range(launches):
        near = sorted({0, *select_near(shortest, launch)})
        rows = measure_launch([specs[number] for number in near], hosts, launch, epochs)
        rows["spec"] = [near[number] for number in rows.spec]
        seconds = rows.set_index("spec").seconds
        rows["over_first"] = rows.seconds / seconds[0]
        shortest.update({number: min(shortest[number], seconds[number]) for number in near})
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def select_near(shortest: Mapping[int, float], launch: int) -> list[int]:
    """Return the specs for a launch: all in the first few, then those whose shortest time is near the fastest."""
    fastest = min(shortest.values())
    return [
        number for number, seconds in shortest.items() if launch < FEW_LAUNCHES or seconds < FAR * fastest
    ]


def measure_launch(specs: Sequence[Spec], hosts: Hosts, launch: int, epochs: int = EPOCHS) -> pd.DataFrame:
    """Return a row for each spec, given by its index in `specs`, of one launch. Needs root.

    Every launch begins with another spec, so that none is always the first.
    """
    order = [(number + launch) % len(specs) for number in range(len(specs))]
    seeded = [seed_launch(specs[number], launch) for number in order]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "specs.json"
        path.write_text(json.dumps([spec.model_dump(mode="json") for spec in seeded]))
        rows = measure_on_hosts("launches.on-hosts", hosts, path, "--epochs", epochs)
    return rows.assign(launch=launch, spec=[order[int(number)] for number in rows.spec])


def seed_launch(spec: Spec, launch: int) -> Spec:
    """Return the spec of a launch, which has its own seed."""
    return spec.model_copy(update={"seed": launch, "launch": launch})


def format_ratios(ratios: "pd.Series[float]", launches: int, comparisons: int) -> str:
    """Return the interval of the median of ratios, or the smallest of a strategy that has fewer launches."""
    if len(ratios) < launches:
        return f"at least {ratios.min():.2g} in each of {len(ratios)} launches"
    return format_interval(ratios, comparisons)


def format_interval(values: "pd.Series[float]", comparisons: int = 1) -> str:
    """Return the interval of the median over launches, corrected for the comparisons of a table: 1.05 - 1.21.

    Empty for too few launches: one comparison needs six, and 25 need ten.
    """
    return format_ratio_interval(compute_median_interval(values, correct_level(comparisons)))
