"""The page in a real Chromium: what a reader clicks, in light and dark, on a phone and on paper, without a network.

A probe is appended to a copy of the page. It does what a reader does, and leaves what it saw in the document, which
Chromium prints.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from harness.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PHONE, DESK = 390, 1280
LEAST = 500
"""The width below which Chromium makes no window; a narrower page is a frame of one."""

if CHROMIUM is None:
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail("CI as root installs Debian's chromium, and there is none", pytrace=False)
    pytest.skip("there is no Chromium", allow_module_level=True)


class Seen(dict[str, Any]):
    """What the probe saw; `console` has every line that the page wrote to the console."""

    console: list[str]


@pytest.fixture(scope="module")
def report(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    return write_report(study / "tables", study / "figures", folder / "report.html")


@pytest.fixture
def probe(report: Path, tmp_path: Path) -> Callable[..., Seen]:
    """`probe(code, width, flags)`: what the object that the code returns has, once the page has run."""

    def run(code: str, width: int = DESK, flags: tuple[str, ...] = ()) -> Seen:
        script = (
            "<script>window.addEventListener('load', () => setTimeout(() => {"
            f"const seen = (() => {{ {code} }})(); const out = parent.document.createElement('pre');"
            "out.id = 'seen'; out.textContent = JSON.stringify(seen); parent.document.body.append(out); }, 50));"
            "</script>"
        )
        text = report.read_text().replace("</body>", f"{script}</body>")
        if width < LEAST:
            text = f'<!DOCTYPE html><iframe style="width:{width}px;height:900px" srcdoc="{escape(text)}"></iframe>'
        page = tmp_path / "probed.html"
        page.write_text(text)
        done = chromium(
            tmp_path, f"--window-size={max(width, LEAST)},900", *flags, "--dump-dom", page.as_uri()
        )
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.DOTALL)
        assert found, done.stderr[-2000:]
        seen = Seen(json.loads(unescape(found[1])))
        seen.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return seen

    return run


def chromium(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Chromium without a window, in a profile of its own, to which every name of a host is unknown."""
    assert CHROMIUM
    return subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=4000",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            *QUIET,
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )


def test_no_error_and_no_request(probe: Callable[..., Seen]) -> None:
    seen = probe(
        "return {requests: performance.getEntriesByType('resource').map((entry) => entry.name),"
        " hidden: document.querySelectorAll('.needs-script[hidden]').length}"
    )
    assert seen == {"requests": [], "hidden": 0}
    assert seen.console == []


def test_a_click_on_a_heading_sorts_by_value_and_again_the_other_way(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const table = [...document.querySelectorAll(".results")].find((one) => one.rows.length > 5);
        const heading = [...table.tHead.rows[0].cells].find((one) => one.textContent.startsWith("median"));
        const column = heading.cellIndex;
        const values = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
        const before = values();
        heading.querySelector("button").click();
        const up = values(), said = heading.getAttribute("aria-sort");
        heading.querySelector("button").click();
        return {before, up, said, down: values()};
        """
    )
    numbers = [float(value.replace(",", "")) for value in seen["up"] if value != "–"]
    assert len(numbers) > 4 and numbers == sorted(numbers)
    assert seen["said"] == "ascending"
    assert [value for value in seen["down"] if value != "–"] == [
        value for value in reversed(seen["up"]) if value != "–"
    ]
    assert sorted(seen["before"]) == sorted(seen["up"])
    assert all(value == "–" for value in seen["up"][len(numbers) :]), "cells without a value stand last"


def test_the_filter_keeps_rows_with_every_word(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const search = document.getElementById("search");
        const shown = () => [...document.querySelectorAll(".results tbody tr")]
          .filter((row) => row.offsetParent !== null).map((row) => row.cells[0].textContent);
        const all = shown();
        search.value = "PLEXUS measured-nowhere"; search.dispatchEvent(new Event("input"));
        const none = shown();
        search.value = "plexus predicted"; search.dispatchEvent(new Event("input"));
        const some = shown(), count = document.getElementById("count").textContent;
        search.value = ""; search.dispatchEvent(new Event("input"));
        return {all, none, some, count, again: shown()};
        """
    )
    assert seen["none"] == []
    assert seen["some"] == ["plexus"] * 2
    assert seen["count"] == f"2 of {len(seen['all'])} rows"
    assert seen["again"] == seen["all"]


def test_folded_columns_unfold(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const shown = () => [...document.querySelector(".results").tHead.rows[0].cells]
          .filter((cell) => cell.offsetParent !== null).map((cell) => cell.textContent);
        const few = shown();
        document.getElementById("more").click();
        const all = shown();
        document.getElementById("more").click();
        return {few, all, again: shown()};
        """
    )
    assert {"strategy", "ranks", "grid", "elements received", "memory", "runs"} <= set(seen["few"])
    assert any(name.startswith("median") for name in seen["few"])
    assert set(seen["all"]) - set(seen["few"]) >= {"computing (%)", "loss"}
    assert seen["again"] == seen["few"]


def test_a_run_has_a_panel_with_a_timeline_for_each_rank(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const data = JSON.parse(document.getElementById("data").textContent);
        const [id, run] = Object.entries(data.runs).find(([, run]) => (run.ranks || []).length === 4);
        document.querySelector(`a[href="#run-${id}"]`).click();
        window.dispatchEvent(new HashChangeEvent("hashchange"));
        const svg = document.querySelector("#panel svg");
        const rects = [...svg.querySelectorAll("rect")];
        const rows = new Set(rects.map((rect) => rect.getAttribute("y")));
        const box = svg.viewBox.baseVal;
        return {
          hash: location.hash === `#run-${id}`,
          ranks: rows.size, parts: rects.length,
          inside: rects.every((rect) => rect.x.baseVal.value + rect.width.baseVal.value <= box.width),
          coloured: rects.every((rect) => getComputedStyle(rect).fill !== "rgb(0, 0, 0)"),
          titled: rects.every((rect) => rect.querySelector("title").textContent.includes(": ")),
          text: document.getElementById("panel").textContent,
          options: document.getElementById("choice").options.length, runs: Object.keys(data.runs).length,
        };
        """
    )
    assert seen["hash"] and seen["inside"] and seen["coloured"] and seen["titled"]
    assert seen["ranks"] == 4 and seen["parts"] > 12
    for words in ("Run ", "launch 0, 2026-", "elements received", "harness run --spec", "node17", "tensor A"):
        assert words in seen["text"]
    assert seen["options"] == seen["runs"]
    assert seen.console == []


@pytest.mark.parametrize(
    ("dark", "flags"), [(False, ()), (True, ("--blink-settings=preferredColorScheme=0",))]
)
def test_light_and_dark(dark: bool, flags: tuple[str, ...], probe: Callable[..., Seen]) -> None:
    """Paper, ink, and the colour of a strategy in a figure follow the reader's choice."""
    seen = probe(
        """
        const sum = (colour) => colour.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b);
        const style = getComputedStyle(document.documentElement);
        const label = document.querySelector("#strong-scaling svg text");
        const line = [...document.querySelectorAll("#strong-scaling svg path")]
          .find((path) => (path.getAttribute("style") || "").includes("strategy-cagnet-1d"));
        return {
          asked: matchMedia("(prefers-color-scheme: dark)").matches,
          paper: sum(style.backgroundColor), ink: sum(style.color),
          label: sum(getComputedStyle(label).fill), line: sum(getComputedStyle(line).stroke),
        };
        """,
        flags=flags,
    )
    assert seen["asked"] is dark
    assert (seen["paper"] < 150) is dark
    assert (seen["ink"] > 500) is dark
    assert (seen["label"] > 300) is dark
    assert abs(seen["line"] - seen["paper"]) > 150


def test_a_phone_never_scrolls_sideways_and_shows_the_epoch_time(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        for (const one of document.querySelectorAll("details")) one.open = true;
        const cell = [...document.querySelectorAll(".results td")].find((one) => one.dataset.name.startsWith("median"));
        const box = cell.getBoundingClientRect();
        return {width: innerWidth, page: document.documentElement.scrollWidth, left: box.left, right: box.right,
          heading: getComputedStyle(cell, "::before").content};
        """,
        width=PHONE,
    )
    assert seen["width"] == PHONE
    assert seen["page"] <= PHONE
    assert 0 <= seen["left"] < seen["right"] <= PHONE
    assert "median" in seen["heading"] or "attr" in seen["heading"]


def test_a_desk_never_scrolls_sideways(probe: Callable[..., Seen]) -> None:
    seen = probe("return {page: document.documentElement.scrollWidth, width: innerWidth}")
    assert seen["page"] <= seen["width"]


def test_no_table_is_cut_on_paper(report: Path, tmp_path: Path, probe: Callable[..., Seen]) -> None:
    """With the rules for print, on the width that A4 leaves between the margins."""
    seen = probe(
        """
        const style = document.querySelector("style");
        style.textContent = style.textContent.replaceAll("@media print", "@media all");
        document.body.style.width = "178mm";
        const page = document.body.getBoundingClientRect().right;
        const shown = (one) => one.offsetParent !== null;
        const tables = [...document.querySelectorAll("table")].filter(shown);
        const drawn = [...document.querySelectorAll("figure svg")];
        return {
          tables: tables.length,
          cut: tables.filter((one) => one.getBoundingClientRect().right > page + 1).length,
          figures: drawn.length,
          wide: drawn.filter((one) => one.getBoundingClientRect().right > page + 1).length,
          controls: [...document.querySelectorAll(".controls, nav, #runs")].filter(shown).length,
        };
        """
    )
    assert seen["tables"] > 3 and seen["figures"] > 8
    assert (seen["cut"], seen["wide"], seen["controls"]) == (0, 0, 0)


def test_the_page_prints_to_pdf(report: Path, tmp_path: Path) -> None:
    chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", report.as_uri())
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3
