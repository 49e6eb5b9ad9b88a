"""The import law: a floor imports only from those below it, and nobody below the strategies knows them."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = (
    "errors validation documents ranges files locks",
    "ledger",
    "kernels",
    "graph",
    "comm",
    "sources",
    "store",
    "fetch",
    "spec",
    "models",
    "strategy",
    "registry",
    "experiment",
    "cost",
    "parallel",
    "results",
    "slurm",
    "run",
    "launch",
    "external",
    "replay",
    "check",
    "doctor",
    "figures",
    "report",
    "cli",
)
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
STRATEGIES_MAY_USE = {"ledger", "kernels", "comm", "models", "strategy", "parallel", "validation", "ranges"}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""}
    return found


def files_of(path: Path) -> set[Path]:
    """Our files that a file imports from, for types alone included; of a package, its face or the module named."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] + [node.module or ""]
        for name in names:
            place = ROOT.joinpath(*name.split("."))
            found |= {each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()}
    return found - {path}


def rooms(modules: set[str]) -> set[str]:
    """The rooms of the harness among some modules."""
    return {module.split(".")[1] for module in modules if module.startswith("harness.")}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("harness/*/**/*.py")) + [ROOT / "harness/registry.py"], ids=str
)
def test_a_floor_imports_only_from_those_below_it(path: Path) -> None:
    mine = path.relative_to(ROOT / "harness").parts[0].removesuffix(".py")
    used = imported(path)
    above = {room for room in rooms(used) if HEIGHT[room] > HEIGHT[mine]}
    assert not above, f"{path.name} in {mine} reaches up to {above}"
    assert not any(module.split(".")[0] == "strategies" for module in used), "harness knows no strategy"


@pytest.mark.parametrize("path", sorted(ROOT.glob("strategies/**/*.py")), ids=str)
def test_a_strategy_knows_no_files_launchers_or_tables(path: Path) -> None:
    assert rooms(imported(path)) <= STRATEGIES_MAY_USE


def test_no_imports_go_in_a_circle() -> None:
    ours = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("strategies/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    order = TopologicalSorter({path: files_of(path) - {path.parent / "__init__.py"} for path in ours})
    assert set(order.static_order()) >= set(ours)


def test_every_room_has_its_floor() -> None:
    there = {
        path.name for path in (ROOT / "harness").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert there <= set(HEIGHT)


@pytest.mark.parametrize("arguments", [["--help"], ["list", "strategies"], ["list", "datasets"], ["doctor"]])
def test_light_verbs_do_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys, contextlib\nfrom harness.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({arguments!r})\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
