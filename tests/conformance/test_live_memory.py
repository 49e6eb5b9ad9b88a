"""What the kit finds alive after a set-up: every tensor outside of the context's memory, but no optimizer state."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.comm.grid import Grid
from harness.conformance.case import Case, train_rank
from harness.conformance.case_list import make_case
from harness.conformance.live_memory import SetUpMemory
from harness.ledger import Ledger
from harness.ledger.vocabulary import AxisName
from harness.runtime.trainer import Trainer

Ranks = Callable[..., list[Any]]


def make_serial_case(optimizer: str) -> Case:
    case = make_case("serial", {AxisName.P: 1}, "serial")
    training = case.spec.training.model_copy(update={"optimizer": optimizer})
    return replace(case, spec=case.spec.model_copy(update={"training": training}))


def test_states_of_the_optimizer_are_not_reported(ranks: Ranks) -> None:
    (result,) = ranks(1, train_rank, make_serial_case("adam"), 1)
    assert result.uncounted == []


class Wrapper:
    """An object of a foreign library, whose attributes cannot be listed."""

    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"symbol {name} does not exist")


def report_planted(case: Case) -> list[tuple[str, int]]:
    """Plant tensors and arrays in a trained rank, and return their owners and bytes as they are reported."""
    strategy, store, device = case.strategy(), case.store(), torch.device("cpu")
    old, strategy.early = torch.zeros(7), torch.zeros(6)  # type: ignore[attr-defined]
    memory = SetUpMemory(strategy, device)
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=False), device), store)
    rows: Any = trainer.operators
    rows.old, rows.view_of_held, rows.empty = old, rows.X[:1], torch.zeros(0, 3)
    rows.table = {"a": [torch.zeros(4)]}
    rows.library = Wrapper()
    rows.array = np.zeros((3, 6))[1]
    rows.read = partial(torch.add, torch.zeros(5))
    trainer.optimizer.momenta = [torch.zeros(8)]  # type: ignore[attr-defined]
    cycle: list[Any] = [torch.zeros(9)]
    cycle.append(cycle)
    del cycle
    return [(each.owner, each.bytes) for each in memory.find_uncounted(trainer)]


def test_each_storage_that_came_to_life_is_reported_once_with_its_owner(ranks: Ranks) -> None:
    (found,) = ranks(1, report_planted, make_serial_case("sgd"))
    assert found == [
        ("operators.array", 144),
        ("strategy.early", 24),
        ("operators.read[0]", 20),
        ("operators.table['a'][0]", 16),
    ]


def find_orphan(case: Case) -> list[str]:
    strategy, store, device = case.strategy(), case.store(), torch.device("cpu")
    memory = SetUpMemory(strategy, device)
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=False), device), store)
    unreachable = (torch.zeros(3),)
    gc.collect()
    found = [each.owner for each in memory.find_uncounted(trainer)]
    assert len(unreachable) == 1
    return found


def test_a_tensor_that_no_root_leads_to_is_reported_with_the_kind_of_its_owner(ranks: Ranks) -> None:
    (found,) = ranks(1, find_orphan, make_serial_case("sgd"))
    assert found == ["an object of type tuple"]


def search_among_traced_tensors(case: Case) -> list[str]:
    """Keep tensors as torch's compiler makes them to trace a function: with a device, and without memory."""
    strategy, store, device = case.strategy(), case.store(), torch.device("cpu")
    with FakeTensorMode():
        early, late = torch.zeros(3), torch.zeros(4)
    for traced in (early, late):
        torch._C._set_throw_on_mutable_data_ptr(traced)
    memory = SetUpMemory(strategy, device)
    trainer = Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=False), device), store)
    trainer.operators.traced = late  # type: ignore[attr-defined]
    return [each.owner for each in memory.find_uncounted(trainer)]


def test_tensors_that_a_compiler_traces_with_have_no_memory(ranks: Ranks) -> None:
    """After a normalisation that torch compiled, such tensors are alive in the rank."""
    (found,) = ranks(1, search_among_traced_tensors, make_serial_case("sgd"))
    assert found == []
