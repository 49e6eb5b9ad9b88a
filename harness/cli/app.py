"""The parser of the command line, made from the requests of the verbs."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from cyclopts import App, Group, Parameter
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from harness import __version__
from harness.base.errors import UserError
from harness.cli.commands import GROUPS, SECTIONS, VERBS
from harness.cli.commands.output import View

if TYPE_CHECKING:
    from harness.cli.commands.request import OptionField, Request
    from harness.cli.commands.verb import Declaration

# The requests of the verbs need pydantic, which the help of the program does without: it is imported where it is used.

ABOUT = "Runs, checks and compares parallel GNN training strategies."
GETTING_STARTED = """\
Start with:

    harness list datasets
    harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2
    harness collect && harness figures && harness report

`harness completion --help` says how the shell completes names.

Exit codes: 0 done, 1 the work ran and did not succeed, 2 the request was wrong,
70 a defect of the harness, 130 interrupted.
"""
VIEW = {
    "json": "Print the answer as JSON.",
    "all": "Print all rows of long tables.",
    "verbose": "Print details.",
    "why": "Print reasons, as for what is missing.",
}
"""The options that every verb has, which change what is printed and not the answer."""
OUTPUT = Group("Output", sort_key=len(SECTIONS) + 1)
ARGUMENTS = Group("Arguments", sort_key=0)
OPTIONS = Group("Options", sort_key=len(SECTIONS))
PREDICT_ALL = "harness predict --strategy S --dataset D --ranks P --grid all"
REMOVED = {
    ("", "server"): "`harness run` and `harness check` start their ranks themselves.",
    ("", "replay"): "`harness words --replay` shows what a rank does in an epoch, without running it.",
    ("", "emulate"): "`harness runs emulate RUN` re-times a recorded run.",
    ("", "init"): "`harness new project FOLDER` makes a project.",
    ("", "site"): "`harness report PACK PACK --out FOLDER` shows the packs of several groups.",
    ("", "submission"): "`harness pack` packs runs, and `harness verify` verifies a pack.",
    ("", "artifact"): "`harness pack` packs runs with their tables, figures and claims.",
    ("plan", "--strategy"): f"`{PREDICT_ALL}` predicts the time of an epoch on every grid, and "
    "`harness list grids --strategy S --ranks P` lists the grids without a graph.",
    ("report", "--history"): "`harness compare BEFORE AFTER` compares the tables of two commits. "
    "asv (airspeed velocity) finds changes over many.",
    (
        "data export",
        "--to",
    ): "`harness data export NAME --out FILE` writes a file for PyTorch Geometric, and "
    "docs/tutorials/your-graph.md shows how to make a graph of DGL from it.",
    ("data info", "--ranks"): "`harness advise --dataset D --ranks P --all` compares the strategies on it.",
}
"""Verbs, and options of verbs, that there were, and what does their work now."""


class Parsed(NamedTuple):
    """A command line that was understood."""

    declaration: "Declaration"
    request: "Request"
    view: View
    json: bool


def make_app() -> App:
    """Return the parser. The module of a verb is imported when its options are needed."""
    app = App(
        name="harness",
        help=ABOUT,
        help_epilogue=GETTING_STARTED,
        help_format="plaintext",  # others import a parser of markup
        version=f"harness {__version__}",
        group_arguments=ARGUMENTS,
    )
    sections = dict[str, Group]()
    for number, (title, verbs) in enumerate(SECTIONS.items()):
        sections |= dict.fromkeys(verbs, Group(title, sort_key=number))
    groups = dict[str, App]()
    for number, (name, verb) in enumerate(VERBS.items()):
        first, _, action = name.partition(" ")
        place = app
        if action and first not in groups:
            groups[first] = App(
                name=first, help=GROUPS[first], help_epilogue="", sort_key=number, group=sections[first]
            )
            app.command(groups[first])
        if action:
            place = groups[first]
        place.command(
            f"harness.cli.app:{name.replace(' ', '_')}",
            name=action or first,
            help=verb.summary,
            sort_key=number,
            group=None if action else sections.get(first),
            show=first in sections,
        )
    for flag in ("--help", "--version"):
        app[flag].group = OPTIONS
    return app


def __getattr__(name: str) -> Callable[..., Parsed]:
    """Return the command of a verb, which `make_app` names by its path."""
    verb = next((verb for verb in VERBS if verb.replace(" ", "_") == name), None)
    if verb is None:
        raise AttributeError(name)
    return make_command(verb)


def make_command(verb: str) -> Callable[..., Parsed]:
    """Return a function whose parameters are the options of a verb, and which returns the request they make."""
    from harness.cli.commands.request import list_options, make_request
    from harness.cli.commands.verb import load_verb

    declaration = load_verb(verb)
    options = list_options(declaration.request)
    names = {option.field: option.option for option in options}

    def command(*arguments: Any, **values: Any) -> Parsed:
        json = values.pop("json", False)
        view = View(*(values.pop(f"view_{name}", False) for name in View._fields))
        positional = [option for option in options if option.style.is_positional]
        given = {option.field: value for option, value in zip(positional, arguments, strict=False)} | values
        given = {name: value for name, value in given.items() if value is not None}
        return Parsed(
            declaration,
            make_request(declaration.request, lambda field: names.get(field, field), **given),
            view,
            json,
        )

    parameters = [_make_parameter(option) for option in options] + list(_make_view_parameters())
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = join_lines(declaration.run.__doc__ or "")
    return command


def join_lines(docstring: str) -> str:
    """Return a docstring whose paragraphs are one line each, for the width of the terminal. Indented lines stay."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split()) for paragraph in paragraphs
    )


def _make_parameter(option: "OptionField") -> inspect.Parameter:
    """Return an option as a parameter of text, a choice or a flag: the request itself converts and checks values."""
    style = option.style
    shown = format_default(option)
    is_required = option.default is MISSING
    default: Any = inspect.Parameter.empty if is_required else None
    annotation: Any = find_choice(option.annotation) or str
    if style.takes != "one":
        annotation = list[annotation]
    if not is_required:
        annotation = annotation | None
    if option.annotation is bool:
        annotation, default = bool, False
    parameter = Parameter(
        name=tuple(name for name in (option.option, style.short) if name),
        help=option.help,
        metavar=style.metavar or None,
        negative="",
        show_default=(lambda _: shown) if shown else False,
        consume_multiple=style.takes in ("several", "rest"),
        allow_leading_hyphen=style.takes == "rest",
        group=ARGUMENTS if style.is_positional else OPTIONS,
        completer=_make_completer(style.completes) if style.completes else None,
    )
    kind = inspect.Parameter.POSITIONAL_ONLY if style.is_positional else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.field, kind, annotation=Annotated[annotation, parameter], default=default)


def find_choice(annotation: Any) -> Any:
    """Return the Literal of a type, also beside None; None for other types."""
    if get_origin(annotation) is Literal:
        return annotation
    return next((part for part in get_args(annotation) if get_origin(part) is Literal), None)


def format_default(option: "OptionField") -> str:
    """Return a default as the command line writes it; empty if the help of the option says what happens."""
    value = option.default
    if value is MISSING or value in (None, False, "", (), {}):
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _make_view_parameters() -> Iterator[inspect.Parameter]:
    for name, about in VIEW.items():
        names = (f"--{name}", "-v") if name == "verbose" else (f"--{name}",)
        parameter = Parameter(name=names, help=about, negative="", show_default=False, group=OUTPUT)
        yield inspect.Parameter(
            name if name == "json" else f"view_{name}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[bool, parameter],
            default=False,
        )


def _make_completer(names: str) -> Callable[[Any], list[str]]:
    def complete(_: Any) -> list[str]:
        from harness.cli.completed_names import list_names

        return list_names(names)

    return complete


# Errors of the parser as errors of the harness.


def parse(app: App, words: list[str]) -> Parsed | None:
    """Parse a command line. Prints help, the version or completions if these are requested, and then returns None."""
    if path := _find_path(words):
        _show_whole_help(app, path)
    try:
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UserError(_describe_error(error, words)) from None
    parsed: Parsed | None = command(*bound.args, **bound.kwargs)
    return parsed


def _show_whole_help(app: App, path: str) -> None:
    """Let the help of a verb show the whole docstring of its function. The help of the program shows summaries."""
    command = app
    for name in path.split():
        command = command[name]
    command.help_epilogue = ""
    if path in VERBS:
        from harness.cli.commands.verb import load_verb

        command.help = join_lines(load_verb(path).run.__doc__ or "")


def _describe_error(error: CycloptsError, words: list[str]) -> str:
    """Return what is wrong with a command line, similar names, and the command that lists what is accepted."""
    from harness.base.validation import clip_line, suggest_names

    path = " ".join(error.command_chain or ()) or _find_path(words)
    where = f"harness {path}".strip()
    for word in words if path else words[:1]:
        if replacement := REMOVED.get((path, word.partition("=")[0])):
            return f"{where} does not have {word.partition('=')[0]} any more: {replacement}"
    known = _list_option_names(path)
    way_out = f"`{where} --help` lists what is accepted."
    match error:
        case UnknownCommandError():
            chain = [word for word in path.split() if word in GROUPS][:1]
            wrong = next((word for word in words[len(chain) :] if not word.startswith("-")), "")
            what, where = ("an action", f"harness {chain[0]}") if chain else ("a verb", "harness")
            text = f"{clip_line(wrong, 40)!r} is not {what}.{_suggest_verb(wrong, chain)}"
            way_out = f"`{where} --help` lists what is accepted."
        case UnknownOptionError():
            wrong = error.token.keyword or error.token.value if error.token else ""
            hint = _suggest_option(_add_value(wrong or "", words), known)
            text = f"{clip_line(wrong or '', 40)} is not an option of {where}.{hint}"
        case MissingArgumentError():
            name = error.argument.name if error.argument else "an argument"
            unknown = next(
                (word for word in words if word.startswith("--") and word.partition("=")[0] not in known), ""
            )
            hint = f" {unknown} is not an option.{_suggest_option(unknown, known)}" if unknown else ""
            text = f"{where} needs {name}.{hint}"
        case UnusedCliTokensError():
            text = f"{where} does not take {' '.join(map(repr, error.unused_tokens or []))}."
        case RepeatArgumentError():
            text = f"{error.argument.name if error.argument else 'An option'} is given twice."
        case CoercionError():
            name, token = (error.argument.name if error.argument else ""), error.token
            value = clip_line(token.value if token else "", 40)
            choices = list(map(str, get_args(find_choice(error.target_type) or error.target_type)))
            if choices:
                text = f"{name} {value} is not accepted: one of {', '.join(choices)}.{suggest_names(value, choices)}"
            else:
                text = f"{name} does not take a value such as {value}."
        case _:
            text = clip_line(str(error), 600)
    return f"{text} {way_out}"


def _find_path(words: list[str]) -> str:
    """Return the verb, or the verb and its action, that begin a command line."""
    return next(
        (path for path in (" ".join(words[:2]), " ".join(words[:1])) if path in VERBS or path in GROUPS), ""
    )


def _suggest_verb(wrong: str, chain: list[str]) -> str:
    """Return a question with the verb that has an action of this name, or with similar verbs or actions."""
    from harness.base.validation import suggest_names

    of_others = [verb for verb in VERBS if verb.partition(" ")[2] == wrong]
    if wrong and of_others:
        return f" Did you mean {' or '.join(of_others)}?"
    names = [verb.split(" ")[len(chain)] for verb in VERBS if verb.split(" ")[: len(chain)] == chain]
    return suggest_names(wrong, list(dict.fromkeys(names)))


def _list_option_names(path: str) -> list[str]:
    from harness.cli.commands.request import list_options
    from harness.cli.commands.verb import load_verb

    if path not in VERBS:
        return []
    options = [option.option for option in list_options(load_verb(path).request)]
    return [name for name in [*options, *(f"--{name}" for name in VIEW)] if name.startswith("-")]


def _add_value(option: str, words: list[str]) -> str:
    """Return an option of a command line with its value: --epochs 5 as --epochs=5."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return word
        if word == option and following and not following.startswith("-"):
            return f"{option}={following}"
    return option


def _suggest_option(wrong: str, known: list[str]) -> str:
    """Return a question with similar options, or with the key of --set whose last part is the wrong name."""
    from harness.base.validation import suggest_names

    name, _, value = wrong.partition("=")
    if "--set" in known:
        from harness.spec.spec import find_spec_keys

        if keys := find_spec_keys(name.lstrip("-").replace("-", "_")):
            return f" Did you mean --set {keys[0]}={value or '...'}?"
    return suggest_names(name, known)
