"""Writes a new folder from a template of this package: the package of a strategy, or a project for experiments.

A file of the template of a strategy has its name and `.txt`; a leading `dot.` stands for the dot of a hidden file. The
template is itself such a package, named my-strategy, and its names are replaced. The template of a project has the
cards, the machines and the workflows of the checkout by links, and in a wheel as files.
"""

import keyword
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.files import replace_files
from harness.registry import registered_strategies
from harness.validation import clip_line

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*")
SKELETONS = {False: "full_graph.py", True: "mini_batch.py"}
"""The file of a template that becomes strategy.py, for training on the full graph or on mini-batches."""


class Names(NamedTuple):
    """The names of a new strategy: registered, of its package, and of its class."""

    strategy: str
    package: str
    cls: str

    def in_text(self, text: str) -> str:
        """A text of the template with the names of this strategy."""
        for old, new in zip(Names("my-strategy", "my_strategy", "MyStrategy"), self, strict=True):
            text = text.replace(old, new)
        return text


def names_of(name: str) -> Names:
    """The names of a strategy that does not exist yet."""
    if not NAME.fullmatch(name) or len(name) > 40:
        accepted = "lower-case letters and digits, with single hyphens or dots between, 40 at most, as in my-strategy"
        raise UserError(f"strategy name {clip_line(name, 80)!r} is not accepted: {accepted}.")
    package = re.sub(r"[-.]", "_", name)
    taken = [point.value for point in registered_strategies() if point.name == name]
    if taken:
        raise UserError(f"strategy {name} exists already: {taken[0]}. Choose another name.")
    if keyword.iskeyword(package) or find_spec(package) is not None:
        raise UserError(
            f"{name} would be the Python package {package}, which exists already. Choose another name."
        )
    return Names(name, package, "".join(part.capitalize() for part in package.split("_")))


def new_strategy(name: str, into: Path, *, mini_batch: bool = False) -> Path:
    """Writes the package of a new strategy into a folder of its name, and returns the folder."""
    names = names_of(name)
    template = TEMPLATES / "strategy"
    unwanted = SKELETONS[not mini_batch]
    files = {}
    for path in sorted(template.rglob("*.txt")):
        place = str(path.relative_to(template)).removesuffix(".txt").replace("dot.", ".")
        if not place.endswith(unwanted):
            place = names.in_text(place.replace(SKELETONS[mini_batch], "strategy.py"))
            files[place] = names.in_text(path.read_text(encoding="utf-8"))
    return _write(into / name, files)


LINKS = {"workflow": "workflows", "slurm": "workflows/profiles/slurm"}
"""The links of a project: Snakemake looks for these names."""


def new_project(folder: Path) -> Path:
    """Writes the cards of graphs and machines and the workflows into a folder that is new or empty."""
    template, files = TEMPLATES / "project", {}
    for place, folders, names in os.walk(template, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(place, name)
            is_hidden = name.startswith("dot.")
            written = f".{name.removeprefix('dot.').removesuffix('.txt')}" if is_hidden else name
            files[str(path.relative_to(template).with_name(written))] = path.read_text(encoding="utf-8")
    _write(folder, files)
    for link, target in LINKS.items():
        (folder / link).symlink_to(target)
    return folder


def _write(folder: Path, files: dict[str, str]) -> Path:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} exists already, and is not an empty folder. Name another place.")
    replace_files({folder / place: text.encode() for place, text in files.items()}, "name another place")
    return folder
