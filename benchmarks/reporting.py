"""Trains with a strategy in new processes, and prints the loss of each epoch.

python -m benchmarks.reporting SPEC.json
"""

import re
import sys
from pathlib import Path

from benchmarks.measuring import trainer_of
from harness.runtime.launch.worker_pool import Pool
from harness.spec.spec import Spec

REPORT = re.compile(r"Epoch (\d+): loss (\S+)")
PATIENCE = 1e5
"""Seconds that a rank waits for others; it may be stopped in between."""


def train_rank(spec: Spec) -> None:
    """Train on one rank; the first one prints the losses, which are the same on all."""
    trainer = trainer_of(spec)
    for epoch in range(spec.training.epochs):
        loss = float(trainer.epoch().loss)
        if trainer.ctx.grid.rank == 0:
            print(f"Epoch {epoch}: loss {loss}", flush=True)


def main() -> None:
    """Train as the file of a spec says."""
    spec = Spec.model_validate_json(Path(sys.argv[1]).read_text())
    with Pool(patience=PATIENCE) as pool:
        pool.run(spec.ranks, train_rank, spec)


if __name__ == "__main__":
    main()
