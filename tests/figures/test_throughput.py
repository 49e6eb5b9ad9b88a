"""Throughput stands over what was varied, and is what the tables say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from harness.figures import breakdown, throughput
from harness.figures.kind import read_tables
from harness.ledger import SAMPLING
from harness.results.parquet import read_collected

Collected = Callable[[Callable[[Path], object]], Path]


def shown(folder: Path) -> dict[str, tuple[str, dict[str, pd.DataFrame]]]:
    """Of every panel what x is, and the line of each curve by its label."""
    tables = read_tables(folder)
    lines = {}
    for panel in throughput.split_across_sizes(read_collected(folder, "runs")):
        if drawn := throughput.select_curves(panel, tables):
            quantity = throughput.plot_throughput(panel, drawn)
            lines[panel.title] = (
                quantity.x_column,
                {curve.label: quantity.median_line(curve) for curve in drawn},
            )
    return lines


def test_over_ranks_a_line_follows_the_best_grid(tables: Path, runs: pd.DataFrame) -> None:
    over, lines = shown(tables)["products-14m"]
    assert over == "ranks"
    assert list(lines) == ["serial", "cagnet-1d", "plexus"], "the others have no throughput"
    plexus = runs[(runs["strategy.name"] == "plexus") & (runs.source == "measured") & (runs.ranks == 4)]
    best = plexus.groupby("grid").vertices_per_second.median().max()
    line = lines["plexus"]
    assert line[line.ranks == 4].middle.item() == best


def test_other_programs_and_predictions_stand_beside_what_was_measured(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for seed, source in enumerate(("measured", "external", "predicted")):
            spec = synthetic.make_spec("bns-gcn", "tiny", {"p": 2}, seed=seed)
            synthetic.write_ok(folder, spec, 0.1, source=source)

    _, lines = shown(collected(write))["tiny"]
    assert list(lines) == ["bns-gcn", "bns-gcn external", "bns-gcn predicted"]


def test_fan_outs_that_follow_the_layers_make_one_curve(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 14 of G3: DGL has a fan-out for each layer."""

    def write(folder: Path) -> None:
        for fanouts in ([25, 10], [25, 15, 10], [25, 20, 15, 10]):
            strategy = {"name": "distdgl", "params": {"fanouts": fanouts}}
            model = {"layers": len(fanouts)}
            synthetic.write_ok(folder, synthetic.make_spec(strategy, "tiny", {"p": 4}, model=model), 0.1)

    over, lines = shown(collected(write))["tiny"]
    assert over == "model.layers"
    assert {label: list(line[over]) for label, line in lines.items()} == {
        "distdgl (fanouts by layers)": [2, 3, 4]
    }


def test_a_gain_is_over_the_baseline_of_the_same_source_and_depth(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 14 of G3. Throughputs are vertices over seconds, so a gain is the ratio of the seconds."""
    seconds = {
        "measured": {"distdgl": [0.2, 0.4, 0.8], "g3": [0.1, 0.1, 0.1]},
        "emulated": {"distdgl": [0.3], "g3": [0.1]},
        "predicted": {"g3": [0.1]},
    }

    def write(folder: Path) -> None:
        for source, each in seconds.items():
            for strategy, times in each.items():
                for layers, time in enumerate(times, start=2):
                    spec = synthetic.make_spec(
                        strategy, "tiny", {"p": 4}, model={"layers": layers}, seed=list(seconds).index(source)
                    )
                    synthetic.write_ok(folder, spec, time, source=source)

    folder = collected(write)
    (panel,) = throughput.split_across_sizes(read_collected(folder, "runs"))
    shown = throughput.select_gains(panel, read_tables(folder))
    assert shown and shown.x_label == "layers"
    found = {group.label: {gain.x: round(gain.ratio, 6) for gain in group.bars} for group in shown.groups}
    runs = read_collected(folder, "runs")
    rates = runs.set_index(["source", "strategy.name", "model.layers"]).vertices_per_second
    assert found == {
        label: {
            at: pytest.approx(rates[source, "g3", at] / rates[source, "distdgl", at], abs=1e-6)
            for at in depths
        }
        for label, source, depths in (("g3", "measured", (2, 3, 4)), ("g3 emulated", "emulated", (2,)))
    }
    assert found["g3"][4] > found["g3"][3] > found["g3"][2] > 1
    alone = panel.runs[panel.runs["strategy.name"] == "g3"]
    assert throughput.select_gains(replace(panel, runs=alone), read_tables(folder)) is None


@pytest.mark.parametrize("swept", ["layers", "features"])
def test_depths_and_widths_stand_in_one_panel(
    swept: str, synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for strategy, ranks in (("g3", 2), ("g3", 4), ("bns-gcn", 4)):
            for value in (2, 3, 4):
                name = f"big@1-64w{value}" if swept == "features" else "big@1-64"
                spec = synthetic.make_spec(
                    strategy, name, {"p": ranks}, model={"layers": value if swept == "layers" else 2}
                )
                tables = synthetic.make_tables(spec, 0.1 * value, 0.1)
                record = synthetic.make_record(spec, tables)
                record["summary"]["graph"]["features"] = value if swept == "features" else 9
                synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)

    found = shown(collected(write))
    (title, (over, lines)), *others = found.items()
    assert (title, others) == ("big@1-64", [])
    assert over == {"layers": "model.layers", "features": "graph.features"}[swept]
    for line in lines.values():
        assert list(line[over]) == [2, 3, 4]
        assert line.middle.is_monotonic_decreasing


def test_sampling_is_shown_of_who_samples(tables: Path) -> None:
    """Its parts add up to what the ledger has in these phases."""
    collected = read_tables(tables)
    panels = {
        panel.dataset: panel for panel in breakdown.SAMPLING_KIND.split_panels(read_collected(tables, "runs"))
    }
    assert breakdown.select_sampling_bars(panels["products-14m"], collected) == []
    (group,) = breakdown.select_sampling_bars(panels["isolate-3-8m"], collected)
    ledgers = [rows for rows in collected.ledgers.values() if rows.phase.isin(SAMPLING).any()]
    every = pd.concat(ledgers)
    seconds = every[every.phase.isin(SAMPLING) & (every.epoch >= 0)].seconds
    assert seconds.min() <= group.bars[0].seconds["sampling"] <= seconds.max()
    assert group.bars[0].total == group.bars[0].seconds["sampling"]
