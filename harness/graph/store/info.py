"""Describes a dataset for people: what its card expects and, if its store is built, what was counted."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from harness.base.errors import UserError
from harness.base.formatting import format_bytes, format_count
from harness.base.ranges import ranges_between
from harness.graph.blocks import Blocks, read_row_stripes
from harness.graph.cards.catalog import load_card
from harness.graph.cards.class_names import list_class_names
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import SPLITS, LabelTask, StageCounts, Weighting
from harness.graph.store.contents import get_generator
from harness.graph.store.datasets import open_dataset
from harness.graph.store.location import (
    describe_order,
    find_missing_file,
    is_built,
    list_build_commands,
    locate_store,
)
from harness.graph.store.manifest import Cut, read_manifest
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder

WEIGHTS = {
    None: "every edge has weight 1",
    "normalised": "those of the file, normalised by weighted degrees",
    "raw": "those of the file as given, and 0 at loops that are not in the file",
}
"""Descriptions of the weights of A."""
MOST_NAMES = 12
"""The names of classes that are listed for people."""


@dataclass(frozen=True)
class StoreSummary:
    """A store of the dataset, in one order of the vertices."""

    order: str
    folder: Path
    bytes: int


@dataclass(frozen=True)
class DatasetDescription:
    """The facts about a dataset. A fact is None if the card does not have it and the graph is not built."""

    name: str
    description: str
    source: str
    """The kind of the source, and where its files come from."""
    licence: str
    folder: Path
    """The folder of the store in the requested order, whether or not it is built."""
    built: bool
    """True if the store exists in the requested order."""
    counted: bool
    """True if the counts are of the graph itself, and False if its card expects them."""
    vertices: int | None
    edges: int | None
    """Without loops and duplicates; an undirected edge counts once."""
    nonzeros: int | None
    """The nonzeros of A, with a loop at every vertex."""
    expected_nonzeros: int | None
    draws: int | None
    """The number of draws of a generated graph."""
    mean_degree: float | None
    """The number of neighbours of a vertex, without itself; on a directed graph, of incoming edges."""
    max_degree: int | None
    counts: StageCounts | None
    """The number of entries at each stage of normalisation."""
    directed: bool
    weights: Weighting | None
    features: int | None
    generated_data: str
    """The features, labels and split that are generated; empty if none is."""
    task: LabelTask
    classes: int
    class_names: list[str] | None
    split: dict[str, int] | None
    """The number of vertices of each part, and of those in no part (`none`)."""
    stores: list[StoreSummary]
    """All built stores of the dataset, in any order."""
    cut: dict[str, Any] | None
    """The balance of the parts and the rows that they exchange, if the order is a partition."""
    build: list[str]
    """The commands that build the store; empty if it is built, or made in memory."""

    def to_document(self) -> dict[str, Any]:
        """Return the facts that are known, for JSON."""
        known = {key: value for key, value in asdict(self).items() if value not in (None, "", [])}
        stores = [{**store, "folder": str(store["folder"])} for store in known.get("stores", [])]
        return {**known, "folder": str(self.folder), "stores": stores}

    def list_facts(self) -> list[tuple[str, str]]:
        """Return the facts of one line for people, as labels and values: all but the split and the parts."""
        return [(label, value) for label, value in self._name_facts() if value]

    def _name_facts(self) -> Iterator[tuple[str, str]]:
        yield "graph", self.description
        yield "source", self.source
        yield "licence", self.licence
        if not self.counted:
            yield "counts", "as its card expects them"
        yield "vertices", _format_number(self.vertices)
        if self.edges is not None:
            yield "edges", f"{self.edges:,} {'directed' if self.directed else 'undirected'}"
        yield "nonzeros of A", self._format_nonzeros()
        if self.mean_degree is not None:
            most = "" if self.max_degree is None else f", {self.max_degree:,} at most"
            yield "neighbours", f"{self.mean_degree:,.1f} on average{most}"
        if self.counts:
            yield (
                "entries of the source",
                (
                    f"{self.counts.stored:,}, of them {format_count(self.counts.loops, 'loop')} and "
                    f"{format_count(self.counts.duplicates, 'duplicate')}"
                ),
            )
        yield "weights", WEIGHTS[self.weights]
        yield "features", _format_number(self.features)
        yield "classes", self._format_classes()
        yield "generated", self.generated_data
        if self.counted and not self.stores:
            yield "built", "in memory, when it is opened"
        for store in self.stores:
            yield "built", f"{store.order} ({format_bytes(store.bytes)}): {store.folder}"

    def _format_nonzeros(self) -> str:
        if self.nonzeros is None:
            return ""
        if not self.counted or self.expected_nonzeros is None:
            return f"{self.nonzeros:,}"
        deviation = self.nonzeros / self.expected_nonzeros - 1
        return f"{self.nonzeros:,}, {deviation:+.3%} off the {self.expected_nonzeros:,} of its card"

    def _format_classes(self) -> str:
        if self.task == "multi-label":
            return f"{self.classes:,}, any number for each vertex"
        if not self.class_names:
            return f"{self.classes:,}"
        more = len(self.class_names) - MOST_NAMES
        names = ", ".join(self.class_names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
        return f"{self.classes:,}: {names}"


def describe_dataset(root: Path, choice: DatasetChoice) -> DatasetDescription:
    """Describe a dataset. Counts are those of the graph if it is built in any way, or made in memory."""
    card = load_card(root, choice.name)
    folder = locate_store(root, card, choice)
    built, stores = folder.exists(), list_stores(root, card)
    store = Store(folder) if built else None
    blocks = store or _open_other(root, choice, stores)
    n, edges, nonzeros = _count(blocks) if blocks else _expect(card)
    generator = get_generator(card)
    manifest = blocks.manifest if isinstance(blocks, Store) else None
    width = getattr(card.features, "width", None) or card.expected.features
    return DatasetDescription(
        name=card.name,
        description=card.description,
        source=describe_source(root, card),
        licence=card.licence,
        folder=folder,
        built=built,
        counted=blocks is not None,
        vertices=n,
        edges=edges // (1 if card.directed else 2) if blocks and edges is not None else edges,
        nonzeros=nonzeros,
        expected_nonzeros=card.nonzeros,
        draws=generator.draws if generator else None,
        mean_degree=_find_mean_degree(card, n, nonzeros),
        max_degree=_find_max_degree(blocks) - 1 if blocks else None,
        counts=manifest.counts if manifest else None,
        directed=card.directed,
        weights=card.weights,
        features=blocks.features if blocks else width,
        generated_data=card.describe_generated_data(),
        task=card.task,
        classes=card.classes,
        class_names=list_class_names(root, card),
        split=_count_split(blocks) if blocks else None,
        stores=stores,
        cut=_describe_cut(store.manifest.cut) if store and store.manifest.cut else None,
        build=[] if is_built(root, choice) else list_build_commands(root, card, choice),
    )


def list_details(root: Path, choice: DatasetChoice) -> dict[str, Any]:
    """Return the card of a dataset and, if its store is built, the manifest without the list of files."""
    card = load_card(root, choice.name)
    details = {"card": _drop_unknown(card.model_dump(mode="json"))}
    folder = locate_store(root, card, choice)
    if folder.exists():
        store = Store(folder)
        manifest = store.manifest.model_dump(mode="json", exclude={"files", "provenance", "cut"})
        details |= {"manifest_hash": store.manifest_hash, "manifest": _drop_unknown(manifest)}
    return details


def _drop_unknown(data: Any) -> Any:
    """Return the data without nulls, empty strings and mappings that hold only such values."""
    if not isinstance(data, dict):
        return data
    kept = {key: _drop_unknown(value) for key, value in data.items()}
    return {key: value for key, value in kept.items() if value not in (None, "", {})}


def list_stores(root: Path, card: DatasetCard) -> list[StoreSummary]:
    """Return the stores of a card that exist, in any order of the vertices. Stores of an older card are left out."""
    stores = []
    for folder in sorted((find_data_folder(root) / "store").glob(f"{card.name}-*")):
        try:
            manifest, _ = read_manifest(folder)
            if manifest.name != card.name or locate_store(root, card, manifest.choice) != folder:
                continue
        except UserError:  # it was made by another version, or its partition file is gone
            continue
        size = sum(record.bytes for record in manifest.files.values())
        stores.append(StoreSummary(describe_order(manifest.choice), folder, size))
    return stores


def describe_source(root: Path, card: DatasetCard) -> str:
    """Return the kind of the source and where its files come from."""
    remote = card.source.list_remote_files()
    if remote:
        more = f" and {format_count(len(remote) - 1, 'more file')}" if len(remote) > 1 else ""
        state = "not fetched" if find_missing_file(root, card) else "fetched"
        return f"{card.source.kind}, {remote[0].display_url}{more}, {state}"
    if generator := get_generator(card):
        return f"generated by {card.source.kind} in {format_count(generator.draws, 'draw')}"
    return f"{card.source.kind}, {', '.join(card.source.list_files())}"


def _open_other(root: Path, choice: DatasetChoice, stores: list[StoreSummary]) -> Blocks | None:
    """Open the graph in another order than the requested one, whose counts are the same; None if it is not built."""
    if stores:
        return Store(stores[0].folder)
    plain = DatasetChoice(name=choice.name)
    return open_dataset(root, plain) if is_built(root, plain) else None


def _count(blocks: Blocks) -> tuple[int, int, int]:
    """Return the vertices, the nonzeros of A without its loops, and all nonzeros of a graph."""
    return blocks.n, blocks.nnz - blocks.n, blocks.nnz


def _expect(card: DatasetCard) -> tuple[int | None, int | None, int | None]:
    """Return the vertices, the edges and the nonzeros that a card expects."""
    n = card.expected.n
    if n is None and (size := card.source.get_size()):
        n = size.vertices
    return n, card.edges, card.nonzeros


def _find_mean_degree(card: DatasetCard, n: int | None, nonzeros: int | None) -> float | None:
    if n is None:
        return None
    if nonzeros is not None:
        return nonzeros / n - 1
    return None if card.edges is None else card.edges * (1 if card.directed else 2) / n


def _find_max_degree(blocks: Blocks) -> int:
    """Return the entries of the fullest row of A."""
    if isinstance(blocks, Store):
        return int(blocks.degrees(range(blocks.n)).max())
    return max(int(A.rowptr.diff().max()) for _, A in read_row_stripes(blocks, range(blocks.n)))


def _count_split(blocks: Blocks) -> dict[str, int]:
    counts = torch.bincount(blocks.split(range(blocks.n)).long(), minlength=len(SPLITS) + 1).tolist()
    parts = {name: counts[value] for name, value in SPLITS.items()}
    return {**parts, "none": counts[0]} if counts[0] else parts


def _format_number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _describe_nonzeros(card: DatasetCard, store: Store | None) -> dict[str, Any]:
    """Return the nonzeros that a card expects, and the draws of a generator, with loops and duplicates."""
    if card.nonzeros is None:
        return {}
    counts: dict[str, Any] = {"expected": card.nonzeros}
    if generator := get_generator(card):
        counts["draws"] = generator.draws
    return counts | (card.compare_nonzeros(store.nnz) if store else {})


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
