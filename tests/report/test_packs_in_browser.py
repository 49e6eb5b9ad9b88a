"""The report of two groups in a real Chromium: tables fit, links lead to runs, and keys alone reach every control."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.report.packs_page import write_packs_report
from harness.spec.root import find_root
from tests.chromium import Browser, require_chromium
from tests.synthetic_packs import add_runs, pack_runs

pytestmark = pytest.mark.long

require_chromium()

CONTROLS = """[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
    .filter((each) => each.checkVisibility({visibilityProperty: true}))"""
FOCUS = f"{CONTROLS}.indexOf(document.activeElement)"
RING = """(() => { const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0; })()"""
IN_VIEW = """(() => { const box = document.activeElement.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth; })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("groups")
    for group, seconds, cpu in (
        ("Group A", 1.0, "AMD EPYC 7763"),
        ("Group B", 2.0, "Intel Xeon Platinum 8481C"),
    ):
        for strategy, grid in (("cagnet-1d", {"p": 2}), ("plexus", {"x": 2, "y": 1, "z": 1})):
            add_runs(base / group, strategy, grid, seconds, range(2), cpu=cpu)
        pack_runs(base / "packs", group, base / group)
    (base / "packs" / "hostile.tar.gz").write_bytes(b"not an archive")
    return write_packs_report([base / "packs"], base / "report", find_root()).page


@pytest.fixture(params=[1280, 500], ids=["desk", "narrow"])
def browser(request: pytest.FixtureRequest, tmp_path: Path, page: Path) -> Iterator[Browser]:
    with Browser(tmp_path, request.param) as browser:
        browser.open(page)
        browser.wait_until("document.body.classList.contains('drawn')")
        yield browser


def test_tables_are_not_wider_than_the_page(browser: Browser) -> None:
    tables = "[document.documentElement, ...document.querySelectorAll('#comparison .wide, #packs .wide')]"
    assert browser.evaluate(f"{tables}.length") == 4
    assert browser.evaluate(f"{tables}.every((each) => each.scrollWidth <= each.clientWidth)")


def test_machines_stand_under_their_names(browser: Browser) -> None:
    """Also on a narrow screen, where a row is a card."""
    cells = "[...document.querySelectorAll('#comparison tbody tr:first-child td')].map((cell) => cell.dataset.name)"
    names = browser.evaluate(cells)
    assert [name[:8] for name in names if name.startswith("Group")] == ["Group A:", "Group B:"]
    cells = "[...document.querySelectorAll('#comparison td')].filter((cell) => cell.textContent)"
    assert browser.evaluate(f"{cells}.every((cell) => cell.checkVisibility())")


def test_tab_reaches_every_control_in_order(browser: Browser) -> None:
    """And each table that scrolls, so that keys can scroll it."""
    count = browser.evaluate(f"{CONTROLS}.length")
    order: list[int] = []
    while len(order) < count:
        browser.press("Tab")
        if browser.evaluate("document.activeElement.matches('.wide, pre')"):
            continue
        order.append(browser.evaluate(FOCUS))
        assert browser.evaluate(RING), "the focus cannot be seen"
        assert browser.evaluate(IN_VIEW), "the focus is out of view"
    assert order == list(range(count))


def test_link_of_a_configuration_opens_its_run(browser: Browser) -> None:
    browser.evaluate("document.querySelector('#comparison a[href^=\"#run-\"]').focus()")
    browser.press("Enter")
    browser.wait_until("document.querySelector('#panel .pairs') && location.hash.startsWith('#run-')")
    run = "data.runs[location.hash.slice(5)]"
    assert browser.evaluate(f"document.getElementById('panel').textContent.includes(`Run ${{{run}.n}}`)")
