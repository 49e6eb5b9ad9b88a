"""harness data: fetches, imports, builds, verifies and describes graphs."""

import argparse
import os
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    Handler,
    ProgressLine,
    Verbs,
    add_verb,
    comma_list,
    float_in,
    format_columns,
    int_in,
    print_answer,
    print_message,
    print_progress,
    rank_count,
)
from harness.errors import UserError
from harness.progress import report_steps
from harness.spec.dataset import ACCEPTED, DatasetChoice
from harness.spec.root import find_root
from harness.validation import CLASSES, RANKS, VERTICES, validate

if TYPE_CHECKING:
    from harness.store.build_resources import BuildResources


class ActionHelp(NamedTuple):
    """The help of an action on a graph, with examples."""

    summary: str
    more: str
    examples: tuple[str, ...]


ACTIONS = {
    "fetch": ActionHelp(
        "Download the files of a graph.",
        "Resumes a broken download, checks every file against its card, and prints the paths. A generated graph needs "
        "no files.",
        ("harness data fetch cora", "HARNESS_MIRROR=https://mirror.example harness data fetch reddit"),
    ),
    "import": ActionHelp(
        "Make a card for your own files, and build the graph.",
        "Prints the folder of the store. Features, labels and a split that you do not give are generated at random; "
        "generated labels depend on the degrees.",
        (
            "harness data import mine --edges edges.csv",
            "harness data import mine --edges edges.txt.gz --base 1 --header",
            "harness data import mine --edges graph.mtx --features x.npy --labels y.npy --split split.npy",
            "harness data import mine --edges edges.csv --weights normalised",
            "harness data import mine --from suitesparse:HB/bcspwr10",
        ),
    ),
    "build": ActionHelp(
        "Write the store of a graph, in the order of vertices that the options choose.",
        "Prints the folders. A build that was stopped resumes. Several values of --parts or --seed make several "
        "stores.",
        (
            "harness data build tiny-sbm",
            "harness data build ogbn-products@1/16 --memory 8",
            "harness data build tiny-sbm --partition metis --parts 4,8 --seed 0,1",
            "harness data build ogbn-papers100m --share scatter:0/4",
        ),
    ),
    "info": ActionHelp(
        "Print the facts of a graph: its card, its store if it is built, and the parts of a partition.",
        "With --ranks, also prints the memory and the words of one rank for every strategy. The graph need not be "
        "built.",
        (
            "harness data info reddit",
            "harness data info tiny-sbm --ranks 8",
            "harness data info tiny-sbm --partition metis --parts 4",
        ),
    ),
    "verify": ActionHelp(
        "Compare a store with the checksums of its build.",
        "Prints the folders, or names the first file that differs.",
        ("harness data verify tiny-sbm", "harness data verify tiny-sbm --partition metis --parts 4"),
    ),
    "balance": ActionHelp(
        "Print how evenly the nonzeros of a graph are distributed over blocks, for each permutation.",
        "Prints the nonzeros of the fullest of N x N blocks, divided by their mean. The graph must be built.",
        ("harness data balance tiny-lattice --shards 8",),
    ),
}
IMPORTED = {
    "edges": "the graph: .txt, .csv, .tsv (also .gz), or .mtx, .npz, .parquet, .graph, .pt, .triples, .bin",
    "features": "a row for each vertex: .npy, .csv, .txt",
    "labels": "a number for each vertex, -1 for none; or a column of 0 and 1 for each class",
    "split": "a number for each vertex: 1 train, 2 valid, 3 test; or three masks as columns",
}
"""The help of the options that name files."""
COUNTS = {
    "stored": "entries in the file",
    "loops": "of them self-loops",
    "duplicates": "of them duplicates",
    "nnz_sym": "nonzeros after symmetrising, without loops and duplicates",
    "nnz_adj": "nonzeros of A, with a loop at every vertex",
}
"""Descriptions of the counts of an imported graph."""
WEIGHTS = {
    None: "every edge has weight 1; --weights takes the weights of the file",
    "normalised": "A has the weights of the edges, normalised by weighted degrees",
    "raw": "A has the weights of the edges as given, and 0 at loops that are not in the file",
}
"""Descriptions of the weights of an imported graph."""
LEAST_GIB, MOST_GIB = 1 / 64, 1 << 20
MAX_SHARDS = 4096
"""The maximum number of blocks along a side: their counts take some hundred MiB."""


def add_verbs(verbs: Verbs) -> None:
    about = "Fetch, import, build, describe or verify a graph."
    data = verbs.add_parser("data", help=about, description=about)
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    handlers: dict[str, Handler] = {
        "fetch": _fetch_files,
        "import": _import_dataset,
        "build": _build_stores,
        "info": _print_facts,
        "verify": _verify_stores,
        "balance": _print_balance,
    }
    for name, action in ACTIONS.items():
        parser = add_verb(actions, name, handlers[name], action.summary, action.more, action.examples)
        about_name = "the name of the new graph" if name == "import" else "a name of `harness list datasets`"
        parser.add_argument("name", metavar="NAME", help=about_name)
        parser.set_defaults(permutation="none", partition="block", parts=[0], seed=[0])
        if name in ("import", "build", "info", "verify"):
            _add_order_options(parser)
        if name in ("import", "build"):
            _add_resource_options(parser)
        if name == "import":
            _add_import_options(parser)
        elif name == "build":
            parser.add_argument(
                "--share",
                metavar="STEP:NUMBER/JOBS",
                help="build only this job's share, where several jobs build one store: scatter:0/4, then settle:0/4, "
                "then features:0/4. A build without --share then finishes the store",
            )
        elif name == "info":
            parser.add_argument(
                "--ranks",
                type=rank_count,
                metavar="P",
                help="print the memory and the words of one of P ranks, for every strategy on its best and worst grid",
            )
        elif name == "balance":
            parser.add_argument(
                "--shards",
                type=int_in(1, MAX_SHARDS),
                default=8,
                metavar="N",
                help="cut into N x N blocks (default 8)",
            )
            _add_seed_option(parser)


def _add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an import: the files, and how to read them."""
    for name, about in IMPORTED.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=about)
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="ORIGIN",
        help="a published graph to download instead: suitesparse:GROUP/NAME (a matrix of the SuiteSparse "
        "collection) or ogb:NAME (a node property prediction dataset of OGB)",
    )
    parser.add_argument("--directed", action="store_true", help="edges are directed")
    parser.add_argument(
        "--weights",
        choices=("normalised", "raw"),
        help="A has the weights of the edges, normalised by weighted degrees or as given (default: every edge has "
        "weight 1, even if the file has weights)",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="edges in text or parquet files are pairs of names. Vertices are numbered in the sorted order of names. "
        "Text files of features, labels or a split have the name first in each line",
    )
    parser.add_argument(
        "--vertices",
        type=int_in(1, VERTICES),
        metavar="N",
        help="the number of vertices (default: up to the largest id)",
    )
    parser.add_argument(
        "--base", type=int, choices=(0, 1), default=0, help="the first vertex id in text files (default 0)"
    )
    parser.add_argument("--header", action="store_true", help="the first line of text files has column names")
    parser.add_argument(
        "--classes",
        type=int_in(1, CLASSES),
        metavar="K",
        help="the number of classes (default: up to the largest label; 32 for generated labels)",
    )


def _add_order_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the order of vertices. `build` and `verify` accept several orders."""
    parser.add_argument(
        "--permutation",
        choices=("none", "single", "double"),
        default="none",
        help="a random order of the vertices: one for rows and columns, or one for each (default none)",
    )
    parser.add_argument("--partition", default="block", metavar="NAME", help=f"{ACCEPTED} (default block)")
    parser.add_argument(
        "--parts",
        type=comma_list(int_in(0, RANKS)),
        default=[0],
        metavar="P[,P...]",
        help="the number of parts of the partition, equal to the number of ranks that split the rows; build and "
        "verify take several",
    )
    _add_seed_option(parser)


def _add_seed_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed",
        type=comma_list(int_in(0, (1 << 63) - 1)),
        default=[0],
        metavar="S[,S...]",
        help="the seed of the permutation or of the partition (default 0); build and verify take several. Partitions "
        "are computed in parallel",
    )


def _add_resource_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the memory and the threads of a build."""
    parser.add_argument(
        "--memory",
        type=float_in(LEAST_GIB, MOST_GIB),
        default=4.0,
        metavar="GIB",
        help="the maximum memory of the build, in GiB (default 4)",
    )
    parser.add_argument(
        "--workers",
        type=int_in(0, 4096),
        default=0,
        metavar="N",
        help="the number of threads (default: one for each core)",
    )


def _fetch_files(options: argparse.Namespace) -> int:
    from harness.fetch.download import fetch_dataset

    root = find_root(options.root)
    _get_choice(options)  # check the name
    paths = [str(path) for path in fetch_dataset(root, options.name, print_progress)]
    text = "\n".join(paths) or f"{options.name} needs no file from the network."
    print_answer(options, {"files": paths}, text)
    return 0


def _import_dataset(options: argparse.Namespace) -> int:
    """Import a graph, and print its store, its card and the counts of its files."""
    from harness.spec.root import find_imported_folder
    from harness.store.catalog import load_card
    from harness.store.graph_import import describe_ogb_metric, get_names_file
    from harness.store.reader import Store

    root, choice = find_root(options.root), _get_choice(options)
    folder = _import_files(root, options, choice)
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
        *format_columns(
            [(COUNTS.get(name, name), f"{count:,}") for name, count in counts.items()]
        ).splitlines(),
        WEIGHTS[store.weights],
    ]
    document = {"store": str(folder), "card": str(card), "counts": counts}
    if store.weights:
        document["weights"] = store.weights
    written_card = load_card(root, options.name)
    if names := get_names_file(root, written_card):
        document["names"] = str(names)
        lines.insert(2, f"{names}")
    if metric := describe_ogb_metric(written_card.source):
        document["accuracy"] = metric
        lines.append(metric)
    print_answer(options, document, "\n".join(lines))
    return 0


def _build_stores(options: argparse.Namespace) -> int:
    from harness.store.build_job import parse_build_job
    from harness.store.datasets import build_store, build_stores

    root, choices, resources = find_root(options.root), _list_choices(options), _make_resources(options)
    if options.share is None:
        stores = build_stores(root, choices, resources)
    else:
        job = parse_build_job(options.share)
        stores = [build_store(root, choice, resources=resources, job=job) for choice in choices]
    _print_stores(root, options, stores)
    return 0


def _verify_stores(options: argparse.Namespace) -> int:
    from harness.store.datasets import verify_store

    root, choices = find_root(options.root), _list_choices(options)
    with ProgressLine() as on_step:
        stores = [verify_store(root, choice, on_step) for choice in choices]
    _print_stores(root, options, stores)
    return 0


def _print_stores(root: Path, options: argparse.Namespace, stores: list[Path]) -> None:
    """Print the folders of stores, and compare the nonzeros of the first with its card."""
    paths = [str(store) for store in stores]
    print_answer(options, {"store": paths[0]} if len(paths) == 1 else {"stores": paths}, "\n".join(paths))
    _report_nonzeros(root, options.name, stores[0])


def _report_nonzeros(root: Path, name: str, folder: Path) -> None:
    """Print the nonzeros of a store to stderr if its card expects a number.

    After a share of a build there may be no store yet.
    """
    from harness.store.catalog import load_card
    from harness.store.info import describe_nonzeros
    from harness.store.reader import Store

    if folder.exists() and (counts := describe_nonzeros(load_card(root, name), Store(folder))):
        built, deviation, expected = counts["built"], counts["deviation"], counts["expected"]
        print_message(f"{name}: {built:,} nonzeros, {deviation} off the {expected:,} of its card")


def _print_facts(options: argparse.Namespace) -> int:
    import yaml

    from harness.store.info import describe_dataset

    root, choice = find_root(options.root), _get_choice(options)
    facts = describe_dataset(root, choice)
    if options.ranks:
        facts["needs"] = [
            {key: value for key, value in needed.items() if value is not None}
            for needed in _list_needs(root, options.ranks, choice, built=facts["built"])
        ]
    print_answer(options, facts, yaml.safe_dump(facts, sort_keys=False).rstrip())
    return 0


def _list_needs(root: Path, ranks: int, choice: DatasetChoice, *, built: bool) -> list[dict[str, Any]]:
    """Return the memory and words that each strategy needs, from the store, or from the card if it is not built."""
    from harness.experiment.known_graph import KnownGraph, facts_of_card
    from harness.experiment.requests import admit_on_all_grids
    from harness.registry import registered_strategies
    from harness.replay import find_requirements
    from harness.store.catalog import load_card
    from harness.store.datasets import open_dataset
    from harness.strategy import facts_of

    facts = facts_of(open_dataset(root, choice)) if built else facts_of_card(load_card(root, choice.name))
    request = {"dataset": choice.name, "ranks": ranks}
    unpartitioned = KnownGraph(replace(facts, bounds=None), None)
    with ProgressLine() as on_step:
        points = report_steps(registered_strategies(), lambda point: f"replaying {point.name}", on_step)
        each = (
            admit_on_all_grids(root, point.name, request, lambda _: unpartitioned, point.name)
            for point in points
        )
        return [needed._asdict() for needed in find_requirements(each)]


def _import_files(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> Path:
    from harness.fetch.download import fetch_card_files
    from harness.store.graph_import import ImportRequest, import_graph, make_import_card

    if options.edges is None and options.origin is None:
        raise UserError(
            "import needs a graph: harness data import NAME --edges FILE, or --from suitesparse:GROUP/NAME."
        )
    values = {key: getattr(options, key) for key in ImportRequest.model_fields}
    request = validate(ImportRequest, values, "harness data import", _name_option)
    if request.origin:
        fetch_card_files(root, make_import_card(request), print_progress)
    return import_graph(root, request, choice, _make_resources(options))


def _make_resources(options: argparse.Namespace) -> "BuildResources":
    from harness.formatting import GIB
    from harness.store.build_resources import BuildResources

    workers = options.workers or len(os.sched_getaffinity(0))
    return BuildResources(int(options.memory * GIB), workers, print_progress)


def _print_balance(options: argparse.Namespace) -> int:
    """Print the fullest shard divided by the mean for every order, and what loops contribute to it."""
    from harness.store.datasets import open_dataset
    from harness.store.shard_balance import expect_loop_imbalance, measure_shard_balance

    root, choice = find_root(options.root), _get_choice(options)
    store = open_dataset(root, DatasetChoice(name=choice.name))
    with ProgressLine() as on_step:
        ratios = dict(measure_shard_balance(store, options.shards, choice.seed, on_step))
    of_loops = expect_loop_imbalance(store.n, store.nnz, options.shards)
    document = {"shards": options.shards, "most_over_mean": ratios, "law_of_loops": of_loops}
    lines = [f"{f'{options.shards} x {options.shards} shards':22}most / mean nonzeros"]
    lines += [f"{order:22}{ratio:.3f}" for order, ratio in ratios.items()]
    lines.append(f"{'loops only, single':22}{of_loops:.3f}")
    print_answer(options, document, "\n".join(lines))
    return 0


def _get_choice(options: argparse.Namespace) -> DatasetChoice:
    """Return the order that the options choose. Raise UserError if they choose several."""
    first, *others = _list_choices(options)
    if others:
        raise UserError(f"{options.action} takes one order: one value of --parts and one of --seed.")
    return first


def _list_choices(options: argparse.Namespace) -> list[DatasetChoice]:
    """Return the orders that the options choose: each number of parts with each seed."""
    values = {key: getattr(options, key) for key in DatasetChoice.model_fields}
    orders = [
        {**values, "parts": parts, "seed": seed} for parts, seed in product(options.parts, options.seed)
    ]
    return [validate(DatasetChoice, each, f"harness data {options.action}", _name_option) for each in orders]


def _name_option(key: str) -> str:
    """Return the option that sets a key. The name of the dataset is an argument."""
    return {"name": "NAME", "origin": "--from"}.get(key, f"--{key}")
