"""What benchmarks share: timing in turns, trainers and graphs."""

import gc
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.registry import Hosts
from harness.base.formatting import GB
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.experiment.requests import make_spec
from harness.graph.blocks import Blocks
from harness.graph.generators.rmat import Rmat
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.building import build_store
from harness.kernels import Csr, cast
from harness.ledger import MOVING, SAMPLING, Clock, Ledger, Op, clock_for
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Strategy

WARM = 1
"""Turns before those that count."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


TCP = 0.94
"""The share of a link's rate that messages reach (benchmarks/results/links.md)."""


def card_of_hosts(rate: float) -> MachineCard:
    """Return the card of emulated hosts with links of this rate in Mbit/s."""
    card = load_machine_card(find_root(), "ethernet")
    assert card.links
    gbs = card.links.node_gbs.model_copy(update={"value": TCP * rate * 1e6 / 8 / GB})
    return card.model_copy(update={"links": card.links.model_copy(update={"node_gbs": gbs})})


def in_a_process(
    function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Call a function in a new process, so that the peak of memory is the function's own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        return alone.submit(function, *args, **options).result()


def seconds_of(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    begun = perf_counter()
    function()
    return perf_counter() - begun


class Growth(NamedTuple):
    """What a rank's process took to train, in bytes and seconds."""

    before: int
    """Its anonymous memory before it opened the graph: libraries, loops and what earlier training left."""
    set_up: int
    """The most that it grew while it read its blocks and made its schedules."""
    held: int
    """The growth that stays between two epochs."""
    peak: int
    """The most that it grew during epochs."""
    seconds: float
    """The median epoch."""


def measure_growth(spec: Spec, epochs: int) -> list[Growth]:
    """Train on this rank; return the growth of each rank on rank 0."""
    before, resident = read_status("RssAnon"), begin_peak()
    trainer = trainer_of(spec)
    set_up = read_status("VmHWM") - resident
    trainer.epoch()
    gc.collect()
    held, resident = read_status("RssAnon") - before, begin_peak()
    seconds = [trainer.epoch().seconds for _ in range(epochs)]
    peak = held + read_status("VmHWM") - resident
    trainer.ctx.grid.drain()
    return gather(trainer.ctx.grid.world, Growth(before, set_up, held, peak, median(seconds)))


def read_status(name: str, process: int | None = None) -> int:
    """Return the bytes of a line of a process's status; by default, of this process."""
    lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def begin_peak() -> int:
    """Begin to look for the peak anew; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def peak_bytes() -> int:
    """Return the largest resident size that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Trainers.


def spec_of(asked: dict[str, Any]) -> Spec:
    """Return the spec of a request. The first rank that gets here builds the dataset."""
    spec = make_spec(find_root(), asked, "benchmark")
    build_store(find_root(), spec.dataset)
    return spec


def trainer_of(
    spec: Spec, *, recording: bool = True, clock: Clock | None = None, device: torch.device | None = None
) -> Trainer:
    """Return this rank's trainer; without a device, on the CPU."""
    clock = clock or (clock_for(device) if device else None)
    return Trainer(*join_grid(spec, Ledger(clock, recording=recording), device))


def join_grid(
    spec: Spec, ledger: Ledger, device: torch.device | None = None
) -> tuple[Strategy, Grid, Blocks]:
    """Return the arguments of a trainer on this rank: the strategy, the grid that it joined, and the graph."""
    strategy, blocks = open_run(find_root(), spec)
    grid = Grid.build(strategy.grid, ledger, device, spec.machine.composed_from, strategy.wire)
    return strategy, grid, blocks


class SetUp(NamedTuple):
    """What a rank does before its first epoch, such as a product of A and X that it computes once."""

    seconds: float
    """Until all ranks are ready: to read blocks, to make schedules, and to compute what never changes."""
    received: float
    """Elements."""


def set_up_trainer(spec: Spec) -> tuple[Trainer, SetUp]:
    """Return this rank's trainer and its set-up. It is made twice, because the first compiles kernels.

    If an epoch has several steps, the first trainer takes one, which compiles what a step needs.
    """
    first = trainer_of(spec)
    if first.steps > 1:
        first.step()
    first.ctx.grid.drain()
    ledger = Ledger()
    strategy, grid, blocks = join_grid(spec, ledger)
    grid.world.barrier()
    begun = perf_counter()
    ledger.start()
    trainer = Trainer(strategy, grid, blocks)
    received = sum(amounts.elements_received for amounts in ledger.stop().values())
    grid.world.barrier()
    return trainer, SetUp(perf_counter() - begun, received)


def trainer_on_hosts(hosts: Hosts, asked: dict[str, Any]) -> Trainer:
    """Return a trainer over all emulated hosts, where large collectives are composed."""
    return trainer_of(spec_of({**asked, "ranks": hosts.count, "machine": "ethernet"}))


class Turn(NamedTuple):
    """One epoch of one rank: the seconds of the epoch, of phases and of calls, and the words that calls moved."""

    seconds: float
    sampling: float
    """Seconds in the phases of sampling."""
    moving: float
    """Seconds in collectives and messages."""
    calls: int
    """Collectives and messages."""
    sampling_calls: int
    words: float
    """The payload."""
    bytes: float
    """The payload in the types that travel."""
    received: float
    """Words that a ring brings to this rank."""
    path: float
    """All words of a broadcast, which every rank waits for, and the received words of all other calls."""

    @property
    def computing(self) -> float:
        """Seconds outside collectives and messages."""
        return self.seconds - self.moving


def turn(trainer: Trainer, *, drain: bool = False) -> Turn:
    """Train one epoch; with `drain`, until its last message has arrived."""
    epoch = trainer.epoch(drain=drain)
    sampling = {key: amounts for key, amounts in epoch.entries.items() if key.phase in SAMPLING}
    moved = {key: amounts for key, amounts in epoch.entries.items() if key.op in MOVING}
    return Turn(
        epoch.seconds,
        sum(amounts.seconds for amounts in sampling.values()),
        sum(amounts.seconds for amounts in moved.values()),
        sum(amounts.calls for amounts in moved.values()),
        sum(amounts.calls for key, amounts in sampling.items() if key.op in MOVING),
        sum(amounts.elements_payload for amounts in moved.values()),
        sum(amounts.bytes for amounts in moved.values()),
        sum(amounts.elements_received for amounts in moved.values()),
        sum(
            amounts.elements_payload if key.op is Op.BROADCAST else amounts.elements_received
            for key, amounts in moved.items()
        ),
    )


class Turns(NamedTuple):
    """The turns of one trainer, by round and rank."""

    rounds: list[list[Turn]]

    def slowest(self, seconds: str = "seconds") -> list[float]:
        """Return the slowest rank's seconds, round by round."""
        return [max(getattr(turn, seconds) for turn in ranks) for ranks in self.rounds]

    def median(self, seconds: str = "seconds") -> float:
        """Return the median over rounds of the slowest rank's seconds."""
        return median(self.slowest(seconds))

    def most(self, amount: str) -> Any:
        """Return the largest amount of any rank in any round."""
        return max(getattr(turn, amount) for ranks in self.rounds for turn in ranks)

    def ratio(self, other: "Turns") -> float:
        """Return the other's seconds over these: the median of the rounds' ratios."""
        return median(b / a for a, b in zip(self.slowest(), other.slowest(), strict=True))


def gather(world: Axis, value: Result) -> list[Result]:
    """Return the values of all ranks on rank 0, and nothing on others.

    Unlike the tables of a run, values may be of any class: the ranks of a benchmark trust each other.
    """
    if world.group is None:
        return [value]
    values: list[Any] | None = [None] * world.size if world.index == 0 else None
    dist.gather_object(value, values, group=world.group)
    return values or []


def find_largest(world: Axis, value: float) -> float:
    """Return the largest value of all ranks, on all of them."""
    largest = torch.tensor(value, dtype=torch.float64)
    if world.group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=world.group)
    return float(largest)


def train_in_turns(trainers: Sequence[Trainer], rounds: int, long: float = inf) -> list[Turns]:
    """Train one epoch of each trainer in every round; return the turns of each on rank 0, nothing on others.

    Several trainers do not disturb each other: each waits for a barrier, and until its messages have arrived. A trainer
    alone does neither, because what it has in flight then travels during its next epoch, as in a run.
    A warm-up round of more than `long` seconds is the only one, and counts.
    """
    world, alone = trainers[0].ctx.grid.world, len(trainers) == 1

    def train_round() -> list[Turn]:
        turns = []
        for trainer in trainers:
            if not alone:
                world.barrier()
            turns.append(turn(trainer, drain=not alone))
        return turns

    world.barrier()
    own = [train_round() for _ in range(WARM)]
    if find_largest(world, max(each.seconds for each in own[-1])) > long:
        own = own[-1:]
    else:
        own = [train_round() for _ in range(rounds)]
    everyone = gather(world, own)
    by_round = list(zip(*everyone, strict=True))
    return [
        Turns([[rank[number] for rank in ranks] for ranks in by_round])
        for number in range(len(trainers) if everyone else 0)
    ]


Ways = Mapping[str, Callable[[], object]]
"""Ways to do the same, which are timed in turns."""


def alternate(
    competitors: Ways,
    turns: int,
    *,
    warm: int = WARM,
    swap: bool = False,
    clock: Callable[[], float] = perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Time competitors in turns, A B C A B C ..., so that a drift of the machine's speed reaches all of them.

    `swap` reverses the order in every other turn; `before` is called before each competitor, untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for number in range(-warm, turns):
        for name in list(competitors)[:: -1 if swap and number % 2 else 1]:
            before()
            begun = clock()
            competitors[name]()
            taken = clock() - begun
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def median_ratio(seconds: Mapping[str, list[float]]) -> float:
    """Return the seconds of the last competitor over those of the first: the median of ratios turn by turn."""
    first, *_, last = seconds.values()
    return median(b / a for a, b in zip(first, last, strict=True))


def slowest_rank(ranks: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """Return the slowest rank's seconds of each competitor, turn by turn."""
    return {
        name: [max(turn) for turn in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]
    }


def rmat_graph(scale: int, degree: int, *, directed: bool) -> Csr:
    """Return a normalised R-MAT graph in a random order, without duplicates, with a self-loop at each vertex."""
    generator = Rmat(scale, degree, seed=0)
    source, target = generator.edges(range(generator.draws))
    raw = RawGraph(generator.n, source.numpy(), target.numpy())
    return cast(normalise_adjacency(raw, directed=directed)[0], torch.float32)


class Gcn:
    """A GCN outside the harness, made of another library's layers; an epoch is one step of Adam on the full graph."""

    def __init__(
        self,
        convolve: Callable[[int, Tensor], Tensor],
        layers: int,
        trained: Sequence[Tensor],
        data: tuple[Tensor, Tensor, Tensor],
        lr: float,
    ) -> None:
        """`convolve` is one layer, by its number; `data` are features, labels, and the mask of training vertices."""
        self.convolve, self.layers = convolve, layers
        self.X, self.y, self.counted = data
        self.optimizer = torch.optim.Adam(trained, lr=lr)

    def epoch(self) -> Tensor:
        """Train one epoch; return the loss before its step."""
        H = self.X
        for number in range(self.layers):
            H = self.convolve(number, H)
            H = H.relu() if number + 1 < self.layers else H
        loss = cross_entropy(H[self.counted], self.y[self.counted])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def named(name: str, params: Mapping[str, Any]) -> str:
    """Return a strategy and its parameters, as in g3 pipeline=full."""
    return " ".join([name, *(f"{key}={value}" for key, value in params.items())])
