"""harness new: makes the package of a strategy, or a project."""

import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic.dataclasses import dataclass

from harness.base.formatting import format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Command, Headline
from harness.cli.commands.request import CONFIG, OptionStyle, Request
from harness.cli.commands.verb import Reporter, verb


@dataclass(frozen=True, config=CONFIG)
class ProjectRequest(Request):
    """Where to make a project."""

    folder: Annotated[Path, OptionStyle(metavar="FOLDER", is_positional=True)]
    """A folder that is new or empty."""


@plain_dataclass(frozen=True)
class ProjectAnswer(Answer):
    """The new project."""

    headline: Headline
    folder: Path
    first_run: Sequence[Block]


@verb(ProjectRequest)
def new_project(request: ProjectRequest, _: Reporter) -> ProjectAnswer:
    """Make a project: a folder with dataset cards, machine cards and workflows.

    A checkout already is a project. Other verbs run inside a project, or name it by --root.
    """
    from harness.cli.scaffold.scaffold import write_project

    folder = write_project(request.folder)
    first_run = (
        Command(shlex.join(["cd", str(folder)])),
        Command("harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2"),
        Command("harness collect && harness figures && harness report"),
        "Snakemake, which the extra `slurm` installs, runs whole experiments:",
        Command("snakemake all --profile workflows/profiles/local"),
    )
    return ProjectAnswer(
        Headline(f"{folder} is a project. For a first run and its figures:"), folder, first_run
    )


@dataclass(frozen=True, config=CONFIG)
class StrategyRequest(Request):
    """The strategy to make, and where."""

    name: Annotated[str, OptionStyle(metavar="NAME", is_positional=True)]
    """The name of the strategy, as in my-strategy."""
    _: KW_ONLY
    mini_batch: bool = False
    """A strategy that trains on mini-batches instead of the full graph."""
    into: Annotated[Path, OptionStyle(metavar="DIR")] = Path()
    """The folder in which the package is made (default: the current folder)."""


class NewFile(NamedTuple):
    """A file of a new package."""

    file: Path


@plain_dataclass(frozen=True)
class StrategyAnswer(Answer):
    """The package of a new strategy."""

    headline: Headline
    folder: Path
    strategy: str
    """The strategy, as path/to/file.py:Class."""
    files: Sequence[NewFile]
    next_step: Sequence[Block]


@verb(StrategyRequest)
def new_strategy(request: StrategyRequest, _: Reporter) -> StrategyAnswer:
    """Make the package of a new strategy: its class, a test, a CI workflow.

    The strategy trains on one rank. The messages of `harness check` lead to a complete strategy.
    """
    from harness.cli.scaffold.scaffold import choose_names, write_strategy

    names = choose_names(request.name)
    folder = write_strategy(request.name, request.into, mini_batch=request.mini_batch)
    strategy = f"{folder / names.package / 'strategy.py'}:{names.cls}"
    files = [NewFile(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    headline = Headline(f"{folder} has {format_count(len(files), 'file')}. The strategy is {strategy}")
    next_step = (
        "Follow the messages of this command until the strategy conforms:",
        Command(shlex.join(["harness", "check", strategy, "--quick", "--first"])),
        "docs/tutorials/add-a-strategy.md shows a complete strategy.",
    )
    return StrategyAnswer(headline, folder, strategy, files, next_step)
