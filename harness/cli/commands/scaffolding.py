"""harness new: makes the package of a strategy, or a project."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from harness.base.formatting import format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Command, Headline, View
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

    folder: Path

    def to_document(self) -> Any:
        return {"folder": str(self.folder)}

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(f"{self.folder} is a project. For a first run and its figures:")
        yield Command(shlex.join(["cd", str(self.folder)]))
        yield Command("harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2")
        yield Command("harness collect && harness figures && harness report")
        yield "Snakemake, which the extra `slurm` installs, runs whole experiments:"
        yield Command("snakemake all --profile workflows/profiles/local")


@verb(ProjectRequest)
def new_project(request: ProjectRequest, _: Reporter) -> ProjectAnswer:
    """Make a project: a folder with dataset cards, machine cards and workflows.

    A checkout already is a project. Other verbs run inside a project, or name it by --root.
    """
    from harness.cli.scaffold.scaffold import write_project

    return ProjectAnswer(write_project(request.folder))


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


@plain_dataclass(frozen=True)
class StrategyAnswer(Answer):
    """The package of a new strategy."""

    folder: Path
    strategy: str
    """The strategy, as path/to/file.py:Class."""
    files: Sequence[str]

    def to_document(self) -> Any:
        return {"folder": str(self.folder), "strategy": self.strategy, "files": list(self.files)}

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(
            f"{self.folder} has {format_count(len(self.files), 'file')}. The strategy is {self.strategy}"
        )
        yield "Follow the messages of this command until the strategy conforms:"
        yield Command(shlex.join(["harness", "check", self.strategy, "--quick", "--first"]))
        if view.verbose:
            yield "\n".join(self.files)
        yield "docs/tutorials/add-a-strategy.md shows a complete strategy."


@verb(StrategyRequest)
def new_strategy(request: StrategyRequest, _: Reporter) -> StrategyAnswer:
    """Make the package of a new strategy: its class, a test, a CI workflow.

    The strategy trains on one rank. The messages of `harness check` lead to a complete strategy.
    """
    from harness.cli.scaffold.scaffold import choose_names, write_strategy

    names = choose_names(request.name)
    folder = write_strategy(request.name, request.into, mini_batch=request.mini_batch)
    strategy = f"{folder / names.package / 'strategy.py'}:{names.cls}"
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    return StrategyAnswer(folder, strategy, files)
