"""A package imports only from packages below it, no package imports a strategy, and no imports go in a circle."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import MOVED
from harness.base.errors import UserError
from harness.registry import load_strategy

ROOT = Path(__file__).parent.parent

STRATEGIES_MAY_USE = (
    "base.device",
    "base.errors",
    "base.ranges",
    "base.validation",
    "comm",
    "kernels",
    "ledger",
    "strategies",
    "strategy",
)
NAME_CUDA = {
    "harness/base/device.py": "asks torch for GPUs",
    "harness/spec/machine_card.py": "the word of a card",
    "harness/runtime/launch/library_caches.py": "the folder of a cache",
}
"""The modules that name CUDA, and why; those of strategies are none of them."""
READERS_OF_FILES = ("base.files", "base.locks", "graph.sources", "graph.store", "graph.fetch")

LOADED_BY_THE_CONTRACT = 50
DEPTH_OF_STRATEGIES = 3
SHARED_NAMES = {"Params"}
"""The parameters of a strategy are a class of this name, nested in the strategy: the contract asks for the name."""


@cache
def list_nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it the import stands."""
    found = set()
    for node in list_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""}
    return found


def files_of(path: Path) -> set[Path]:
    """Our files that a file imports from, for types alone included; of a package, its face or the module named."""
    found = set()
    for node in list_nodes(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] + [node.module or ""]
        for name in names:
            place = ROOT.joinpath(*name.split("."))
            files = (place.with_suffix(".py"), place / "__init__.py")
            found |= {each.resolve() for each in files if each.is_file()}  # harness/strategies is a link
    return found - {path}


def packages(modules: set[str]) -> set[str]:
    """The packages of the harness among some modules."""
    return {module.split(".")[1] for module in modules if module.startswith("harness.")}


def is_of(module: str, places: tuple[str, ...]) -> bool:
    """Whether a module of the harness is one of some modules, or in one of some packages."""
    return f"{module}.".startswith(tuple(f"harness.{place}." for place in places))


def modules() -> list[Path]:
    """Every module of the product."""
    return sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("strategies/**/*.py")])


def test_no_package_imports_from_one_above_it() -> None:
    faces = {ROOT / "harness" / name for name in ("__init__.py", "__main__.py")}
    below = defaultdict[str, set[str]](set)
    for path in set(ROOT.glob("harness/**/*.py")) - faces:
        package = path.relative_to(ROOT / "harness").parts[0].removesuffix(".py")
        below[package] |= packages(imported(path)) - {package}
        assert "strategies" not in below[package], f"{path} knows a strategy"
    TopologicalSorter(below).prepare()  # an import from above makes a cycle, which the error names


def test_a_strategy_knows_no_files_launchers_or_tables() -> None:
    for path in ROOT.glob("strategies/**/*.py"):
        ours = {module for module in imported(path) if module.split(".")[0] == "harness"}
        assert {module for module in ours if not is_of(module, STRATEGIES_MAY_USE)} == set(), path


def test_the_contract_reads_no_files() -> None:
    """Whatever `harness.strategy` imports, and what that imports, is loaded by every plugin."""
    loaded = printed(
        "import sys, harness.strategy\nprint(*(name for name in sys.modules if 'harness' in name))"
    ).split()
    ours = [name for name in loaded if name.split(".")[0] == "harness"]
    assert len(ours) <= LOADED_BY_THE_CONTRACT, ours
    assert [name for name in ours if is_of(name, READERS_OF_FILES)] == []


MOVED_NAMES = [(package, name) for package, names in MOVED.items() for name in names.split()]


@pytest.mark.parametrize(("package", "name"), MOVED_NAMES)
def test_a_module_that_moved_says_where_it_is(package: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"harness.{package}.{name}$"):
        import_module(f"harness.{name}")
    assert find_spec(f"harness.{package}.{name}")


def test_plugin_error_names_the_line_that_imports_a_moved_module(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("import torch\nfrom harness.errors import UserError\n")
    with pytest.raises(UserError, match=rf"harness\.base\.errors, {re.escape(str(plugin))}, line 2"):
        load_strategy(f"{plugin}:Mine")


def test_one_module_asks_torch_for_gpus() -> None:
    named = {
        str(path.relative_to(ROOT))
        for path in modules()
        if re.search(r"torch\.(cuda|version)\b|\.is_cuda\b|[\"'](cuda|CUDA)\b[:\"']", path.read_text())
    }
    assert named == NAME_CUDA.keys()


def test_no_two_classes_share_a_name() -> None:
    """One name stands for one thing in all of the product; private and nested classes count too."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in homes.items() if len(files) > 1 and name not in SHARED_NAMES}


def test_strategies_are_shallow() -> None:
    """Classes between a built-in strategy and `Strategy`, itself included, along the longest line."""
    code = """
from harness.registry import load_strategy, registered_strategies
from harness.strategy import Strategy

def depth(kind):
    return 0 if kind is Strategy else 1 + max(depth(base) for base in kind.__bases__ if issubclass(base, Strategy))

for point in registered_strategies():
    if point.value.startswith("harness.strategies."):
        print(point.name, depth(load_strategy(point.name)))
"""
    depths = dict(line.split() for line in printed(code).splitlines())
    assert len(depths) > 20
    assert max(map(int, depths.values())) <= DEPTH_OF_STRATEGIES, depths


def printed(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_imports_go_in_a_circle() -> None:
    ours = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("strategies/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    order = TopologicalSorter({path: files_of(path) - {path.parent / "__init__.py"} for path in ours})
    assert set(order.static_order()) >= set(ours)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list", "machines"], ["list", "settings"], ["runs", "list"], ["doctor"]]
)
def test_light_verbs_import_neither_torch_nor_pandas(arguments: list[str]) -> None:
    code = (
        "import sys, contextlib\nfrom harness.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({arguments!r})\n"
        "print({'torch', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_every_rule_that_runs_something_has_a_log_and_a_benchmark() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "workflows" / "rules").glob("*.smk")))
    rules = re.findall(r"^rule (\w+):\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    working = {name: body for name, body in rules if "    shell:" in body}
    assert {"run", "build_dataset", "emulated_runs", "report"} <= working.keys()
    said = {
        name: [part for part in ("log", "benchmark") if f"    {part}:" in body]
        for name, body in working.items()
    }
    assert set(map(len, said.values())) == {2}, said


def test_functions_that_are_named_by_texts_exist() -> None:
    """Neither Python nor mypy notices that a function has moved if a string names it as module:name."""
    named = {
        (path.name, module, name)
        for path in (ROOT / "harness").rglob("*.py")
        for module, name in re.findall(r'"(harness(?:\.\w+)+):(\w+)"', path.read_text())
    }
    assert len(named) > 20
    assert not [each for each in named if not hasattr(import_module(each[1]), each[2])]
