"""Runs of several places in one collection: each row names its place, and figures compare machines."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.report.figures.kinds import strong_scaling
from harness.report.figures.panels import EPOCH
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.spec.machine_card import Machine

pytestmark = pytest.mark.long

MACHINES = ("perlmutter", "frontier", "tuolumne")


@pytest.fixture
def places(synthetic: SimpleNamespace, tmp_path: Path) -> list[Path]:
    """The runs of ScaleGNN's figure 7 as three clusters would leave them, and a folder of run folders for each."""
    for number, name in enumerate(MACHINES):
        machine = Machine(name=name, description="")
        for ranks in (32, 64, 128):
            spec = synthetic.make_spec(
                "plexus", "products-14m", {"x": ranks, "y": 1, "z": 1}, machine=machine
            )
            synthetic.write_ok(tmp_path / name, spec, (2.0 + number) / ranks)
    return [tmp_path / name for name in MACHINES]


def test_every_row_names_its_place(places: list[Path], tmp_path: Path) -> None:
    runs = collect(places, tmp_path / "tables").runs
    assert dict(zip(runs["machine.name"], map(Path, runs.origin), strict=True)) == dict(
        zip(MACHINES, places, strict=True)
    )
    assert (collect(places[0], tmp_path / "one").runs.origin == "").all()


def test_a_figure_has_a_panel_for_each_machine(places: list[Path], tmp_path: Path) -> None:
    collect(places, tmp_path / "tables")
    panels = strong_scaling.KIND.split_panels(read_collected(tmp_path / "tables", "runs"))
    assert sorted(panel.setting for panel in panels) == sorted(f"on {name}" for name in MACHINES)
    for panel in panels:
        (curve,) = panel.curves
        assert list(curve.summarize_launches("ranks", EPOCH).ranks) == [32, 64, 128]


def test_a_run_of_two_places_is_taken_from_the_first(
    synthetic: SimpleNamespace, places: list[Path], tmp_path: Path
) -> None:
    spec = synthetic.make_spec("serial", "products-14m", {"p": 1})
    for place in places[1:]:
        synthetic.write_ok(place, spec, 1.0)
    runs = collect(places, tmp_path / "tables").runs.set_index("run_id")
    assert runs.loc[spec.run_id].origin == str(places[1])


def test_the_command_takes_several_folders_and_refuses_one_that_is_not_there(
    places: list[Path], tmp_path: Path
) -> None:
    assert main(["collect", "--runs", *map(str, places), "--out", str(tmp_path / "tables")]) == 0
    with pytest.raises(UserError, match=r"folder of runs .*nowhere does not exist"):
        collect([*places, tmp_path / "nowhere"], tmp_path / "tables")
