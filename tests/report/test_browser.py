"""The page in a real Chromium: what a reader clicks, in light and dark, on a phone and on paper, without a network.

A probe is appended to a copy of the page. It does what a reader does, and leaves what it saw in the document, which
Chromium prints.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import escape, unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.formatting import FORMATS
from harness.report.figures import FramedTables
from harness.report.page import write_report
from harness.results.collect import collect
from tests.chromium import require_chromium, run_chromium

pytestmark = pytest.mark.long

PHONE, DESK = 390, 1280
LEAST = 500
"""The width below which Chromium makes no window; a narrower page is a frame of one."""

require_chromium()


class Seen(dict[str, Any]):
    """What the probe saw; `console` has every line that the page wrote to the console."""

    console: list[str]


@pytest.fixture(scope="module")
def report(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    return write_report(FramedTables(study / "tables"), folder / "report.html")


@pytest.fixture
def probe(report: Path, tmp_path: Path) -> Callable[..., Seen]:
    """`probe(code, width, flags, page)`: what the object that the code returns has, once the charts are drawn.

    The policy of the copy allows the probe's script too, by its hash.
    """

    def run(code: str, width: int = DESK, flags: tuple[str, ...] = (), page: Path = report) -> Seen:
        script = (
            "const rest = () => new Promise((resolve) => { setTimeout(resolve, 60); });"
            "window.addEventListener('load', async () => {"
            "for (let n = 0; n < 400 && !document.body.classList.contains('drawn'); n += 1) await rest();"
            f"const seen = await (async () => {{ {code} }})();"
            "const out = parent.document.createElement('pre');"
            "out.id = 'seen'; out.textContent = JSON.stringify(seen); parent.document.body.append(out); });"
        )
        allowed = f"script-src &#39;sha256-{b64encode(sha256(script.encode()).digest()).decode()}&#39; "
        text = page.read_text().replace("script-src ", allowed, 1)
        head, _, foot = text.rpartition("</body>")  # Vega's script has one too
        text = f"{head}<script>{script}</script></body>{foot}"
        if width < LEAST:
            text = f'<!DOCTYPE html><iframe style="width:{width}px;height:900px" srcdoc="{escape(text)}"></iframe>'
        copy = tmp_path / "probed.html"
        copy.write_text(text)
        done = run_chromium(
            tmp_path, f"--window-size={max(width, LEAST)},900", *flags, "--dump-dom", copy.as_uri()
        )
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.DOTALL)
        assert found, done.stderr[-2000:]
        seen = Seen(json.loads(unescape(found[1])))
        seen.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return seen

    return run


def test_no_error_and_no_request(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const plots = [...document.querySelectorAll("[data-chart]")];
        return {
          requests: performance.getEntriesByType("resource").map((entry) => entry.name),
          hidden: document.querySelectorAll(".needs-script[hidden]").length,
          charts: plots.length > 2,
          undrawn: plots.filter((one) => !one.querySelector("svg .mark-symbol, svg .mark-rect, svg .mark-area")).length,
        };
        """
    )
    assert seen == {"requests": [], "hidden": 0, "charts": True, "undrawn": 0}
    assert seen.console == []


def test_a_click_on_a_heading_sorts_by_value_and_again_the_other_way(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const table = [...document.querySelectorAll(".results")].find((one) => one.rows.length > 5);
        const heading = [...table.tHead.rows[0].cells].find((one) => one.textContent.startsWith("epoch time"));
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
    assert any(name.startswith("epoch time") for name in seen["few"])
    assert set(seen["all"]) - set(seen["few"]) >= {"computing (%)", "final loss"}
    assert seen["again"] == seen["few"]


def test_a_strategy_is_selected_once_in_all_charts_and_tables(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const opacities = () => {
          const found = {};
          for (const path of document.querySelectorAll(".plot .mark-symbol path")) {
            const { strategy } = path.__data__?.datum ?? {};
            if (strategy) (found[strategy] ??= new Set()).add(Number(path.getAttribute("opacity") ?? 1));
          }
          return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...values]]));
        };
        const shown = () => [...new Set([...document.querySelectorAll(".results tbody tr")]
          .filter((row) => row.offsetParent !== null).map((row) => row.cells[0].textContent))];
        const button = document.querySelector('[data-strategy="plexus"]');
        const before = opacities();
        button.click(); await rest();
        const chosen = opacities(), rows = shown(), pressed = button.getAttribute("aria-pressed");
        const mark = [...document.querySelectorAll(".plot .mark-symbol path")]
          .find((path) => path.__data__?.datum?.strategy === "cagnet-1d");
        mark.dispatchEvent(new MouseEvent("click", { bubbles: true })); await rest();
        const both = shown();
        document.getElementById("everything").click(); await rest();
        return { before, chosen, rows, pressed, both, after: opacities() };
        """
    )
    assert set(seen["before"]) >= {"plexus", "cagnet-1d", "serial"}
    assert all(values == [1] for values in seen["before"].values())
    assert seen["chosen"] == {name: [1 if name == "plexus" else 0.1] for name in seen["before"]}
    assert (seen["rows"], seen["pressed"]) == (["plexus"], "true")
    assert sorted(seen["both"]) == ["cagnet-1d", "plexus"]
    assert seen["after"] == seen["before"]
    assert seen.console == []


def test_a_mark_has_a_tooltip_with_its_numbers_and_units(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const mark = document.querySelector("#strong-scaling .plot .mark-symbol path");
        const { left, top } = mark.getBoundingClientRect();
        const at = { bubbles: true, clientX: left, clientY: top };
        for (const name of ["pointerover", "pointermove", "mousemove"]) mark.dispatchEvent(new PointerEvent(name, at));
        await rest();
        return { text: tooltip.innerText, hidden: tooltip.hidden, strategy: mark.__data__.datum.strategy };
        """
    )
    assert not seen["hidden"]
    assert seen["text"].startswith(seen["strategy"])
    assert re.search(r"epoch time\s+[\d.,]+ (s|ms|µs)", seen["text"]) and "ranks" in seen["text"]


def test_median_of_launches_has_a_tooltip_in_the_unit_of_its_axis(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const marks = [...document.querySelectorAll("#epoch-time .plot .mark-symbol path")];
        const mark = marks.find((each) => each.__data__.datum.low);
        const { left, top } = mark.getBoundingClientRect();
        const at = { bubbles: true, clientX: left, clientY: top };
        for (const name of ["pointerover", "pointermove", "mousemove"]) mark.dispatchEvent(new PointerEvent(name, at));
        await rest();
        return { text: tooltip.innerText, hidden: tooltip.hidden };
        """
    )
    assert not seen["hidden"]
    for label in ("median", "from", "to"):
        assert re.search(rf"{label}\s+[\d.,]+ (s|ms|µs)", seen["text"]), seen["text"]


def test_numbers_of_the_page_have_the_units_of_their_quantities(probe: Callable[..., Seen]) -> None:
    units = list(FORMATS)
    seen = probe(
        f"""
        const cell = (text) => {{
          const found = document.createElement("td");
          found.className = "number";
          found.textContent = text;
          return found;
        }};
        return {{
          shown: {units}.map((unit) => withUnit(12300, unit)),
          keys: ["12 ms", "5.2 s", "2 min", "3 kB", "7"].map((text) => sortKey(cell(text))),
        }};
        """
    )
    shown = dict(zip(units, seen["shown"], strict=True))
    assert shown == {
        "s": "12,300 s",
        "B": "12.3 kB",
        "%": "1,230,000 %",
        "count": "12.3 k",
        "whole": "12.3 k",
        "number": "12,300",
        "times": "12,300×",
    }
    assert seen["keys"] == pytest.approx([0.012, 5.2, 120, 3000, 7])


def test_charts_zoom_by_keys(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const figure = document.querySelector("#strong-scaling [data-chart]");
        const { view } = views.get(figure);
        const domain = () => [...view.scale("y").domain()];
        const press = async (key) => { figure.dispatchEvent(new KeyboardEvent("keydown", { key })); await rest(); };
        const all = domain();
        await press("+");
        const near = domain();
        await press("ArrowUp");
        const higher = domain();
        await press("0");
        return { all, near, higher, again: domain(), focusable: figure.tabIndex };
        """
    )
    assert seen["all"][0] < seen["near"][0] < seen["near"][1] < seen["all"][1]
    assert all(high > low for low, high in zip(seen["near"], seen["higher"], strict=True))
    assert seen["again"] == pytest.approx(seen["all"])
    assert seen["focusable"] == 0


def test_a_run_has_timelines_that_zoom_and_a_trace(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const [id, run] = Object.entries(data.runs).find(([, run]) => (run.ranks || []).length === 4);
        document.querySelector(`a[href="#run-${id}"]`).click();
        window.dispatchEvent(new HashChangeEvent("hashchange"));
        const look = () => {
          const rects = [...document.querySelectorAll("#panel svg rect")];
          const box = document.querySelector("#panel svg").viewBox.baseVal;
          return {
            ranks: new Set(rects.map((rect) => rect.getAttribute("y"))).size, parts: rects.length,
            inside: rects.every((rect) => rect.x.baseVal.value + rect.width.baseVal.value <= box.width),
            coloured: rects.every((rect) => getComputedStyle(rect).fill !== "rgb(0, 0, 0)"),
            titled: rects.every((rect) => rect.querySelector("title").textContent.includes(": ")),
            widest: Math.max(...rects.map((rect) => rect.width.baseVal.value)),
          };
        };
        const all = look();
        const box = document.querySelector("#panel .draw");
        for (const key of ["+", "+"]) box.dispatchEvent(new KeyboardEvent("keydown", { key }));
        const near = look();
        box.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
        const lengths = run.ranks.map((rank) => rank.slice(1).reduce((sum, part) => sum + part[2], 0));
        return {
          hash: location.hash === `#run-${id}`, all, near, again: look(),
          text: document.getElementById("panel").textContent, trace: traceOf(run), lengths,
          button: document.querySelector(".trace").textContent,
          options: choice.options.length, runs: Object.keys(data.runs).length,
        };
        """
    )
    assert seen["hash"]
    for look in (seen["all"], seen["near"]):
        assert look["inside"] and look["coloured"] and look["titled"] and look["ranks"] == 4
    assert seen["all"]["parts"] > 12
    assert seen["near"]["widest"] > 1.5 * seen["all"]["widest"]
    assert seen["again"] == seen["all"]
    for words in ("Run ", "launch 0, 2026-", "elements received", "harness run --spec", "node17", "tensor A"):
        assert words in seen["text"]
    assert seen["options"] == seen["runs"]
    complete = [event for event in seen["trace"]["traceEvents"] if event["ph"] == "X"]
    ranks = sorted({event["tid"] for event in complete})
    assert ranks == [0, 1, 2, 3] and "Perfetto" in seen["button"]
    for rank, length in zip(ranks, seen["lengths"], strict=True):
        mine = [event for event in complete if event["tid"] == rank]
        ends = [event["ts"] + event["dur"] for event in mine]
        assert [event["ts"] for event in mine] == [0, *ends[:-1]] and ends[-1] == length
    assert seen.console == []


def test_two_runs_are_shown_on_one_time_scale_with_their_differences(probe: Callable[..., Seen]) -> None:
    seen = probe(
        """
        const timed = Object.keys(data.runs).filter((id) => data.runs[id].ranks);
        const [one, two] = [timed[0], timed.find((id) => data.runs[id].strategy !== data.runs[timed[0]].strategy)];
        showRuns(one);
        other.value = two;
        other.dispatchEvent(new Event("change"));
        const drawn = [...document.querySelectorAll("#panel svg")];
        const ticks = drawn.map((svg) => [...svg.querySelectorAll("text")].map((each) => each.textContent)
          .filter((text) => !text.startsWith("rank")));
        const rows = [...document.querySelectorAll("#panel .pairs tr")]
          .map((row) => [...row.cells].map((cell) => cell.textContent));
        showRuns(one, one);
        return { ticks, rows, same: panel.textContent };
        """
    )
    first, second = seen["ticks"]
    assert first == second and len(first) > 3
    header, *rows = seen["rows"]
    assert len(header) == 3 and header[1] != header[2]
    assert all(one != two for _, one, two in rows)
    assert {"epoch time", "strategy.name"} <= {name for name, *_ in rows}
    assert "Differences" in seen["same"] and "None." in seen["same"]


HOSTILE = "<img src=x onerror='document.title=`caught`'></script><script>document.title='caught'</script>\x1b[31m\u202e"


def test_text_of_records_stays_text(
    synthetic: SimpleNamespace, tmp_path: Path, probe: Callable[..., Seen]
) -> None:
    """Names, hosts, causes and notes with markup and control characters, in tables, charts, tooltips and panels."""
    for ranks in (1, 2):
        told = synthetic.provenance(host=HOSTILE, cpu=HOSTILE, commit=HOSTILE)
        for name in ("serial", f"x{HOSTILE}"):
            spec = synthetic.make_spec(name, "evil", {"p": ranks})
            synthetic.write_ok(tmp_path / "runs", spec, 0.01 / ranks, provenance=told)
    synthetic.write_failed(
        tmp_path / "runs", synthetic.make_spec("g3", "tiny", {"p": 1}), "failed", HOSTILE, HOSTILE
    )
    collect(tmp_path / "runs", tmp_path)
    seen = probe(
        """
        for (const button of document.querySelectorAll("[data-strategy]")) button.click();
        for (const path of document.querySelectorAll(".plot .mark-symbol path")) {
          path.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
        }
        for (const id of Object.keys(data.runs)) showRuns(id, Object.keys(data.runs)[0]);
        await rest();
        return {
          title: document.title, scripts: document.querySelectorAll("script").length,
          images: document.querySelectorAll("img").length, charts: document.querySelectorAll(".plot svg").length,
          told: document.body.innerText.includes("<img src=x onerror="), tip: tooltip.textContent,
        };
        """,
        page=write_report(FramedTables(tmp_path), tmp_path / "report.html"),
    )
    assert "caught" not in seen["title"]
    assert (seen["scripts"], seen["images"]) == (4, 0), "the data, Vega, the page's own script, and the probe"
    assert seen["charts"] > 0 and seen["told"]
    assert seen.console == []


@pytest.mark.parametrize(
    ("dark", "flags"), [(False, ()), (True, ("--blink-settings=preferredColorScheme=0",))]
)
def test_light_and_dark(dark: bool, flags: tuple[str, ...], probe: Callable[..., Seen]) -> None:
    """Paper, ink, and the colour of a strategy in a chart follow the reader's choice."""
    seen = probe(
        """
        const sum = (colour) => colour.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b);
        const style = getComputedStyle(document.documentElement);
        const label = document.querySelector("#strong-scaling .plot .role-axis-label text");
        const line = [...document.querySelectorAll("#strong-scaling .plot .mark-symbol path")]
          .find((path) => (path.getAttribute("stroke") || "").includes("strategy-cagnet-1d"));
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


def test_a_phone_never_scrolls_sideways_and_a_run_is_two_lines_until_unfolded(
    probe: Callable[..., Seen],
) -> None:
    seen = probe(
        """
        for (const one of document.querySelectorAll("details")) one.open = true;
        const rows = [...document.querySelectorAll(".results tbody tr")];
        const shown = (row) => [...row.cells].filter((cell) => cell.offsetParent !== null).length;
        const height = parseFloat(getComputedStyle(rows[0]).lineHeight);
        const lines = rows.map((row) => row.getBoundingClientRect().height / height);
        const cell = rows[0].querySelector("td.time");
        const box = cell.getBoundingClientRect();
        const few = shown(rows[0]), button = rows[0].querySelector(".unfold");
        button.click();
        return {width: innerWidth, page: document.documentElement.scrollWidth, left: box.left, right: box.right,
          heading: getComputedStyle(cell, "::before").content, lines, few, all: shown(rows[0]),
          expanded: button.getAttribute("aria-expanded")};
        """,
        width=PHONE,
    )
    assert seen["width"] == PHONE
    assert seen["page"] <= PHONE
    assert 0 <= seen["left"] < seen["right"] <= PHONE
    assert "epoch time" in seen["heading"] or "attr" in seen["heading"]
    assert max(seen["lines"]) < 3, "two lines and their margins"
    assert seen["all"] > seen["few"] and seen["expanded"] == "true"


def test_a_desk_never_scrolls_sideways(probe: Callable[..., Seen]) -> None:
    seen = probe("return {page: document.documentElement.scrollWidth, width: innerWidth}")
    assert seen["page"] <= seen["width"]


def test_nothing_is_cut_on_paper_and_no_page_is_wasted(
    report: Path, tmp_path: Path, probe: Callable[..., Seen]
) -> None:
    """With the rules for print, on the width that Letter leaves between the margins."""
    seen = probe(
        """
        const style = document.querySelector("style");
        style.textContent = style.textContent.replaceAll("@media print", "@media all");
        document.body.style.width = "188mm";
        window.dispatchEvent(new Event("beforeprint"));
        await rest();
        const page = document.body.getBoundingClientRect().right;
        const shown = (one) => one.offsetParent !== null;
        const cut = (query) => [...document.querySelectorAll(query)].filter(shown)
          .filter((one) => one.getBoundingClientRect().right > page + 1).length;
        const figures = [...document.querySelectorAll("figure")];
        return {
          tables: cut("table"), charts: cut(".plot svg"), figures: figures.length,
          captions: figures.filter((one) => one.querySelector("figcaption").offsetHeight > 0).length,
          columns: new Set(figures.map((one) => Math.round(one.getBoundingClientRect().left))).size,
          controls: [...document.querySelectorAll(".controls, nav, #runs")].filter(shown).length,
          millimetres: document.body.scrollHeight * 25.4 / 96,
        };
        """
    )
    assert (seen["tables"], seen["charts"], seen["controls"]) == (0, 0, 0)
    assert seen["figures"] == seen["captions"] > 4
    assert seen["columns"] == 2
    run_chromium(
        tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", report.as_uri()
    )
    pdf = (tmp_path / "page.pdf").read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    needed = seen["millimetres"] / (279 - 28)
    assert 2 < pages <= math.ceil(1.25 * needed), (
        "charts and tables that do not fit leave some room at the end of a page"
    )


OBJECT_NAMES = ("constructor", "toString", "hasOwnProperty", "valueOf")
"""Names that a strategy may have, and that every object of JavaScript has as properties."""


def test_strategies_named_like_properties_of_objects_are_strategies(
    probe: Callable[..., Seen], page_of: Callable[..., str], synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    """Charts have a mark for each, and are sorted, filtered and selected like others."""

    def fill(runs: Path) -> None:
        for number, name in enumerate((*OBJECT_NAMES, "plexus")):
            for ranks in (2, 4):
                spec = synthetic.make_spec(name, "tiny", {"p": ranks})
                synthetic.write_ok(runs, spec, (number + 2) / ranks)

    page_of(fill)
    seen = probe(
        """
        const drawn = {};
        for (const section of document.querySelectorAll("section[id]")) {
          const names = new Set();
          for (const path of section.querySelectorAll(".plot svg path, .plot svg rect")) {
            const { strategy } = path.__data__?.datum ?? {};
            if (typeof strategy === "string") names.add(strategy);
          }
          if (section.querySelector("[data-chart]")) drawn[section.id] = [...names].sort();
        }
        const rows = () => [...document.querySelectorAll(".results tbody tr")]
          .filter((row) => row.offsetParent !== null).map((row) => row.cells[0].textContent);
        const search = document.getElementById("search");
        const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
        const all = rows();
        type("tostring"); const found = rows(); type("");
        document.querySelector('[data-strategy="constructor"]').click(); await rest();
        const chosen = rows();
        const opacity = (path) => Number(path.getAttribute("opacity") ?? 1);
        const faded = [...document.querySelectorAll("#strong-scaling .plot .mark-symbol path")]
          .map((path) => [path.__data__?.datum?.strategy, opacity(path)]).filter(([name]) => typeof name === "string")
          .every(([name, opacity]) => (name === "constructor") === (opacity === 1));
        document.getElementById("everything").click(); await rest();
        const heading = document.querySelector(".results th button"); heading.click();
        const errors = [...document.querySelectorAll(".plot")].map((plot) => plot.textContent)
          .filter((text) => text.startsWith("This chart cannot be drawn"));
        const colours = new Set([...document.querySelectorAll("#strong-scaling .plot .mark-line path")]
          .map((path) => path.getAttribute("stroke"))).size;
        return { drawn, all: all.length, found, chosen, faded, sorted: rows(), errors, colours };
        """,
        page=tmp_path / "report.html",
    )
    assert (seen.console, seen["errors"]) == ([], [])
    everyone = sorted((*OBJECT_NAMES, "plexus"))
    assert seen["drawn"] and all(names == everyone for names in seen["drawn"].values()), seen["drawn"]
    assert (seen["all"], seen["colours"], seen["faded"]) == (10, 6, True), "ideal lines are grey"
    assert (set(seen["found"]), set(seen["chosen"])) == ({"toString"}, {"constructor"})
    assert seen["sorted"] == sorted(seen["sorted"], key=str.lower)
