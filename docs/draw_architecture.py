"""Draw docs/develop/architecture.svg, and list the packages in architecture.md, from imports and docstrings.

    python docs/draw_architecture.py

A package stands above every package that it imports from. An arrow leads from a package to an imported package; an
arrow that follows from other arrows is left out. A test compares both files with the output of this script.
"""

import ast
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from harness.base.files import replace_files
from harness.report.figures.drawing import render_figure, style_context
from harness.report.figures.palette import INK, MUTED, PAPER

HERE = Path(__file__).parent
ROOT = HERE.parent
PICTURE, PAGE = HERE / "develop" / "architecture.svg", HERE / "develop" / "architecture.md"
BEGIN, END = "<!-- packages: made by docs/draw_architecture.py -->\n", "<!-- end of packages -->"
ROUNDS = 8
"""Rounds in which the packages of each layer are sorted by the packages below them."""
WIDTH, HEIGHT, GAP, RISE = 1.0, 0.32, 0.16, 0.62  # inches


class Package(NamedTuple):
    """A package of the harness, or a single module."""

    name: str
    about: str
    uses: frozenset[str]
    inside: tuple[tuple[str, str], ...]
    """The packages inside it, and what each is."""


def packages() -> dict[str, Package]:
    """Return every package of the harness, with the strategies as one package."""
    places = [path for path in (ROOT / "harness").iterdir() if path.is_dir() or path.suffix == ".py"]
    found = [_package(path.resolve()) for path in places if not path.name.startswith("__")]
    return {package.name: package for package in sorted(found)}


def _package(path: Path) -> Package:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    name = path.stem
    used = {package for file in files for package in _imported(file)} - {name}
    faces = sorted(path.glob("*/__init__.py")) if name != "strategies" else []
    inside = tuple((f"{name}.{face.parent.name}", _summary(face)) for face in faces)
    return Package(name, _summary(path / "__init__.py" if path.is_dir() else path), frozenset(used), inside)


def _summary(file: Path) -> str:
    """Return the first paragraph of a module's docstring in one line."""
    return " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())


def _imported(file: Path) -> set[str]:
    """Return the packages that a file imports from at run time; imports only for types do not count."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    modules = [
        name
        for node in ast.walk(tree)
        if id(node) not in typing_only
        for name in _names(node)
        if name.startswith("harness.")
    ]
    return {module.split(".")[1] for module in modules} - {"__version__"}


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and node.module == "harness":
        return [f"harness.{alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def layers(house: dict[str, Package]) -> list[list[str]]:
    """Return the packages by layer, from the bottom up, ordered so that neighbours import from the same packages."""
    height: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in height:
            height[name] = max((level(below) + 1 for below in house[name].uses), default=0)
        return height[name]

    stack: list[list[str]] = [[] for _ in range(1 + max(map(level, house)))]
    for name in house:
        stack[level(name)].append(name)
    place = {name: i - len(layer) / 2 for layer in stack for i, name in enumerate(layer)}
    for _ in range(ROUNDS):
        for layer in stack[1:]:
            layer.sort(key=lambda name: (_middle(place, house[name].uses), name))
            place |= {name: i - len(layer) / 2 for i, name in enumerate(layer)}
    return stack


def _middle(place: dict[str, float], names: frozenset[str]) -> float:
    return sum(place[name] for name in names) / max(len(names), 1)


def arrows(house: dict[str, Package]) -> list[tuple[str, str]]:
    """Return pairs of a package and an imported package, without pairs that follow from others."""
    below = {name: _below(house, name) for name in house}
    return [
        (name, used)
        for name, package in house.items()
        for used in sorted(package.uses)
        if not any(used in below[other] for other in package.uses)
    ]


def _below(house: dict[str, Package], name: str) -> set[str]:
    """Return all packages that a package imports from, directly or indirectly."""
    return {*house[name].uses} | {deep for used in house[name].uses for deep in _below(house, used)}


def drawn(house: dict[str, Package]) -> Figure:
    stack = layers(house)
    widest = max(len(layer) for layer in stack) * (WIDTH + GAP)
    figure = Figure(figsize=(widest, RISE * len(stack)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, widest)
    axes.set_ylim(-0.15, RISE * len(stack) - 0.15)
    axes.axis("off")
    corner = {
        name: ((widest - len(layer) * (WIDTH + GAP) + GAP) / 2 + i * (WIDTH + GAP), RISE * level)
        for level, layer in enumerate(stack)
        for i, name in enumerate(layer)
    }
    for name, used in arrows(house):
        (x, y), (left, bottom) = corner[name], corner[used]
        ends = (x + WIDTH / 2, y), (left + WIDTH / 2, bottom + HEIGHT)
        axes.add_patch(
            FancyArrowPatch(
                *ends, arrowstyle="-|>", mutation_scale=5, color=MUTED, linewidth=0.6, shrinkA=0, shrinkB=0
            )
        )
    for name, at in corner.items():
        axes.add_patch(Rectangle(at, WIDTH, HEIGHT, facecolor=PAPER, edgecolor=INK, linewidth=0.8))
        middle = at[0] + WIDTH / 2, at[1] + HEIGHT / 2
        axes.text(*middle, name, ha="center", va="center_baseline", fontsize=8)
    return figure


def listed(house: dict[str, Package]) -> str:
    """Return the packages as a table, from the top layer down, each with the packages inside it."""
    rows = [
        f"| {number} | `{name}` | {about} |"
        for level, layer in reversed(list(enumerate(layers(house), start=1)))
        for package in sorted(layer)
        for number, name, about in [
            (level, package, house[package].about),
            *(("", *package) for package in house[package].inside),
        ]
    ]
    return "\n".join(["| layer | package | what it is |", "| --- | --- | --- |", *rows, ""])


def page(text: str, house: dict[str, Package]) -> str:
    """Return the page with a new list of packages."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{listed(house)}{END}{after}"


def made() -> dict[Path, bytes]:
    """Return the contents of both files."""
    house = packages()
    with style_context():
        picture = render_figure(drawn(house), "svg", "architecture", "imports of the code")
    return {PICTURE: picture, PAGE: page(PAGE.read_text(), house).encode()}


if __name__ == "__main__":
    replace_files(made())
    print(*(path.relative_to(Path.cwd()) for path in (PICTURE, PAGE)), sep="\n")
