"""Draw docs/develop/architecture.svg, and list the rooms in architecture.md, from imports and docstrings.

    python docs/draw_architecture.py

A room stands above every room that it imports from. An arrow leads from a room to an imported room; an arrow that
follows from other arrows is left out. A test compares both files with the output of this script.
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
BEGIN, END = "<!-- rooms: made by docs/draw_architecture.py -->\n", "<!-- end of rooms -->"
ROUNDS = 8
"""Rounds in which the rooms of each floor are sorted by the rooms below them."""
WIDTH, HEIGHT, GAP, RISE = 1.0, 0.32, 0.16, 0.62  # inches


class Room(NamedTuple):
    """A package of the harness, or a single module."""

    name: str
    about: str
    uses: frozenset[str]
    packages: tuple[tuple[str, str], ...]
    """The packages inside it, and what each is."""


def rooms() -> dict[str, Room]:
    """Return every room of the harness, with the strategies as one room."""
    places = [path for path in (ROOT / "harness").iterdir() if path.is_dir() or path.suffix == ".py"]
    all_rooms = [_room(path.resolve()) for path in places if not path.name.startswith("__")]
    return {room.name: room for room in sorted(all_rooms)}


def _room(path: Path) -> Room:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    name = path.stem
    used = {room for file in files for room in _imported(file)} - {name}
    inside = sorted(path.glob("*/__init__.py")) if name != "strategies" else []
    packages = tuple((f"{name}.{face.parent.name}", _summary(face)) for face in inside)
    return Room(name, _summary(path / "__init__.py" if path.is_dir() else path), frozenset(used), packages)


def _summary(file: Path) -> str:
    """Return the first paragraph of a module's docstring in one line."""
    return " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())


def _imported(file: Path) -> set[str]:
    """Return the rooms that a file imports from at run time; imports only for types do not count."""
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


def floors(house: dict[str, Room]) -> list[list[str]]:
    """Return the rooms by floor, from the bottom up, ordered so that neighbours import from the same rooms."""
    height: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in height:
            height[name] = max((level(below) + 1 for below in house[name].uses), default=0)
        return height[name]

    stack: list[list[str]] = [[] for _ in range(1 + max(map(level, house)))]
    for name in house:
        stack[level(name)].append(name)
    place = {name: i - len(floor) / 2 for floor in stack for i, name in enumerate(floor)}
    for _ in range(ROUNDS):
        for floor in stack[1:]:
            floor.sort(key=lambda name: (_middle(place, house[name].uses), name))
            place |= {name: i - len(floor) / 2 for i, name in enumerate(floor)}
    return stack


def _middle(place: dict[str, float], names: frozenset[str]) -> float:
    return sum(place[name] for name in names) / max(len(names), 1)


def arrows(house: dict[str, Room]) -> list[tuple[str, str]]:
    """Return pairs of a room and an imported room, without pairs that follow from others."""
    below = {name: _below(house, name) for name in house}
    return [
        (name, used)
        for name, room in house.items()
        for used in sorted(room.uses)
        if not any(used in below[other] for other in room.uses)
    ]


def _below(house: dict[str, Room], name: str) -> set[str]:
    """Return all rooms that a room imports from, directly or indirectly."""
    return {*house[name].uses} | {deep for used in house[name].uses for deep in _below(house, used)}


def drawn(house: dict[str, Room]) -> Figure:
    stack = floors(house)
    widest = max(len(floor) for floor in stack) * (WIDTH + GAP)
    figure = Figure(figsize=(widest, RISE * len(stack)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, widest)
    axes.set_ylim(-0.15, RISE * len(stack) - 0.15)
    axes.axis("off")
    corner = {
        name: ((widest - len(floor) * (WIDTH + GAP) + GAP) / 2 + i * (WIDTH + GAP), RISE * level)
        for level, floor in enumerate(stack)
        for i, name in enumerate(floor)
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


def listed(house: dict[str, Room]) -> str:
    """Return the rooms as a table, from the top floor down, each with the packages inside it."""
    rows = [
        f"| {number} | `{name}` | {about} |"
        for level, floor in reversed(list(enumerate(floors(house), start=1)))
        for room in sorted(floor)
        for number, name, about in [
            (level, room, house[room].about),
            *(("", *package) for package in house[room].packages),
        ]
    ]
    return "\n".join(["| floor | room | what it is |", "| --- | --- | --- |", *rows, ""])


def page(text: str, house: dict[str, Room]) -> str:
    """Return the page with a new list of rooms."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{listed(house)}{END}{after}"


def made() -> dict[Path, bytes]:
    """Return the contents of both files."""
    house = rooms()
    with style_context():
        picture = render_figure(drawn(house), "svg", "architecture", "imports of the code")
    return {PICTURE: picture, PAGE: page(PAGE.read_text(), house).encode()}


if __name__ == "__main__":
    replace_files(made())
    print(*(path.relative_to(Path.cwd()) for path in (PICTURE, PAGE)), sep="\n")
