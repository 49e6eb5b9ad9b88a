"""The types of a formula's arguments: how each is read from the text of a row.

Names of graphs, machines, experiments and claims are checked against those of the project.
"""

from collections.abc import Callable, Collection
from functools import partial
from math import prod
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from harness.base.validation import suggest_names
from harness.claims.selection import Selection, parse_selection
from harness.graph.cards.catalog import list_cards
from harness.ledger import TensorName
from harness.spec.machine_card import list_machines

EXPERIMENTS = Path("workflows") / "experiments"


class KnownNames(NamedTuple):
    """The names that a project knows, by kind."""

    graph: Collection[str]
    machine: Collection[str]
    experiment: Collection[str]
    claim: Collection[str]
    """The claims that print a number."""


def list_known_names(root: Path, claims: Collection[str]) -> KnownNames:
    """List the names that a project knows; `claims` are those that print a number."""
    experiments = [path.stem for path in (root / EXPERIMENTS).glob("*.yaml")]
    return KnownNames(list_cards(root), list_machines(root), experiments, claims)


class ArgumentReader(NamedTuple):
    """Marks an argument that a function reads from its text and the known names."""

    read: Callable[[str, KnownNames], object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            lambda text, info: self.read(text, info.context)
        )


def _check_name(
    name: str, known: KnownNames, kind: Literal["graph", "machine", "experiment", "claim"]
) -> str:
    names = getattr(known, kind)
    if name.partition("@")[0] not in names:
        hint = suggest_names(name, names)
        raise ValueError(f"there is no {kind} {name}{hint and f' ({hint.strip()})'}")
    return name


Graph = Annotated[str, ArgumentReader(partial(_check_name, kind="graph"))]
"""The name of a dataset card, or of a twin of its graph, such as `reddit@1/10`."""
Machine = Annotated[str, ArgumentReader(partial(_check_name, kind="machine"))]
PrintedClaim = Annotated[str, ArgumentReader(partial(_check_name, kind="claim"))]
"""The id of a claim that prints a number."""


def _read_runs(text: str, known: KnownNames) -> Selection:
    runs = parse_selection(text)
    for experiment in runs.experiments:
        _check_name(experiment, known, "experiment")
    for graph in runs.list_choices("dataset"):
        _check_name(graph, known, "graph")
    for machine in [*runs.list_choices("machine"), *runs.cards]:
        _check_name(machine, known, "machine")
    return runs


Runs = Annotated[Selection, ArgumentReader(_read_runs)]
"""Runs of experiments: `plexus-figure-8 strategy=plexus dataset=reddit ranks=4|8 cards=perlmutter-measured`."""


class StrategyOnGrid(NamedTuple):
    strategy: str
    grid: str

    @property
    def ranks(self) -> int:
        return prod(map(int, self.grid.split("x")))


def _read_scheme(text: str, _: KnownNames) -> StrategyOnGrid:
    if not (found := fullmatch(r"(\S+) (\d+(?:x\d+)*)", text.strip())):
        raise ValueError(f"{text!r} is not a strategy and its grid, such as cagnet-2d 8x8")
    return StrategyOnGrid(found[1], found[2])


Scheme = Annotated[StrategyOnGrid, ArgumentReader(_read_scheme)]
"""A strategy and its grid: `cagnet-2d 8x8`."""


def _read_two_schemes(text: str, known: KnownNames) -> tuple[StrategyOnGrid, StrategyOnGrid]:
    one, _, other = text.partition(" / ")
    return _read_scheme(one, known), _read_scheme(other, known)


TwoSchemes = Annotated[tuple[StrategyOnGrid, StrategyOnGrid], ArgumentReader(_read_two_schemes)]
"""Two schemes that are compared: `cagnet-1d 64 / cagnet-2d 8x8`."""


def _read_ratio(text: str, _: KnownNames) -> float:
    if not (found := fullmatch(r"(\d+(?:\.\d+)?)(?:/([1-9]\d*))?", text)):
        raise ValueError("expected a number or a ratio of two, such as 1/8")
    return float(found[1]) / int(found[2] or 1)


Ratio = Annotated[float, ArgumentReader(_read_ratio)]
"""A number, or a ratio of two: `1/8`."""
Tensors = Annotated[tuple[TensorName, ...], BeforeValidator(lambda text: text.split(","))]
"""Tensors of the ledger: `H,T,G,S`."""
