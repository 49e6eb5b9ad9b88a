"""Describes a dataset for people: its card and, if its store is built, its manifest."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from harness.ranges import ranges_between
from harness.spec.dataset import DatasetChoice
from harness.store.catalog import load_card
from harness.store.contents import get_generator
from harness.store.dataset_card import DatasetCard
from harness.store.datasets import locate_store
from harness.store.manifest import Cut
from harness.store.reader import Store


def describe_dataset(root: Path, choice: DatasetChoice) -> dict[str, Any]:
    """Describe a dataset, without its list of files."""
    card = load_card(root, choice.name)
    folder = locate_store(root, card, choice)
    store = Store(folder) if folder.exists() else None
    facts = {
        "card": _drop_unknown(card.model_dump(mode="json")),
        "folder": str(folder),
        "built": folder.exists(),
    }
    if counts := describe_nonzeros(card, store):
        facts["nonzeros"] = counts
    if store:
        facts["manifest_hash"] = store.manifest_hash
        manifest = store.manifest.model_dump(mode="json", exclude={"files", "provenance", "cut"})
        facts["manifest"] = _drop_unknown(manifest)
        facts["degrees"] = _describe_degrees(store)
        facts["bytes"] = sum(record.bytes for record in store.manifest.files.values())
        if store.manifest.cut:
            facts["cut"] = _describe_cut(store.manifest.cut)
    return facts


def _drop_unknown(data: Any) -> Any:
    """Return the data without nulls, empty strings and mappings that hold only such values."""
    if not isinstance(data, dict):
        return data
    kept = {key: _drop_unknown(value) for key, value in data.items()}
    return {key: value for key, value in kept.items() if value not in (None, "", {})}


def describe_nonzeros(card: DatasetCard, store: Store | None) -> dict[str, Any]:
    """Return the nonzeros that a card expects (for a twin, the published number) and how far a store deviates.

    For a generated graph, include the number of draws, some of which give loops and duplicates.
    """
    if card.nonzeros is None:
        return {}
    counts: dict[str, Any] = {"expected": card.nonzeros}
    if generator := get_generator(card):
        counts["draws"] = generator.draws
    if store:
        counts |= {"built": store.nnz, "deviation": f"{store.nnz / card.nonzeros - 1:+.3%}"}
    return counts


def _describe_degrees(store: Store) -> dict[str, Any]:
    """Summarize the entries per row of A, loops included, and the share of the densest hundredth of the rows."""
    degrees = np.sort(store.degrees(range(store.n)).numpy())
    top = degrees[-max(len(degrees) // 100, 1) :]
    return {
        "least": int(degrees[0]),
        "median": float(np.median(degrees)),
        "mean": float(degrees.mean()),
        "most": int(degrees[-1]),
        "share_of_top_hundredth": float(top.sum() / degrees.sum()),
    }


def _describe_cut(cut: Cut) -> dict[str, Any]:
    """Summarize the balance of the parts, and the rows that they exchange; each row is sent once.

    The maximum of vertices, of nonzeros and of needed rows, and the total of needed rows, are the four costs of G3.
    """
    sizes = [len(part) for part in ranges_between(cut.bounds)]
    return _describe_vertex_cut(cut) | {
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


def _describe_vertex_cut(cut: Cut) -> dict[str, Any]:
    """Summarize the copies of vertices and the balance of edges; empty unless the partition is a vertex cut."""
    if cut.copies is None or cut.entries is None:
        return {}
    return {
        "vertex_cut": {
            "replication_factor": sum(cut.copies) / cut.bounds[-1],
            "copies": {"fewest": min(cut.copies), "most": max(cut.copies)},
            "nonzeros": {"most": max(cut.entries), "most_over_mean": max(cut.entries) / fmean(cut.entries)},
        }
    }
