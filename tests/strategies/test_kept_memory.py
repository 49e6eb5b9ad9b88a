"""All memory that a rank keeps on its device between steps is in its strategy's formula, or listed here.

A rank is replayed on shapes, where the device is torch's `meta`. The bytes that are alive after training are counted as
torch allocates and frees them, regardless of their owner. They must be in the formula, except for gradients and for the
listed exceptions, each of which has a reason.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import pytest
from torch import Tensor

from harness.base.errors import UserError
from harness.comm import engine
from harness.comm.call import Pending
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.comm.launchers import RankPlace
from harness.conformance.case import Case
from harness.conformance.case_list import choose_combined_grids, combine_choices, make_case
from harness.conformance.checks import ScipyCounts
from harness.ledger import Ledger, TensorName
from harness.ledger.tape import Tape
from harness.prediction.replay import Meter, replay
from harness.registry import load_strategy, registered_strategies
from harness.runtime.trainer import Trainer
from harness.strategies.sampling.bulk import Bulk
from harness.strategies.sampling.composition import StepSource
from harness.strategy import Strategy
from harness.strategy.parallel.prefetch import Prefetcher
from tests.conformance.mutants import __file__ as mutants

EXCEPTIONS: dict[tuple[type, str], str] = {
    (Pending, "_result"): "a message in flight, or one that has landed and is used in the next epoch",
    (Pending, "_started"): "a message in flight",
    (Prefetcher, "_pending"): "the item of the next step, made while this step is computed",
    (Prefetcher, "_thread"): "the items of the last steps, whose kernels may still run",
    (StepSource, "_in_flight"): "the next mini-batch of a system that prefetches, whose features travel",
    (
        Bulk,
        "layers",
    ): "the samples of a bulk, drawn for many steps at once: `Strategy.sample_bytes` states them",
    (Bulk, "shapes"): "the shapes of the same samples in a replay",
}
"""Memory that may be kept between steps without being in the formula, by owner's class and attribute, with the reason.

The graphs that samplers draw from are not here: they stay on the host.
"""
OF_THE_TRAINER = 1
"""The byte in which the trainer keeps whether its last output was finite."""
BUILT_IN = [point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")]
EPOCHS = 2


def objects_within(roots: Iterable[Any]) -> Iterator[Any]:
    """Return the objects reachable from others, except through modules, classes and the globals of functions."""
    seen, waiting = set[int](), list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, ModuleType | type | Ledger):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, FunctionType):
            waiting += [*(each.__closure__ or ()), *(each.__defaults__ or ())]
        elif not isinstance(each, Tensor | str | bytes | int | float):
            waiting += gc.get_referents(each)


def memory_of(tensors: Iterable[Any]) -> dict[int, int]:
    """Return the bytes of each distinct storage of meta tensors."""
    found = (each for each in tensors if isinstance(each, Tensor) and each.is_meta)
    return {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in found}


def excepted(operators: Any) -> dict[int, int]:
    """Return the storages of the EXCEPTIONS."""
    roots = [
        getattr(each, name, None)
        for each in objects_within([operators])
        for kind, name in EXCEPTIONS
        if isinstance(each, kind)
    ]
    return memory_of(objects_within(roots))


def unstated(case: Case, rank: int) -> tuple[int, list[str]]:
    """Return the bytes that are alive after training but not in the formula, and shapes that they may belong to."""
    strategy, tape = case.strategy(), Tape()
    device = engine.join_world(Engine.REPLAY, RankPlace(rank, case.spec.ranks))
    try:
        grid = Grid.build(strategy.grid, tape, device, wire=strategy.wire)
        with Meter(tape) as meter:
            trainer = Trainer(strategy, grid, case.store())
            memory = trainer.ctx.memory
            meter.memory.reset_peak(memory.host_shapes())
            for _ in range(EPOCHS * trainer.steps):
                trainer.step()
    finally:
        engine.leave_world()
    formula = strategy.memory(strategy.coordinates(rank), ScipyCounts(case.store()))
    gradients = memory_of(W.grad for W in trainer.parameters)
    held = memory_of([*(tensor for _, tensor in memory._held), *memory._on_host])
    others = {key: size for key, size in excepted(trainer.operators).items() if key not in held}
    stated = sum(formula.values()) + sum(gradients.values()) + sum(others.values()) + OF_THE_TRAINER
    shapes = [
        f"{tuple(each.shape)} of {each.dtype}"
        for each in objects_within([trainer.operators])
        if not memory_of([each]).keys() <= {*held, *gradients, *others}
    ]
    return meter.memory.now - stated, shapes


def cases_of(name: str, *, every: bool) -> list[Case]:
    """Return the kit's cases of a strategy on its grid with the most split axes: the standard case, or every case."""
    strategy: type[Strategy] = load_strategy(name)
    (grid, *more) = choose_combined_grids(strategy, 6)
    return [
        make_case(name, grid, "ordinary"),
        *(combine_choices(name, strategy, [grid, *more])[0] if every else ()),
    ]


def check(name: str, *, every: bool = False) -> None:
    for case in cases_of(name, every=every):
        try:
            case.strategy()
        except UserError:
            continue
        for rank in {0, case.spec.ranks - 1} if every else {case.spec.ranks - 1}:
            left, shapes = unstated(case, rank)
            assert left == 0, f"{case.description}, rank {rank}: {left:,} bytes in no formula; {shapes}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_memory_kept_between_steps_is_in_the_formula(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_memory_kept_between_steps_is_in_the_formula_in_every_case(name: str) -> None:
    check(name, every=True)


@pytest.mark.parametrize("name", ["cagnet-2d", "distgnn", "graphsage"])
def test_optimizer_states_are_in_the_peak_and_in_no_formula(name: str) -> None:
    case = cases_of(name, every=False)[0]
    training = case.spec.training.model_copy(update={"optimizer": "adam"})
    with_adam = replace(case, spec=case.spec.model_copy(update={"training": training}))
    formula = case.strategy().memory(case.strategy().coordinates(0), ScipyCounts(case.store()))
    peaks = [replay(each.strategy(), 0, each.store()).peak_bytes for each in (case, with_adam)]
    states = 2 * formula[TensorName.W]
    assert unstated(with_adam, 0)[0] == states > 0
    assert peaks[1] - peaks[0] >= states


@pytest.mark.parametrize("name", ["HoldsTwice", "KeepsApart"])
def test_tensor_that_is_not_in_the_formula_is_reported(name: str) -> None:
    with pytest.raises(AssertionError, match=r"bytes in no formula"):
        check(f"{mutants}:{name}")
