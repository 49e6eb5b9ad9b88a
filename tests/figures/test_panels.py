"""What may be compared is in one panel, what may not is in two, and nothing is lost between them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from harness.report.figures.panels import (
    EPOCH,
    put_paper_first,
    short_strategy_name,
    split_panels,
    split_with_graph_curves,
    title_panels,
)
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.spec.plan import make_plan

Collected = Callable[[Callable[[Path], object]], Path]


def test_every_run_is_in_one_curve_of_one_panel(runs: pd.DataFrame) -> None:
    drawn = [run for panel in split_panels(runs) for curve in panel.curves for run in curve.runs.run_id]
    assert sorted(drawn) == sorted(runs.run_id)


def test_protocols_and_widths_are_never_in_one_panel(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for protocol in ("corrected", "faithful"):
            for hidden in (16, 32):
                changes = {"protocol": protocol, "model": {"hidden": hidden}}
                synthetic.write_quoted(
                    folder, synthetic.make_spec("serial", "tiny", {"p": 1}, **changes), 1.0, "measured"
                )

    found = split_panels(read_collected(collected(write), "runs"))
    assert [panel.title for panel in found] == [
        "tiny, hidden 16, corrected protocol",
        "tiny, hidden 16, faithful protocol",
        "tiny, hidden 32, corrected protocol",
        "tiny, hidden 32, faithful protocol",
    ]


def test_the_line_follows_the_fastest_grid_and_the_points_are_all_there(runs: pd.DataFrame) -> None:
    (panel,) = [panel for panel in split_panels(runs) if panel.dataset == "products-14m"]
    plexus = next(curve for curve in panel.curves if curve.label == "plexus")
    line = plexus.summarize_launches("ranks", EPOCH)
    assert list(line.grid) == ["x2y1z1", "x2y2z1"]
    mine = runs[(runs["strategy.name"] == "plexus") & (runs.source == "measured")]
    assert sorted(plexus.points.run_id) == sorted(mine.run_id)
    fastest = mine[mine.grid == "x2y2z1"].epoch_seconds_median
    (row,) = line[line.ranks == 4].to_dict("records")
    assert (row["low"], row["middle"], row["high"]) == (fastest.min(), fastest.median(), fastest.max())


def test_a_strategy_by_a_path_is_named_by_its_class_unless_another_has_that_name() -> None:
    mine, theirs = "/home/me/mine.py:Ours", "/home/you/other.py:Ours"
    assert short_strategy_name(mine, ["serial", mine]) == "Ours"
    assert short_strategy_name(mine, [theirs, mine]) == mine
    assert short_strategy_name(mine, ["Ours", mine]) == mine
    assert short_strategy_name("cagnet-1.5d", ["cagnet-1.5d", mine]) == "cagnet-1.5d"


def test_parameters_make_curves_with_names_that_differ(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for samples in (5, 10):
            strategy = {"name": "bulk", "params": {"samples": samples, "fanout": 3}}
            synthetic.write_quoted(folder, synthetic.make_spec(strategy, "tiny", {"p": 2}), 1.0, "measured")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    labels = [curve.label for curve in panel.curves]
    assert labels == ["bulk (samples 10)", "bulk (samples 5)"]
    assert [curve.variant for curve in panel.curves] == [0, 1]
    assert len({curve.look for curve in panel.curves}) == 2


def test_variants_stand_as_the_plan_of_measured_runs_lists_them(
    synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    """Figure 5 of ScaleGNN adds one optimisation after the other, which no order of letters or numbers gives."""
    chosen = [{"wire": "full"}, {"wire": "bf16"}, {"wire": "bf16", "fused": True}]
    specs = [
        synthetic.make_spec({"name": "mine", "params": params}, "tiny", {"p": 2}, seed=seed)
        for seed in range(2)
        for params in chosen
    ]
    for number, spec in enumerate(specs):
        place, source = ("runs", "measured") if number < len(chosen) else ("beside", "predicted")
        synthetic.write_quoted(tmp_path / place, spec, 1.0, source)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(make_plan("study", "", specs[: len(chosen)], {}, "")))
    collect(tmp_path / "runs", tmp_path, plan, unplanned=[tmp_path / "beside"])
    (panel,) = split_panels(read_collected(tmp_path, "runs"))
    said = ["fused unknown, wire full", "fused unknown, wire bf16", "fused true, wire bf16"]
    assert [curve.label for curve in panel.curves] == [
        *(f"mine ({words})" for words in said),
        *(f"mine ({words}) predicted" for words in said),
    ]


def test_a_variant_by_a_partitioner_does_not_say_that_it_has_no_order(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 8 of Plexus: random parts beside those of a partitioner."""

    def write(folder: Path) -> None:
        for dataset in ({"permutation": "single"}, {"partition": "hypergraph", "parts": 2}):
            spec = synthetic.make_spec("mine", {"name": "tiny", **dataset}, {"p": 2})
            synthetic.write_quoted(folder, spec, 1.0, "measured")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    assert sorted(curve.label for curve in panel.curves) == ["mine (hypergraph)", "mine (single)"]


def features(synthetic: SimpleNamespace, *those: tuple[str, bool]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for ranks in (2, 4):
            for strategy, trained in those:
                training = {"features": trained}
                spec = synthetic.make_spec(strategy, "tiny", {"p": ranks}, training=training)
                synthetic.write_quoted(folder, spec, 1.0, "predicted")

    return write


def test_strategies_that_train_features_stand_beside_those_that_do_not(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 8 of Plexus, whose rivals keep their features fixed: its curves say which do what."""
    folder = collected(features(synthetic, ("plexus", True), ("bns-gcn", False)))
    (panel,) = split_panels(read_collected(folder, "runs"))
    labels = ["plexus (features trained) predicted", "bns-gcn (fixed features) predicted"]
    assert [curve.label for curve in panel.curves] == labels
    assert panel.title == "tiny"


def test_a_strategy_with_trained_and_with_fixed_features_divides_its_panel(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    folder = collected(features(synthetic, ("plexus", True), ("plexus", False), ("bns-gcn", False)))
    found = split_panels(read_collected(folder, "runs"))
    assert sorted(panel.title for panel in found) == ["tiny, features trained", "tiny, fixed features"]


def quoted(synthetic: SimpleNamespace, strategies: tuple[str, ...], machines: tuple[str, ...]) -> Any:
    def write(folder: Path) -> None:
        for name in strategies:
            for machine in machines:
                for graph in ("reddit", "roads"):
                    for ranks in (2, 4):
                        spec = synthetic.make_spec(name, graph, {"p": ranks}, machine={"name": machine})
                        synthetic.write_quoted(folder, spec, 1.0, "predicted")

    return write


def test_a_strategy_that_is_alone_has_a_curve_for_each_graph(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 10 of Plexus: axes for each machine, a line for each graph, and a graph has one look in all."""
    runs = read_collected(collected(quoted(synthetic, ("plexus",), ("frontier", "perlmutter"))), "runs")
    found = split_with_graph_curves(runs)
    assert [panel.title for panel in found] == ["on frontier", "on perlmutter"]
    for panel in found:
        assert [curve.label for curve in panel.curves] == ["reddit predicted", "roads predicted"]
    one, other = ([curve.look for curve in panel.curves] for panel in found)
    assert one == other and len(set(one)) == 2
    drawn = [run for panel in found for curve in panel.curves for run in curve.runs.run_id]
    assert sorted(drawn) == sorted(runs.run_id)


def test_two_strategies_have_axes_for_each_graph(synthetic: SimpleNamespace, collected: Collected) -> None:
    runs = read_collected(collected(quoted(synthetic, ("plexus", "rdm"), ("frontier",))), "runs")
    assert [panel.title for panel in split_with_graph_curves(runs)] == ["reddit", "roads"]


def bulks(synthetic: SimpleNamespace, places: tuple[tuple[int, int], ...]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for ranks, bulk in places:
            strategy = {"name": "bulk-sage", "params": {"bulk": bulk, "fanout": 3}}
            synthetic.write_quoted(
                folder, synthetic.make_spec(strategy, "tiny", {"p": ranks}), 1.0, "predicted"
            )

    return write


def test_a_parameter_that_follows_the_ranks_makes_one_curve(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 4 of matrix-based sampling: the bulk is the largest that fits at each number of devices."""
    (panel,) = split_panels(read_collected(collected(bulks(synthetic, ((4, 49), (8, 25), (16, 13)))), "runs"))
    (curve,) = panel.curves
    assert curve.label == "bulk-sage (bulk by ranks) predicted"
    assert list(curve.summarize_launches("ranks", EPOCH).ranks) == [4, 8, 16]


def test_parameters_that_share_a_number_of_ranks_stay_apart(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    (panel,) = split_panels(read_collected(collected(bulks(synthetic, ((4, 49), (4, 25), (16, 13)))), "runs"))
    assert len(panel.curves) == 3


def test_runs_that_never_took_place_are_not_drawn(runs: pd.DataFrame) -> None:
    assert split_panels(runs.assign(status="missing")) == []


def test_a_title_says_what_differs_and_the_note_says_the_rest_once(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    full = {"projection": True, "norm": True, "residual": True, "dropout": 0.2}

    def write(folder: Path) -> None:
        for layers, parts in ((1, {}), (3, full), (3, {"norm": True})):
            model = {"hidden": 16, "layers": layers, **parts}
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, model=model)
            synthetic.write_quoted(folder, spec, 1.0, "measured")

    found = split_panels(read_collected(collected(write), "runs"))
    one = title_panels(found)
    assert sorted(one.titles) == ["1 layer, bare", "3 layers, full", "3 layers, norm"]
    assert one.note.startswith("tiny, gcn, hidden 16, float32, on local; bare: ")
    assert title_panels(found[:1]).titles == [""], "a panel alone differs from nothing"
    assert "1 layer" in title_panels(found[:1]).note


def test_graphs_are_named_in_titles_only_where_there_are_several(runs: pd.DataFrame) -> None:
    found = split_panels(runs)
    assert title_panels(found).titles == ["isolate-3-8m", "products-14m"]
    assert "products-14m" not in title_panels(found).note
    assert title_panels(found[1:]).note.startswith("products-14m, gcn, 3 layers, hidden 128")


def test_panels_of_a_paper_come_before_those_of_runs_made_here(runs: pd.DataFrame) -> None:
    printed = runs.source == "published"
    assert printed.any()
    here = runs[runs.source == "measured"].assign(**{"dataset.name": "tiny-sbm"})
    panels = split_panels(pd.concat([here, runs[printed]]))
    assert [panel.dataset for panel in panels] == ["tiny-sbm", "products-14m"]
    assert [panel.dataset for panel in put_paper_first(panels)] == ["products-14m", "tiny-sbm"]
