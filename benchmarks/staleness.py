"""Stale rows on a graph with real labels: accuracy by epoch and words, beside exact training.

    python benchmarks/staleness.py --dataset coauthor-cs

`distgnn` trains on a vertex cut by Libra, all others on parts by METIS. Every setting trains the same GCN from the same
weights, with several seeds; both layers multiply by W first, so all rows that travel have the widths 32 and of the
classes. Words are those of the rank that sends most, the mean over all epochs of training. Accuracies are of the test
vertices, the mean over the seeds and the lowest of them. Links play no part: nothing here is a time.
"""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from measuring import Table, argument_parser, named, one_thread, spec_of, trainer_of

from harness.launch.worker_pool import Pool
from harness.run.rank_tables import gather_tables
from harness.spec.spec import Spec

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("cagnet-1d", {}),
    *(("sancus", {"stale": bound}) for bound in (1, 3, 7, 15)),
    ("pipegcn", {}),
    ("distgnn", {}),
    *(("distgnn", {"delay": delay}) for delay in (1, 5)),
    ("distgnn", {"delay": 5, "gradients": "delayed"}),
    ("distgnn", {"aggregates": "none"}),
]
"""Exact training by broadcasts first, with whose words the others are compared."""
PATIENCE = 3600.0  # seconds


def curve(spec: Spec, at: Sequence[int]) -> tuple[list[float], float] | None:
    """The test accuracies after so many epochs, and the words of an epoch; on rank 0."""
    one_thread()
    trainer, words, accuracies = trainer_of(spec), 0.0, []
    for epoch in range(max(at)):
        words += sum(amounts.words_payload for amounts in trainer.epoch().entries.values())
        if epoch + 1 in at:
            accuracies.append(trainer.evaluate()[0]["test"].ratio)
    every = gather_tables(trainer.ctx.grid.world, words / max(at))
    trainer.ctx.grid.drain()
    return (accuracies, max(every)) if every else None


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="coauthor-cs")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[10, 20, 40, 80])
    options = parser.parse_args()
    one_thread()
    ends = [f"{'accuracy after ' if n == 0 else ''}{epochs}" for n, epochs in enumerate(options.epochs)]
    table, exact = Table("setting", "words an epoch", "of exact", *ends), 0.0
    with Pool(patience=PATIENCE) as pool:
        for name, params in SETTINGS:
            asked: dict[str, Any] = {
                "strategy": {"name": name, "params": params},
                "dataset": {"name": options.dataset, "partition": "libra" if name == "distgnn" else "metis"},
                "ranks": options.ranks,
                "model": {"layers": 2, "hidden": 32, "order": "combine_first"},
            }
            done = [
                pool.run(options.ranks, curve, spec_of({**asked, "seed": seed}), options.epochs)[0]
                for seed in range(options.seeds)
            ]
            words = done[0][1]
            exact = exact or words
            columns = zip(*(accuracies for accuracies, _ in done), strict=True)
            cells = [f"{100 * mean(each):.2f} % ({100 * min(each):.2f})" for each in columns]
            table.row(named(name, params), f"{words:,.0f}", f"{words / exact:.3f}", *cells)


if __name__ == "__main__":
    main()
