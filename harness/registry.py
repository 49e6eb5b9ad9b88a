"""Finds strategies: by the entry-point group `harness.strategies`, or as path/to/file.py:Class while developing.

Names come from package metadata, so a listing imports no strategy and no torch. Built-in strategies are registered in
the same way as third-party strategies. In a checkout they are read from its pyproject.toml, so the checkout need not be
installed, and an earlier installation of another version does not matter.
"""

from __future__ import annotations

import re
import sys
import tomllib
import traceback
from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from harness import __version__
from harness.base.errors import UserError
from harness.base.files import hash_file
from harness.base.validation import clip_line, format_value, unknown_name_error

if TYPE_CHECKING:
    from harness.strategy.contract import Strategy

DISTRIBUTION = "parallel-gnn-harness"
GROUP = "harness.strategies"
BUILT_IN = "harness.strategies"
"""The package of all built-in strategies."""
HARNESS = Path(__file__).resolve().parent
PYPROJECT = HARNESS.parent / "pyproject.toml"
"""The pyproject.toml of the checkout that contains this module. An installed wheel has none."""
GUIDE = (
    "`harness new strategy NAME` makes a complete one; docs/tutorials/add-a-strategy.md lists its attributes and "
    "methods."
)


@cache
def registered_strategies() -> list[EntryPoint]:
    """Return all registered strategies, built-in and third-party, as installed at the first call."""
    installed = _installed_entry_points()
    third_party = [point for point in entry_points(group=GROUP) if point not in installed]
    built_in = _read_entry_points(PYPROJECT) or installed
    if not built_in:
        raise UserError(
            f"The built-in strategies are unknown: the package {DISTRIBUTION} is not installed, and there is no "
            f"{PYPROJECT}. Install it (`pip install {DISTRIBUTION}`), or put a whole checkout on PYTHONPATH."
        )
    points = {(point.name, point.value): point for point in (*third_party, *built_in)}
    return [points[key] for key in sorted(points)]


def _installed_entry_points() -> Collection[EntryPoint]:
    """Return the strategies that the installed harness registers; none if it is not installed."""
    try:
        return distribution(DISTRIBUTION).entry_points.select(group=GROUP)
    except PackageNotFoundError:
        return ()


def _read_entry_points(pyproject: Path) -> Collection[EntryPoint]:
    """Return the strategies that a pyproject.toml registers; none if it is absent or of another project."""
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{pyproject}, which registers the built-in strategies, cannot be read: {error}"
        raise UserError(message) from error
    if project.get("name") != DISTRIBUTION:
        return ()
    declared = project.get("entry-points", {}).get(GROUP, {})
    return [EntryPoint(name, value, GROUP) for name, value in declared.items()]


def load_strategy(name: str) -> type[Strategy]:
    """Load a strategy class by its name, or by path/to/file.py:Class."""
    from harness.strategy.contract import Strategy, find_faults

    strategy = _load_from_file(name) if ".py:" in name else _import_entry_point(_find_entry_point(name))
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise UserError(
            f"{name} names {format_value(strategy)}, which does not derive from harness.strategy.Strategy. {GUIDE}"
        )
    faults = [f"method {method} is missing" for method in sorted(strategy.__abstractmethods__)]
    if faults := faults + find_faults(strategy):
        raise UserError(f"{name} is not a whole strategy: {'; '.join(faults)}. {GUIDE}")
    return strategy


def load_installed_strategy(name: str) -> type[Strategy]:
    """Load a strategy class by its registered name. A record may name a file instead, which is never run here."""
    _find_entry_point(name)
    return load_strategy(name)


def is_built_in(name: str) -> bool:
    """Return True for a strategy that the harness registers."""
    points = registered_strategies()
    return any(point.name == name and _find_code_package(point) == BUILT_IN for point in points)


def find_distribution(name: str) -> tuple[str, str]:
    """Return the name and the version of the package that registers a strategy; both are empty for a file."""
    if ".py:" in name:
        return "", ""
    if is_built_in(name):
        return DISTRIBUTION, __version__
    package = _find_entry_point(name).dist
    return (package.name, package.version) if package else ("", "")


def hash_strategy_code(name: str) -> str:
    """Return the hash of the Python files of a strategy's package; empty if they cannot be read.

    Built-in strategies are one package. For path/to/file.py:Class, only that file counts. Imports no strategy.
    """
    from harness.spec.spec import hash_data

    try:
        return hash_data({file: hash_file(path) for file, path in _list_code_files(name).items()})
    except (OSError, ImportError, ValueError, UserError):
        return ""


def _list_code_files(name: str) -> dict[str, Path]:
    """Return the Python files of a strategy by their names within its package."""
    if ".py:" in name:
        path = Path(name.rpartition(":")[0])
        return {path.name: path}
    return _list_python_files(_find_code_package(_find_entry_point(name)))


def _find_code_package(point: EntryPoint) -> str:
    """Return the top-level package of a plugin, or the package of the built-in strategies."""
    return BUILT_IN if f"{point.module}.".startswith(f"{BUILT_IN}.") else point.module.partition(".")[0]


def _list_python_files(package: str) -> dict[str, Path]:
    """Return the Python files of a package by their names relative to its folder, or the file of a single module."""
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(package)
    if spec.submodule_search_locations is None:
        path = Path(spec.origin or "")
        return {path.name: path}
    folders = map(Path, spec.submodule_search_locations)
    return {path.relative_to(folder).as_posix(): path for folder in folders for path in folder.rglob("*.py")}


def _import_entry_point(point: EntryPoint) -> object:
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{point.module}.".startswith(f"{error.name}."):
            raise UserError(
                f"strategy {point.name!r} is registered as {point.value}, and there is no module {error.name}: its "
                "package has changed since it was installed. Install it again: `pip install -e .` in its checkout."
            ) from error
        raise _make_import_error(f"strategy {point.name!r} ({point.value})", error) from error


def _make_import_error(what: str, error: BaseException) -> UserError:
    """Return the error for a plugin that fails on import, with its last line that ran."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if HARNESS not in Path(frame.filename).parents] or frames
    place = f", {own[-1].filename}, line {own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError):
        place = f", {error.filename}, line {error.lineno}"
    reason = clip_line(f"{type(error).__name__}: {error}".rstrip(": ."), 300)
    return UserError(f"{what} cannot be imported: {reason}{place}. Correct it. {GUIDE}")


def _find_entry_point(name: str) -> EntryPoint:
    known = registered_strategies()
    points = [point for point in known if point.name == name]
    if not points:
        way_out = "A plugin registers in the entry-point group harness.strategies, or is named path/to/file.py:Class."
        raise unknown_name_error("strategy", name, [point.name for point in known], way_out)
    if len(points) > 1:
        values = ", ".join(point.value for point in points)
        raise UserError(
            f"strategy {name!r} is registered {len(points)} times: {values}. Uninstall one of them."
        )
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise UserError(
            f"strategy {name!r} ({points[0].value}) has a name that is not accepted: a name begins with a letter or a "
            "digit, and contains only these, '_', '.' and '-'. Rename it in the entry points of its package."
        )
    return points[0]


def _load_from_file(name: str) -> object:
    file, _, class_name = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UserError(f"strategy {name!r}: there is no file {file}.")
    module_name = f"strategy_file_{path.stem}"
    spec = spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise _make_import_error(file, error) from error
    if not hasattr(module, class_name):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise unknown_name_error(f"class in {file}", class_name, classes)
    return getattr(module, class_name)
