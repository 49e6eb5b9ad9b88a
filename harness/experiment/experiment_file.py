"""The form of an experiment file: its keys, and the values that each key accepts.

Whether a strategy, a dataset or a grid exists and fits is checked when the experiment is expanded.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.validation import CheckedAs, Frozen, validate

Value = TypeVar("Value")


def _make_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_choice(value: Any) -> Any:
    named = {"name": value} if isinstance(value, str) else value
    if not isinstance(named, dict) or not isinstance(named.get("name"), str) or not named["name"]:
        raise ValueError("a name, or a mapping with the key name")
    return value


def _check_grid(value: Any) -> Any:
    if not isinstance(value, str | dict) or not value:
        raise ValueError("sizes of the axes as 2x2 or as a mapping, or one of all, largest, best")
    return value


def _check_machine(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise ValueError("name a card, and describe the machine in config/machines/")
    return value


OneOrMore = Annotated[list[Value], BeforeValidator(_make_list), Field(min_length=1)]
"""One value, or a list of values."""
Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, strict=True)]
Choice = Annotated[Any, AfterValidator(_check_choice)]
Grid = Annotated[Any, AfterValidator(_check_grid)]
Machine = Annotated[Any, AfterValidator(_check_machine)]
Section = dict[str, Any]


class RunEntry(Frozen):
    """An entry of `runs`: every combination of its lists, except those that `exclude` matches."""

    strategy: OneOrMore[Choice]
    dataset: OneOrMore[Choice]
    ranks: OneOrMore[Count] = []
    """The number of ranks; the number that the grid holds by default."""
    grid: OneOrMore[Grid] = []
    """Sizes of the axes, as 2x2x2 or as a mapping. `all` is every grid of the strategy, `largest` the one on which a
    rank holds the most that its memory allows, and `best` the one with the shortest predicted epoch."""
    memory_gb: OneOrMore[Annotated[float, Field(gt=0, strict=True)]] = []
    """The memory of a rank where the grid or a parameter is `largest`; by default that of the machine card."""
    model: OneOrMore[Section] = []
    training: OneOrMore[Section] = []
    measure: OneOrMore[Section] = []
    protocol: OneOrMore[Word] = []
    precision: OneOrMore[Word] = []
    machine: OneOrMore[Machine] = []
    seed: OneOrMore[Count] = []
    launch: OneOrMore[Count] = []
    exclude: Annotated[list[Annotated[Section, Field(min_length=1)]], BeforeValidator(_make_list)] = []
    """Combinations to leave out, each as the keys and values that it has."""


class Runs(Frozen):
    """Runs, and the machine of the runs that do not name one."""

    machine: str | None = None
    runs: list[Annotated[dict[str, Any], CheckedAs(RunEntry)]] = Field(min_length=1)


class Experiment(Runs):
    """The keys of an experiment file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)
    """The name of the file without its suffix."""
    description: str = ""
    """What the runs show."""
    reproduces: tuple[str, ...] = ()
    """The figures and tables of papers that the runs reproduce, by their ids (`harness list figures`)."""
    published: Runs | None = None
    """The runs of the paper for the same figure."""
    emulated: Runs | None = None
    """Runs with more ranks than a machine has cores. Each records a tape, which is replayed on the links of the run's
    machine."""


def load_experiment(path: Path) -> Experiment:
    """Return the experiment in a file."""
    if not path.is_file():
        raise UserError(f"There is no experiment file {path}. The experiments are in workflows/experiments/.")
    return parse_experiment(read_yaml(path, str(path)), str(path))


def parse_experiment(document: Any, where: str) -> Experiment:
    """Return the experiment in a document, which errors call `where`."""
    return validate(Experiment, document, where)
