"""The calibration of a CPU: its constants, and updates of existing or new machine cards."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.doctor import calibrate, kernel_rates, spmm_rates
from harness.doctor.calibrate import Calibration, write_new_card
from harness.doctor.links import LinkMeasurement
from harness.runtime.provenance import describe_machine
from harness.spec.machine_card import MeasuredLink, load_machine_card

CARD = """# What a person wrote.
description: mine
device: cpu
rates:       # old
  tflops: 3

  memory_gbs: 4
threads_per_rank: 1    # kept
links: {}
"""
SECTIONS: dict[str, Any] = {"memory_gb": 80.0}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one card, `mine`."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "mine.yaml").write_text("# What a person wrote.\ndevice: cpu\n")
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return tmp_path


def test_it_writes_what_it_measured_and_keeps_the_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmm_rates, "SCALES", (6, 8))
    monkeypatch.setattr(kernel_rates, "SCALES", (6, 8))
    monkeypatch.setattr(spmm_rates, "WIDTHS", (1, 8))
    monkeypatch.setattr(kernel_rates, "KINDS", ("gcn", "sage"))
    monkeypatch.setattr(kernel_rates, "BATCHES", (16, 32))
    monkeypatch.setattr(kernel_rates, "LAYERS", ((64, 8, 8), (256, 16, 16)))
    monkeypatch.setattr(kernel_rates, "STREAMED", (1 << 10, 1 << 12))
    links = LinkMeasurement([MeasuredLink(before=1, size=2, gbs=1.5)], 200.0)
    monkeypatch.setattr(calibrate, "measure_links", lambda *_: links)
    told: list[str] = []
    done = calibrate.calibrate_machine(root, "mine", 2, told.append)
    assert told[0] == "measuring launches" and "measuring sparse products" in told
    path = root / "config" / "machines" / "mine.yaml"
    path.write_text(CARD)
    calibrate.write_sections(root, "mine", done.sections)
    text, card = path.read_text(), load_machine_card(root, "mine")
    assert text.startswith(
        "# What a person wrote.\ndescription: mine\ndevice: cpu\nthreads_per_rank: 1    # kept\n"
    )
    assert card.rates and card.links and card.links.cpu_gbs
    assert card.links.latency_us.value == 100
    assert card.links.cpu_gbs.value == 1.5
    assert card.rates.launch_us.value < 1e5
    assert card.rates.tflops.source.startswith("measured by harness doctor")
    assert card.rates.sample_ns.source.endswith("drawn by graphsage on the host")
    assert card.rates.spmm.cache_mb is None, "a CPU's cache is not known"
    assert card.memory_gb is None
    assert card.measured_on == describe_machine("cpu")
    rows = list(csv.DictReader(done.table.splitlines()))
    assert sum(row["kernel"] == "sparse" for row in rows) == 2 * 2 * 2 * 2
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_a_new_card_keeps_the_old_one_and_says_what_was_measured(root: Path) -> None:
    write_new_card(root, "mine", "h100", Calibration(SECTIONS, [], "", "NVIDIA H100"))
    card = load_machine_card(root, "h100")
    assert (card.device, card.memory_gb) == ("cpu", 80.0)
    assert card.description.startswith("NVIDIA H100, memory and links by harness doctor --calibrate, ")
    assert (root / "config" / "machines" / "mine.yaml").read_text() == "# What a person wrote.\ndevice: cpu\n"


def test_the_command_writes_a_new_card_and_all_times(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def calibrated(_root: Path, _machine: str, ranks: int, *_: object) -> Calibration:
        asked.append(ranks)
        return Calibration(SECTIONS, ["copies left out: a reason"], "kernel,seconds\n", "NVIDIA H100")

    monkeypatch.setattr(calibrate, "calibrate_machine", calibrated)
    command = ["doctor", "--calibrate", "--root", str(root), "--machine", "mine"]
    assert main([*command, "--write", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["copies left out: a reason"]
    assert load_machine_card(root, "h100").memory_gb == 80.0
    assert (root / "results" / "calibrations" / "h100.csv").read_text() == "kernel,seconds\n"
    assert main([*command, "--ranks", "4"]) == 0
    assert "Copies left out: a reason." in capsys.readouterr().out
    assert load_machine_card(root, "mine").memory_gb == 80.0
    assert asked == [2, 4]


def test_a_wrong_name_is_refused_before_anything_is_measured(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "calibrate_machine", None)
    command = ["doctor", "--calibrate", "--root", str(root), "--machine"]
    for words, refusal in (
        (["h100"], "harness doctor --calibrate --machine local-gpu --write h100"),
        (["mine", "--write", "mine"], "mine.yaml exists"),
        (["mine", "--write", "../h100"], "is not accepted"),
    ):
        assert main([*command, *words]) == 2
        assert refusal in capsys.readouterr().err
