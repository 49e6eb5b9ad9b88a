"""A checkout runs where nothing of it is installed, and no process hides the packages that another carries."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.python_path import CHECKOUT, folders_of_packages

pytestmark = pytest.mark.long

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
DECLARED = PROJECT["entry-points"]["harness.strategies"]
NEEDED_TO_RUN = "harness", "strategies", "config", "datasets/catalog", "workflows"
REPLACE_PYTHONPATH = {
    "tests/test_uninstalled.py": "a Python that finds a copied tree and nothing else of ours",
    "tests/journeys/test_wheel.py": "a Python that finds the wheel, and no checkout before it",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a run needs, without .git."""
    copy = tmp_path_factory.mktemp("copied") / "tree"
    for name in NEEDED_TO_RUN:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True, ignore=ignored)
    shutil.copy(CHECKOUT / "pyproject.toml", copy)
    return copy


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds the packages of this one, by links, but no distribution of the harness."""
    folder = tmp_path_factory.mktemp("uninstalled")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in chain(*(place.iterdir() for place in folders_of_packages())):
        ours = entry.name == "harness" or "parallel_gnn_harness" in entry.name
        if not ours and entry.suffix != ".pth" and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def run(python: Path, *words: object, cwd: Path, path: str, code: int = 0) -> str:
    """What a Python that looks for modules only in `path` and among its packages prints."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HARNESS_")}
    command = [str(python), *map(str, words)]
    done = subprocess.run(
        command, cwd=cwd, env={**kept, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


LISTED = """
import importlib.metadata, json, sys
from harness.registry import registered_strategies
names = {point.name: point.value for point in registered_strategies()}
try:
    installed = importlib.metadata.version("parallel-gnn-harness")
except importlib.metadata.PackageNotFoundError:
    installed = None
print(json.dumps([names, installed, sorted({"torch", "pandas"} & set(sys.modules))]))
"""


def test_a_copied_tree_lists_every_strategy_and_imports_neither_torch_nor_pandas(
    python: Path, tree: Path, tmp_path: Path
) -> None:
    names, installed, heavy = json.loads(run(python, "-c", LISTED, cwd=tmp_path, path=str(tree)))
    assert installed is None
    assert names == DECLARED and len(names) == 28
    assert heavy == []


def test_a_copied_tree_trains_from_another_folder(python: Path, tree: Path, tmp_path: Path) -> None:
    words = ["--strategy", "cagnet-1d", "--dataset", "tiny-sbm", "--ranks", "2", "--set", "training.epochs=2"]
    folders = ["--root", tree, "--out", tmp_path / "runs"]
    run(python, "-m", "harness", "run", *words, *folders, cwd=tmp_path, path=str(tree))
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/record.json"))
    assert record["status"] == "ok"
    assert record["provenance"]["versions"]["parallel-gnn-harness"] == PROJECT["version"]


def install(folder: Path, name: str, **strategies: str) -> None:
    """A distribution with these entry points and no code."""
    info = folder / f"{name.replace('-', '_')}-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
    lines = [f"{key} = {value}" for key, value in strategies.items()]
    (info / "entry_points.txt").write_text("\n".join(["[harness.strategies]", *lines, ""]))


def test_strategies_of_a_checkout_win_over_an_older_installation_and_plugins_stay(
    python: Path, tree: Path, tmp_path: Path
) -> None:
    """The installed metadata lacks a strategy, moved one and has one that is gone."""
    old = {"serial": "harness.strategies.before:Serial", "gone": "harness.strategies.gone:Gone"}
    install(tmp_path / "site", "parallel-gnn-harness", **old)
    install(tmp_path / "site", "plugin", mine="plugin:Mine")
    path = os.pathsep.join([str(tmp_path / "site"), str(tree)])
    names, installed, _ = json.loads(run(python, "-c", LISTED, cwd=tmp_path, path=path))
    assert installed == "0.0.1"
    assert names == DECLARED | {"mine": "plugin:Mine"}


def test_a_package_without_project_file_or_metadata_says_that_it_knows_no_strategy(
    python: Path, tree: Path, tmp_path: Path
) -> None:
    shutil.copytree(tree / "harness", tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    words = "list", "strategies"
    told = run(python, "-m", "harness", *words, cwd=tmp_path, path=str(tmp_path), code=2)
    assert "parallel-gnn-harness" in told and str(tmp_path / "pyproject.toml") in told
    # The project file of whatever holds the package is not the harness's own.
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert run(python, "-m", "harness", *words, cwd=tmp_path, path=str(tmp_path), code=2) == told


def test_a_project_file_that_cannot_be_read_is_named(python: Path, tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "tree", symlinks=True)
    (tmp_path / "tree" / "pyproject.toml").write_text("[project\n")
    told = run(
        python, "-m", "harness", "list", "strategies", cwd=tmp_path, path=str(tmp_path / "tree"), code=2
    )
    assert str(tmp_path / "tree" / "pyproject.toml") in told and "line 1" in told


def sets_python_path(node: ast.AST) -> bool:
    """True for an entry of a dictionary, a keyword, an item or a call that gives PYTHONPATH a value."""
    match node:
        case ast.Dict(keys=keys):
            return any(isinstance(key, ast.Constant) and key.value == "PYTHONPATH" for key in keys)
        case (
            ast.keyword(arg="PYTHONPATH")
            | ast.Subscript(slice=ast.Constant(value="PYTHONPATH"), ctx=ast.Store())
            | ast.Call(
                func=ast.Attribute(attr="setenv" | "putenv"), args=[ast.Constant(value="PYTHONPATH"), *_]
            )
        ):
            return True
    return False


def reads_python_path(node: ast.AST) -> bool:
    """True for x["PYTHONPATH"], x.get("PYTHONPATH") and os.getenv("PYTHONPATH")."""
    match node:
        case (
            ast.Subscript(slice=ast.Constant(value="PYTHONPATH"), ctx=ast.Load())
            | ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value="PYTHONPATH"), *_])
        ):
            return True
    return False


def replacements(code: str) -> list[int]:
    """The lines of statements that set PYTHONPATH and do not read it: they hide what it led to."""
    simple = [node for node in ast.walk(ast.parse(code)) if not hasattr(node, "body")]
    parts = [node for node in simple if isinstance(node, ast.stmt | ast.withitem)]
    return [
        node.lineno if isinstance(node, ast.stmt) else node.context_expr.lineno
        for node in parts
        if any(map(sets_python_path, ast.walk(node))) and not any(map(reads_python_path, ast.walk(node)))
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('run(env={**os.environ, "PYTHONPATH": "x"})', [1]),
        ('os.environ["PYTHONPATH"] = "x"', [1]),
        ('patch.setenv("PYTHONPATH", "x")', [1]),
        ('with run(env=dict(PYTHONPATH="x")):\n    pass', [1]),
        ('os.environ["PYTHONPATH"] = "x:" + os.environ.get("PYTHONPATH", "")', []),
        ('run(env=with_python_path("x"))\nprint(os.environ["PYTHONPATH"])', []),
    ],
)
def test_a_replaced_python_path_is_found(code: str, found: list[int]) -> None:
    assert replacements(code) == found


def test_python_path_is_never_replaced_without_its_old_value() -> None:
    """Where nothing can be installed, PYTHONPATH leads to the packages: it may only be lengthened."""
    tops = ("harness", "strategies", "benchmarks", "tests", "docs", "examples")
    code = {path for top in tops for path in (CHECKOUT / top).rglob("*.py")}
    found = {str(path.relative_to(CHECKOUT)): replacements(path.read_text()) for path in code}
    assert {path: lines for path, lines in found.items() if lines}.keys() == REPLACE_PYTHONPATH.keys()


def test_no_command_replaces_the_python_path_of_a_shell() -> None:
    shells = ["Makefile", ".ci/run", *(f"**/*.{kind}" for kind in ("sh", "smk", "yaml", "yml", "md", "txt"))]
    texts = {path for shell in shells for path in CHECKOUT.glob(shell) if ".venv" not in path.parts}
    written = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in texts
        if path.is_file() and not {"results", "build"} & set(path.relative_to(CHECKOUT).parts)
        for line in path.read_text(errors="replace").splitlines()
        if re.search(r"\bPYTHONPATH=(?!\S*\$\{?PYTHONPATH)", line)
    ]
    assert written == []
