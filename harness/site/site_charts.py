"""The charts of the site: static SVG, whose points link to their runs. They need no script, and follow a dark page."""

import json
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.figures.axis_scales import RANKS, Scale
from harness.figures.marks import Facet, Lines, Points
from harness.figures.marks.facet import MOST_COLOURED, Mark
from harness.figures.palette import FILLS, look_of
from harness.files import write_text
from harness.report.charts import make_spec
from harness.results.statistics import find_oversubscribed
from harness.site.ranking import EPOCH, name_configurations

WIDTH, HEIGHT = 270, 200
"""The pixels of the axes: what a phone has room for. A wider screen shows charts next to each other."""
ROOM = 1.25
"""The factor of the room around points on logarithmic axes."""
MOST_MACHINES = 6
"""The most machines whose scaling is drawn: those with the most runs."""
BASE = "https://vega.github.io/vega-datasets/"
"""What the renderer puts before relative links."""
CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--ink)",
        "titleFontWeight": "normal",
        "domainColor": "var(--muted)",
        "gridColor": "var(--rule)",
        "tickColor": "var(--muted)",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "labelOverlap": "greedy",
        "labelSeparation": 8,
    },
    "axisQuantitative": {"tickCount": 4},
    "axisY": {"minExtent": 48},
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 11,
        "labelLimit": WIDTH,
        "orient": "bottom",
        "columns": 1,
        "symbolSize": 60,
    },
}
SECONDS = Scale(EPOCH, "epoch time", "s", log=True)
FRONTS = (
    (Scale("elements_received", "elements received", "", log=True), SECONDS),
    (Scale("peak_bytes", "peak memory per rank", "B", log=True), SECONDS),
    (
        Scale("training_seconds", "seconds of training", "s", log=True),
        Scale("test_error", "test error", "%", log=True),
    ),
)
"""The pairs of quantities of which less is better."""


def draw_scaling(runs: pd.DataFrame, kept: Path) -> dict[str, str]:
    """Draw the epoch time over ranks on each machine, the fastest grid of each strategy, all with the same axis."""
    frame = runs[(runs.status == "ok") & runs[EPOCH].notna()]
    frame = frame.assign(
        curve=frame["strategy.name"] + frame.source.map(_name_source), shared_cores=find_oversubscribed(frame)
    )
    keys = ["on_machine", "curve", "ranks"]
    medians = frame.groupby([*keys, "grid"])[EPOCH].median().reset_index()
    best = medians.sort_values([EPOCH, "grid"]).drop_duplicates(keys)
    best = best[best.groupby(["on_machine", "curve"]).ranks.transform("nunique") > 1]
    frame = frame.merge(best[[*keys, "grid"]], on=[*keys, "grid"])
    frame = frame[frame.on_machine.isin(frame.on_machine.value_counts().index[:MOST_MACHINES])]
    if frame.empty:
        return {}
    ends = SECONDS.find_limits(frame[EPOCH].tolist())
    mark = Lines(RANKS, SECONDS, ideal=-1)
    drawn = {}
    for machine, rows in frame.groupby("on_machine"):
        order = rows.groupby("curve")[EPOCH].min().sort_values().index[:MOST_COLOURED]
        drawn[str(machine)] = _draw(mark, rows[rows.curve.isin(order)], kept, {"y": ends})
    return drawn


def draw_fronts(runs: pd.DataFrame, kept: Path) -> list[str]:
    """Draw the configurations of one machine by two quantities each, with the front of the best."""
    frame = runs.assign(
        curve=name_configurations(runs),
        training_seconds=runs[EPOCH] * runs.epochs.astype(float),
        test_error=1.0 - runs.accuracy_test,
    )
    drawn = []
    for x, y in FRONTS:
        known = frame.dropna(subset=[x.column, y.column])
        known = known[(known[x.column] > 0) & (known[y.column] > 0)]
        medians = known.groupby("curve")[[x.column, y.column]].median().sort_values([x.column, y.column])
        if len(medians) < 2 or (medians.nunique() < 2).any():
            continue
        is_front = medians[y.column] < medians[y.column].cummin().shift(fill_value=np.inf)
        front = medians.index[is_front]
        order = [*front, *medians.index[~is_front]][:MOST_COLOURED]
        points = known[known.curve.isin(order)]
        points = points.assign(on_front=points.curve.isin(front))
        ends = {
            axis: (points[scale.column].min() / ROOM, points[scale.column].max() * ROOM)
            for axis, scale in (("x", x), ("y", y))
        }
        drawn.append(_draw(Points(x, y, front="on_front"), points, kept, ends))
    return drawn


def _name_source(source: str) -> str:
    return "" if source == "measured" else f" {source}"


def _draw(mark: Mark, frame: pd.DataFrame, kept: Path, ends: Mapping[str, tuple[float, float]]) -> str:
    """Return the SVG of a chart with these ends of its axes. Equal charts are drawn once, and kept in a folder."""
    frame = frame.assign(strategy=frame["strategy.name"], label=frame.curve).sort_values(
        "curve", kind="stable"
    )
    curves = frame.drop_duplicates("curve")
    by_strategy = curves.groupby("strategy").cumcount()
    looks = {
        curve: look_of(strategy)._replace(fill=FILLS[number % len(FILLS)])
        for curve, strategy, number in zip(curves.curve, curves.strategy, by_strategy, strict=True)
    }
    spec = make_spec(mark, Facet("", frame, given_looks=looks))
    units = [unit for unit in spec["layer"] if unit["mark"]["type"] in ("point", "circle")]
    frame = frame.assign(
        href="../submissions/" + frame.submission + ".html#run-" + frame.run_id,
        description=frame.curve + ", " + frame.ranks.astype(str) + " ranks",
    )
    for unit in units:
        unit["encoding"]["href"] = {"field": "href"}
        unit["encoding"]["description"] = {"field": "description"}
    for unit in spec["layer"]:
        unit.pop("params", None)
        encoding = unit.get("encoding", {})
        for channel in ("color", "stroke", "fill", "shape"):
            if encoding.get(channel, {}).get("field") == "curve":
                encoding[channel]["legend"] = {"title": None, "symbolOpacity": 1}
        for axis, (low, high) in ends.items():
            if "scale" in encoding.get(axis, {}):
                encoding[axis]["scale"] |= {"domain": [low, high], "nice": False, "padding": 0}
    columns = sorted(
        {*_list_fields(spec), "curve", "strategy", "source", "status", "href", "description"} & {*frame}
    )
    spec |= {
        "data": {"values": json.loads(frame[columns].to_json(orient="records"))},
        "width": WIDTH,
        "height": HEIGHT,
        "config": CONFIG,
        "padding": 5,
    }
    text = json.dumps(spec, sort_keys=True)
    name = f"chart-{sha256(text.encode()).hexdigest()[:24]}"
    path = kept / f"{name}.svg"
    if not path.is_file():
        write_text(path, _render(text, name))
    return path.read_text(encoding="utf-8")


def _list_fields(data: Any) -> set[str]:
    """Return the names of all columns that a specification mentions."""
    if isinstance(data, dict):
        own = {data["field"]} if isinstance(data.get("field"), str) else set()
        return own.union(*map(_list_fields, data.values()))
    if isinstance(data, list):
        return set().union(*map(_list_fields, data))
    return set(re.findall(r"datum\.(\w+)", data)) if isinstance(data, str) else set()


def _render(spec: str, name: str) -> str:
    """Return the SVG of a specification, with titles for its links, and with names that no other chart has."""
    svg = _load_renderer().vegalite_to_svg(json.loads(spec)).replace(f'xlink:href="{BASE}', 'href="')
    svg = re.sub(r'(<a href="[^"]*">)(<path aria-label="([^"]*)")', r"\1<title>\3</title>\2", svg)
    for number, own in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg))):
        svg = re.sub(rf'(id="|url\(#){re.escape(own)}(?=["\)])', rf"\g<1>{name}-{number}", svg)
    return re.sub(r"<rect width=\"\d+\" height=\"\d+\" fill=\"white\"/>", "", svg, count=1)


@cache
def _load_renderer() -> Any:
    import vl_convert  # starting it takes a second

    return vl_convert
