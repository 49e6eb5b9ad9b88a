"""Writes new folders from templates: the package of a strategy, or a project for experiments.

Files of the strategy template have the suffix `.txt`, and hidden files begin with `dot.`. The template is a package
named my-strategy, whose names are replaced. The project template contains dataset cards, machine cards and workflows,
as links in a checkout and as files in a wheel.
"""

import keyword
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.files import explain_os_errors, replace_files
from harness.base.validation import clip_line
from harness.registry import registered_strategies

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*")
SKELETONS = {False: "full_graph.py", True: "mini_batch.py"}
"""The template file that becomes strategy.py, by whether the strategy trains on mini-batches."""
WAY_OUT = "choose another folder"


class StrategyNames(NamedTuple):
    """The names of a new strategy: its registered name, its package and its class."""

    strategy: str
    package: str
    cls: str

    def replace_in(self, text: str) -> str:
        """Return a text of the template with the names of this strategy."""
        for old, new in zip(StrategyNames("my-strategy", "my_strategy", "MyStrategy"), self, strict=True):
            text = text.replace(old, new)
        return text


def choose_names(name: str) -> StrategyNames:
    """Return the names for a new strategy. Raise UserError if one is invalid or taken."""
    if not NAME.fullmatch(name) or len(name) > 40:
        accepted = (
            "lower-case letters and digits with single hyphens or dots between, at most 40, as in my-strategy"
        )
        raise UserError(f"strategy name {clip_line(name, 80)!r} is not accepted: {accepted}.")
    package = re.sub(r"[-.]", "_", name)
    taken = [point.value for point in registered_strategies() if point.name == name]
    if taken:
        raise UserError(f"strategy {name} exists already: {taken[0]}. Choose another name.")
    if keyword.iskeyword(package) or find_spec(package) is not None:
        raise UserError(
            f"{name} would be the Python package {package}, which exists already. Choose another name."
        )
    return StrategyNames(name, package, "".join(part.capitalize() for part in package.split("_")))


def write_strategy(name: str, into: Path, *, mini_batch: bool = False) -> Path:
    """Write the package of a new strategy into a folder of its name, and return the folder."""
    names = choose_names(name)
    template = TEMPLATES / "strategy"
    unwanted = SKELETONS[not mini_batch]
    files = {}
    for path in sorted(template.rglob("*.txt")):
        place = str(path.relative_to(template)).removesuffix(".txt").replace("dot.", ".")
        if not place.endswith(unwanted):
            place = names.replace_in(place.replace(SKELETONS[mini_batch], "strategy.py"))
            files[place] = names.replace_in(path.read_text(encoding="utf-8")).encode()
    return _write_folder(into / name, files)


LINKS = {"workflow": "workflows", "slurm": "workflows/profiles/slurm"}
"""The links in a project: Snakemake looks for these names."""


def write_project(folder: Path) -> Path:
    """Write the dataset cards, machine cards and workflows into a new or empty folder, and return the folder."""
    template, files = TEMPLATES / "project", dict[str, bytes]()
    for place, folders, names in os.walk(template, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(place, name)
            is_hidden = name.startswith("dot.")
            written = f".{name.removeprefix('dot.').removesuffix('.txt')}" if is_hidden else name
            files[str(path.relative_to(template).with_name(written))] = path.read_bytes()
    return _write_folder(folder, files, LINKS)


def _write_folder(folder: Path, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> Path:
    """Write files and links into a new or empty folder, and return it. If that fails, everything is removed again."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder. Choose another folder.")
    missing = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    try:
        replace_files({folder / place: content for place, content in files.items()}, WAY_OUT)
        for link, target in (links or {}).items():
            with explain_os_errors(folder / link, WAY_OUT):
                (folder / link).symlink_to(target)
    except BaseException:
        _empty_folder(folder)
        for place in missing:
            with suppress(OSError):
                place.rmdir()
        raise
    return folder


def _empty_folder(folder: Path) -> None:
    """Remove everything in a folder, as far as possible. The folder itself need not exist."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
