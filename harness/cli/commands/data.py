"""harness data: fetches, imports, builds, verifies and measures graphs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict
from dataclasses import dataclass as plain_dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import GIB, format_bytes, format_count
from harness.base.validation import CLASSES, RANKS, VERTICES, validate
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import (
    Block,
    Command,
    FactList,
    Headline,
    Table,
    TableColumn,
    View,
)
from harness.cli.commands.request import CONFIG, File, OptionStyle, Request, split_commas
from harness.cli.commands.verb import Reporter, verb
from harness.spec.dataset import DatasetChoice

if TYPE_CHECKING:
    from harness.base.progress import Log
    from harness.graph.builders.resources import BuildResources
    from harness.graph.store.manifest import Manifest

LEAST_GIB, MOST_GIB = 1 / 64, 1 << 20
MAX_SHARDS = 4096
"""The maximum number of blocks along a side: their counts take some hundred MiB."""
KnownName = Annotated[str, OptionStyle(metavar="NAME", is_positional=True, completes="datasets")]
PartCounts = Annotated[
    tuple[Annotated[int, Field(ge=0, le=RANKS)], ...],
    BeforeValidator(split_commas),
    OptionStyle(metavar="P[,P...]"),
]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...],
    BeforeValidator(split_commas),
    OptionStyle(metavar="S[,S...]"),
]


@dataclass(frozen=True, config=CONFIG)
class GraphRequest(Request):
    """A graph."""

    name: KnownName
    """A name of `harness list datasets`, or a twin such as ogbn-products@1/16."""


@dataclass(frozen=True, config=CONFIG)
class OrderRequest(GraphRequest):
    """A graph in one or several orders of its vertices."""

    _: KW_ONLY
    permutation: Literal["none", "single", "double"] = "none"
    """A random order of the vertices: one for rows and columns, or one for each."""
    partition: Annotated[str, OptionStyle(metavar="NAME")] = "block"
    """The method that assigns vertices to parts: block, random, metis, metis-volume, metis-balanced, g3-literal,
    g3-guarded, hypergraph, libra, or file:NAME for the file partitions/NAME of the data folder."""
    parts: PartCounts = (0,)
    """The number of parts of the partition, equal to the number of ranks that split the rows; `build` and `verify` take
    several."""
    seed: Seeds = (0,)
    """The seed of the permutation or of the partition; `build` and `verify` take several."""

    def choose_order(self, verb: str) -> DatasetChoice:
        """Return the order that the options choose. Raises UserError if they choose several."""
        first, *others = self.list_orders(verb)
        if others:
            raise UserError(f"{verb} takes one order: one value of --parts and one of --seed.")
        return first

    def list_orders(self, verb: str) -> list[DatasetChoice]:
        """Return the orders that the options choose: each number of parts with each seed."""
        chosen = {"name": self.name, "permutation": self.permutation, "partition": self.partition}
        return [
            validate(
                DatasetChoice, {**chosen, "parts": parts, "seed": seed}, f"harness data {verb}", name_option
            )
            for parts, seed in product(self.parts, self.seed)
        ]


@dataclass(frozen=True, config=CONFIG)
class BuiltOrderRequest(OrderRequest):
    """An order to build, and what the build may use."""

    _: KW_ONLY
    memory: Annotated[float, Field(ge=LEAST_GIB, le=MOST_GIB), OptionStyle(metavar="GIB")] = 4.0
    """The maximum memory of the build, in GiB."""
    workers: Annotated[int, Field(ge=0, le=4096), OptionStyle(metavar="N")] = 0
    """The number of threads (default: one for each core)."""

    def make_resources(self, log: "Log") -> "BuildResources":
        """Return the memory and the threads of the build."""
        from harness.graph.builders.resources import BuildResources

        workers = self.workers or len(os.sched_getaffinity(0))
        return BuildResources(int(self.memory * GIB), workers, log)


def name_option(key: str) -> str:
    """Return the option that sets a key of a graph. The name of the graph is an argument."""
    return {"name": "NAME", "origin": "--from"}.get(key, f"--{key}")


def count_store_bytes(manifest: "Manifest") -> int:
    """Return the bytes of the files of a store."""
    return sum(record.bytes for record in manifest.files.values())


# Fetch.


class FetchedFile(NamedTuple):
    """A complete file."""

    bytes: int
    file: Path


@plain_dataclass(frozen=True)
class FetchAnswer(Answer):
    """The files of a graph, which are complete."""

    headline: Headline
    name: str
    files: Sequence[FetchedFile]


@verb(GraphRequest)
def fetch(request: GraphRequest, reporter: Reporter) -> FetchAnswer:
    """Download the files of a graph.

    Resumes a broken download, and checks every file against its card. A generated graph needs no files. The environment
    variable HARNESS_MIRROR names a server that has copies of the files.
    """
    from harness.graph.fetch.download import fetch_dataset

    root = request.home
    choice = validate(DatasetChoice, {"name": request.name}, "harness data fetch", name_option)
    files = [
        FetchedFile(path.stat().st_size, path) for path in fetch_dataset(root, request.name, reporter.log)
    ]
    size = format_bytes(sum(file.bytes for file in files))
    done = (
        f"is fetched: {format_count(len(files), 'file')}, {size}"
        if files
        else "needs no file from the network"
    )
    return FetchAnswer(Headline(f"{choice.name} {done}"), choice.name, files)


# Import.

COUNTS = {
    "vertices": "vertices",
    "stored": "entries in the file",
    "loops": "of them self-loops",
    "duplicates": "of them duplicates",
    "nnz_sym": "nonzeros after symmetrising, without loops and duplicates",
    "nnz_adj": "nonzeros of A, with a loop at every vertex",
    "features": "features",
    "classes": "classes",
}
"""Descriptions of the counts of an imported graph."""


@dataclass(frozen=True, config=CONFIG)
class ImportedGraphRequest(BuiltOrderRequest):
    """The files of a new graph, and how to read them."""

    name: Annotated[str, OptionStyle(metavar="NAME", is_positional=True)]
    """The name of the new graph."""
    _: KW_ONLY
    edges: File = None
    """The graph: .txt, .csv, .tsv, .triples (also .gz), or .mtx, .npz, .parquet, .graph, .pt."""
    features: File = None
    """A row for each vertex: .npy, .csv, .txt."""
    labels: File = None
    """A number or a word for each vertex, or pairs under the column names node,label; -1, NaN or an empty field for
    none. Or a column of 0 and 1 for each class."""
    split: File = None
    """For each vertex 1, 2, 3 or train, valid, test; or pairs under the column names node,split; or three masks as
    columns."""
    origin: Annotated[str | None, OptionStyle("--from", metavar="ORIGIN")] = None
    """A published graph to download instead: suitesparse:GROUP/NAME (a matrix of the SuiteSparse collection) or
    ogb:NAME (a node property prediction dataset of OGB)."""
    directed: bool = False
    """Edges are directed."""
    weights: Literal["normalised", "raw"] | None = None
    """A has the weights of the edges, normalised by weighted degrees or as given (default: every edge has weight 1,
    even if the file has weights)."""
    names: bool = False
    """Edges in text or parquet files are pairs of names. Vertices are numbered in the sorted order of names. Text files
    of features, labels or a split have the name first in each line."""
    vertices: Annotated[int | None, Field(ge=1, le=VERTICES), OptionStyle(metavar="N")] = None
    """The number of vertices (default: up to the largest id)."""
    base: Literal[0, 1] = 0
    """The first vertex id in text files."""
    header: bool = False
    """The first line of text files has column names."""
    classes: Annotated[int | None, Field(ge=1, le=CLASSES), OptionStyle(metavar="K")] = None
    """The number of classes (default: up to the largest label; 32 for generated labels)."""


@plain_dataclass(frozen=True)
class ImportAnswer(Answer):
    """The imported graph: its store, its card, and the counts of its files."""

    name: str
    store: Path
    card: Path
    counts: Mapping[str, int]
    bytes: int
    weights: str | None
    names: Path | None
    """The file with the names of the vertices, in their order."""
    class_names: Sequence[str]
    """The names of the classes, in their order; empty if classes are numbers."""
    generated_data: str
    """The features, labels and split that are generated; empty if all were given."""
    accuracy: str | None
    """How the accuracies of the graph compare with those of its publisher."""

    def lay_out(self, view: View) -> Iterator[Block]:
        from harness.graph.store.info import WEIGHTS

        vertices, nonzeros = self.counts["vertices"], self.counts["nnz_adj"]
        yield Headline(
            f"{self.name} is imported: {vertices:,} vertices, {nonzeros:,} nonzeros, {format_bytes(self.bytes)}"
        )
        yield FactList([(COUNTS.get(name, name), f"{count:,}") for name, count in self.counts.items()])
        places = [("card", str(self.card)), ("store", str(self.store))]
        if self.names:
            places.append(("names", f"{self.names}, a line for each vertex"))
        if self.class_names:
            places.append(
                ("classes", f"{', '.join(self.class_names)} (classes 0 to {len(self.class_names) - 1})")
            )
        if self.generated_data:
            places.append(("generated", self.generated_data))
        unused = "" if self.weights else "; --weights takes the weights of the file"
        yield FactList([*places, ("weights", f"{WEIGHTS[self.weights]}{unused}")])
        if self.accuracy:
            yield f"{self.accuracy}."
        yield Command(f"harness run --strategy cagnet-1d --dataset {self.name} --ranks 2")


@verb(ImportedGraphRequest)
def import_(request: ImportedGraphRequest, reporter: Reporter) -> ImportAnswer:
    """Make a card for your own files, and build the graph.

    Features, labels and a split that you do not give are generated at random; generated labels depend on the degrees.

        harness data import mine --edges edges.csv
        harness data import mine --edges edges.txt.gz --base 1 --header
        harness data import mine --edges g.mtx --features x.npy --labels y.npy
        harness data import mine --edges edges.csv --weights normalised
        harness data import mine --from suitesparse:HB/bcspwr10
    """
    from harness.graph.cards.catalog import load_card
    from harness.graph.cards.class_names import list_class_names
    from harness.graph.fetch.download import fetch_card_files
    from harness.graph.store.graph_import import (
        ImportRequest,
        describe_ogb_metric,
        get_names_file,
        import_graph,
        make_import_card,
    )
    from harness.graph.store.reader import Store
    from harness.spec.root import find_imported_folder

    root, choice = request.home, request.choose_order("import")
    if request.edges is None and request.origin is None:
        raise UserError(
            "import needs a graph: harness data import NAME --edges FILE, or --from suitesparse:GROUP/NAME."
        )
    values = {key: getattr(request, key) for key in ImportRequest.model_fields}
    wanted = validate(ImportRequest, values, "harness data import", name_option)
    if wanted.origin:
        fetch_card_files(root, make_import_card(wanted), reporter.log)
    folder = import_graph(root, wanted, choice, request.make_resources(reporter.log))
    store, card = Store(folder), load_card(root, request.name)
    counts = {
        "vertices": store.n,
        **asdict(store.manifest.counts),
        "features": store.features,
        "classes": store.classes,
    }
    return ImportAnswer(
        name=request.name,
        store=folder,
        card=find_imported_folder(root) / f"{request.name}.yaml",
        counts=counts,
        bytes=count_store_bytes(store.manifest),
        weights=store.weights,
        names=get_names_file(root, card),
        class_names=list_class_names(root, card) or (),
        generated_data=card.describe_generated_data(),
        accuracy=describe_ogb_metric(card.source),
    )


# Build and verify.


class ListedStore(NamedTuple):
    """A store of a graph in one order. Without files, other jobs have to do their shares of the build first."""

    order: str
    files: int | None
    bytes: int | None
    folder: Path


@plain_dataclass(frozen=True)
class StoresAnswer(Answer):
    """Stores of a graph that were built or verified."""

    headline: Headline
    name: str
    stores: Sequence[ListedStore]
    deviation: str = ""
    """How far the nonzeros of the store are off those of the card."""


def _describe_store(manifest: "Manifest | None") -> str:
    if manifest is None:
        return ""
    files = f"{format_bytes(count_store_bytes(manifest))} in {format_count(len(manifest.files), 'file')}"
    return f": {manifest.n:,} vertices, {manifest.counts.nnz_adj:,} nonzeros, {files}"


@dataclass(frozen=True, config=CONFIG)
class BuildRequest(BuiltOrderRequest):
    """The stores to build."""

    _: KW_ONLY
    share: Annotated[str | None, OptionStyle(metavar="STEP:NUMBER/JOBS")] = None
    """Build only this job's share, where several jobs build one store: scatter:0/4, then settle:0/4, then features:0/4.
    A build without --share then finishes the store."""


@verb(BuildRequest)
def build(request: BuildRequest, reporter: Reporter) -> StoresAnswer:
    """Write the store of a graph, in the order of vertices that the options choose.

    A build that was stopped resumes. Several values of --parts or --seed make several stores; their partitions are
    computed in parallel.

        harness data build tiny-sbm
        harness data build ogbn-products@1/16 --memory 8
        harness data build tiny-sbm --partition metis --parts 4,8 --seed 0,1
        harness data build ogbn-papers100m --share scatter:0/4
    """
    from harness.graph.builders.job import parse_build_job
    from harness.graph.store.location import find_sound_store

    root, choices = request.home, request.list_orders("build")
    if request.share is None:
        found = {choice: find_sound_store(root, choice) for choice in choices}
        if missing := [choice for choice, folder in found.items() if folder is None]:
            from harness.graph.store.building import build_stores

            found |= zip(
                missing, build_stores(root, missing, request.make_resources(reporter.log)), strict=True
            )
        folders = [folder for folder in found.values() if folder]
        return _make_stores_answer(root, choices, folders, ("is built", "are built"))
    from harness.graph.store.building import build_store

    job = parse_build_job(request.share)
    resources = request.make_resources(reporter.log)
    folders = [build_store(root, choice, resources=resources, job=job) for choice in choices]
    done = f"has the share {job} of its build"
    return _make_stores_answer(root, choices, folders, (done, f"with the share {job} of their builds"))


@verb(OrderRequest)
def verify(request: OrderRequest, reporter: Reporter) -> StoresAnswer:
    """Compare a store with the checksums of its build.

    Names the first file that differs.

        harness data verify tiny-sbm
        harness data verify tiny-sbm --partition metis --parts 4
    """
    from harness.graph.store.location import verify_store

    root, choices = request.home, request.list_orders("verify")
    folders = [verify_store(root, choice, reporter.step) for choice in choices]
    return _make_stores_answer(root, choices, folders, ("is sound", "are sound"))


def _make_stores_answer(
    root: Path, choices: Sequence[DatasetChoice], folders: Sequence[Path], did: tuple[str, str]
) -> StoresAnswer:
    """Return the answer about stores. `did` is what was done to one store, and to several."""
    from harness.graph.cards.catalog import load_card
    from harness.graph.store.location import describe_order
    from harness.graph.store.manifest import read_manifest

    manifests = [read_manifest(folder)[0] if folder.exists() else None for folder in folders]
    stores = [
        ListedStore(
            describe_order(choice),
            len(manifest.files) if manifest else None,
            count_store_bytes(manifest) if manifest else None,
            folder,
        )
        for choice, folder, manifest in zip(choices, folders, manifests, strict=True)
    ]
    name, first, deviation = choices[0].name, manifests[0], ""
    headline = f"{name} {did[0]}{_describe_store(first)}"
    if len(stores) > 1:
        headline = f"{name}: {format_count(len(stores), 'store')} {did[1]}"
    if first and (counts := load_card(root, name).compare_nonzeros(first.counts.nnz_adj)):
        deviation = (
            f"{counts['built']:,} nonzeros, {counts['deviation']} off the {counts['expected']:,} of its card."
        )
    return StoresAnswer(Headline(headline), name, stores, deviation)


# Balance.


@dataclass(frozen=True, config=CONFIG)
class BalanceRequest(GraphRequest):
    """The graph and the blocks into which it is cut."""

    _: KW_ONLY
    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS), OptionStyle(metavar="N")] = 8
    """Cut into N x N blocks."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63), OptionStyle(metavar="S")] = 0
    """The seed of the permutations."""


@plain_dataclass(frozen=True)
class BalanceAnswer(Answer):
    """The nonzeros of the fullest block over the mean, for each order of the vertices."""

    name: str
    shards: int
    most_over_mean: Mapping[str, float]
    law_of_loops: float
    """What the loops alone would give in a single permutation."""

    def lay_out(self, view: View) -> Iterator[Block]:
        ratios = {order: self.most_over_mean[order] for order in ("none", "single", "double")}
        best = min(ratios, key=ratios.__getitem__)
        better = "no permutation is better"
        if best != "none":
            better = f"{ratios[best]:.3f} times with {NAMES_OF_ORDERS[best]}"
        yield Headline(
            f"{self.name} in {self.shards} x {self.shards} shards: the fullest has {ratios['none']:.3f} times the "
            f"mean, {better}"
        )
        columns = [
            TableColumn("order", "order of the vertices"),
            TableColumn("ratio", "most / mean nonzeros", "number", format=lambda ratio: f"{ratio:.3f}"),
        ]
        rows = [
            {"order": NAMES_OF_ORDERS.get(order, order), "ratio": ratio}
            for order, ratio in self.most_over_mean.items()
        ]
        yield Table(
            columns, [*rows, {"order": "only loops, a single permutation", "ratio": self.law_of_loops}]
        )


NAMES_OF_ORDERS = {
    "none": "its own order",
    "single": "a single permutation",
    "double": "a double permutation",
    "single, loops apart": "a single permutation, without loops",
}


@verb(BalanceRequest)
def balance(request: BalanceRequest, reporter: Reporter) -> BalanceAnswer:
    """Print how evenly the nonzeros of a graph are distributed over blocks, for each permutation.

    Prints the nonzeros of the fullest of N x N blocks, divided by their mean. The graph must be built.

        harness data balance tiny-lattice --shards 8
    """
    from harness.graph.store.datasets import open_dataset
    from harness.graph.store.shard_balance import expect_loop_imbalance, measure_shard_balance

    choice = validate(DatasetChoice, {"name": request.name}, "harness data balance", name_option)
    store = open_dataset(request.home, choice)
    ratios = dict(measure_shard_balance(store, request.shards, request.seed, reporter.step))
    of_loops = expect_loop_imbalance(store.n, store.nnz, request.shards)
    return BalanceAnswer(choice.name, request.shards, ratios, of_loops)
