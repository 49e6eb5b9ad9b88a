"""harness data: fetch or import a graph, build and verify its store, print its facts and how its nonzeros fall."""

import argparse
import os
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import Verbs, add_verb, columns, ranks, real, say, several, show, whole
from harness.errors import UserError
from harness.spec.dataset import ACCEPTED, DatasetChoice
from harness.spec.root import project_root
from harness.validation import CLASSES, RANKS, VERTICES, validated

if TYPE_CHECKING:
    from harness.store.task import Means

ACTIONS = {
    "fetch": "download its files",
    "import": "make a card for files of your own, and build them",
    "build": "write its store",
    "info": "print its facts",
    "verify": "compare its store with the checksums of the build",
    "balance": "print how evenly its nonzeros fall into blocks, for each permutation",
}
IMPORTED = {
    "edges": "the graph: .txt, .csv, .tsv (also .gz), or .mtx, .npz, .parquet, .graph, .pt, .triples, .bin",
    "features": "a row for each vertex: .npy, .csv, .txt",
    "labels": "a number for each vertex, -1 for none; or a column of 0 and 1 for each class",
    "split": "a number for each vertex: 1 train, 2 valid, 3 test; or three masks as columns",
}
COUNTED = {
    "stored": "entries of the file",
    "loops": "loops among them",
    "duplicates": "duplicates among them",
    "nnz_sym": "nonzeros after symmetrising, without loops and duplicates",
    "nnz_adj": "nonzeros of A, with a loop at every vertex",
}
"""The words for the counts of an imported graph."""
WEIGHTED = {
    None: "every edge counts 1; --weights takes weights that the file has",
    "normalised": "A has the weights of the edges, normalised by weighted degrees",
    "raw": "A has the weights of the edges as given, and 0 at the loops that the file lacks",
}
SEVERAL = ("build", "verify")
"""The actions that take several orders."""
LEAST_GIB, MOST_GIB = 1 / 64, 1 << 20
MOST_SHARDS = 4096
"""The most blocks along a side: their counts fit in some hundred MiB."""


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "data",
        _data,
        "Fetch, import, build, describe or verify a graph.",
        "Prints the paths that were written, or the facts. An import generates at random what you omit and the file "
        "of edges lacks; labels then follow the degrees.",
    )
    parser.add_argument(
        "action",
        choices=tuple(ACTIONS),
        help="; ".join(f"{action}: {about}" for action, about in ACTIONS.items()),
    )
    parser.add_argument(
        "name", help="a name of `harness list datasets`; of an import, the name that the graph is to have"
    )
    for name, about in IMPORTED.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"import: {about}")
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="ORIGIN",
        help="import: a published graph instead, which is fetched: suitesparse:GROUP/NAME (a matrix of the SuiteSparse "
        "collection) or ogb:NAME (a node property set of OGB)",
    )
    parser.add_argument("--directed", action="store_true", help="import: an edge has one direction")
    parser.add_argument(
        "--weights",
        choices=("normalised", "raw"),
        help="import: A has the weights of the edges, normalised by weighted degrees or as given (default: every edge "
        "counts 1, whatever the file says)",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="import: edges are between names, in text or parquet. Vertices are numbered in the sorted order of the "
        "names; text of features, labels or a split has the name first in each line",
    )
    parser.add_argument(
        "--vertices",
        type=whole(1, VERTICES),
        metavar="N",
        help="import: the number of vertices (default: up to the largest id)",
    )
    parser.add_argument(
        "--base", type=int, choices=(0, 1), default=0, help="import: the first id in text (default 0)"
    )
    parser.add_argument(
        "--header", action="store_true", help="import: the first line of text names the columns"
    )
    parser.add_argument(
        "--classes",
        type=whole(1, CLASSES),
        metavar="K",
        help="import: the number of classes (default: up to the largest label; 32 for generated labels)",
    )
    parser.add_argument(
        "--permutation",
        choices=("none", "single", "double"),
        default="none",
        help="the random order of the vertices: one for rows and columns, or one for each (default none)",
    )
    parser.add_argument("--partition", default="block", metavar="NAME", help=f"{ACCEPTED} (default block)")
    parser.add_argument(
        "--parts",
        type=several(whole(0, RANKS)),
        default=[0],
        metavar="P[,P...]",
        help="the number of parts of the partition: the ranks that split the rows; build, verify: one or more",
    )
    parser.add_argument(
        "--seed",
        type=several(whole(0, (1 << 63) - 1)),
        default=[0],
        metavar="S[,S...]",
        help="the seed of the permutation or of the partition (default 0); build, verify: one or more. Partitions are "
        "computed side by side",
    )
    parser.add_argument(
        "--memory",
        type=real(LEAST_GIB, MOST_GIB),
        default=4.0,
        metavar="GIB",
        help="build, import: the memory that it may take, in GiB (default 4)",
    )
    parser.add_argument(
        "--workers",
        type=whole(0, 4096),
        default=0,
        metavar="N",
        help="build, import: the number of threads (default: one for each core)",
    )
    parser.add_argument(
        "--share",
        metavar="STEP:NUMBER/JOBS",
        help="build: this job's share, where several jobs build one store: scatter:0/4, then settle:0/4 and "
        "features:0/4; an ordinary build then ends it",
    )
    parser.add_argument(
        "--ranks",
        type=ranks,
        metavar="P",
        help="info: print the memory and the words of one of P ranks, for every strategy on its best and worst grid",
    )
    parser.add_argument(
        "--shards",
        type=whole(1, MOST_SHARDS),
        default=8,
        metavar="N",
        help="balance: cut into N x N blocks (default 8)",
    )


def _data(options: argparse.Namespace) -> int:
    root, choices = project_root(options.root), _choices(options)
    if options.action in SEVERAL:
        return _stores(root, options, choices)
    if len(choices) > 1:
        raise UserError(f"{options.action} takes one order: one of --parts and one of --seed.")
    (choice,) = choices
    if options.action == "balance":
        return _balance(root, options, choice)
    if options.action == "fetch":
        from harness.fetch.download import fetch

        paths = [str(path) for path in fetch(root, options.name, say)]
        show(options, {"files": paths}, "\n".join(paths) or f"{options.name} needs no file from the network.")
    elif options.action == "info":
        _info(root, options, choice)
    else:
        _show_import(root, options, choice)
    return 0


def _show_import(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> None:
    """Imports a graph, and shows its store, its card and the counts that the files gave."""
    from harness.spec.root import imported_folder
    from harness.store.catalog import load_card
    from harness.store.imported import foreign_metric, names_file
    from harness.store.reader import Store

    folder = _import(root, options, choice)
    store, card = Store(folder), imported_folder(root) / f"{options.name}.yaml"
    counts = {
        "vertices": store.n,
        **asdict(store.manifest.counts),
        "features": store.features,
        "classes": store.classes,
    }
    lines = [
        f"{folder}",
        f"{card}",
        *columns([(COUNTED.get(name, name), f"{count:,}") for name, count in counts.items()]).splitlines(),
        WEIGHTED[store.weights],
    ]
    document = {"store": str(folder), "card": str(card), "counts": counts, "weights": store.weights}
    card_kept = load_card(root, options.name)
    if names := names_file(root, card_kept):
        document["names"] = str(names)
        lines.insert(2, f"{names}")
    if metric := foreign_metric(card_kept.source):
        document["accuracy"] = metric
        lines.append(metric)
    show(options, document, "\n".join(lines))


def _stores(root: Path, options: argparse.Namespace, choices: list[DatasetChoice]) -> int:
    """Builds or verifies a store for each order."""
    stores = _verified(root, choices) if options.action == "verify" else _built(root, options, choices)
    paths = [str(store) for store in stores]
    show(options, {"store": paths[0]} if len(paths) == 1 else {"stores": paths}, "\n".join(paths))
    _say_nonzeros(root, options.name, stores[0])
    return 0


def _verified(root: Path, choices: list[DatasetChoice]) -> list[Path]:
    from harness.store.build import verify

    return [verify(root, choice) for choice in choices]


def _built(root: Path, options: argparse.Namespace, choices: list[DatasetChoice]) -> list[Path]:
    from harness.store.build import build, build_all
    from harness.store.task import share

    if options.share is None:
        return build_all(root, choices, _means(options))
    part = share(options.share)
    return [build(root, choice, means=_means(options), share=part) for choice in choices]


def _say_nonzeros(root: Path, name: str, folder: Path) -> None:
    """Prints the nonzeros of a store on stderr, if the card expects a number. A share of a build leaves no store."""
    from harness.store.catalog import load_card
    from harness.store.info import nonzeros
    from harness.store.reader import Store

    if folder.exists() and (counts := nonzeros(load_card(root, name), Store(folder))):
        built, deviation, expected = counts["built"], counts["deviation"], counts["expected"]
        print(f"{name}: {built:,} nonzeros, {deviation} off the {expected:,} of its card", file=sys.stderr)


def _info(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> None:
    import yaml

    from harness.store.info import info

    facts = info(root, choice)
    if options.ranks:
        facts["needs"] = [
            {key: value for key, value in needed.items() if value is not None}
            for needed in _needs(root, options.ranks, choice, built=facts["built"])
        ]
    show(options, facts, yaml.safe_dump(facts, sort_keys=False).rstrip())


def _needs(root: Path, ranks: int, choice: DatasetChoice, *, built: bool) -> list[dict[str, Any]]:
    """The needs of every strategy, by the store or, before a build, by the card."""
    from harness.experiment.defaults import on_all_grids
    from harness.experiment.known_graph import KnownGraph, facts_of_card
    from harness.registry import registered
    from harness.replay import needs
    from harness.store.build import open_dataset
    from harness.store.catalog import load_card
    from harness.strategy import facts_of

    facts = facts_of(open_dataset(root, choice)) if built else facts_of_card(load_card(root, choice.name))
    request, unparted = (
        {"dataset": choice.name, "ranks": ranks},
        KnownGraph(replace(facts, bounds=None), None),
    )
    each = [on_all_grids(root, point.name, request, lambda _: unparted, point.name) for point in registered()]
    return [needed._asdict() for needed in needs(each)]


def _import(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> Path:
    from harness.fetch.download import fetch_card
    from harness.store.imported import ImportRequest, card_of, import_graph

    if options.edges is None and options.origin is None:
        raise UserError(
            "import takes the graph: harness data import NAME --edges FILE, or --from suitesparse:GROUP/NAME."
        )
    typed = {key: getattr(options, key) for key in ImportRequest.model_fields}
    request = validated(ImportRequest, typed, "harness data import", _as_typed)
    if request.origin:
        fetch_card(root, card_of(request), say)
    return import_graph(root, request, choice, _means(options))


def _means(options: argparse.Namespace) -> "Means":
    from harness.store.task import GIB, Means

    workers = options.workers or len(os.sched_getaffinity(0))
    return Means(int(options.memory * GIB), workers, say)


def _balance(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> int:
    """Shows the fullest shard over the mean in every order, and the effect of loops alone on a single permutation."""
    from harness.store.build import open_dataset
    from harness.store.info import balance, law_of_loops

    if choice.permutation != "none" or choice.partitioned:
        raise UserError("balance compares every permutation: leave out --permutation and --partition.")
    store = open_dataset(root, DatasetChoice(name=choice.name))
    ratios = dict(balance(store, options.shards, choice.seed))
    law = law_of_loops(store.n, store.nnz, options.shards)
    document = {"shards": options.shards, "most_over_mean": ratios, "law_of_loops": law}
    lines = [f"{f'{options.shards} x {options.shards} shards':22}most / mean nonzeros"]
    lines += [f"{order:22}{ratio:.3f}" for order, ratio in ratios.items()]
    lines.append(f"{'loops alone, single':22}{law:.3f}")
    show(options, document, "\n".join(lines))
    return 0


def _choices(options: argparse.Namespace) -> list[DatasetChoice]:
    """The orders that the options name: each number of parts with each seed."""
    typed = {key: getattr(options, key) for key in DatasetChoice.model_fields}
    orders = [{**typed, "parts": parts, "seed": seed} for parts, seed in product(options.parts, options.seed)]
    return [validated(DatasetChoice, each, f"harness data {options.action}", _as_typed) for each in orders]


def _as_typed(key: str) -> str:
    """The option behind a key; the name of the dataset has none."""
    return {"name": "NAME", "origin": "--from"}.get(key, f"--{key}")
