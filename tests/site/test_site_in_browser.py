"""The site in a real Chromium: tables fit, and keys alone reach every control, show where they are, and use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.site.writing import WrittenSite
from tests.chromium import Browser, require_chromium

pytestmark = pytest.mark.long


require_chromium()

CONTROLS = """[...document.querySelectorAll("a[href], button, input, summary")]
    .filter((each) => each.checkVisibility({visibilityProperty: true}))"""
FOCUS = f"{CONTROLS}.indexOf(document.activeElement)"
RING = """(() => { const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0; })()"""
IN_VIEW = """(() => { const box = document.activeElement.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth; })()"""


@pytest.fixture(params=[1280, 500], ids=["desk", "narrow"])
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path, request.param) as browser:
        yield browser


def tab_to(browser: Browser, condition: str) -> None:
    """Press Tab until the condition holds for `e`, the element that has the focus."""
    for _ in range(browser.evaluate(f"{CONTROLS}.length") + 1):
        browser.press("Tab")
        if browser.evaluate(f"((e) => {condition})(document.activeElement)"):
            return
    pytest.fail(f"Tab never reaches a control with {condition}")


@pytest.mark.parametrize("pattern", ["index.html", "tasks/*.html", "submissions/*.html", "rules.html"])
def test_tab_reaches_every_control_in_order(
    pattern: str, made: tuple[Path, WrittenSite], browser: Browser
) -> None:
    browser.open(next(made[1].folder.glob(pattern)))
    count = browser.evaluate(f"{CONTROLS}.length")
    assert count > 3
    order = []
    for _ in range(count):
        browser.press("Tab")
        order.append(browser.evaluate(FOCUS))
        assert browser.evaluate(RING), "the focus cannot be seen"
        assert browser.evaluate(IN_VIEW), "the focus is out of view"
    assert order == list(range(count))
    browser.press("Tab")
    assert browser.evaluate("document.activeElement === document.body"), "Tab does not leave the page"


def test_a_reader_searches_and_follows_links_to_a_run(
    made: tuple[Path, WrittenSite], browser: Browser
) -> None:
    browser.open(made[1].folder / "index.html")
    tab_to(browser, "e.id === 'search'")
    browser.type("intel xeon")
    rows = "[...document.querySelectorAll('main tbody tr')].filter((row) => row.checkVisibility())"
    assert browser.evaluate(f"{rows}.length && {rows}.every((row) => /intel xeon/i.test(row.textContent))")
    tab_to(browser, "e.href?.includes('/tasks/')")
    browser.press("Enter")
    browser.wait_for("Page.loadEventFired")
    tab_to(browser, "e.closest('svg') && (e.href.baseVal ?? e.href).includes('#run-')")
    browser.press("Enter")
    browser.wait_for("Page.loadEventFired")
    run = "document.getElementById(decodeURIComponent(location.hash.slice(1)))"
    assert browser.evaluate(f"{run}.open")
    tab_to(browser, f"e.tagName === 'SUMMARY' && e.parentNode === {run}")
    browser.press("Enter")
    assert not browser.evaluate(f"{run}.open")


@pytest.mark.parametrize("browser", [1280], ids=["desk"], indirect=True)  # a narrow table has no headings
@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_heading_sorts_by_a_key(key: str, made: tuple[Path, WrittenSite], browser: Browser) -> None:
    pages = made[1].folder.glob("tasks/*.html")
    browser.open(next(page for page in pages if 'id="machine-0"' in page.read_text()))
    tab_to(browser, "e.matches('thead button') && e.textContent === 'epoch'")
    sorting = "document.activeElement.closest('th').getAttribute('aria-sort')"
    for expected in ("ascending", "descending"):
        browser.press(key)
        assert browser.evaluate(sorting) == expected


@pytest.mark.parametrize("browser", [1280, 500], indirect=True)
def test_no_table_is_wider_than_the_page(made: tuple[Path, WrittenSite], browser: Browser) -> None:
    for page in made[1].folder.rglob("*.html"):
        browser.open(page)
        tables = "[document.documentElement, ...document.querySelectorAll('.wide')]"
        assert browser.evaluate(f"{tables}.every((each) => each.scrollWidth <= each.clientWidth)"), page.name
