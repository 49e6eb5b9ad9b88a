"""Requests: one declaration gives options, help, errors and the Python function."""

import inspect
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.cli.app import join_lines, make_app, make_command, parse
from harness.commands import VERBS
from harness.commands.answer import Answer
from harness.commands.request import (
    CONFIG,
    OptionStyle,
    RankCounts,
    Request,
    Settings,
    list_options,
    make_request,
)
from harness.commands.verb import SILENT, Reporter, load_verb, verb
from harness.errors import UserError


@dataclass(frozen=True, config=CONFIG)
class CutRequest(Request):
    """A request with one option of each kind."""

    name: Annotated[str, OptionStyle(metavar="NAME", is_positional=True)]
    """A name."""
    ranks: RankCounts = (1,)
    """The numbers of ranks."""
    _: KW_ONLY
    shards: Annotated[int, Field(ge=1, le=4096)] = 8
    """Cut into N x N blocks."""
    order: Literal["none", "single"] = "none"
    """The order of the vertices."""
    settings: Settings = Field(default_factory=dict)
    """Settings."""


class CutAnswer(Answer):
    """Holds the request."""

    def __init__(self, request: CutRequest) -> None:
        self.request = request


@verb(CutRequest)
def cut(request: CutRequest, reporter: Reporter) -> CutAnswer:
    """Cut a graph."""
    assert reporter is SILENT
    return CutAnswer(request)


def test_function_takes_the_fields_of_its_request() -> None:
    answer = cut("mine", (2, 4), shards=3, settings={"training.epochs": 5})
    assert (answer.request.name, answer.request.ranks, answer.request.shards) == ("mine", (2, 4), 3)
    assert answer.request.settings == {"training.epochs": 5}
    assert list(inspect.signature(cut).parameters) == ["name", "ranks", "shards", "order", "settings", "root"]
    assert inspect.signature(cut).parameters["shards"].default == 8
    assert inspect.signature(cut).parameters["settings"].default == {}
    assert "shards: Cut into N x N blocks." in (cut.__doc__ or "")


def test_text_and_values_make_the_same_request() -> None:
    by_text = make_request(CutRequest, str, name="mine", ranks="2,4", settings=["training.epochs=5"])
    assert by_text == CutRequest("mine", (2, 4), settings={"training.epochs": 5})
    assert make_request(CutRequest, str, "mine", 8).ranks == (8,)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "mine", "shards": "0"}, "shards 0 is not accepted: a whole number from 1 to 4096"),
        ({"name": "mine", "ranks": "2,x"}, "ranks x is not accepted: a whole number from 1 to"),
        ({"name": "mine", "order": "triple"}, "order triple is not accepted: one of none, single"),
        ({}, "name is missing"),
        ({"name": "mine", "shard": 3}, "shard is not an argument here. Did you mean shards?"),
        ({"name": "mine", "settings": ["epochs"]}, "Expected KEY=VALUE"),
        ({"name": "mine", "shards": 0, "order": "x"}, "order x is not accepted"),
    ],
)
def test_wrong_values_are_refused_with_what_is_accepted(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refusal:
        make_request(CutRequest, str, **values)
    assert said in str(refusal.value)


def test_errors_of_the_command_line_name_options() -> None:
    with pytest.raises(UserError, match="--ranks 0 is not accepted: a whole number from 1 to"):
        parse(make_app(), ["predict", "--strategy", "serial", "--dataset", "tiny-sbm", "--ranks", "0"])


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_is_complete(name: str) -> None:
    declaration = load_verb(name)
    docstring = inspect.cleandoc(declaration.run.__doc__ or "")
    assert docstring.splitlines()[0] == VERBS[name].summary
    for option in list_options(declaration.request):
        assert option.help.endswith("."), f"{name} {option.option} has no help"
        assert option.help[0].isupper() or option.help[0] in "`1", option.help
    assert make_command(name).__doc__ == join_lines(docstring)
