"""The facts of a dataset: its card and, if its store is built, its manifest."""

from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.graph.blocks import Blocks, stripes
from harness.graph.order import orders
from harness.kernels.csr import row_indices
from harness.progress import OnStep, ignore_step
from harness.ranges import ranges_between
from harness.spec.dataset import DatasetChoice
from harness.store.build import store_folder
from harness.store.catalog import load_card
from harness.store.compose import generator_of
from harness.store.dataset_card import DatasetCard
from harness.store.manifest import Cut
from harness.store.reader import Store


def info(root: Path, choice: DatasetChoice) -> dict[str, Any]:
    """The facts of a dataset, without the list of files."""
    card = load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    store = Store(folder) if folder.exists() else None
    known = {"card": _known(card.model_dump(mode="json")), "folder": str(folder), "built": folder.exists()}
    if counts := nonzeros(card, store):
        known["nonzeros"] = counts
    if store:
        known["manifest_hash"] = store.manifest_hash
        manifest = store.manifest.model_dump(mode="json", exclude={"files", "provenance", "cut"})
        known["manifest"] = _known(manifest)
        known["degrees"] = _degrees(store)
        known["bytes"] = sum(record.bytes for record in store.manifest.files.values())
        if store.manifest.cut:
            known["cut"] = _summary(store.manifest.cut)
    return known


def _known(data: Any) -> Any:
    """The data without what is unknown: null, an empty text, and mappings that hold nothing else."""
    if not isinstance(data, dict):
        return data
    kept = {key: _known(value) for key, value in data.items()}
    return {key: value for key, value in kept.items() if value not in (None, "", {})}


def nonzeros(card: DatasetCard, store: Store | None) -> dict[str, Any]:
    """The nonzeros that a card expects (for a twin, the published number), and the deviation of a store from this.

    For a drawn graph, the draws too: loops and duplicates among the draws are lost.
    """
    if card.nonzeros is None:
        return {}
    known: dict[str, Any] = {"expected": card.nonzeros}
    if generator := generator_of(card):
        known["draws"] = generator.draws
    if store:
        known |= {"built": store.nnz, "deviation": f"{store.nnz / card.nonzeros - 1:+.3%}"}
    return known


def _degrees(store: Store) -> dict[str, Any]:
    """The entries of a row of A, loops included, and the share of all entries in the fullest hundredth of the rows."""
    degrees = np.sort(store.degrees(range(store.n)).numpy())
    top = degrees[-max(len(degrees) // 100, 1) :]
    return {
        "least": int(degrees[0]),
        "median": float(np.median(degrees)),
        "mean": float(degrees.mean()),
        "most": int(degrees[-1]),
        "share_of_top_hundredth": float(top.sum() / degrees.sum()),
    }


def _summary(cut: Cut) -> dict[str, Any]:
    """The balance of the parts and the rows that parts exchange, each sent once; rows times a width are words.

    The most vertices, the most nonzeros, the most rows needed and the total of rows are the four costs of G3's cuts.
    """
    sizes = [len(part) for part in ranges_between(cut.bounds)]
    return _vertex_cut(cut) | {
        "vertices": {"fewest": min(sizes), "most": max(sizes)},
        "nonzeros": {
            "most": max(cut.nonzeros),
            "mean": fmean(cut.nonzeros),
            "most_over_mean": max(cut.nonzeros) / fmean(cut.nonzeros),
        },
        "rows_needed": {
            "total": sum(cut.needed),
            "most": max(cut.needed),
            "fewest_over_most": min(cut.needed) / max(cut.needed) if max(cut.needed) else 1.0,
        },
        "parts": [
            {"vertices": size, "nonzeros": nonzeros, "rows_needed": needed}
            for size, nonzeros, needed in zip(sizes, cut.nonzeros, cut.needed, strict=True)
        ],
    }


def _vertex_cut(cut: Cut) -> dict[str, Any]:
    """The copies of a vertex, in the mean over all vertices, and the balance of the edges; nothing for other cuts."""
    if cut.copies is None or cut.entries is None:
        return {}
    return {
        "vertex_cut": {
            "replication_factor": sum(cut.copies) / cut.bounds[-1],
            "copies": {"fewest": min(cut.copies), "most": max(cut.copies)},
            "nonzeros": {"most": max(cut.entries), "most_over_mean": max(cut.entries) / fmean(cut.entries)},
        }
    }


# The balance of the nonzeros of a graph over shards, in each order that its vertices can have.
#
# A single permutation spreads every edge and leaves all loops in the shards on the diagonal: the fullest of
# g x g shards has (nnz - n + g n) / nnz times the mean. A double permutation spreads the loops too. No
# permutation evens out degrees: a star stays a star. Verifier (tests/store/test_balance.py): the permuted
# matrix, cut by scipy.


class Balance(NamedTuple):
    """The fullest shard over the mean, in one order."""

    order: str
    most_over_mean: float


class Positions(NamedTuple):
    """The shard of every vertex as a row, and as a column."""

    rows: Tensor
    cols: Tensor


def balance(blocks: Blocks, shards: int, seed: int = 0, on_step: OnStep = ignore_step) -> list[Balance]:
    """The balance of a graph in its original order, over shards x shards blocks of ceil(n / shards) vertices."""
    assert blocks.permutation == "none", blocks.permutation
    assert blocks.bounds is None, blocks.bounds
    by_order = {kind: _positions(kind, blocks.n, shards, seed) for kind in ("none", "single", "double")}
    counts = {kind: torch.zeros(shards * shards, dtype=torch.int64) for kind in by_order}
    loops = torch.zeros(shards * shards, dtype=torch.int64)
    for rows, A in stripes(blocks, range(blocks.n)):
        on_step(rows.start, blocks.n, "counting entries, vertex by vertex")
        row, col = row_indices(A) + rows.start, A.col.long()
        for kind, at in by_order.items():
            counts[kind] += torch.bincount(at.rows[row] * shards + at.cols[col], minlength=shards**2)
        at = by_order["single"]
        itself = row[row == col]
        loops += torch.bincount(at.rows[itself] * shards + at.cols[itself], minlength=shards**2)
    counts["single, loops apart"] = counts["single"] - loops
    return [Balance(kind, _most_over_mean(count)) for kind, count in counts.items()]


def law_of_loops(n: int, nonzeros: int, shards: int) -> float:
    """The fullest shard over the mean, as expected for a single permutation of a graph without hubs."""
    return (nonzeros - n + shards * n) / nonzeros


def _positions(kind: str, n: int, shards: int, seed: int) -> Positions:
    p, q = orders(kind, n, seed)  # type: ignore[arg-type]
    shard = torch.arange(n) // -(-n // shards)
    rows, cols = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=torch.int64)
    rows[p], cols[q] = shard, shard
    return Positions(rows, cols)


def _most_over_mean(counts: Tensor) -> float:
    total = int(counts.sum())
    return int(counts.max()) * len(counts) / total if total else 1.0
