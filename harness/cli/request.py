"""The options that ask for one run: what is trained, on what, by how many ranks, and any other key of a spec."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import ranks
from harness.documents import yaml_value
from harness.errors import UserError
from harness.validation import clipped

if TYPE_CHECKING:
    from harness.spec.spec import Spec


def add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategy", metavar="NAME", help="a registered name, or path/to/file.py:Class")
    parser.add_argument("--dataset", metavar="NAME")
    parser.add_argument("--ranks", type=ranks, default=1)
    parser.add_argument(
        "--grid", metavar="2x2x2", help="sizes along the strategy's axes (default: its first guess)"
    )
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other key, as training.epochs=5"
    )


def requested(root: Path, options: argparse.Namespace) -> "Spec":
    """The spec that the options ask for, not yet admitted by its strategy."""
    from harness.experiment.request import make_spec, nested

    if not (options.strategy and options.dataset):
        way = "either --spec FILE or " if hasattr(options, "spec") else ""
        raise UserError(f"{options.verb} takes {way}--strategy NAME --dataset NAME [--ranks P].")
    asked = {
        "strategy.name": options.strategy,
        "dataset.name": options.dataset,
        "ranks": options.ranks,
        "grid": options.grid,
    }
    return make_spec(root, nested({**asked, **settings(options.set)}), "the options")


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """What is given by --set: keys and values."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--set {clipped(text, 60)} is not understood: it takes KEY=VALUE, as training.epochs=5."
            )
        found[key] = yaml_value(value, f"--set {clipped(text, 60)}")
    return found
