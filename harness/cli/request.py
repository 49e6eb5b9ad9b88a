"""The options that ask for one run: what is trained, on what, by how many ranks, and any other key of a spec."""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from harness.documents import yaml_value
from harness.errors import UserError
from harness.validation import RANKS, clipped

if TYPE_CHECKING:
    from harness.spec.spec import Spec


# What the verbs share: how one is declared, the options all of them have, and how an answer is printed.

Verbs = Any  # argparse does not name the type of its sub-parsers
Act = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what it does not accept."""

    def error(self, message: str) -> Never:
        listed = f"`{self.prog} --help` lists what is accepted."
        raise UserError(f"{clipped(message, 600).rstrip('.')}. {listed}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number from `least` to `most`."""

    def number(text: str) -> int:
        value = int(text) if re.fullmatch(r"[-+]?\d{1,30}", text) else None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(_refused(text, f"a whole number from {least} to {most}"))
        return value

    return number


def real(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes a number from `least` to `most`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(_refused(text, f"a number from {least:g} to {most:g}"))
        return value

    return number


ranks = whole(1, RANKS)
"""The type of --ranks."""


def _refused(text: str, accepted: str) -> str:
    return f"{clipped(text, 40)} is not accepted: {accepted}"


def add_verb(verbs: Verbs, name: str, act: Act, summary: str) -> argparse.ArgumentParser:
    """One verb with the options that every verb has."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "--root", metavar="DIR", help="project root (default: HARNESS_ROOT, or found upwards)"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(act=act)
    return parser


def show(options: argparse.Namespace, data: Any, text: str) -> None:
    """The answer, for a program or for a person."""
    print(json.dumps(data, indent=2, default=str) if options.json else text)


def say(progress: str) -> None:
    """How far something is: in place on a terminal, a line each in a log."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(progress, end=end, file=sys.stderr, flush=True)


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text with their columns aligned."""
    if not rows:
        return ""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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
