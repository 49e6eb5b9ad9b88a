"""harness data: make a dataset's store, look at it, check it."""

import argparse

from harness.cli.options import Verbs, add_verb, show
from harness.spec.root import project_root
from harness.store.choice import DatasetChoice
from harness.validation import validated


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "data", _data, "Build, show or verify the store of a dataset.")
    parser.add_argument("action", choices=("build", "info", "verify"))
    parser.add_argument("name", help="a card of datasets/catalog")
    parser.add_argument("--permutation", choices=("none", "single", "double"), default="none")
    parser.add_argument(
        "--partition", default="block", help="block (default), random, metis, hypergraph, or file:NAME"
    )
    parser.add_argument(
        "--parts", type=int, default=0, help="of the partition: the ranks that split the rows"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the order (default 0)")


def _data(options: argparse.Namespace) -> int:
    from harness.store.build import build, verify

    root, choice = project_root(options.root), _choice(options)
    if options.action == "info":
        import yaml

        from harness.store.info import info

        facts = info(root, choice)
        show(options, facts, yaml.safe_dump(facts, sort_keys=False).rstrip())
    else:
        store = build(root, choice) if options.action == "build" else verify(root, choice)
        show(options, {"store": str(store)}, str(store))
    return 0


def _choice(options: argparse.Namespace) -> DatasetChoice:
    asked = {key: getattr(options, key) for key in DatasetChoice.model_fields}
    return validated(DatasetChoice, asked, "the options")
