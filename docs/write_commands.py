"""Print the page of the command line, made from the requests of the verbs: `python docs/write_commands.py`."""

import inspect
from collections.abc import Iterator
from typing import get_args

from harness.cli.app import VIEW, find_choice, format_default
from harness.cli.commands import GROUPS, VERBS
from harness.cli.commands.request import OptionField, list_options
from harness.cli.commands.verb import load_verb

HEADER = """\
# Command line

<!-- Made from harness/cli/commands by `python docs/write_commands.py`. -->

`harness VERB --help` prints the same. From Python, a verb is a function with the same options:
`harness.predict("plexus", "reddit", 64)`.

| verb | |
| --- | --- |"""
FOOTER = """
Exit codes: 0 done, 1 the work ran and did not succeed, 2 the request was wrong, 70 a defect of the harness, 130
interrupted.
"""


def format_page() -> str:
    """Return the text of the page."""
    return "\n".join([*_list_lines(), FOOTER])


def _list_lines() -> Iterator[str]:
    yield HEADER
    for name, verb in VERBS.items():
        yield f"| [`{name}`](#harness-{name.replace(' ', '-')}) | {verb.summary} |"
    described = set[str]()
    for name in VERBS:
        group = name.split(" ")[0]
        if group in GROUPS and group not in described:
            described.add(group)
            yield f"\n## harness {group}\n\n{GROUPS[group]}"
        yield from _describe_verb(name)
    yield "\n## Options of all verbs\n\n| option | |\n| --- | --- |"
    for option, about in VIEW.items():
        yield f"| `--{option}` | {about} |"


def _describe_verb(name: str) -> Iterator[str]:
    declaration = load_verb(name)
    options = list_options(declaration.request)
    arguments = [_format_argument(option) for option in options if option.style.is_positional]
    yield f"\n{'###' if ' ' in name else '##'} harness {name}\n"
    yield f"```\n{' '.join(['harness', name, *arguments, '[OPTIONS]'])}\n```\n"
    yield inspect.cleandoc(declaration.run.__doc__ or "")
    yield "\n| option | | default |\n| --- | --- | --- |"
    for option in options:
        yield f"| {_format_option(option)} | {option.help} | {_format_default(option)} |"


def _format_argument(option: OptionField) -> str:
    return f"{option.option}..." if option.style.takes == "several" else option.option


def _format_option(option: OptionField) -> str:
    if option.style.is_positional or option.annotation is bool:
        return f"`{option.option}`"
    choice = find_choice(option.annotation)
    values = "\\|".join(map(str, get_args(choice))) if choice else option.style.metavar or "TEXT"
    return f"`{option.option} {values}`"


def _format_default(option: OptionField) -> str:
    default = format_default(option)
    return f"`{default}`" if default else ""


if __name__ == "__main__":
    print(format_page(), end="")
