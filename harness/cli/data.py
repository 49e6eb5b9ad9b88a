"""harness data: make a dataset's store, look at it, check it."""

import argparse

from harness.cli.options import Verbs, add_verb, show
from harness.spec.root import project_root


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "data", _data, "Build, show or verify the store of a dataset.")
    parser.add_argument("action", choices=("build", "info", "verify"))
    parser.add_argument("name", help="a card of datasets/catalog")
    parser.add_argument("--permutation", choices=("none", "single", "double"), default="none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the permutation (default 0)")


def _data(options: argparse.Namespace) -> int:
    from harness.store.build import build, info, verify

    root = project_root(options.root)
    choice = (root, options.name, options.permutation, options.seed)
    if options.action == "info":
        import yaml

        facts = info(*choice)
        show(options, facts, yaml.safe_dump(facts, sort_keys=False).rstrip())
    else:
        store = (build if options.action == "build" else verify)(*choice)
        show(options, {"store": str(store)}, str(store))
    return 0
