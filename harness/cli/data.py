"""harness data: fetch or import a graph, make its store, look at it, check it, see how its nonzeros fall."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.request import Verbs, add_verb, ranks, real, say, show, whole
from harness.errors import UserError
from harness.spec.dataset import ACCEPTED, DatasetChoice
from harness.spec.root import project_root
from harness.validation import CLASSES, RANKS, VERTICES, validated

if TYPE_CHECKING:
    from harness.store.task import Means


IMPORTED = {
    "edges": "the graph: .txt, .csv, .tsv (also .gz), or .mtx, .npz, .parquet, .graph, .pt",
    "features": "a row a vertex: .npy, .csv, .txt; drawn if left out",
    "labels": "a number a vertex, or a 0 or 1 for each class; -1 for none; by degree if left out",
    "split": "a number a vertex: 1 train, 2 valid, 3 test; or masks, a column each; drawn if left out",
}
LEAST_GIB, MOST_GIB = 1 / 64, 1 << 20
MOST_SHARDS = 4096
"""Along a side: their counts fit in some hundred MiB."""


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "data", _data, "Fetch or import a dataset; build, show, verify or weigh its store."
    )
    parser.add_argument("action", choices=("fetch", "import", "build", "info", "verify", "balance"))
    parser.add_argument("name", help="a card of datasets/catalog")
    for name, about in IMPORTED.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"import: {about}")
    parser.add_argument("--directed", action="store_true", help="import: edges go one way")
    parser.add_argument(
        "--vertices", type=whole(1, VERTICES), help="import: how many, if the largest id does not say"
    )
    parser.add_argument(
        "--base", type=int, choices=(0, 1), default=0, help="import: the first id in text (default 0)"
    )
    parser.add_argument(
        "--header", action="store_true", help="import: the first line of text names the columns"
    )
    parser.add_argument(
        "--classes", type=whole(1, CLASSES), help="import: if labels do not say (default 32 by degree)"
    )
    parser.add_argument("--permutation", choices=("none", "single", "double"), default="none")
    parser.add_argument("--partition", default="block", help=f"{ACCEPTED}; default block")
    parser.add_argument(
        "--parts", type=whole(0, RANKS), default=0, help="of the partition: the ranks that split the rows"
    )
    parser.add_argument(
        "--seed", type=whole(0, (1 << 63) - 1), default=0, help="seed of the order (default 0)"
    )
    parser.add_argument(
        "--memory",
        type=real(LEAST_GIB, MOST_GIB),
        default=4.0,
        metavar="GIB",
        help="build: what it may take, in GiB (default 4)",
    )
    parser.add_argument(
        "--workers",
        type=whole(0, 4096),
        default=0,
        help="build: threads (default: as many as there are cores)",
    )
    parser.add_argument(
        "--share",
        metavar="STEP:NUMBER/JOBS",
        help="build: only this job's share, where several build one store together: scatter:0/4, then settle and "
        "features; an ordinary build ends it",
    )
    parser.add_argument(
        "--ranks",
        type=ranks,
        help="info: what a rank of so many would take, for every strategy on its best grid",
    )
    parser.add_argument(
        "--shards",
        type=whole(1, MOST_SHARDS),
        default=8,
        help="balance: blocks of rows, and of columns (default 8)",
    )


def _data(options: argparse.Namespace) -> int:
    root, choice = project_root(options.root), _choice(options)
    if options.action == "balance":
        return _balance(root, options, choice)
    if options.action == "fetch":
        from harness.fetch.download import fetch

        paths = [str(path) for path in fetch(root, options.name, say)]
        show(options, {"files": paths}, "\n".join(paths) or f"{options.name} needs no file from the network.")
    elif options.action == "info":
        _info(root, options, choice)
    else:
        store = _store(root, options, choice)
        show(options, {"store": str(store)}, str(store))
        _say_nonzeros(root, options.name, store)
    return 0


def _say_nonzeros(root: Path, name: str, folder: Path) -> None:
    """How many a store has, on stderr, where the card expects a number; a share of a build leaves no store."""
    from harness.store.catalog import load_card
    from harness.store.info import nonzeros
    from harness.store.reader import Store

    if folder.exists() and (found := nonzeros(load_card(root, name), Store(folder))):
        said = f"{name}: {found['built']:,} nonzeros, {found['deviation']} off the {found['expected']:,} of its card"
        print(said, file=sys.stderr)


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
    """What every strategy would take; by the card where there is no store yet."""
    from harness.experiment.expected_facts import facts_of_card
    from harness.registry import registered
    from harness.replay.needs import needs
    from harness.store.build import open_dataset
    from harness.store.catalog import load_card
    from harness.strategy import facts_of

    facts = facts_of(open_dataset(root, choice)) if built else facts_of_card(load_card(root, choice.name))
    names = [point.name for point in registered()]
    unparted = replace(facts, bounds=None)
    return [needed._asdict() for needed in needs(root, names, choice.name, unparted, ranks)]


def _store(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> Path:
    from harness.store.build import build, verify
    from harness.store.share import share

    if options.action == "import":
        return _import(root, options, choice)
    if options.action == "verify":
        return verify(root, choice)
    return build(root, choice, means=_means(options), share=share(options.share) if options.share else None)


def _import(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> Path:
    from harness.store.imported import Brought, import_graph

    if options.edges is None:
        raise UserError("import takes the graph: harness data import NAME --edges FILE.")
    told = {key: getattr(options, key) for key in Brought.model_fields}
    brought = validated(Brought, told, "harness data import", _as_typed)
    return import_graph(root, brought, choice, _means(options))


def _means(options: argparse.Namespace) -> "Means":
    from harness.store.task import GIB, Means

    workers = options.workers or len(os.sched_getaffinity(0))
    return Means(int(options.memory * GIB), workers, say)


def _balance(root: Path, options: argparse.Namespace, choice: DatasetChoice) -> int:
    """The fullest shard over the mean in every order, and what loops alone would make of a single permutation."""
    from harness.store.build import open_dataset
    from harness.store.info import balance, law_of_loops

    if choice.permutation != "none" or choice.partitioned:
        raise UserError("balance speaks of every permutation: leave out --permutation and --partition.")
    store = open_dataset(root, DatasetChoice(name=choice.name))
    found = dict(balance(store, options.shards, options.seed))
    law = law_of_loops(store.n, store.nnz, options.shards)
    document = {"shards": options.shards, "most_over_mean": found, "law_of_loops": law}
    lines = [f"{f'{options.shards} x {options.shards} shards':22}most / mean nonzeros"]
    lines += [f"{order:22}{ratio:.3f}" for order, ratio in found.items()]
    lines.append(f"{'loops alone, single':22}{law:.3f}")
    show(options, document, "\n".join(lines))
    return 0


def _choice(options: argparse.Namespace) -> DatasetChoice:
    asked = {key: getattr(options, key) for key in DatasetChoice.model_fields}
    return validated(DatasetChoice, asked, f"harness data {options.action}", _as_typed)


def _as_typed(key: str) -> str:
    """The option behind a key; the name of the dataset has none."""
    return "NAME" if key == "name" else f"--{key}"
