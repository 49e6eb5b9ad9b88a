"""Generated pages, and messages quoted in pages, agree with the code."""

import ast
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import FrameType

import pytest

from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.conformance.checks import LOOK
from harness.graph.store.memory_store import MemoryStore
from harness.ledger import AxisName, Ledger
from harness.registry import load_strategy, registered_strategies
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec
from harness.strategy import BlockCounts

ROOT = Path(__file__).parent.parent


def test_the_map_of_the_house_is_the_house() -> None:
    """`python docs/draw_architecture.py` makes the picture and the page."""
    made = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))["made"]()
    assert {path.name for path in made} == {"architecture.svg", "architecture.md"}
    for path, data in made.items():
        assert path.read_bytes() == data, path


def test_the_pictures_of_strategies_are_their_layouts() -> None:
    """`python docs/strategies/draw_layouts.py` draws them, and every picture of the script is on a page."""
    made = runpy.run_path(str(ROOT / "docs" / "strategies" / "draw_layouts.py"))["made"]()
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "strategies").glob("*.md"))
    for path, data in made.items():
        assert path.read_bytes() == data, path.name
        assert f"](pictures/{path.name})" in pages, path.name


def test_strategies_that_share_a_picture_need_the_same_rows() -> None:
    """Those whose pages show pictures/boundary.svg, which is drawn of bns-gcn, on the graph of the picture."""
    drawing = runpy.run_path(str(ROOT / "docs" / "strategies" / "draw_layouts.py"))
    counts = BlockCounts(MemoryStore(drawing["communities"](4)))
    needs = [
        [
            drawing["strategy_of"](name, {"p": 4}).boundary({AxisName.P: rank}, counts).incoming_rows()
            for rank in range(4)
        ]
        for name in ("bns-gcn", "pipegcn", "g3", "cagnet-sa-1d")
    ]
    assert needs[0] == [{1: 1, 2: 1, 3: 1}, {0: 1, 2: 1, 3: 0}, {0: 2, 1: 1, 3: 1}, {0: 1, 1: 0, 2: 1}]
    assert all(each == needs[0] for each in needs)


MAP = (ROOT / "docs" / "develop" / "architecture.md").read_text()
READ_FIRST = ["harness/strategy/contract.py", "harness/strategy/context.py", "harness/strategy/models/gcn.py"]
COMPILED = {"strategies/sampling/compiled.py", "strategies/sampling/neighbour_loops.py"}
"""Loops that Python's profiler does not see."""
READ_WHEN_NEEDED = {"harness/strategy/parallel/label_loss.py"}
ROWS = dict(re.findall(r"^\| `([\w.-]+)` \| (`[^|]+`) \|$", MAP, flags=re.MULTILINE))
READERS_CHOICE = ["cagnet-1d", "cagnet-sa-1.5d", "plexus", "g3", "distdgl", "bulk-ladies"]


def files_listed(name: str) -> list[str]:
    """The files of a strategy as the map lists them, in order."""
    places = re.findall(r"`([^`]+)`", ROWS[name])
    return [
        f"{'harness/strategy' if place.startswith('parallel') else 'strategies'}/{place}.py"
        for place in places
    ]


def trained(case: Case) -> None:
    """Sets up this rank and trains an epoch."""
    strategy = case.strategy()
    Trainer(strategy, Grid.build(strategy.grid, Ledger()), case.store()).epoch()


def files_executed(case: Case) -> set[str]:
    """The files of strategies/ and harness/strategy/parallel whose functions run while a rank is set up and trains an
    epoch."""
    seen = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # and not the body of a module
        if event == "call" and is_function:
            seen.add(Path(frame.f_code.co_filename))

    trained(case)  # compiles the loops: a profiled compiler takes minutes
    sys.setprofile(note)
    try:
        trained(case)
    finally:
        sys.setprofile(None)
    folders = [ROOT / "strategies", ROOT / "harness" / "strategy" / "parallel"]
    return {
        str(path.relative_to(ROOT)) for path in map(Path.resolve, seen) if set(folders) & set(path.parents)
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in READERS_CHOICE else [pytest.mark.slow]) for name in ROWS],
)
def test_the_files_to_read_are_those_that_a_strategy_runs(name: str, pool: Pool) -> None:
    strategy = load_strategy(name)
    grid = max(strategy.grids(4) or strategy.grids(1), key=lambda grid: sum(n > 1 for n in grid.values()))
    ranks, dataset = prod(grid.values()), {"name": "check", "seed": 3}
    fixed = {"training": {"batch": 20 if strategy.mini_batches else 0}, "machine": {"name": "kit"}}
    asked = {"strategy": {"name": name}, "ranks": ranks, "grid": grid, "dataset": dataset, **fixed}
    spec = Spec.model_validate({**asked, "precision": "float64"})
    own = str(Path(inspect.getfile(strategy)).resolve().relative_to(ROOT))
    executed: set[str] = set().union(*pool.run(ranks, files_executed, Case(name, spec, vertices=211)))
    assert set(files_listed(name)) - COMPILED == executed - READ_WHEN_NEEDED | {own}


def test_every_strategy_has_its_list_of_files() -> None:
    built_in = {
        point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")
    }
    assert ROWS.keys() == built_in - {"pyg"}  # its sampler is a package that may be missing
    assert all(f"`{file}`" in MAP and (ROOT / file).is_file() for file in READ_FIRST)


FOLLOWED = """
import sys
from pathlib import Path
from harness.cli import main
executed = set()
def note(frame, event, _):
    if event == "call":
        executed.add(frame.f_code.co_filename)
sys.setprofile(note)
main(sys.argv[1:])
sys.setprofile(None)
print(*executed, sep="\\n")
"""


@pytest.mark.long
def test_the_run_that_is_followed_goes_through_the_modules_that_are_named(tmp_path: Path) -> None:
    """The run is in one process; modules of the launcher, which starts others, are only looked up."""
    followed = MAP[MAP.index("## One run, followed") : MAP.index("## Which files to read")]
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", followed)
    assert len(names) > 15
    words = [
        *["run", "--strategy", "plexus", "--dataset", "tiny-sbm", "--in-process", "--out"],
        str(tmp_path),
    ]
    executed = subprocess.run(
        [sys.executable, "-c", FOLLOWED, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in names:
        path = ROOT / "harness" / f"{name.replace('.', '/')}.py"
        assert path.is_file(), name
        assert str(path) in executed.stdout or name.startswith("runtime.launch."), name


TEMPLATE = [
    *("Layout", "Communication", "Exactness", "Parameters and limits", "Run it"),
    *("Differences from the paper", "Evidence"),
]
PAGES_OF_STRATEGIES = sorted((ROOT / "docs" / "strategies").glob("[!R]*.md"))


@pytest.mark.parametrize("page", PAGES_OF_STRATEGIES, ids=lambda path: path.stem)
def test_page_of_a_strategy_has_the_sections_of_the_template(page: Path) -> None:
    assert re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE) == TEMPLATE


def test_every_strategy_is_introduced_on_one_page() -> None:
    """In the title, or at the start of a row of a table above the first section."""
    leads = [path.read_text().partition("\n## ")[0] for path in PAGES_OF_STRATEGIES]
    titles = [name for lead in leads for name in re.findall(r"`([^`]+)`", lead.splitlines()[0])]
    rows = [name for lead in leads for name in re.findall(r"^\| `([^`]+)` \|", lead, flags=re.MULTILINE)]
    assert len(titles + rows) == len({*titles, *rows})
    own_places = {
        "serial",
        "graphsaint-node",
        "pyg",
    }  # the overview, ScaleGNN's page, not built in everywhere
    assert {*titles, *rows} - own_places == ROWS.keys() - own_places


def test_index_of_measurements_lists_every_page_once() -> None:
    index = (ROOT / "docs" / "evidence" / "measurements.md").read_text()
    listed = re.findall(
        r"^\| \[([\w-]+)\]\(\.\./\.\./benchmarks/results/\1\.md\) \|", index, flags=re.MULTILINE
    )
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md"))


@pytest.mark.parametrize(
    ("script", "page"), [("write_settings", "settings"), ("write_commands", "command-line")]
)
def test_reference_page_is_made_from_the_code(script: str, page: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / f"{script}.py"))["format_page"]()
    path = ROOT / "docs" / "reference" / f"{page}.md"
    assert path.read_text() == made, f"run python docs/{script}.py > {path.relative_to(ROOT)}"


def test_machine_cards_page_has_every_key_of_a_card() -> None:
    page = (ROOT / "docs" / "reference" / "machine-cards.md").read_text()
    assert [key for key in MachineCard.model_fields if f"`{key}`" not in page] == ["name"]


def test_every_check_is_explained() -> None:
    page = (ROOT / "docs" / "concepts" / "exactness.md").read_text()
    explained = ", ".join(re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE))
    assert [check for check in LOOK if check not in explained] == []


def test_first_page_of_the_site_is_a_part_of_readme() -> None:
    index, readme = (ROOT / "docs" / "index.md").read_text(), (ROOT / "README.md").read_text()
    for mark in re.findall(r"^:(?:start-after|end-before): (.*)$", index, flags=re.MULTILINE):
        assert readme.count(mark) == 1, f"README.md needs the line {mark}"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "config/README.md", "results/README.md"]
)
def test_links_of_pages_outside_the_site_lead_to_files_and_headings(page: str) -> None:
    """`make docs` checks the links between pages of docs/."""
    for path, anchor in re.findall(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)", (ROOT / page).read_text()):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page}: {path}#{anchor}"


QUOTED = re.findall(
    r"^> (.*(?:\n> .*)*)", (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(), flags=re.MULTILINE
)


def texts(code: str) -> Iterator[str]:
    """The texts of a module; a value within a text is a `...`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def all_texts() -> str:
    files = [path for top in ("harness", "strategies") for path in (ROOT / top).rglob("*.py")]
    return "\n".join(" ".join(text.split()) for path in files for text in texts(path.read_text()))


def test_many_messages_are_quoted() -> None:
    assert len(QUOTED) > 30


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_one_of_the_code(quoted: str, all_texts: str) -> None:
    """The words between two values stand in one text of the code, in this order."""
    words = " ".join(quoted.replace("\n> ", " ").split())
    pieces = [re.escape(piece.strip()) for piece in words.split("...") if piece.strip(" .:")]
    assert pieces
    assert re.search("[^\n]*".join(pieces), all_texts), quoted


def test_the_map_of_the_tests_has_a_row_for_each_folder(tmp_path: Path) -> None:
    """The report is one that pytest writes now, of a test that imports little; without tests no page changes."""
    made, report = runpy.run_path(str(ROOT / "docs" / "map_tests.py")), tmp_path / "tests.xml"
    assert made["read"](report) == []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/test_ranges.py"]
    subprocess.run([*command, f"--junit-xml={report}"], cwd=ROOT, capture_output=True, check=True)
    mine = made["read"](report)
    assert {each.place for each in mine} == {"test_ranges"}
    report.write_text(
        '<testsuite><testcase classname="" name="tests.report.test_browser" time="0"/></testsuite>'
    )
    assert [skipped.place for skipped in made["read"](report)] == ["report"]
    page, timed = (ROOT / "docs" / "develop" / "maintainers.md").read_text(), made["Timed"]
    written = made["with_table"](page, [*mine, timed("cli", 7.0), timed("cli", 8.0)])
    assert "| `cli/` | 2 | 15 |" in written
    assert f"| `test_ranges.py` | {len(mine)} |" in written
    assert f"| all | {2 + len(mine)} | " in written
    assert made["with_table"](written, mine).count("| `cli/` |") == 0
