"""harness data: fetch or import a graph, build and verify its store, print its facts and how its nonzeros fall."""

import argparse
import os
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    Progress,
    Verbs,
    add_verb,
    columns,
    ranks,
    real,
    say,
    several,
    show,
    tell,
    whole,
)
from harness.errors import UserError
from harness.progress import report_steps
from harness.spec.dataset import ACCEPTED, DatasetChoice
from harness.spec.root import find_root
from harness.validation import CLASSES, RANKS, VERTICES, validate

if TYPE_CHECKING:
    from harness.store.build_resources import BuildResources


class Action(NamedTuple):
    """An action on a graph: its help, and examples of it."""

    summary: str
    more: str
    examples: tuple[str, ...]


ACTIONS = {
    "fetch": Action(
        "Download the files of a graph.",
        "Resumes a broken download, checks every file against its card, and prints the paths. A graph that is drawn "
        "needs no file.",
        ("harness data fetch cora", "HARNESS_MIRROR=https://mirror.example harness data fetch reddit"),
    ),
    "import": Action(
        "Make a card for files of your own, and build the graph.",
        "Prints the folder of the store. What you omit and the file of edges lacks is generated at random; labels then "
        "follow the degrees.",
        (
            "harness data import mine --edges edges.csv",
            "harness data import mine --edges edges.txt.gz --base 1 --header",
            "harness data import mine --edges graph.mtx --features x.npy --labels y.npy --split split.npy",
            "harness data import mine --edges edges.csv --weights normalised",
            "harness data import mine --from suitesparse:HB/bcspwr10",
        ),
    ),
    "build": Action(
        "Write the store of a graph, in the order that the options choose.",
        "Prints the folders. A build that was stopped resumes. Several numbers of parts or seeds make a store each.",
        (
            "harness data build tiny-sbm",
            "harness data build ogbn-products@1/16 --memory 8",
            "harness data build tiny-sbm --partition metis --parts 4,8 --seed 0,1",
            "harness data build ogbn-papers100m --share scatter:0/4",
        ),
    ),
    "info": Action(
        "Print the facts of a graph: its card, its store if it is built, and the parts of a partition.",
        "With --ranks, also the memory and the words of one rank for every strategy. The graph need not be built.",
        (
            "harness data info reddit",
            "harness data info tiny-sbm --ranks 8",
            "harness data info tiny-sbm --partition metis --parts 4",
        ),
    ),
    "verify": Action(
        "Compare a store with the checksums of its build.",
        "Prints the folders, or names the first file that differs.",
        ("harness data verify tiny-sbm", "harness data verify tiny-sbm --partition metis --parts 4"),
    ),
    "balance": Action(
        "Print how evenly the nonzeros of a graph fall into blocks, for each permutation.",
        "The fullest of N x N blocks over the mean; the graph must be built.",
        ("harness data balance tiny-lattice --shards 8",),
    ),
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
    about = "Fetch, import, build, describe or verify a graph."
    data = verbs.add_parser("data", help=about, description=about)
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in ACTIONS.items():
        parser = add_verb(actions, name, _data, action.summary, action.more, action.examples)
        own = (
            "the name that the graph is to have" if name == "import" else "a name of `harness list datasets`"
        )
        parser.add_argument("name", metavar="NAME", help=own)
        parser.set_defaults(permutation="none", partition="block", parts=[0], seed=[0])
        if name in ("import", "build", "info", "verify"):
            _add_order(parser)
        if name in ("import", "build"):
            _add_means(parser)
        if name == "import":
            _add_files(parser)
        elif name == "build":
            parser.add_argument(
                "--share",
                metavar="STEP:NUMBER/JOBS",
                help="this job's share, where several jobs build one store: scatter:0/4, then settle:0/4 and "
                "features:0/4; an ordinary build then ends it",
            )
        elif name == "info":
            parser.add_argument(
                "--ranks",
                type=ranks,
                metavar="P",
                help="print the memory and the words of one of P ranks, for every strategy on its best and worst grid",
            )
        elif name == "balance":
            parser.add_argument(
                "--shards",
                type=whole(1, MOST_SHARDS),
                default=8,
                metavar="N",
                help="cut into N x N blocks (default 8)",
            )
            _add_seed(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """The files of an import, and how they are to be read."""
    for name, about in IMPORTED.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=about)
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="ORIGIN",
        help="a published graph instead, which is fetched: suitesparse:GROUP/NAME (a matrix of the SuiteSparse "
        "collection) or ogb:NAME (a node property set of OGB)",
    )
    parser.add_argument("--directed", action="store_true", help="an edge has one direction")
    parser.add_argument(
        "--weights",
        choices=("normalised", "raw"),
        help="A has the weights of the edges, normalised by weighted degrees or as given (default: every edge "
        "counts 1, whatever the file says)",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="edges are between names, in text or parquet. Vertices are numbered in the sorted order of the "
        "names; text of features, labels or a split has the name first in each line",
    )
    parser.add_argument(
        "--vertices",
        type=whole(1, VERTICES),
        metavar="N",
        help="the number of vertices (default: up to the largest id)",
    )
    parser.add_argument(
        "--base", type=int, choices=(0, 1), default=0, help="the first id in text (default 0)"
    )
    parser.add_argument("--header", action="store_true", help="the first line of text names the columns")
    parser.add_argument(
        "--classes",
        type=whole(1, CLASSES),
        metavar="K",
        help="the number of classes (default: up to the largest label; 32 for generated labels)",
    )


def _add_order(parser: argparse.ArgumentParser) -> None:
    """The order of the vertices. The actions of `SEVERAL` take several."""
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
    _add_seed(parser)


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed",
        type=several(whole(0, (1 << 63) - 1)),
        default=[0],
        metavar="S[,S...]",
        help="the seed of the permutation or of the partition (default 0); build, verify: one or more. Partitions are "
        "computed side by side",
    )


def _add_means(parser: argparse.ArgumentParser) -> None:
    """The memory and the threads of a build."""
    parser.add_argument(
        "--memory",
        type=real(LEAST_GIB, MOST_GIB),
        default=4.0,
        metavar="GIB",
        help="the memory that it may take, in GiB (default 4)",
    )
    parser.add_argument(
        "--workers",
        type=whole(0, 4096),
        default=0,
        metavar="N",
        help="the number of threads (default: one for each core)",
    )


def _data(options: argparse.Namespace) -> int:
    root, choices = find_root(options.root), _choices(options)
    if options.action in SEVERAL:
        return _stores(root, options, choices)
    if len(choices) > 1:
        raise UserError(f"{options.action} takes one order: one of --parts and one of --seed.")
    (choice,) = choices
    if options.action == "balance":
        return _balance(root, options, choice)
    if options.action == "fetch":
        from harness.fetch.download import fetch_dataset

        paths = [str(path) for path in fetch_dataset(root, options.name, say)]
        show(options, {"files": paths}, "\n".join(paths) or f"{options.name} needs no file from the network.")
    elif options.action == "info":
        _info(root, options, choice)
    else:
        _show_import(root, options, choice)
    return 0


def _show_import(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> None:
    """Imports a graph, and shows its store, its card and the counts that the files gave."""
    from harness.spec.root import find_imported_folder
    from harness.store.catalog import load_card
    from harness.store.graph_import import describe_ogb_metric, get_names_file
    from harness.store.reader import Store

    folder = _import(root, options, choice)
    store, card = Store(folder), find_imported_folder(root) / f"{options.name}.yaml"
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
    document = {"store": str(folder), "card": str(card), "counts": counts}
    if store.weights:
        document["weights"] = store.weights
    card_kept = load_card(root, options.name)
    if names := get_names_file(root, card_kept):
        document["names"] = str(names)
        lines.insert(2, f"{names}")
    if metric := describe_ogb_metric(card_kept.source):
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
    from harness.store.datasets import verify_store

    with Progress() as on_step:
        return [verify_store(root, choice, on_step) for choice in choices]


def _built(root: Path, options: argparse.Namespace, choices: list[DatasetChoice]) -> list[Path]:
    from harness.store.build_job import parse_build_job
    from harness.store.datasets import build_store, build_stores

    if options.share is None:
        return build_stores(root, choices, _means(options))
    part = parse_build_job(options.share)
    return [build_store(root, choice, resources=_means(options), job=part) for choice in choices]


def _say_nonzeros(root: Path, name: str, folder: Path) -> None:
    """Prints the nonzeros of a store on stderr, if the card expects a number. A share of a build leaves no store."""
    from harness.store.catalog import load_card
    from harness.store.info import describe_nonzeros
    from harness.store.reader import Store

    if folder.exists() and (counts := describe_nonzeros(load_card(root, name), Store(folder))):
        built, deviation, expected = counts["built"], counts["deviation"], counts["expected"]
        tell(f"{name}: {built:,} nonzeros, {deviation} off the {expected:,} of its card")


def _info(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> None:
    import yaml

    from harness.store.info import describe_dataset

    facts = describe_dataset(root, choice)
    if options.ranks:
        facts["needs"] = [
            {key: value for key, value in needed.items() if value is not None}
            for needed in _needs(root, options.ranks, choice, built=facts["built"])
        ]
    show(options, facts, yaml.safe_dump(facts, sort_keys=False).rstrip())


def _needs(root: Path, ranks: int, choice: DatasetChoice, *, built: bool) -> list[dict[str, Any]]:
    """The needs of every strategy, by the store or, before a build, by the card."""
    from harness.experiment.known_graph import KnownGraph, facts_of_card
    from harness.experiment.requests import admit_on_all_grids
    from harness.registry import registered_strategies
    from harness.replay import find_requirements
    from harness.store.catalog import load_card
    from harness.store.datasets import open_dataset
    from harness.strategy import facts_of

    facts = facts_of(open_dataset(root, choice)) if built else facts_of_card(load_card(root, choice.name))
    request, unparted = (
        {"dataset": choice.name, "ranks": ranks},
        KnownGraph(replace(facts, bounds=None), None),
    )
    with Progress() as on_step:
        points = report_steps(registered_strategies(), lambda point: f"replaying {point.name}", on_step)
        each = (
            admit_on_all_grids(root, point.name, request, lambda _: unparted, point.name) for point in points
        )
        return [needed._asdict() for needed in find_requirements(each)]


def _import(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> Path:
    from harness.fetch.download import fetch_card_files
    from harness.store.graph_import import ImportRequest, import_graph, make_import_card

    if options.edges is None and options.origin is None:
        raise UserError(
            "import takes the graph: harness data import NAME --edges FILE, or --from suitesparse:GROUP/NAME."
        )
    typed = {key: getattr(options, key) for key in ImportRequest.model_fields}
    request = validate(ImportRequest, typed, "harness data import", _as_typed)
    if request.origin:
        fetch_card_files(root, make_import_card(request), say)
    return import_graph(root, request, choice, _means(options))


def _means(options: argparse.Namespace) -> "BuildResources":
    from harness.formatting import GIB
    from harness.store.build_resources import BuildResources

    workers = options.workers or len(os.sched_getaffinity(0))
    return BuildResources(int(options.memory * GIB), workers, say)


def _balance(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> int:
    """Shows the fullest shard over the mean in every order, and the effect of loops alone on a single permutation."""
    from harness.store.datasets import open_dataset
    from harness.store.shard_balance import expect_loop_imbalance, measure_shard_balance

    store = open_dataset(root, DatasetChoice(name=choice.name))
    with Progress() as on_step:
        ratios = dict(measure_shard_balance(store, options.shards, choice.seed, on_step))
    law = expect_loop_imbalance(store.n, store.nnz, options.shards)
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
    return [validate(DatasetChoice, each, f"harness data {options.action}", _as_typed) for each in orders]


def _as_typed(key: str) -> str:
    """The option behind a key; the name of the dataset has none."""
    return {"name": "NAME", "origin": "--from"}.get(key, f"--{key}")
