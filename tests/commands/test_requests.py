"""Requests: one declaration gives options, help, errors and the Python function."""

import inspect
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.cli.commands.answer import Answer
from harness.cli.commands.request import (
    CONFIG,
    OptionStyle,
    RankCounts,
    Request,
    Settings,
    make_request,
)
from harness.cli.commands.verb import SILENT, Reporter, verb


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
        ({"name": "mine", "shards": "0"}, ["shards 0", "1", "4096"]),
        ({"name": "mine", "ranks": "2,x"}, ["ranks x"]),
        ({"name": "mine", "order": "triple"}, ["order triple", "none, single"]),
        ({}, ["name"]),
        ({"name": "mine", "shard": 3}, ["shard", "shards"]),
        ({"name": "mine", "settings": ["epochs"]}, ["epochs", "KEY=VALUE"]),
        ({"name": "mine", "shards": 0, "order": "x"}, ["shards 0", "order x"]),
    ],
)
def test_wrong_values_are_refused_with_what_is_accepted(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        make_request(CutRequest, str, **values)
    assert all(word in str(refusal.value) for word in said)
