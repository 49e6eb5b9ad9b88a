"""The measurement of links: over every axis a world can have, in the words of a card, never over what people wrote."""

import os
from pathlib import Path

import pytest
import yaml

from harness.base.errors import RunError, UserError
from harness.cli import main
from harness.ledger import AxisName
from harness.prediction.calibration import links
from harness.prediction.calibration.links import (
    LinkMeasurement,
    check_network,
    list_axes,
    make_card_path,
    measure_links,
    write_card,
)
from harness.prediction.pricing import find_bandwidth, place_axis
from harness.spec.machine_card import MeasuredLink, load_machine_card

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12])
def test_every_axis_fills_the_world_with_groups(world: int) -> None:
    found = list_axes(world)
    assert len(set(found)) == len(found)
    assert all(size > 1 and world % (before * size) == 0 for before, size in found)
    assert world == 1 or (1, world) in found


def test_smallest_calls_over_nccl_give_a_floor_and_latencies(tmp_path: Path) -> None:
    """The predicted time of the smallest all-reduce on each axis is the one that was measured."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    lines = "device: cuda\nengine: nccl\nslurm: {ranks_per_node: 4}\n"
    (tmp_path / "config" / "machines" / "mine.yaml").write_text(lines)
    axes = {(1, 2): 40 + 4, (1, 4): 40 + 8, (1, 8): 40 + 8 + 20, (2, 4): 40 + 4 + 20, (4, 4): 40 + 40}
    rows = [MeasuredLink(before=before, size=size, gbs=1.0) for before, size in axes]
    write_card(tmp_path, "mine", "fitted", LinkMeasurement(rows, 80.0, None, tuple(axes.values())))
    links = load_machine_card(tmp_path, "fitted").links
    assert links and links.call_us
    found = [links.call_us.value, links.intra_latency_us.value, links.latency_us.value]
    assert found == pytest.approx([40, 2, 10], rel=1e-3)


def test_predictions_take_from_the_written_card_what_was_measured(tmp_path: Path) -> None:
    """Whatever the order in which the rows came."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "mine.yaml").write_text("device: cpu\nslurm: {ranks_per_node: 2}\n")
    rows = [
        MeasuredLink(before=before, size=size, gbs=1 / (before + 2 * size)) for before, size in list_axes(8)
    ]
    write_card(tmp_path, "mine", "mine-measured", LinkMeasurement(rows[::-1], 12.34))
    card = load_machine_card(tmp_path, "mine-measured")
    assert card.links and card.slurm
    assert card.links.latency_us.value == pytest.approx(12.34 / 14, rel=1e-3)
    for row in rows:
        axis = place_axis({AxisName.X: row.size, AxisName.Y: row.before}, "x", card.links)
        assert find_bandwidth(card.links, axis) == pytest.approx(row.gbs, rel=1e-3)
    with pytest.raises(UserError, match=r"--write mine: .*exists"):
        write_card(tmp_path, "mine", "mine", LinkMeasurement(rows, 1.0))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../mine", "a/b", "/tmp/mine", ".mine", "-mine", "a card", "a\nb", "a\0b", "m" * 101],
)
def test_a_card_is_written_only_under_a_name_of_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is refused before anything is measured."""
    folder = tmp_path / "config" / "machines"
    folder.mkdir(parents=True)
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    (folder / "local.yaml").write_text("device: cpu\n")
    with pytest.raises(UserError, match=r"--write .* is not accepted: a name begins with a letter"):
        make_card_path(tmp_path, name)
    monkeypatch.setattr("harness.prediction.calibration.links.measure_links", None)
    for asked, refusal in ((name, "is not accepted"), ("local", "local.yaml exists")):
        assert main(["doctor", "--links", "--root", str(tmp_path), f"--write={asked}"]) == 2
        assert refusal in capsys.readouterr().err
    assert main(["doctor", "--root", str(tmp_path), f"--write={name}"]) == 2
    assert "together with --links" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [folder / "local.yaml"]


def test_links_over_another_network_than_the_cards_are_refused() -> None:
    card = load_machine_card(ROOT, "perlmutter")
    for fine in ((4, "Socket"), (8, "AWS Libfabric"), (8, None)):
        check_network(card, *fine)
    with pytest.raises(RunError, match=r"chose the network Socket.*perlmutter names AWS Libfabric"):
        check_network(card, 8, "Socket")
    check_network(load_machine_card(ROOT, "local"), 8, "Socket")


def test_the_network_is_asked_for_although_the_user_directs_the_log_of_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setattr("sys.argv", ["links", "--engine=nccl", f"--meeting={tmp_path}", f"--out={tmp_path}"])
    levels: list[str | None] = []

    def start(*_: object, **__: object) -> None:
        levels.append(os.environ.get("NCCL_DEBUG"))
        raise InterruptedError

    monkeypatch.setattr("harness.comm.engine.join_world", start)
    with pytest.raises(InterruptedError):
        links.main()
    assert levels == [None], "NCCL's own log can be switched on"


def test_ranks_of_this_machine_measure_their_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    measured = measure_links(ROOT, "local", 2, lambda _: None)
    assert [(row.before, row.size) for row in measured.rows] == [(1, 2)]
    assert 0 < measured.rows[0].gbs < 1000
    assert 0 < measured.latency_us < 1e6
    assert list(tmp_path.iterdir()) == []


def test_links_that_cannot_be_measured_are_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    with pytest.raises(UserError, match="at least 2 ranks"):
        measure_links(ROOT, "local", 1, lambda _: None)
    root = tmp_path / "root"
    (root / "config" / "machines").mkdir(parents=True)
    (root / "datasets" / "catalog").mkdir(parents=True)
    (root / "config" / "machines" / "gpus.yaml").write_text(
        yaml.safe_dump({"device": "cuda", "engine": "nccl"})
    )
    with pytest.raises(RunError, match="GPU"):
        measure_links(root, "gpus", 2, lambda _: None)
