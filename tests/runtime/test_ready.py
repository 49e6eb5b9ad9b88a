"""Kernels are ready before the first epoch that counts, and a run has the same bits with that and without."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.comm.grid import Grid
from harness.experiment.requests import make_spec
from harness.ledger import Ledger
from harness.runtime.open_run import open_run, warm_up
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec
from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WATCHED = """
import json, sys
from pathlib import Path
from numba.core import event
from harness.comm.launchers import RankPlace
from harness.runtime import rank

inside, outside, training = [], [], []

class Listener(event.Listener):
    def on_start(self, happening):
        (inside if training else outside).append(str(happening.data["dispatcher"]))
    def on_end(self, happening): ...

event.register("numba:compile", Listener())
epoch = rank.Trainer.epoch

def watched(trainer, **how):
    training.append(True)
    try:
        return epoch(trainer, **how)
    finally:
        training.clear()

rank.Trainer.epoch = watched
scratch = Path(sys.argv[1])
assert rank.run_and_report_faults(RankPlace(), Path(sys.argv[2]), scratch, scratch / "runs") == 0
assert not {"torch._dynamo", "triton"} & sys.modules.keys()  # their imports take seconds
print(json.dumps([len(inside), len(outside)]))
"""


def asked(strategy: str, ranks: int, **training: Any) -> Spec:
    wanted = {"epochs": 3, "warmup": 0, **training}
    return make_spec(
        ROOT, {"strategy": strategy, "dataset": "tiny-sbm", "ranks": ranks, "training": wanted}, "test"
    )


def trained(spec: Spec, ready: bool) -> tuple[list[float], list[Any], list[float], dict[Any, int]]:
    """Losses, parameters, words of each epoch and bytes held, of one rank."""
    strategy, blocks = open_run(ROOT, spec)
    grid = Grid.build(strategy.grid, Ledger())
    if ready:
        warm_up(strategy, grid, blocks)
    trainer = Trainer(strategy, grid, blocks)
    epochs = [trainer.epoch() for _ in range(spec.training.epochs)]
    words = [sum(amounts.elements_payload for amounts in epoch.entries.values()) for epoch in epochs]
    losses, held = [epoch.loss.item() for epoch in epochs], trainer.ctx.memory.persistent_bytes()
    parameters = [parameter.detach().clone() for parameter in trainer.parameters]
    grid.drain()
    return losses, [each.numpy().tobytes() for each in parameters], words, held


@pytest.mark.parametrize(
    ("strategy", "batch"),
    [("cagnet-1d", 0), ("pipegcn", 0), ("g3", 0), ("massivegnn", 50), ("scalegnn", 50), ("bulk-sage", 50)],
)
def test_a_run_has_the_same_bits_with_it_and_without(
    strategy: str, batch: int, ranks: Callable[..., list[Any]]
) -> None:
    """Stale rows, buffers that evict, mini-batches by number, prefetched and overlapped messages."""
    spec = asked(strategy, 2, batch=batch)
    assert ranks(2, trained, spec, True) == ranks(2, trained, spec, False)


def test_nothing_is_compiled_in_an_epoch_that_counts(tmp_path: Path) -> None:
    """By the compiler's own word, with an empty cache."""
    (tmp_path / "spec.json").write_text(asked("graphsaint-node", 1, batch=50).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path), str(ROOT)],
        env=with_python_path(ROOT, NUMBA_CACHE_DIR=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    inside, outside = map(int, done.stdout.strip().strip("[]").split(","))
    assert inside == 0
    assert outside > 0
