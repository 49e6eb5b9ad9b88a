"""Parses options of a program: a printed argparse Namespace, or the arguments of a command line."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

Options = Mapping[str, Any]

NAMESPACE = re.compile(r"\bNamespace\((?=\w+=)(.*)$", re.MULTILINE)
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
NAMED = re.compile(r"\s*[A-Za-z_]\w*=")
TOKEN = re.compile(rf"(?<=[=(\[{{, ])(?:{QUOTED})|.")
"""A quoted text at the beginning of a value, or one character."""
OPENING, CLOSING = "([{<", ")]}>"


def parse_namespaces(text: str) -> list[dict[str, Any]]:
    """Return the options of each printed Namespace, in the order of the text."""
    return [dict(_parse_options(printed.rstrip())) for printed in NAMESPACE.findall(text)]


def parse_command(command: str, script: str, defaults: Options) -> dict[str, Any]:
    """Return the arguments of a Python script in a command or in a log that echoes it, with their defaults.

    The result is empty if the script is not called with an argument. An option without a value is True.
    """
    call = re.search(rf"\b{re.escape(script)}((?:[ \t]+[^\s|&;<>]+)+)", command)
    if call is None or " -" not in call[1].replace("\t", " "):
        return {}
    options = dict(defaults)
    name = ""
    for word in _split_words(call[1]):
        if word.startswith("--"):
            name, is_given, value = word.removeprefix("--").replace("-", "_").partition("=")
            options[name] = parse_value(value) if is_given else True
        elif name and options[name] is True:
            options[name] = parse_value(word)
    return options


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote that is not closed, in a line of a log
        return command.split()


def _parse_options(printed: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values after `Namespace(`, except an option that is cut off at the end of the line."""
    depth, pieces = 0, [""]
    for token in TOKEN.findall(printed):
        if token == ")" and depth == 0:
            break
        depth = max(depth + (token in OPENING) - (token in CLOSING), 0)
        if token == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += token
    else:
        pieces.pop()
    options: list[str] = []
    for piece in pieces:
        if NAMED.match(piece):
            options.append(piece)
        elif options:  # a comma within a value that has no quotes
            options[-1] += f",{piece}"
    for option in options:
        name, _, text = option.strip().partition("=")
        yield name, parse_value(text)


def parse_value(text: str) -> Any:
    """Return the value of a Python literal, inf or nan. Other text, such as a path, is returned unchanged."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deep nesting
        try:
            return float(text)
        except ValueError:
            return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    """Return True if JSON can represent the value unchanged."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return value is None or isinstance(value, str | bool | int | float)
