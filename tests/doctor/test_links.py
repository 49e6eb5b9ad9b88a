"""The measurement of links: over every axis a world can have, in the words of a card, never over what people wrote."""

from pathlib import Path

import pytest
import yaml

from harness.cost.epoch import bandwidth
from harness.doctor.card import Measured, measure, write_card
from harness.doctor.links import axes
from harness.errors import RunError, UserError
from harness.spec.machine import MeasuredLink, load_machine_card

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12])
def test_every_axis_fills_the_world_with_groups(world: int) -> None:
    found = axes(world)
    assert len(set(found)) == len(found)
    assert all(size > 1 and world % (before * size) == 0 for before, size in found)
    assert world == 1 or (1, world) in found


def test_predictions_take_from_the_written_card_what_was_measured(tmp_path: Path) -> None:
    """Whatever the order in which the rows came."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "mine.yaml").write_text("device: cpu\nslurm: {ranks_per_node: 2}\n")
    rows = [MeasuredLink(before=before, size=size, gbs=1 / (before + 2 * size)) for before, size in axes(8)]
    write_card(tmp_path, "mine", "mine-measured", Measured(rows[::-1], 12.34))
    card = load_machine_card(tmp_path, "mine-measured")
    assert card.links and card.slurm
    assert card.links.latency_us == 12.3
    for row in rows:
        assert bandwidth(card.links, row.before, row.size) == pytest.approx(row.gbs, rel=1e-3)
    with pytest.raises(UserError, match="exists"):
        write_card(tmp_path, "mine", "mine", Measured(rows, 1.0))


def test_ranks_of_this_machine_measure_their_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    measured = measure(ROOT, "local", 2, lambda _: None)
    assert [(row.before, row.size) for row in measured.rows] == [(1, 2)]
    assert 0 < measured.rows[0].gbs < 1000
    assert 0 < measured.latency_us < 1e6
    assert list(tmp_path.iterdir()) == []


def test_who_cannot_measure_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    with pytest.raises(UserError, match="two ranks"):
        measure(ROOT, "local", 1, lambda _: None)
    root = tmp_path / "root"
    (root / "config" / "machines").mkdir(parents=True)
    (root / "datasets" / "catalog").mkdir(parents=True)
    (root / "config" / "machines" / "gpus.yaml").write_text(
        yaml.safe_dump({"device": "cuda", "engine": "nccl"})
    )
    with pytest.raises(RunError, match="GPU"):
        measure(root, "gpus", 2, lambda _: None)
