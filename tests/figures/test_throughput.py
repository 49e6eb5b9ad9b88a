"""Throughput is over the depth of the model or the width of its features, never over ranks."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.kinds.throughput import DEPTH_KIND, WIDTH_KIND
from harness.report.figures.marks import Facet
from harness.results.parquet import read_collected

pytestmark = pytest.mark.long

Collected = Callable[[Callable[[Path], object]], Path]


def facets_of(folder: Path, kind: FigureKind) -> list[Facet]:
    return kind.make_facets(kind.split_panels(read_collected(folder, "runs")), read_tables(folder))


@pytest.mark.parametrize(("swept", "kind"), [("layers", DEPTH_KIND), ("features", WIDTH_KIND)])
def test_depths_and_widths_share_a_panel_at_the_largest_number_of_ranks(
    swept: str, kind: FigureKind, synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for strategy, ranks in (("g3", 2), ("g3", 4), ("bns-gcn", 4)):
            for value in (2, 3, 4):
                name = f"big@1-64w{value}" if swept == "features" else "big@1-64"
                layers = {"layers": value if swept == "layers" else 2}
                spec = synthetic.make_spec(strategy, name, {"p": ranks}, model=layers)
                tables = synthetic.make_tables(spec, 0.1 * value, 0.1)
                record = synthetic.make_record(spec, tables)
                record["summary"]["graph"]["features"] = value if swept == "features" else 9
                synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)

    folder = collected(write)
    (facet,) = facets_of(folder, kind)
    assert facet.title == "big@1-64"
    assert set(facet.frame.ranks) == {4}
    for curve in ("g3", "bns-gcn"):
        line = facet.frame[facet.frame.curve == curve].sort_values(swept)
        assert line[swept].tolist() == [2, 3, 4]
        assert line.vertices_per_second.is_monotonic_decreasing
        seconds = line.epoch_seconds_median
        assert line.vertices_per_second.tolist() == pytest.approx((12_000 / seconds).tolist())
    other = WIDTH_KIND if kind is DEPTH_KIND else DEPTH_KIND
    assert facets_of(folder, other) == []


def test_over_ranks_there_is_no_throughput(synthetic: SimpleNamespace, collected: Collected) -> None:
    """It would be the inverse of strong scaling."""

    def write(folder: Path) -> None:
        for ranks in (1, 2, 4):
            synthetic.write_ok(folder, synthetic.make_spec("plexus", "tiny", {"p": ranks}), 1 / ranks)

    folder = collected(write)
    assert facets_of(folder, DEPTH_KIND) == facets_of(folder, WIDTH_KIND) == []


def test_sources_are_curves_of_their_own(synthetic: SimpleNamespace, collected: Collected) -> None:
    def write(folder: Path) -> None:
        for seed, source in enumerate(("measured", "external", "predicted")):
            for layers in (2, 3):
                spec = synthetic.make_spec("bns-gcn", "tiny", {"p": 2}, seed=seed, model={"layers": layers})
                synthetic.write_ok(folder, spec, 0.1, source=source)

    (facet,) = facets_of(collected(write), DEPTH_KIND)
    assert facet.frame.curve.unique().tolist() == ["bns-gcn", "bns-gcn external", "bns-gcn predicted"]


def test_fan_outs_that_follow_the_layers_make_one_curve(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 14 of G3: DGL has a fan-out for each layer."""

    def write(folder: Path) -> None:
        for fanouts in ([25, 10], [25, 15, 10], [25, 20, 15, 10]):
            strategy = {"name": "distdgl", "params": {"fanouts": fanouts}}
            model = {"layers": len(fanouts)}
            synthetic.write_ok(folder, synthetic.make_spec(strategy, "tiny", {"p": 4}, model=model), 0.1)

    (facet,) = facets_of(collected(write), DEPTH_KIND)
    assert set(facet.frame.curve) == {"distdgl (fanouts by layers)"}
    assert sorted(facet.frame.layers) == [2, 3, 4]
    assert facet.looks["distdgl (fanouts by layers)"] == next(iter(facet.panel.looks.values()))
    assert facet.names == {"distdgl (fanouts by layers)": "distdgl (fanouts by layers)"}
