"""Verbs: a request and a function, which the command line runs and which Python calls by the fields of the request."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from importlib import import_module
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from harness.cli.commands import VERBS
from harness.cli.commands.answer import Answer
from harness.cli.commands.request import Request, list_options, make_request, remove_metadata


class Reporter(Protocol):
    """Receives the progress of a verb. `SILENT` ignores it."""

    def log(self, message: str) -> None:
        """Report what happens now; the next message may replace this one."""

    def warn(self, message: str) -> None:
        """Report what the user should know, although the verb goes on."""

    def step(self, completed: int, total: int, activity: str, eta: float | None = None) -> None:
        """Report that `completed` of `total` steps are done, and what runs now."""

    def show(self, answer: Answer) -> None:
        """Show an answer that is complete before the verb is: one of several runs."""


class Silent:
    """A reporter that ignores everything."""

    def log(self, message: str) -> None: ...

    def warn(self, message: str) -> None: ...

    def step(self, completed: int, total: int, activity: str, eta: float | None = None) -> None: ...

    def show(self, answer: Answer) -> None: ...


SILENT = Silent()


class Declaration(NamedTuple):
    """What `verb` keeps about a function: the request that it takes, and the function itself."""

    request: type[Request]
    run: Callable[[Any, Reporter], Answer]


P = ParamSpec("P")
R = TypeVar("R", bound=Request)
A = TypeVar("A", bound=Answer)


def verb(request: Callable[P, R]) -> Callable[[Callable[[R, Reporter], A]], Callable[P, A]]:
    """Make a function of a request callable by the fields of the request.

    The new function has the signature of the request, and a docstring with the help of every field.
    """

    def decorate(function: Callable[[R, Reporter], A]) -> Callable[P, A]:
        def call(*args: P.args, **values: P.kwargs) -> A:
            return function(make_request(request, str, *args, **values), SILENT)

        call.__name__ = call.__qualname__ = function.__name__
        call.__module__ = function.__module__
        call.__signature__ = _make_signature(request, function)  # type: ignore[attr-defined]
        call.__doc__ = _write_docstring(function.__doc__ or "", request)
        call.declaration = Declaration(request, function)  # type: ignore[attr-defined, arg-type]
        return call

    return decorate


def _make_signature(request: Any, function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a request: its own fields first, their real defaults, and what the function returns."""
    parameters = inspect.signature(request).parameters
    ordered = [
        parameters[option.field].replace(
            annotation=remove_metadata(option.annotation),
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
        )
        for option in list_options(request)
    ]
    return inspect.Signature(
        sorted(ordered, key=lambda parameter: parameter.kind),
        return_annotation=inspect.signature(function).return_annotation,
    )


def _write_docstring(text: str, request: Any) -> str:
    options = list_options(request)
    names = {option.option: option.field for option in options}
    arguments = [
        f"    {option.field}: {_name_arguments(option.style.python or option.help, names)}"
        for option in options
    ]
    return "\n".join([inspect.cleandoc(text), "", "Args:", *arguments])


def _name_arguments(text: str, names: Mapping[str, str]) -> str:
    """Return a help text that names arguments instead of options."""
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", lambda found: names.get(found[0], found[0]), text)


def load_verb(name: str) -> Declaration:
    """Import the module of a verb, and return its declaration."""
    module, _, function = VERBS[name].function.partition(":")
    declaration: Declaration = getattr(import_module(module), function).declaration
    return declaration
