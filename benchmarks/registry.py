"""A benchmark is a function: its parameters are its options, and it yields tables, their rows, figures and notes.

    @benchmark
    def pool(jobs: int = 9) -> Results:
        '''Time an empty job on the pool of workers.

        Args:
            jobs: timed jobs of each size
        '''
        yield Table("ranks", "median ms:.1f")
        for ranks in (1, 2, 4):
            yield ranks, time_job(ranks, jobs)

In a file launching.py this is the benchmark `launching.pool`, with the option `--jobs`. Parameters without a default
are positional. A parameter of type `Hosts` makes the runner start the benchmark on every host of an emulated cluster.
"""

import inspect
import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import isnan
from pathlib import Path
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SPEED_LOST = 3
"""The exit code of a benchmark that ran to its end and found that speed was lost."""
COMMON_HELP = {
    "dataset": "graph",
    "graphs": "names of graphs",
    "ranks": "number of ranks",
    "grid": "sizes of the axes, as in 2x2",
    "layers": "layers of the model",
    "hidden": "width of the hidden layers",
    "batch": "vertices of a mini-batch",
    "epochs": "timed epochs of each competitor",
    "launches": "launches, each with its own processes and seed",
    "rounds": "rounds in which every competitor is timed once",
    "turns": "times that each competitor is timed",
    "only": "names of strategies (default: all)",
}
"""Help of options that several benchmarks share, where a docstring does not describe them."""


class Column(NamedTuple):
    """A column's title, with its unit, and the format of its cells."""

    title: str
    format: str = ""

    @classmethod
    def parse(cls, text: str) -> "Column":
        """Read a title that may be followed by a format of numbers, as in `median ms:.1f` or `saved:.0%`."""
        title, colon, form = text.rpartition(":")
        return cls(title, form) if re.fullmatch(r",?(\.\d+)?[defg%]?", form) and colon and form else cls(text)

    def show(self, value: object) -> str:
        """Return a cell's text: numbers in the format of the column, text unchanged, nothing for None and NaN."""
        if value is None or (isinstance(value, float) and isnan(value)):
            return ""
        return format(value, self.format) if isinstance(value, int | float) else str(value)


class Table:
    """The head of a table. The tuples that a benchmark yields after it are its rows."""

    def __init__(self, *columns: str, title: str = "") -> None:
        self.columns = [Column.parse(column) for column in columns]
        self.title = title

    def to_frame(self, rows: "Sequence[Row]") -> "DataFrame":
        """Return rows as a data frame whose columns have the titles of the table."""
        import pandas as pd

        return pd.DataFrame(rows, columns=[column.title for column in self.columns])


class Drawing(NamedTuple):
    """A figure and the name of its files; `dataset` is kept in their metadata."""

    name: str
    figure: "Figure"
    dataset: str = ""


Row = tuple[object, ...]
Results = Iterator[Table | Row | Drawing | str]
"""What a benchmark yields, in the order in which it is shown; a string is a paragraph."""


@dataclass(frozen=True)
class Hosts:
    """Emulated hosts, each with one rank and its own link to a switch (benchmarks/testbed)."""

    count: int = 4
    rate: str = "200mbit"

    @property
    def mbits(self) -> float:
        """The rate of each link in Mbit/s."""
        number, unit = float(self.rate[:-4]), self.rate[-4:]
        return number * {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}[unit]


FOUR_HOSTS = Hosts()

Function = TypeVar("Function", bound=Callable[..., Results])
REGISTERED: dict[str, "Benchmark"] = {}


@dataclass(frozen=True)
class Benchmark:
    """A registered function."""

    name: str
    function: Callable[..., Results]

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return inspect.cleandoc(self.function.__doc__ or "").split("\n\n")[0].replace("\n", " ")

    @property
    def help(self) -> dict[str, str]:
        """The help of each option: its line below `Args:` in the docstring, or the common one."""
        text = inspect.cleandoc(self.function.__doc__ or "").partition("Args:\n")[2]
        own = {
            name: " ".join(line.split())
            for name, line in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.M)
        }
        return COMMON_HELP | own

    @property
    def parameters(self) -> dict[str, tuple[inspect.Parameter, Any]]:
        """The function's parameters with their types."""
        hints = get_type_hints(self.function)
        return {
            name: (parameter, hints[name])
            for name, parameter in inspect.signature(self.function).parameters.items()
        }

    @property
    def runs_on_hosts(self) -> bool:
        """True if the benchmark takes emulated hosts."""
        return any(kind is Hosts for _, kind in self.parameters.values())

    def parser(self) -> ArgumentParser:
        """Return a parser of the benchmark's options."""
        about = inspect.cleandoc(self.function.__doc__ or "").partition("\nArgs:\n")[0]
        parser = ArgumentParser(
            f"python -m benchmarks {self.name}",
            description=about,
            formatter_class=RawDescriptionHelpFormatter,
        )
        texts = self.help
        for name, (parameter, kind) in self.parameters.items():
            if kind is Hosts:
                parser.add_argument(
                    "--hosts", type=int, default=parameter.default.count, help="emulated hosts"
                )
                rate = "of each link, as 200mbit (default: %(default)s)"
                parser.add_argument("--rate", default=parameter.default.rate, help=rate)
            else:
                _add_option(parser, parameter, kind, texts[name])
        return parser

    def start(self, options: Namespace) -> Results:
        """Call the function with parsed options."""
        named, positional = dict[str, Any](), list[Any]()
        for name, (parameter, kind) in self.parameters.items():
            value: Any = Hosts(options.hosts, options.rate) if kind is Hosts else getattr(options, name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional += value
            elif parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                positional.append(tuple(value) if isinstance(value, list) else value)
        return self.function(*positional, **named)


def _add_option(parser: ArgumentParser, parameter: inspect.Parameter, kind: Any, text: str) -> None:
    """Add the option of a parameter: a flag for a bool, several values for a tuple, choices for a Literal."""
    settings: dict[str, Any] = {"help": text}
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        kind, settings["nargs"] = get_args(kind)[0], "*"
    if parameter.kind is parameter.VAR_POSITIONAL:
        settings["nargs"] = "*"
    if get_origin(kind) is Literal:
        settings["choices"], kind = get_args(kind), type(get_args(kind)[0])
    name, positional = parameter.name, parameter.default is parameter.empty
    if kind is bool:
        parser.add_argument(_flag(name), action="store_true", help=text)
    elif positional:
        parser.add_argument(name, type=kind, **settings)
    else:
        if parameter.default not in (None, (), "") and "(default:" not in text:
            several = isinstance(parameter.default, tuple)
            shown = " ".join(map(str, parameter.default)) if several else parameter.default
            settings["help"] = f"{text} (default: {shown})".replace("%", "%%")
        parser.add_argument(_flag(name), type=kind, default=parameter.default, **settings)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def benchmark(function: Function) -> Function:
    """Register a function as the benchmark FILE.FUNCTION, or FILE if both have the same name."""
    module, name = function.__module__.rpartition(".")[2], function.__name__.replace("_", "-")
    full = module if module == name else f"{module}.{name}"
    REGISTERED[full] = Benchmark(full, function)
    return function


def find_benchmark(name: str) -> Benchmark | None:
    """Return the benchmark of a name, or None. Imports only the file that the name begins with."""
    module = name.partition(".")[0]
    if module in list_modules():
        import_module(f"benchmarks.{module}")
    return REGISTERED.get(name)


def list_benchmarks() -> Sequence[Benchmark]:
    """Return all benchmarks, sorted by name."""
    for module in list_modules():
        import_module(f"benchmarks.{module}")
    return sorted(REGISTERED.values(), key=lambda each: each.name)


def list_modules() -> list[str]:
    """Return the names of the files of this folder."""
    folder = str(Path(__file__).parent)
    return [module.name for module in iter_modules([folder]) if not module.name.startswith("_")]
