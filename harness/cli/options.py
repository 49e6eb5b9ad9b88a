"""The options and the output that verbs share: how a verb is declared, a run is asked for, an answer is printed."""

import argparse
import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar

from harness.documents import parse_yaml_value
from harness.errors import UserError
from harness.untrusted import escape_control, escape_line
from harness.validation import RANKS, Setting, clip_line, suggest_names

if TYPE_CHECKING:
    from harness.spec.spec import Spec
    from harness.strategy import Facts

Verbs = Any  # argparse does not name the type of its sub-parsers
Act = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that refuses an option in one line."""

    def error(self, message: str) -> Never:
        way_out = f"`{self.prog} --help` lists what is accepted."
        raise UserError(f"{clip_line(message, 600).rstrip('.')}.{self._meant(message)} {way_out}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses an unknown option where it stands: argparse would leave it to the parser above all verbs."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _meant(self, message: str) -> str:
        """The question for a verb, a choice or an option that is none."""
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            return suggest_names(wrong[1], re.findall(r"[^\s,']+", wrong[2]))
        if wrong := re.search(r"unrecognized arguments: (-\S+)", message):
            return suggest_names(wrong[1].partition("=")[0], list(self._option_string_actions))
        return ""


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


def moment(text: str) -> datetime:
    """The type of an option that takes a date, or a date and a time; without a zone it is in UTC."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        accepted = "a date as 2026-11-24, or a time as 2026-11-24T18:30, in UTC"
        raise argparse.ArgumentTypeError(_refused(text, accepted)) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


T = TypeVar("T")


def several(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """The type of an option that takes one or more values, separated by commas; repetitions are dropped."""
    return lambda text: list(dict.fromkeys(map(one, text.split(","))))


ranks = whole(1, RANKS)
"""The type of --ranks."""


def _refused(text: str, accepted: str) -> str:
    return f"{clip_line(text, 40)} is not accepted: {accepted}"


class Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves lines as they are that begin with white space: examples of commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(
            line if line[:1].isspace() else fill(line, width, indent) for line in text.splitlines()
        )


def add_verb(
    verbs: Verbs, name: str, act: Act, summary: str, more: str = "", examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A verb with the options that every verb has; `more` follows the summary in the verb's own help."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary} {more}".strip(),
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else None,
        formatter_class=Help,
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="the project root (default: HARNESS_ROOT, or the nearest folder upwards that holds datasets/catalog)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(act=act)
    return parser


def show(options: argparse.Namespace, data: Any, text: str) -> None:
    """Prints the answer: `data` for a program (--json), `text` for a person."""
    print(json.dumps(data, indent=2, default=str) if options.json else escape_control(text), flush=True)


# All that a verb prints goes through `show`, `tell`, `say` and `Progress`: names, labels and errors may come from
# others, and a terminal would obey the escape sequences in them.


def tell(message: str) -> None:
    """Prints a message on stderr."""
    print(escape_control(message), file=sys.stderr, flush=True)


def say(progress: str) -> None:
    """Prints progress on stderr: in place on a terminal, a line each in a log."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(escape_control(progress), end=end, file=sys.stderr, flush=True)


class Progress:
    """Progress of work in counted steps on stderr, with the time that is left by the steps that are done.

    On a terminal the line is rewritten in place, and cleared at the end; in a log a line is added every `EVERY`
    seconds. A first step begins the work anew: work in several parts counts the steps of each.
    """

    EVERY = 5.0

    def __init__(self) -> None:
        self.begun = self.told = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, done: int, of: int, doing: str, seconds_left: float | None = None) -> None:
        """Step number `done` + 1 of `of` begins, or goes on; `seconds_left` is a better estimate than the default."""
        now, in_place = time.monotonic(), sys.stderr.isatty()
        if done == 0:
            self.begun = now
        if not in_place and now - self.told < self.EVERY:
            return
        self.told, spent = now, now - self.begun
        if seconds_left is None and done and spent > 1:
            seconds_left = spent / done * (of - done)
        left = "" if seconds_left is None else f", about {_in_words(seconds_left)} left"
        line = clip_line(escape_control(f"{done + 1} of {of}{left}: {doing}"), 78)
        print(
            f"\r\x1b[K{line}" if in_place else line, end="" if in_place else "\n", file=sys.stderr, flush=True
        )

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def paragraph(text: str) -> str:
    """Text in lines of at most 98 characters, the first of which stands out."""
    kept = text.replace(" %", "\0%")  # a number stays with its sign
    filled = textwrap.fill(kept, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text with their columns aligned. No cell begins a line of its own."""
    if not rows:
        return ""
    rows = [tuple(map(escape_line, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def settings_page(settings: Sequence[Setting], indent: str = "") -> str:
    """A paragraph for each key: what is accepted, its default, and below the meaning."""
    lines = []
    for key, accepts, default, meaning in settings:
        lines.append(f"{indent}{key}: {accepts}{f' (default {default})' if default else ''}")
        lines += textwrap.wrap(meaning, 98, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}    ")
    return "\n".join(lines)


def sizes_of(facts: "Facts") -> str:
    """Where the sizes of a graph come from."""
    return (
        "counted in its store" if facts.exact else "expected from its card, in a random order of the vertices"
    )


def add_request(parser: argparse.ArgumentParser) -> None:
    """The options that ask for a run."""
    parser.add_argument(
        "--strategy", metavar="NAME", help="a name of `harness list strategies`, or path/to/file.py:Class"
    )
    parser.add_argument("--dataset", metavar="NAME", help="a name of `harness list datasets`, or a twin")
    parser.add_argument("--ranks", type=ranks, default=1, metavar="P", help="the number of ranks (default 1)")
    parser.add_argument(
        "--grid",
        metavar="2x2x2",
        help="the sizes of the strategy's axes (default: the strategy's first choice for this number of ranks)",
    )
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The option for any other key of a spec."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of `harness list settings`, for example training.epochs=5; may be repeated",
    )


def add_rank(parser: argparse.ArgumentParser) -> None:
    """The option for one rank of the run that is asked for."""
    parser.add_argument(
        "--rank", type=whole(0, RANKS - 1), default=0, metavar="R", help="the rank to show (default 0)"
    )


def check_rank(options: argparse.Namespace, spec: "Spec") -> None:
    """Refuses a rank that the run does not have."""
    if options.rank >= spec.ranks:
        raise UserError(
            f"--rank {options.rank} is not accepted: the ranks of this run are 0 to {spec.ranks - 1}."
        )


def requested(root: Path, options: argparse.Namespace) -> "Spec":
    """The spec that the options ask for, not yet admitted by its strategy."""
    from harness.experiment.requests import make_spec, nest_settings

    if not (options.strategy and options.dataset):
        either = "either --spec FILE or " if hasattr(options, "spec") else ""
        raise UserError(f"{options.verb} takes {either}--strategy NAME --dataset NAME [--ranks P].")
    asked = {
        "strategy.name": options.strategy,
        "dataset.name": options.dataset,
        "ranks": options.ranks,
        "grid": options.grid,
    }
    given = settings(options.set)
    try:
        return make_spec(root, nest_settings({**asked, **given}), "the options")
    except UserError as error:
        raise UserError(_as_typed(str(error), given, options.strategy)) from None


PARAMS = "strategy.params."
"""The beginning of the keys of a strategy's parameters."""


def _as_typed(message: str, given: Mapping[str, Any], strategy: str) -> str:
    """An error that names the option of a key: --ranks, --grid, or --set for a key that --set gave."""
    message = re.sub(r"^(the options: )?(ranks|grid)( =)? ", r"--\2 ", message)
    for key in given:
        unknown = message.startswith(f"the options: {key} is not a key here")
        if unknown and (whole := _ending_in(key, strategy)):
            return f"--set {key} is not a key. Did you mean {' or '.join(whole)}?"
        field = key.replace(PARAMS, f"parameters of {strategy}: ", 1)
        message = message.replace(f"the options: {field} = ", f"--set {key}=", 1)
    return message


def _ending_in(key: str, strategy: str) -> list[str]:
    """The keys of a spec, and of the strategy's parameters, of which this key is the end."""
    from harness.registry import load_strategy
    from harness.spec.spec import list_spec_keys

    known = [*list_spec_keys(), *(PARAMS + name for name in load_strategy(strategy).Params.model_fields)]
    return [name for name in known if name.endswith(f".{key}")]


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """The keys and values given by --set."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--set {clip_line(text, 60)} is not understood. Expected KEY=VALUE, for example training.epochs=5."
            )
        values[key] = parse_yaml_value(value, f"--set {clip_line(text, 60)}")
    return values
