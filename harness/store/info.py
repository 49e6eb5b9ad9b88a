"""What is known of a dataset: its card and, if its store is built, what the manifest says of it."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from harness.ranges import between
from harness.store.build import store_folder
from harness.store.card import DatasetCard
from harness.store.catalog import load_card
from harness.store.choice import DatasetChoice
from harness.store.compose import generator_of
from harness.store.manifest import Cut
from harness.store.reader import Store


def info(root: Path, choice: DatasetChoice) -> dict[str, Any]:
    """The facts, without the list of files."""
    card = load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    store = Store(folder) if folder.exists() else None
    known = {"card": card.model_dump(mode="json"), "folder": str(folder), "built": folder.exists()}
    if found := nonzeros(card, store):
        known["nonzeros"] = found
    if store:
        known["manifest_hash"] = store.manifest_hash
        known["manifest"] = store.manifest.model_dump(mode="json", exclude={"files", "provenance", "cut"})
        known["degrees"] = _degrees(store)
        known["bytes"] = sum(record.bytes for record in store.manifest.files.values())
        if store.manifest.cut:
            known["cut"] = _summary(store.manifest.cut)
    return known


def nonzeros(card: DatasetCard, store: Store | None) -> dict[str, Any]:
    """The nonzeros that a card expects, a twin's being the published ones, and how far a store is from them.

    Of a drawn graph the draws are told too: loops and duplicates among them are lost.
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
    """Entries of a row of A, the loop among them. The hundredth of the rows that has most holds this share of all."""
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
    """How even the parts are, and what they exchange: rows, each sent once; times a width they are words.

    The most vertices, nonzeros and rows needed, and the total of these, are the four costs by which G3 cuts.
    """
    sizes = [len(part) for part in between(cut.bounds)]
    return {
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
