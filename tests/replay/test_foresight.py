"""A replay computes what other ranks would send without recording it for its rank, because no rank does so in a run."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.comm.grid import Grid
from harness.conformance.case import make_check_graph
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import Key, Op, Phase
from harness.ledger.tape import Event, Tape
from harness.prediction.replay import Meter, replay
from harness.registry import load_strategy
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from harness.strategy import Strategy, admit, facts_of

RANKS = 3
STORE = MemoryStore(make_check_graph(211))


def strategy(name: str, params: dict[str, Any]) -> Strategy:
    """Three ranks, 211 vertices: blocks are uneven."""
    kind = load_strategy(name)
    spec = {
        "strategy": {"name": name, "params": params},
        "dataset": "any",
        "ranks": RANKS,
        "grid": kind.grids(RANKS)[0],
        "model": {"layers": 2, "hidden": 8},
        "training": {"batch": 20},
        "machine": {"name": "any"},
    }
    return admit(kind, Spec.model_validate(spec), facts_of(STORE))


def kernels(events: list[Event]) -> Counter[Key]:
    """The kernels that are no products, by key, of drawing and of fetching."""
    found = Counter[Key]()
    for event in events:
        if event.key.phase in (Phase.SAMPLE, Phase.FETCH):
            found[event.key] += event.kernels
    return found


def taped_epoch(name: str, params: dict[str, Any]) -> Counter[Key]:
    """The kernels of a rank of a real world in its first epoch."""
    trained, tape = strategy(name, params), Tape()
    trainer = Trainer(trained, Grid.build(trained.grid, tape, torch.device("cpu")), STORE)
    with Meter(tape):
        trainer.epoch()
    return kernels(tape.events)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("distdgl", {}),
        ("quiver", {"prefetch": False}),
        ("massivegnn", {"prefetch": False, "every": 2}),
        ("bulk-sage", {"cache": 0.3}),
    ],
)
def test_a_replay_charges_no_more_kernels_than_a_taped_run_has(
    name: str, params: dict[str, Any], ranks: Callable[..., list[Any]]
) -> None:
    """Kernels of all ops are equal but for copies: those from the host to shapes are none in a run on the CPU."""
    planned = strategy(name, params)
    for rank, ran in enumerate(ranks(RANKS, taped_epoch, name, params)):
        replayed = kernels(replay(planned, rank, STORE).events)
        assert replayed.keys() == ran.keys()
        for key in ran:
            assert (replayed[key] >= ran[key]) if key.op is Op.COPY else (replayed[key] == ran[key]), key
