"""Options and output that several verbs share: declaring a verb, requesting a run, printing an answer."""

import argparse
import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar

from harness.commands.run_options import name_options
from harness.documents import parse_yaml_value
from harness.errors import UserError
from harness.untrusted import escape_control, escape_line
from harness.validation import RANKS, Setting, clip_line, suggest_names

if TYPE_CHECKING:
    from harness.spec.spec import Spec
    from harness.strategy import Facts

Verbs = Any  # argparse does not name the type of its sub-parsers
Handler = Callable[[argparse.Namespace], int]


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are UserErrors of one line."""

    def error(self, message: str) -> Never:
        way_out = f"`{self.prog} --help` lists what is accepted."
        raise UserError(f"{clip_line(message, 600).rstrip('.')}.{self._suggest_words(message)} {way_out}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. An unknown option is an error of the verb, which can suggest its own options."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _suggest_words(self, message: str) -> str:
        """Return a question with similar words if argparse rejected a verb, a choice or an option."""
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            return suggest_names(wrong[1], re.findall(r"[^\s,']+", wrong[2]))
        if wrong := re.search(r"unrecognized arguments: (-\S+)", message):
            return suggest_names(wrong[1].partition("=")[0], list(self._option_string_actions))
        return ""


def int_in(least: int, most: int) -> Callable[[str], int]:
    """Return the argparse type of a whole number from `least` to `most`."""

    def parse_int(text: str) -> int:
        value = int(text) if re.fullmatch(r"[-+]?\d{1,30}", text) else None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(
                _explain_rejection(text, f"a whole number from {least} to {most}")
            )
        return value

    return parse_int


def float_in(least: float, most: float) -> Callable[[str], float]:
    """Return the argparse type of a number from `least` to `most`."""

    def parse_float(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(_explain_rejection(text, f"a number from {least:g} to {most:g}"))
        return value

    return parse_float


def utc_datetime(text: str) -> datetime:
    """Parse a date, or a date with a time. Without a time zone it is in UTC. An argparse type."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        accepted = "a date such as 2026-11-24, or a time such as 2026-11-24T18:30, in UTC"
        raise argparse.ArgumentTypeError(_explain_rejection(text, accepted)) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


T = TypeVar("T")


def comma_list(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return the argparse type of one or more values separated by commas. Repeated values are dropped."""
    return lambda text: list(dict.fromkeys(map(one, text.split(","))))


rank_count = int_in(1, RANKS)
"""The argparse type of a number of ranks."""


def _explain_rejection(text: str, accepted: str) -> str:
    return f"{clip_line(text, 40)} is not accepted: {accepted}"


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but keeps lines that begin with white space, such as examples of commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(
            line if line[:1].isspace() else fill(line, width, indent) for line in text.splitlines()
        )


def add_verb(
    verbs: Verbs, name: str, handler: Handler, summary: str, more: str = "", examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Add a verb with the options that all verbs have. `more` follows the summary in the help of the verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary} {more}".strip(),
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else None,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="the project root (default: HARNESS_ROOT, or the nearest parent folder that contains datasets/catalog)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(handler=handler)
    return parser


def print_answer(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print the answer of a verb: `data` as JSON with --json, otherwise `text`."""
    print(json.dumps(data, indent=2, default=str) if options.json else escape_control(text), flush=True)


# Verbs print only by `print_answer`, `print_message`, `print_progress` and `ProgressLine`. These escape control
# characters, because names, labels and errors may come from untrusted files.


def print_message(message: str) -> None:
    """Print a message to stderr."""
    print(escape_control(message), file=sys.stderr, flush=True)


def print_progress(message: str) -> None:
    """Print progress to stderr: on a terminal the next line replaces it, in a log each message has a line."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(escape_control(message), end=end, file=sys.stderr, flush=True)


class ProgressLine:
    """Prints the progress of work in steps to stderr, with an estimate of the remaining time.

    On a terminal the line is rewritten in place and cleared at the end. In a log a new line is printed at most every
    `INTERVAL` seconds. Step 0 restarts the clock: work in several parts counts the steps of each part.
    """

    INTERVAL = 5.0

    def __init__(self) -> None:
        self.started = self.printed = time.monotonic()

    def __enter__(self) -> "ProgressLine":
        return self

    def __call__(self, done: int, of: int, doing: str, seconds_left: float | None = None) -> None:
        """Print that `done` of `of` steps are complete, and what runs now.

        `seconds_left` replaces the default estimate from the time of the completed steps.
        """
        now, in_place = time.monotonic(), sys.stderr.isatty()
        if done == 0:
            self.started = now
        if not in_place and now - self.printed < self.INTERVAL:
            return
        self.printed, spent = now, now - self.started
        if seconds_left is None and done and spent > 1:
            seconds_left = spent / done * (of - done)
        left = "" if seconds_left is None else f", about {_format_duration(seconds_left)} left"
        line = clip_line(escape_control(f"{done + 1} of {of}{left}: {doing}"), 78)
        print(
            f"\r\x1b[K{line}" if in_place else line, end="" if in_place else "\n", file=sys.stderr, flush=True
        )

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def format_paragraph(text: str) -> str:
    """Return text in lines of at most 98 characters, all but the first indented."""
    kept = text.replace(" %", "\0%")  # do not break between a number and its percent sign
    filled = textwrap.fill(kept, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def format_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of text as lines with aligned columns. Line breaks in cells become spaces."""
    if not rows:
        return ""
    rows = [tuple(map(escape_line, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def format_settings(settings: Sequence[Setting], indent: str = "") -> str:
    """Return a paragraph for each key: the accepted values, the default, and below them the meaning."""
    lines = []
    for key, accepts, default, meaning in settings:
        lines.append(f"{indent}{key}: {accepts}{f' (default {default})' if default else ''}")
        lines += textwrap.wrap(meaning, 98, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}    ")
    return "\n".join(lines)


def describe_size_source(facts: "Facts") -> str:
    """Return a description of where the sizes of a graph come from."""
    return (
        "counted in its store" if facts.exact else "expected from its card, in a random order of the vertices"
    )


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that request a run."""
    parser.add_argument(
        "--strategy", metavar="NAME", help="a name of `harness list strategies`, or path/to/file.py:Class"
    )
    parser.add_argument("--dataset", metavar="NAME", help="a name of `harness list datasets`, or a twin")
    parser.add_argument(
        "--ranks", type=rank_count, default=1, metavar="P", help="the number of ranks (default 1)"
    )
    parser.add_argument(
        "--grid",
        metavar="2x2x2",
        help="the sizes of the strategy's axes (default: the strategy's first choice for this number of ranks)",
    )
    add_set_option(parser)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add --set, for any other key of a spec."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of `harness list settings`, for example training.epochs=5; may be repeated",
    )


def add_rank_option(parser: argparse.ArgumentParser) -> None:
    """Add --rank, which selects a rank of the requested run."""
    parser.add_argument(
        "--rank", type=int_in(0, RANKS - 1), default=0, metavar="R", help="the rank to show (default 0)"
    )


def check_rank(options: argparse.Namespace, spec: "Spec") -> None:
    """Raise UserError if --rank is not a rank of the run."""
    if options.rank >= spec.ranks:
        raise UserError(
            f"--rank {options.rank} is not accepted: the ranks of this run are 0 to {spec.ranks - 1}."
        )


def make_requested_spec(root: Path, options: argparse.Namespace) -> "Spec":
    """Return the spec that the options request. Its strategy has not admitted it yet."""
    from harness.experiment.requests import make_spec, nest_settings

    if not (options.strategy and options.dataset):
        either = "either --spec FILE or " if hasattr(options, "spec") else ""
        raise UserError(f"{options.verb} takes {either}--strategy NAME --dataset NAME [--ranks P].")
    requested = {
        "strategy.name": options.strategy,
        "dataset.name": options.dataset,
        "ranks": options.ranks,
        "grid": options.grid,
    }
    settings = parse_settings(options.set)
    try:
        return make_spec(root, nest_settings({**requested, **settings}), "the options")
    except UserError as error:
        raise UserError(name_options(str(error), settings, options.strategy)) from None


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the keys and values that --set gives."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--set {clip_line(text, 60)} is not understood. Expected KEY=VALUE, for example training.epochs=5."
            )
        values[key] = parse_yaml_value(value, f"--set {clip_line(text, 60)}")
    return values
