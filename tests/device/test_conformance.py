"""Every strategy on GPUs: equal to serial training, to its formulas and to its replay, without waits in its epochs."""

import gc
import re
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.conformance import check
from harness.conformance.case import Case, RankResult, train_rank
from harness.conformance.suite import COSTLY, ON_GPUS
from harness.kernels.spmm import CACHED_PRODUCTS
from harness.ledger import AxisName, Ledger, clock_for
from harness.prediction.replay import replay
from harness.registry import load_strategy, registered_strategies
from harness.runtime.trainer import Epoch, Trainer
from harness.spec.spec import Spec
from harness.strategy.parallel import prefetch

OnGpus = Callable[..., list[Any]]
STRATEGIES = sorted(entry.name for entry in registered_strategies())
ELSEWHERE = {"pyg": "pyg-lib and torch-sparse, which it samples with, are not among the packages"}
"""Strategies that do not run on the fake GPUs, and the reasons."""

STATED = {
    "harness/kernels/parts.py": "the sizes of frontiers, of subgraphs and of one batch of a bulk",
    "harness/kernels/csr.py": "the number of candidates of a layer of bulk-ladies",
    "harness/strategy/parallel/row_requests.py": "the number of rows that others ask for, and their lengths",
    "strategies/sampling/vectorised.py": "the number of entries drawn, and of vertices in a bulk",
    "strategies/sampling/sampler.py": "the number of vertices that GraphSAINT draws more than once",
    "strategies/sampling/caches.py": "the number of hits in a cache, and of rows that leave it",
    "strategies/sampling/graph_15d.py": "the number of rows of a product, each of which is asked for once",
}
"""Files in which the host waits in an epoch of mini-batches, each time for the sizes named. In a full-graph epoch it
never waits."""
REPEATED = ("plexus", "distdgl")
"""The strategies that are trained twice here, one over the full graph and one on samples. On fake GPUs, whose kernels
are the host's, the others repeat what the kit shows on CPUs."""
PREFETCHING = ("salient", "quiver")
"""Strategies whose next mini-batch is drawn by a thread; their epochs have several steps here."""
SIZES = "nonzero", "repeat_interleave", "_unique2", "unique_consecutive", "device to host"
"""The waits for sizes: no tensor moves to a GPU but from pinned memory, and the host reads no single number."""
PINNED = "host to device, pinned", "device to host, pinned"
"""Copies from and to pinned memory, for which no host waits."""


def test_the_lists_name_strategies() -> None:
    assert ELSEWHERE.keys() <= set(STRATEGIES)


def trained_and_watched(case: Case, *arguments: Any) -> tuple[RankResult, Counter[tuple[str, str]]]:
    """A training of the kit, and the waits of this rank's host in its last epoch."""
    import fake_cuda

    epoch = Trainer.epoch

    def watched(trainer: Trainer) -> Epoch:
        fake_cuda.waits.clear()
        done = epoch(trainer)
        last.clear()
        last.update(fake_cuda.waits)
        return done

    last: Counter[tuple[str, str]] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "epoch", watched)
        return train_rank(case, *arguments), last


def unstated(waits: Counter[tuple[str, str]], *, sampled: bool) -> dict[tuple[str, str], int]:
    """The waits that the design of mini-batches does not state; every wait of an epoch over the full graph."""
    return {
        (what, line): n
        for (what, line), n in waits.items()
        if what not in PINNED and not (sampled and what in SIZES and line.partition(":")[0] in STATED)
    }


def conforms(
    on_gpus: OnGpus,
    name: str,
    known: Collection[str] = (),
    most: int | None = None,
    only: str | None = None,
) -> None:
    """Every check, and no wait in the third epoch of any case."""
    waited: dict[str, dict[tuple[str, str], int]] = {}
    sampled = load_strategy(name).mini_batches

    def run(world: int, function: Callable[..., Any], case: Case, *arguments: Any) -> list[RankResult]:
        if function is not train_rank:  # a check that trains differently, to compare with
            return on_gpus(world, function, case, *arguments)
        results = []
        for result, waits in on_gpus(world, trained_and_watched, case, *arguments):
            results.append(result)
            if others := unstated(waits, sampled=sampled):
                waited[case.name] = others
        return results

    findings = list(check(name, run, "quick", ON_GPUS, most, known=known, only=only))
    assert len(findings) > 10
    assert not [f"{each.check}: {each.detail}" for each in findings if not each.holds]
    assert not waited
    for each in findings:
        if each.check == "same seed, same bits":
            assert each.detail.endswith("; not deterministic here: The library's sparse product")


SLOWLY_DRAWN = ("bulk-ladies", "massivegnn", "quiver")
"""Strategies whose draws take fake GPUs minutes; distdgl, salient and bulk-sage run most of their code."""
SOME = "combination 1"
"""A part of the names of a third of the cases, the first and the tenth to the last combination of settings. The slow
tests try all cases."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOWLY_DRAWN))
        for name in STRATEGIES
        if name not in ELSEWHERE
    ],
)
def test_a_strategy_conforms(on_gpus: OnGpus, name: str) -> None:
    """Samples are the host's (test_kernels.py), whose mean the kit tests on CPUs; two trainings may differ on GPUs."""
    conforms(on_gpus, name, () if name in REPEATED else COSTLY, most=4, only=SOME)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ELSEWHERE])
def test_a_strategy_conforms_to_costly_checks(on_gpus: OnGpus, name: str) -> None:
    conforms(on_gpus, name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ELSEWHERE])
def test_a_strategy_conforms_on_two_gpus(on_gpus: OnGpus, name: str) -> None:
    """Quick checks have worlds of 1, 3 and 4 ranks."""
    conforms(on_gpus, name, COSTLY, most=2)


def steady_waits(case: Case, timed: bool = False) -> Counter[tuple[str, str]]:
    """The waits of this rank's host in its third epoch, which the device's clock may time."""
    import fake_cuda

    strategy = case.strategy()
    device = engine.select_device(Engine.NCCL, engine.rank())
    ledger = Ledger(clock_for(device)) if timed else Ledger(recording=False)
    grid = Grid.build(strategy.grid, ledger, device, wire=strategy.wire)
    trainer = Trainer(strategy, grid, case.store())
    for _ in range(2):
        trainer.epoch()
    fake_cuda.waits.clear()
    trainer.epoch()
    waits = Counter(fake_cuda.waits)
    grid.drain()
    return waits


PLANTED = Path(__file__).parent / "planted.py"
SEEN = {
    "HostIndex": "Expected all tensors to be on the same device",
    "UnevenGather": "disagree|output tensor size must be equal",
    "SwappedSend": "match in the order of their calls",
}


@pytest.mark.parametrize("mistake", SEEN)
def test_check_finds_mistakes_that_a_cpu_forgives(on_gpus: OnGpus, mistake: str) -> None:
    findings = check(f"{PLANTED}:{mistake}", on_gpus, "quick", ON_GPUS, 3)
    broken = next(each for each in findings if not each.holds)
    assert broken.check == "trains" and re.search(SEEN[mistake], broken.detail), broken


def test_a_number_that_a_step_reads_is_seen(on_gpus: OnGpus) -> None:
    case = case_of(f"{PLANTED}:Item", "gcn", {AxisName.P: 2}, {})
    for waits in on_gpus(2, steady_waits, case):
        assert {what for what, _ in waits} == {"_local_scalar_dense"}


def test_a_timed_epoch_waits_once_for_all_events(on_gpus: OnGpus) -> None:
    case = case_of("plexus", "gcn", load_strategy("plexus").grids(4)[0], {})
    for waits in on_gpus(4, steady_waits, case, True):
        ((what, line),) = waits.elements()
        assert (what, line.partition(":")[0]) == ("synchronize device", "harness/base/device.py")


class InTurn(ThreadPoolExecutor):
    """A thread that has made its item before the other thread goes on: the peak of two at work differs by the run."""

    def submit(self, *work: Any, **options: Any) -> "Future[Any]":
        made = super().submit(*work, **options)
        wait([made])
        return made


def peaks_of_an_epoch(case: Case) -> tuple[int, int]:
    """The most bytes of this rank's device in the passes of the first epoch; and from the making of a trainer on.

    The row pointers of 32 bits that a library of sparse products wants do not count: shapes alone do without.
    """
    strategy = case.strategy()
    device = engine.select_device(Engine.NCCL, engine.rank())
    gc.collect()
    before, kept, peaks = torch.cuda.memory_allocated(), kept_pointers(), [0]
    torch.cuda.reset_peak_memory_stats()
    grid = Grid.build(strategy.grid, Ledger(), device, wire=strategy.wire)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "ThreadPoolExecutor", InTurn)
        trainer = Trainer(strategy, grid, case.store())
        drawn = trainer.operators.for_step

        def of_step(step: int) -> Any:
            passes.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            operators = drawn(step)
            peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            return operators

        passes: list[int] = []
        patch.setattr(trainer.operators, "for_step", of_step)
        trainer.epoch()
    passes.append(torch.cuda.max_memory_allocated())
    peaks += passes
    beside = before + kept_pointers() - kept
    return max(passes) - beside, max(peaks) - beside


def kept_pointers() -> int:
    """The bytes of the row pointers that held matrices keep for products, those of earlier cases too."""
    return sum(each.pointers.nbytes for each in CACHED_PRODUCTS.values() if each.pointers is not None)


def case_of(
    name: str, kind: str, grid: dict[AxisName, int], params: dict[str, Any], *, recompute: bool = False
) -> Case:
    strategy, batch = load_strategy(name), 5 if name in PREFETCHING else 20
    spec = {
        "strategy": {"name": name, "params": params},
        "dataset": "check",
        "ranks": prod(grid.values()),
        "grid": grid,
        "model": {"kind": kind, "layers": 3, "hidden": 8, "heads": 2 if kind == "gat" else 8},
        "training": {"batch": batch if strategy.mini_batches else 0, "recompute": recompute},
        "machine": ON_GPUS,
    }
    return Case("steady", Spec.model_validate(spec), 211)


def choices() -> list[tuple[str, str, dict[str, Any]]]:
    """Every model of every strategy, with the usual parameters and with overlap."""
    return [
        (name, kind, params)
        for name in STRATEGIES
        if name not in ELSEWHERE
        for strategy in [load_strategy(name)]
        for kind in strategy.models
        for params in [{}, *([{"overlap": True}] if "overlap" in strategy.Params.model_fields else [])]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "params"), choices())
def test_no_host_waits_in_an_epoch(on_gpus: OnGpus, name: str, kind: str, params: dict[str, Any]) -> None:
    """Every model with and without overlap; the cases of the kit have each of them once."""
    strategy = load_strategy(name)
    world = next(ranks for ranks in (4, 3, 2, 1) if strategy.grids(ranks))
    for waits in on_gpus(world, steady_waits, case_of(name, kind, strategy.grids(world)[0], params)):
        assert not unstated(waits, sampled=strategy.mini_batches)


RECOMPUTED = ("plexus", "cagnet-1d", "salient")
PEAKS = [(name, False) for name in STRATEGIES if name not in ELSEWHERE] + [
    (name, True) for name in RECOMPUTED
]


@pytest.mark.parametrize(("name", "recompute"), PEAKS)
def test_a_replay_knows_the_peak_of_memory(on_gpus: OnGpus, name: str, recompute: bool) -> None:
    strategy = load_strategy(name)
    world = next(ranks for ranks in (4, 3, 2, 1) if strategy.grids(ranks))
    case = case_of(name, "gcn", strategy.grids(world)[0], {}, recompute=recompute)
    for rank, (passes, whole) in enumerate(on_gpus(world, peaks_of_an_epoch, case)):
        peak = replay(case.strategy(), rank, case.store()).peak_bytes
        if strategy.mini_batches:  # a replay does not know what drawing a mini-batch takes
            assert passes <= 1.03 * peak and peak <= 1.03 * whole
        else:
            assert peak == pytest.approx(whole, rel=0.03)
